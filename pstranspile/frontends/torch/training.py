"""A PyTorch model with its loss and its optimizer as a training program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pstranspile.frontends.autodiff.backward import append_backward
from pstranspile.frontends.autodiff.minimize import apply_gradients
from pstranspile.frontends.onnx.graph import Refused
from pstranspile.frontends.torch import elements, images, losses, networks, recurrent, tables, tensors
from pstranspile.frontends.torch.capture import Captured, Loss, captured, user_line
from pstranspile.frontends.torch.optimizers import groups_of
from pstranspile.frontends.torch.tracing import Tracing, argument, is_known, reader_of
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, error
from pstranspile.ir.model import Module
from pstranspile.ops.shapes import ShapeError
from pstranspile.runtime.run.prepared import run
from pstranspile.runtime.run.scope import Scope
from pstranspile.runtime.values import Array

_READ_BY = (elements, images, losses, networks, recurrent, tables, tensors)
"""The modules that register readers."""

_MALFORMED = (ArithmeticError, LookupError, TypeError, ValueError, AttributeError)


class Training:
    """What `trace` returns: a training program, and its state on one machine.

    `module` has the programs `@main` and `@startup`; `state` has an array for each parameter, buffer and variable of
    the optimizers, under torch's names of parameters and buffers; `loss` names the loss.
    """

    def __init__(self, module: Module, state: Mapping[str, Array], loss: str, inputs: Sequence[str]):
        self.module = module
        self.loss = loss
        self.inputs = tuple(inputs)
        self._scope = Scope()
        run(module["startup"], scope=self._scope)
        for name, array in state.items():
            self._scope[name] = array.reshape(array.shape or (1,)).copy()
        self._dims = {name: array.shape for name, array in state.items()}

    @property
    def state(self) -> dict[str, Array]:
        """Every persistable variable by its name, as arrays of torch's dims."""
        names = [var.name for var in self.module["main"].main_block.vars.values() if var.persistable]
        held = {name: self._scope.get(name) for name in names}
        return {
            name: np.array(value).reshape(self._dims.get(name, np.shape(value)))
            for name, value in held.items()
            if isinstance(value, np.ndarray)
        }

    def feeds(self, batch: Any) -> dict[str, Array]:
        """What is fed for a batch: an array for each of its tensors, by name."""
        values = batch.values() if isinstance(batch, Mapping) else batch
        named = batch if isinstance(batch, Mapping) else dict(zip(self.inputs, values, strict=True))
        return {name: _array(value) for name, value in named.items() if name in self.inputs}

    def train(self, batches: Iterable[Any]) -> list[float]:
        """Makes a step with each batch on this machine; gives the losses."""
        losses: list[float] = []
        with np.errstate(all="ignore"):
            for batch in batches:
                out = run(self.module["main"], feed=self.feeds(batch), fetch=[self.loss], scope=self._scope)
                losses.append(float(np.asarray(out[self.loss]).reshape(())))
        return losses

    def write_back(self, model: Any) -> None:
        """Puts parameters and buffers into a model of torch. Raises KeyError if it has others."""
        import torch

        state = self.state
        with torch.no_grad():
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                if name in state:
                    tensor.copy_(torch.from_numpy(np.ascontiguousarray(state[name])).reshape(tensor.shape))


def _array(value: Any) -> Array:
    made = value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
    return made.reshape(made.shape or (1,))


