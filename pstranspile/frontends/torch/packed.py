"""Packed sequences (`torch.nn.utils.rnn`) of an exported step: recurrent layers that take the padded tensor as a whole.

How many elements a packed sequence has depends on the lengths, step by step, which torch can't export. Here what is
packed is known as a padded tensor [steps, rows, ...] with a flag for each step of a row that is within its length.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

from pstranspile.frontends.torch.refusals import CALLED, user_line
from pstranspile.ir.diagnostics import DiagnosticError, error

NAMESPACE = "pstranspile"
"""The namespace of the operators that `_operators` defines."""

_RESULTS = {"lstm": 3, "gru": 2, "rnn_tanh": 2, "rnn_relu": 2}
"""How many tensors each kind of recurrent layer gives: the outputs of all steps, then its last states."""

_TAKES = (
    "Tensor x, Tensor inside, Tensor[] starts, Tensor[] weights, bool biased, int layers, float rate, bool training, "
    "bool both_ways"
)


@contextmanager
def noted_packs(torch: Any) -> Generator[list[str]]:
    """A list that has an element for each sequence that is packed inside the block."""
    found: list[str] = []
    rnn = torch.nn.utils.rnn
    before = rnn._VF

    def pack(*arguments: Any) -> Any:
        found.append("packed")
        return before._pack_padded_sequence(*arguments)

    rnn._VF = _packing(pack, before._pad_packed_sequence)
    try:
        yield found
    finally:
        rnn._VF = before


def _packing(pack: Callable[..., Any], pad: Callable[..., Any]) -> SimpleNamespace:
    """The two functions that torch packs and pads by."""
    return SimpleNamespace(_pack_padded_sequence=pack, _pad_packed_sequence=pad)


@contextmanager
def whole_sequences(torch: Any) -> Generator[None]:
    """Has packed sequences keep the padded tensor that they are of inside the block, and recurrent layers take it.

    Lengths that the code makes a list or an array of stay a tensor, as packing takes either.
    """
    fakes = import_module("torch._subclasses.fake_tensor")
    functional = import_module("torch._subclasses.functional_tensor")
    rnn = torch.nn.utils.rnn
    packing, sequences = rnn._VF, _Sequences(torch)
    layers = {kind: kind.forward for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN)}
    rnn._VF = _packing(sequences.pack, sequences.pad)
    for kind, forward in layers.items():
        kind.forward = _forward_of(torch, forward, sequences)
    tensors = (torch.Tensor, fakes.FakeTensor, functional.FunctionalTensor)
    makers = [(kind, name, getattr(kind, name)) for kind in tensors for name in ("tolist", "numpy")]
    inherited = [(kind, name) for kind, name, _ in makers if name not in kind.__dict__]
    for kind, name, made in makers:
        setattr(kind, name, _keep_lengths(made))
    try:
        yield
    finally:
        rnn._VF = packing
        for kind, name, made in makers:
            setattr(kind, name, made)
        for kind, name in inherited:
            delattr(kind, name)
        for kind, forward in layers.items():
            kind.forward = forward


def _keep_lengths(made: Callable[..., Any]) -> Callable[..., Any]:
    """A conversion of tensors that leaves a one-dimensional tensor of whole numbers as it is."""

    def of_tensor(tensor: Any, *arguments: Any, **named: Any) -> Any:
        is_lengths = tensor.dim() == 1 and not tensor.dtype.is_floating_point
        return tensor if is_lengths else made(tensor, *arguments, **named)

    return of_tensor


def _forward_of(torch: Any, forward: Callable[..., Any], sequences: _Sequences) -> Callable[..., Any]:
    """The `forward` of a recurrent layer that takes packed sequences as a whole."""

    def of_layer(layer: Any, input: Any, hx: Any = None) -> Any:
        if not isinstance(input, torch.nn.utils.rnn.PackedSequence):
            return forward(layer, input, hx)
        return sequences.through(layer, input, hx)

    return of_layer


class _Packed(NamedTuple):
    """What is known of the `batch_sizes` of a packed sequence."""

    sizes: Any
    inside: Any
    """Flags [steps, rows]: whether a step of a row is within its length."""
    steps: Any
    """The steps that any row has."""


class _Sequences:
    """Packed sequences by their tensors `data` and `batch_sizes`."""

    def __init__(self, torch: Any):
        self._torch = torch
        self._packed: list[_Packed] = []
        self._padded: list[tuple[Any, Any]] = []

    def pack(self, x: Any, lengths: Any, batch_first: bool) -> tuple[Any, Any]:
        """The elements within the lengths, step by step, and how many rows each step has."""
        x = x.transpose(0, 1) if batch_first else x
        inside = self._torch.arange(x.shape[0], device=lengths.device).unsqueeze(1) < lengths.unsqueeze(0)
        counts = inside.sum(1)
        steps = (counts > 0).nonzero().squeeze(1)
        sizes = counts.index_select(0, steps)
        self._packed.append(_Packed(sizes, inside, steps))
        return self._elements(x, inside), sizes

    def _elements(self, padded: Any, inside: Any) -> Any:
        """The packed elements of a padded tensor, which is known from then on by them."""
        data = padded[inside]
        self._padded.append((data, padded))
        return data

    def _whole(self, data: Any, sizes: Any) -> tuple[Any, _Packed]:
        """The padded tensor of a packed sequence. Raises DiagnosticError (`torch-op`) if `sizes` isn't of one."""
        packed = next((one for one in self._packed if one.sizes is sizes), None)
        if packed is None:
            message = (
                "the packed sequence has other batch_sizes than pack_padded_sequence gives, which is not translated"
            )
            raise DiagnosticError(
                [error("torch-op", message, user_line("".join(traceback.format_stack())), notes=[CALLED])]
            )
        padded = next((whole for one, whole in self._padded if one is data), None)
        if padded is None:  # elements that the user's code has computed
            inside = packed.inside
            places = (inside.flatten().to(self._torch.int64).cumsum(0) - 1).clamp(min=0)
            padded = data.index_select(0, places).reshape(*inside.shape, *data.shape[1:])
        return padded, packed

    def pad(self, data: Any, sizes: Any, batch_first: bool, value: float, length: Any) -> tuple[Any, Any]:
        """The elements with `value` where a row has none, up to the longest row or to `length`; and the lengths."""
        torch = self._torch
        padded, packed = self._whole(data, sizes)
        flags = packed.inside.reshape(*packed.inside.shape, *[1] * (padded.dim() - 2))
        made = torch.where(flags, padded, torch.full((), value, dtype=padded.dtype, device=padded.device))
        if length is sizes.shape[0] or not isinstance(length, int):
            made = made.index_select(0, packed.steps)
        else:
            missing = length - made.shape[0]
            around = [0, 0] * (made.dim() - 1)
            made = made[:length] if missing <= 0 else torch.constant_pad_nd(made, [*around, 0, missing], value)
        return made.transpose(0, 1) if batch_first else made, packed.inside.sum(0)

    def through(self, layer: Any, given: Any, hx: Any) -> tuple[Any, Any]:
        """What a recurrent layer makes of a packed sequence: a packed sequence, and its last states."""
        data, sizes, order, back = given
        x, packed = self._whole(data, sizes)
        is_long = layer.mode == "LSTM"
        if hx is None:
            count, rows = layer.num_layers * (2 if layer.bidirectional else 1), packed.inside.shape[1]
            widths = [layer.proj_size or layer.hidden_size, *([layer.hidden_size] if is_long else [])]
            starts = [self._torch.zeros(count, rows, width, dtype=x.dtype, device=x.device) for width in widths]
        else:
            hx = layer.permute_hidden(hx, order)
            starts = [*hx] if is_long else [hx]
        layer._update_flat_weights()
        weights, ways = layer._flat_weights, layer.bidirectional
        through = _operators(self._torch)[layer.mode.lower()]
        outputs, *ends = through(
            x, packed.inside, starts, weights, layer.bias, layer.num_layers, layer.dropout, layer.training, ways
        )
        made = type(given)(self._elements(outputs, packed.inside), sizes, order, back)
        return made, layer.permute_hidden((*ends,) if is_long else ends[0], back)


