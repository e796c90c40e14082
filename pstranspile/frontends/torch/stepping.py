"""A model with its loss as one op of a program, which calls torch for the loss and all gradients."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple, cast

import numpy as np

from pstranspile.frontends.torch.capture import Loss, batch_names, step_of, tensors_of, torch_library
from pstranspile.ir.diagnostics import DiagnosticError, Note, error, name_list
from pstranspile.ir.model import Location
from pstranspile.ir.user_warnings import warn, warn_at
from pstranspile.runtime.files.python_file import calling
from pstranspile.runtime.kernels.programs.modules import HERE, Given, Made, hold
from pstranspile.runtime.values import Array, SelectedRows

_PREFIX = "model."
"""The prefix of the model's parameters in the module of a step."""

_SOURCES = count(1)


LIMITED_ROWS = Note("max_norm writes into the table as rows are looked up; scale the rows that are looked up instead")
"""What is said of an embedding that limits the norm of its rows."""


class Shared(NamedTuple):
    """The names of a model's parameters and buffers, by their use in a step."""

    parameters: tuple[str, ...]
    """Trained parameters with dense gradients."""
    tables: tuple[str, ...]
    """Trained parameters with gradients of sparse rows."""
    fixed: tuple[str, ...]
    """Parameters that are not trained, and buffers, that a step does not change."""
    buffers: tuple[str, ...]
    """Buffers that a step changes, and parameters that are not trained and that it changes."""