def trace(model: Any, batch: Any, *, loss: Loss | None = None, optimizer: Any, clip: Any = None) -> Training:
    """The training program of a PyTorch model, with its parameters and buffers as they are.

    `batch` is a tuple or a mapping of tensors whose first dim is that of rows. `loss` is called with the model and the
    tensors of a batch; None if the model gives the loss itself. `optimizer` is an optimizer of `torch.optim` over the
    model's parameters, or a list of them. Raises DiagnosticError: `torch-export` for a model that torch can't export,
    `torch-op` for every operator that is not translated, `torch-optimizer` for options that are not.
    """
    mode = model.training
    model.train() if not mode else None
    try:
        graph = captured(model, batch, loss, is_known)
    finally:
        model.train(mode) if not mode else None
    arrays = {name: _held(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    names = {id(param): name for name, param in model.named_parameters()}
    groups = groups_of(optimizer, names, clip)
    frozen = {name for name, param in model.named_parameters() if not param.requires_grad}
    tracing = translated(graph, arrays, frozen)
    name = tracing.finish_loss(tracing.names[graph.loss])
    pairs = {pair.param: pair for pair in append_backward(tracing.draft, name)}
    for group in groups:
        own = [pairs[param] for param in group.parameters if param in pairs]
        if own:
            apply_gradients(tracing.draft, own, group.optimizer, group.rate, tracing.dtype(name))
    state = {name: array for name, array in arrays.items() if tracing.draft.find(name, 0) is not None}
    state |= dict(tracing.values)
    return Training(tracing.draft.module(), state, name, list(graph.inputs.values()))


def _held(tensor: Any) -> Array:
    return tensor.detach().cpu().numpy().copy()


def translated(graph: Captured, arrays: Mapping[str, Array], frozen: set[str]) -> Tracing:
    """The forward program of a graph. Raises DiagnosticError (`torch-op`) for every operator that is not translated."""
    tracing = Tracing(graph, arrays)
    findings: list[Diagnostic] = []
    lost: set[str] = set()
    for node in graph.nodes:
        try:
            if node.op == "placeholder":
                _input(node, graph, arrays, frozen, tracing)
            elif node.op == "call_function":
                if lost.intersection(one.name for one in node.all_input_nodes):
                    lost.add(node.name)
                    continue
                _read(node, tracing)
        except (Refused, ShapeError, *_MALFORMED) as reason:
            if isinstance(reason, _MALFORMED) and not isinstance(reason, ShapeError) and _DEBUG:
                raise
            lost.add(node.name)
            location = user_line(node.meta.get("stack_trace"))
            findings.append(
                error("torch-op", f"{_title(node)}: {reason}", location, notes=[Note(f"it makes {node.name}")])
            )
    if findings:
        raise DiagnosticError(findings)
    for made, buffer in graph.changed.items():
        source = tracing.resolved(tracing.names[made])
        if source != buffer:
            tracing.op("assign", {"X": source}, {"Out": buffer})
    return tracing


_DEBUG = False


def _title(node: Any) -> str:
    return str(getattr(node.target, "name", lambda: getattr(node.target, "__name__", node.target))()).replace("::", ".")


def _input(node: Any, graph: Captured, arrays: Mapping[str, Array], frozen: set[str], tracing: Tracing) -> None:
    value = node.meta["val"]
    if node.name in graph.parameters:
        name = graph.parameters[node.name]
        if node.name not in tracing.names:
            tracing.keep(name, arrays[name], value, trained=True, frozen=name in frozen)
    elif node.name in graph.buffers:
        name = graph.buffers[node.name]
        tracing.keep(name, arrays[name], value, trained=False)
    elif node.name in graph.constants:
        name = tracing.temp("constant")
        tracing.known[name] = graph.constants[node.name].detach().cpu().numpy()
        tracing.note(name, value)
    else:
        name = graph.inputs[node.name]
        tracing.declare(name, value, fed=True)
        tracing.shape_of(value, name)
    tracing.names[node.name] = name


def _read(node: Any, tracing: Tracing) -> None:
    target = node.target
    name = getattr(target, "__name__", str(target))
    if name == "getitem":
        _part(node, tracing)
        return
    if getattr(target, "__module__", "") == "_operator":
        kind = {"mul": "Mul", "add": "Add", "sub": "Sub", "floordiv": "Div", "mod": "Mod"}.get(name)
        if kind is not None and all(not hasattr(a, "name") or a.name in tracing.integers for a in node.args):
            tracing.integers[node.name] = tracing.integer(kind, *map(tracing.number_of, node.args))
        return
    if name.startswith("sym_size"):
        tracing.integers[node.name] = tracing.size(tracing.value(node.args[0]), node.args[1])
        return
    if name.startswith(("_assert", "sym_constrain", "_check")):
        return
    reader = reader_of(name)
    if reader is None:
        raise Refused("it is not translated")
    reader(node, tracing, tracing.begin(node))


def _part(node: Any, tracing: Tracing) -> None:
    source, at = node.args
    made = tracing.parts[source.name][at]
    if made is None:
        raise Refused(f"its result {at} is asked for, which is not made")
    tracing.names[node.name] = made
    if made not in tracing.known:
        tracing.note(made, node.meta.get("val"))


_ = argument