@cache
def _operators(torch: Any) -> dict[str, Any]:
    """Operators of recurrent layers over padded sequences, which stand in exported graphs. Torch knows the dims of what
    they make, and nothing more.
    """
    made = torch.library.Library(NAMESPACE, "FRAGMENT")
    result: dict[str, Any] = {}
    for kind, count in _RESULTS.items():
        name = f"packed_{kind}"
        made.define(f"{name}({_TAKES}) -> ({', '.join(['Tensor'] * count)})")
        torch.library.register_fake(f"{NAMESPACE}::{name}", _fake_outputs, lib=made)
        result[kind] = getattr(getattr(torch.ops, NAMESPACE), name).default
    _LIBRARIES.append(made)
    return result


_LIBRARIES: list[Any] = []
"""What `_operators` has defined, which torch forgets with its object."""


def _fake_outputs(
    x: Any,
    _inside: Any,
    starts: Sequence[Any],
    _weights: Sequence[Any],
    _biased: bool,
    _layers: int,
    _rate: float,
    _training: bool,
    both_ways: bool,
) -> tuple[Any, ...]:
    width = starts[0].shape[-1] * (2 if both_ways else 1)
    return (x.new_empty((*x.shape[:2], width)), *(one.new_empty(one.shape) for one in starts))
