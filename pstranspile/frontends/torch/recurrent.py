"""LSTM, GRU and plain recurrent layers as static recurrences; input products are computed for all steps at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pstranspile.frontends.layers.basic import unary
from pstranspile.frontends.layers.draft import Refused, Value
from pstranspile.frontends.layers.loops import StaticRNN
from pstranspile.frontends.layers.tensor import matmul, split
from pstranspile.frontends.onnx.read_tensors import FAR, reshape, sizes_of, transpose
from pstranspile.frontends.torch.networks import append_dropout
from pstranspile.frontends.torch.tracing import Tracing, aten


class _Weights(NamedTuple):
    """The variables of a layer's weights in one direction: input and state weights, their biases ("" for none), and
    the weights that project the state ("" for none).
    """

    entering: str
    kept: str
    entering_bias: str = ""
    kept_bias: str = ""
    projection: str = ""


class _Inside(NamedTuple):
    """Numbers [steps, rows, 1] that tell the steps within the length of a row: 1 there, else 0; and the opposite."""

    here: str
    gone: str


@aten("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input")
def _of_all_steps(node: Any, tracing: Tracing, out: str) -> None:
    kind = node.target.__name__.split(".")[0]
    x, start, *arguments = node.args
    _recurrent(kind, node, tracing.value(x), [*start] if kind == "lstm" else [start], arguments, None, tracing, out)


@aten("packed_lstm", "packed_gru", "packed_rnn_tanh", "packed_rnn_relu")
def _of_packed(node: Any, tracing: Tracing, out: str) -> None:
    """A recurrent layer of packed sequences, by the operators of `packed`."""
    kind = node.target.__name__.split(".")[0].removeprefix("packed_")
    x, flags, starts, *arguments = node.args
    value = tracing.value(x)
    numbers = tracing.as_type(tracing.value(flags), tracing.dtype(value))
    here = tracing.op_result("unsqueeze2", out, {"axes": [2]}, X=numbers)
    inside = _Inside(here, tracing.scaled(here, -1.0, 1.0))
    tracing.draft.stop_gradient.update((numbers, *inside))
    _recurrent(kind, node, value, starts, [*arguments, False], inside, tracing, out)


def _recurrent(
    kind: str,
    node: Any,
    value: str,
    start: Sequence[Any],
    arguments: Sequence[Any],
    inside: _Inside | None,
    tracing: Tracing,
    out: str,
) -> None:
    """Reads the layers of a node, of the steps `inside` only if given."""
    listed, biased, layers, rate, training, both_ways, rows_first = arguments
    starts = [tracing.value(one) for one in start]
    each, ways = 4 if biased else 2, 2 if both_ways else 1
    names = [tracing.value(one) for one in listed]
    size = len(names) // (layers * ways)
    parts = [names[at : at + size] for at in range(0, len(names), size)]
    weights = [_Weights(*part[:each])._replace(projection="".join(part[each:])) for part in parts]
    if len(tracing.dims(value)) != 3:
        raise Refused("it has no dim of rows")
    if rows_first:
        transpose(value, turned := tracing.temp(value), [1, 0, 2], tracing)
        value = turned
    lasts: list[list[str]] = []
    for layer in range(layers):
        if layer and rate and training:
            value = append_dropout(value, float(rate), tracing)
        made: list[str] = []
        for way in range(ways):
            at = layer * ways + way
            begins = [_of_layer(one, at, tracing) for one in starts]
            outputs, ends = _direction(kind, value, begins, weights[at], bool(way), inside, out, tracing)
            made.append(outputs)
            lasts.append(ends)
        value = made[0] if ways == 1 else tracing.op_result("concat", out, {"axis": 2}, X=made)
    if rows_first:
        transpose(value, turned := tracing.temp(out), [1, 0, 2], tracing)
        value = turned
    states = [_concat_states([ends[which] for ends in lasts], out, tracing) for which in range(len(starts))]
    tracing.parts[node.name] = [value, *states]


def _of_layer(start: str, at: int, tracing: Tracing) -> str:
    """The initial state [rows, width] of layer `at`, a slice of the states [layers, rows, width] of all layers."""
    attrs = {"axes": [0], "decrease_axis": [0], "starts": [at], "ends": [at + 1]}
    return tracing.op_result("slice", start, attrs, Input=start)


def _concat_states(parts: list[str], of: str, tracing: Tracing) -> str:
    return parts[0] if len(parts) == 1 else tracing.op_result("concat", of, {"axis": 0}, X=parts)


def _direction(
    kind: str,
    x: str,
    starts: Sequence[str],
    weights: _Weights,
    backwards: bool,
    inside: _Inside | None,
    of: str,
    tracing: Tracing,
) -> tuple[str, list[str]]:
    """A layer in one direction: its outputs [steps, rows, width], and its final states [1, rows, width] each.

    The bias of the state is added for all steps at once, except in a GRU, which multiplies it by its reset gate.
    Steps that are not `inside` keep the states before them.
    """
    if backwards:
        x = tracing.op_result("reverse", x, {"axis": [0]}, X=x)
        inside = inside and _Inside(*(tracing.op_result("reverse", one, {"axis": [0]}, X=one) for one in inside))
    sizes = sizes_of(x, tracing)
    reshape(x, rows := tracing.temp(x), [-1, sizes[2]], tracing)
    entering = tracing.op_result("matmul", of, {"transpose_Y": True}, X=rows, Y=weights.entering)
    outside = [weights.entering_bias, *([] if kind == "gru" else [weights.kept_bias])]
    for bias in filter(None, outside):
        entering = tracing.op_result("elementwise_add", of, X=entering, Y=bias)
    reshape(entering, steps := tracing.temp(of), [*sizes[:2], tracing.dims(weights.entering)[0]], tracing)
    draft = tracing.draft
    rnn = StaticRNN(draft)
    held = {
        name: Value(draft, tracing.name(name)) for name in (*starts, steps, *filter(None, weights), *(inside or ()))
    }
    with rnn.step():
        given = rnn.step_input(held[steps])
        shares = [rnn.step_input(held[one]) for one in inside or ()]
        before = [rnn.memory(held[start]) for start in starts]
        kept = matmul(before[0], held[weights.kept], transpose_y=True)
        if kind == "gru" and weights.kept_bias:
            kept = kept + held[weights.kept_bias]
        after = _CELLS[kind](given, kept, before)
        if weights.projection:
            after[0] = matmul(after[0], held[weights.projection], transpose_y=True)
        if shares:
            here, gone = shares
            after = [new * here + old * gone for old, new in zip(before, after, strict=True)]
        for old, new in zip(before, after, strict=True):
            rnn.update_memory(old, new)
        for new in after:
            rnn.step_output(new)
    made = [value.name for value in rnn.outputs()]
    last = {"axes": [0], "starts": [-1], "ends": [FAR]}
    ends = [tracing.op_result("slice", of, last, Input=name) for name in made]
    outputs = tracing.op_result("reverse", of, {"axis": [0]}, X=made[0]) if backwards else made[0]
    return outputs, ends


def _lstm_step(given: Value, inside: Value, before: list[Value]) -> list[Value]:
    """A step of an LSTM: its output and cell state. The blocks are input gate, forget gate, cell, output gate."""
    enter, forget, new, leave = split(given + inside, 4, dim=1)
    cell = unary("sigmoid", forget) * before[1] + unary("sigmoid", enter) * unary("tanh", new)
    return [unary("sigmoid", leave) * unary("tanh", cell), cell]


def _gru_step(given: Value, inside: Value, before: list[Value]) -> list[Value]:
    """A step of a GRU: its state. The blocks are reset gate, update gate, new value."""
    (reset_x, keep_x, new_x), (reset_h, keep_h, new_h) = split(given, 3, dim=1), split(inside, 3, dim=1)
    reset, keep = unary("sigmoid", reset_x + reset_h), unary("sigmoid", keep_x + keep_h)
    new = unary("tanh", new_x + reset * new_h)
    return [new + keep * (before[0] - new)]


_CELLS: dict[str, Callable[[Value, Value, list[Value]], list[Value]]] = {
    "lstm": _lstm_step,
    "gru": _gru_step,
    "rnn_tanh": lambda given, inside, _: [unary("tanh", given + inside)],
    "rnn_relu": lambda given, inside, _: [unary("relu", given + inside)],
}
"""The step of each kind of layer: a function of the input product, the state product, and the previous states."""