class TorchStep:
    """Calls a model with its loss, and computes the gradients.

    `location` is the line of the user's function that gives the loss.
    """

    def __init__(self, model: Any, batch: Any, loss: Loss | None, parts: int):
        torch = torch_library()
        self._model = model
        self.inputs = tuple(batch_names(model, batch, loss))
        self._module = step_of(torch, model, loss, list(self.inputs) if isinstance(batch, Mapping) else None, parts)
        called: Any = loss if loss is not None else cast("Any", type(model)).forward
        code: Any = getattr(called, "__code__", None)
        self.location = None if code is None else Location(code.co_filename, code.co_firstlineno)
        self.shared = Shared((), (), (), ())
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._learn(batch)
        self.source = f"{HERE}{next(_SOURCES)}"
        hold(self.source, self)

    def _learn(self, batch: Any) -> None:
        """Sets `shared` and the shapes from a trial step that leaves the model unchanged. Raises DiagnosticError."""
        torch = torch_library()
        parameters = dict(self._model.named_parameters())
        buffers = dict(self._model.named_buffers())
        self._shapes = {name: tuple(tensor.shape) for name, tensor in (*parameters.items(), *buffers.items())}
        trained = {name: tensor.detach().clone() for name, tensor in parameters.items() if tensor.requires_grad}
        rest = {name: tensor.detach().clone() for name, tensor in parameters.items() if name not in trained}
        kept = {name: tensor.detach().clone() for name, tensor in buffers.items()}
        states = _random_states(torch)
        start = {**parameters, **buffers}
        _, gradients, after = self._compute_step(
            trained, {**rest, **kept}, [t.detach().clone() for t in tensors_of(batch)]
        )
        if any(not torch.equal(one, other) for one, other in zip(states, _random_states(torch), strict=True)):
            raise self._drawing()
        sparse = {name for name, gradient in gradients.items() if gradient is not None and gradient.is_sparse}
        sparse |= {name for name in _sparse_tables(torch, self._model) if gradients.get(name) is None}
        self._tell_unused([name for name, gradient in gradients.items() if gradient is None and name not in sparse])
        changed = [name for name in after if after[name]._version or not torch.equal(start[name], after[name])]
        self.shared = Shared(
            tuple(name for name in trained if name not in sparse),
            tuple(name for name in trained if name in sparse),
            tuple(name for name in (*rest, *kept) if name not in changed),
            tuple(changed),
        )

    def _tell_unused(self, names: Sequence[str]) -> None:
        """Warns of trained parameters that the batch does not use: their updates differ from those of torch."""
        if names:
            message = (
                f"the loss of this batch does not use {name_list(names)}: torch leaves such a parameter as it is, and "
                "here it is updated by a gradient of zeros, so that weight decay and moments still change it; what no "
                "step uses stays as it is after requires_grad_(False)"
            )
            if self.location is None:
                warn(message)
            else:
                warn_at(message, self.location.file, self.location.line)

    def _drawing(self) -> DiagnosticError:
        """The error for a model that draws random numbers, which would differ between processes."""
        dropouts = [
            name
            for name, module in self._model.named_modules()
            if "Dropout" in type(module).__name__ and module.training and getattr(module, "p", 0)
        ]
        message = "the step draws random numbers, which would be others on each machine and in each run"
        notes = [Note(f"dropout: {name_list(dropouts)}; p=0, or .eval() of these modules, has them draw none")]
        more = Note('without step="torch", dropout is translated: each row draws what it draws on one machine')
        found = error("torch-random", message, self.location, notes=[*(notes if dropouts else []), more])
        return DiagnosticError([found])

    def _compute_step(
        self, trained: Mapping[str, Any], others: Mapping[str, Any], batch: Sequence[Any]
    ) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """The loss, the gradient of each trained tensor (None where it has none), and the other tensors after the step.

        Raises DiagnosticError at the user's line if the model raises an exception.
        """
        torch = torch_library()
        leaves = {name: tensor.requires_grad_() for name, tensor in trained.items()}
        held = {f"{_PREFIX}{name}": tensor for name, tensor in (*leaves.items(), *others.items())}

        def call() -> Any:
            with torch.enable_grad(), _same_tensors(self._module):
                made = torch.func.functional_call(self._module, held, tuple(batch))
                if not hasattr(made, "backward") or made.numel() != 1 or not made.requires_grad:
                    raise DiagnosticError([self._no_loss(made)])
                made.reshape(()).backward()
                return made.detach()

        loss = calling(self.location.file if self.location is not None else "the model", call)
        if written := [name for name, leaf in leaves.items() if leaf._version]:
            raise DiagnosticError([self._writes(written[0])])
        after = {name: held[f"{_PREFIX}{name}"].detach() for name in others}
        return loss, {name: leaf.grad for name, leaf in leaves.items()}, after

    def _writes(self, name: str) -> Any:
        """The error for a step that writes into a trained parameter."""
        message = f"the step writes into the parameter {name}, which the optimizer alone updates in a program"
        owner = self._model.get_submodule(name.rpartition(".")[0])
        notes = [LIMITED_ROWS] if getattr(owner, "max_norm", None) is not None else []
        return error("torch-op", message, self.location, notes=notes)

    def _require_unchanged(self, names: Iterable[str], before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Raises DiagnosticError if a step changes a tensor that it did not change when it was traced."""
        for name in names:
            if after[name]._version or after[name].data_ptr() != before[name].data_ptr():
                message = (
                    f"the step writes into {name}, which the step that trace made did not; its value would be lost"
                )
                raise DiagnosticError([error("torch-op", message, self.location)])

    def _no_loss(self, made: Any) -> Any:
        what = f"a tensor of dims {list(made.shape)}" if hasattr(made, "shape") else f"a {type(made).__name__}"
        return error("torch-loss", f"the loss is {what}; it must be one element that has a gradient", self.location)

    def __call__(self, given: Given) -> Made:
        """The loss, the gradients and the buffers of a step. Raises DiagnosticError."""
        torch = torch_library()
        self._require_same(given)
        first = next(self._model.parameters(), None)
        device = "cpu" if first is None else first.device

        def tensor(name: str, array: Any) -> Any:
            made = torch.from_numpy(np.array(array)).to(device)
            return made.reshape(self._shapes[name]) if name in self._shapes else made

        trained = {name: tensor(name, array) for name, array in (*given.parameters.items(), *given.tables.items())}
        others = {name: tensor(name, array) for name, array in (*given.fixed.items(), *given.buffers.items())}
        batch = [tensor("", given.inputs[name]) for name in self.inputs]
        loss, gradients, after = self._compute_step(trained, others, batch)
        self._require_unchanged(given.fixed, others, after)
        dense = [_dense(gradients[name], trained[name], given.parameters[name]) for name in given.parameters]
        rows = [_rows(gradients[name], given.tables[name]) for name in given.tables]
        kept = [_array(after[name]).reshape(np.shape(given.buffers[name])) for name in given.buffers]
        return Made(_array(loss).reshape(1), dense, rows, kept)

    def _require_same(self, given: Given) -> None:
        """Raises DiagnosticError if the program was made from another model: its names of tensors differ."""
        own = {*self.shared.parameters, *self.shared.tables, *self.shared.fixed, *self.shared.buffers}
        there = {*given.parameters, *given.tables, *given.fixed, *given.buffers}
        if own != there or {*given.inputs} != {*self.inputs}:
            apart = sorted(own ^ there) or sorted({*given.inputs} ^ {*self.inputs})
            message = f"the program was made of another model than {self.source} gives: {apart[0]} is in one of them"
            raise DiagnosticError([error("torch-source", message, self.location)])


@contextmanager
def _same_tensors(module: Any) -> Generator[None]:
    """Has modules hold the same tensors after the block. `functional_call` leaves those that it was given in a module
    that stands in several places.
    """
    held = [kept for one in module.modules() for kept in (one._parameters, one._buffers)]
    before = [dict(kept) for kept in held]
    try:
        yield
    finally:
        for kept, tensors in zip(held, before, strict=True):
            kept.update(tensors)


def _random_states(torch: Any) -> list[Any]:
    """The states of torch's random number generators, of the CPU and of each CUDA device."""
    on_devices: list[Any] = (
        torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    )
    return [torch.random.get_rng_state(), *on_devices]


def _sparse_tables(torch: Any, model: Any) -> Iterable[str]:
    """The names of the embedding tables that have sparse gradients."""
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    weights = {id(module.weight) for module in model.modules() if isinstance(module, kinds) and module.sparse}
    return [name for name, parameter in model.named_parameters() if id(parameter) in weights]


def _array(tensor: Any) -> Array:
    return tensor.detach().cpu().numpy()


def _dense(gradient: Any, tensor: Any, like: Array) -> Array:
    """A gradient as an array of the shape and type of `like`; zeros for a parameter that the step does not use."""
    if gradient is None:
        return np.zeros_like(like)
    return (
        _array(gradient.to_dense() if gradient.is_sparse else gradient)
        .astype(like.dtype, copy=False)
        .reshape(like.shape)
    )


def _rows(gradient: Any, like: Array) -> SelectedRows:
    """A gradient as sparse rows, each at most once; no rows for a table that the step does not use."""
    if gradient is None:
        return SelectedRows(np.zeros(0, "int64"), np.zeros((0, *like.shape[1:]), like.dtype), len(like))
    if not gradient.is_sparse:
        return SelectedRows(np.arange(len(like), dtype="int64"), _array(gradient).reshape(like.shape), len(like))
    merged = gradient.coalesce()
    return SelectedRows(_array(merged.indices())[0], _array(merged.values()), len(like))
