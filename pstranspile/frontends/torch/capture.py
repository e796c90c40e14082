"""The graph of one training step of a PyTorch model: `torch.export` of the model with its loss, in training mode."""

from __future__ import annotations

import importlib
import inspect
import logging
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from pstranspile.ir.diagnostics import DiagnosticError, error


def torch_library(part: str = "torch") -> Any:
    """The package torch, or a part of it such as `torch.export`. Raises DiagnosticError if it is not installed."""
    try:
        return importlib.import_module(part)
    except ImportError:
        message = "PyTorch models need the package torch: pip install 'pstranspile[torch]'"
        raise DiagnosticError([error("torch-library", message)]) from None


class Captured(NamedTuple):
    """A graph of ATen operators without side effects, and what its inputs and outputs are."""

    nodes: Sequence[Any]
    """The nodes of the graph (`torch.fx.Node`), in order."""
    parameters: Mapping[str, str]
    """The parameter that each input node of this name stands for, by the model's name of it."""
    buffers: Mapping[str, str]
    """The same for buffers."""
    constants: Mapping[str, Any]
    """Tensors that the model's code makes, by the name of their input node."""
    inputs: Mapping[str, str]
    """The name in the batch of each other input node."""
    changed: Mapping[str, str]
    """The buffer that the value of a node of this name is written to at the end of the step."""
    loss: str
    """The name of the node that the loss is."""


Loss = Callable[..., Any]
"""Called with the model and the tensors of a batch; gives a tensor of one element."""


def batch_names(model: Any, batch: Any, loss: Loss | None) -> list[str]:
    """A name for each tensor of a batch: the keys of a mapping, else the parameters of `loss` or of `forward`."""
    if isinstance(batch, Mapping):
        return [str(key) for key in batch]
    called = loss if loss is not None else model.forward
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    if loss is not None:
        parameters = parameters[1:]
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = [f"input_{at}" for at in range(len(positional), len(batch))]
    return [*positional[: len(batch)], *rest]


def captured(model: Any, batch: Any, loss: Loss | None, known: Callable[[str], bool]) -> Captured:
    """Exports one training step of `model` on `batch`, whose first dim may have any size of at least 2.

    Operators that are not `known` are replaced by those that torch defines them by, where it does. Raises DiagnosticError (`torch-export`) if torch can't export it.
    """
    torch = torch_library()
    names = batch_names(model, batch, loss)
    tensors = tuple(batch.values()) if isinstance(batch, Mapping) else tuple(batch)
    step = _step(torch, model, loss, names if isinstance(batch, Mapping) else None)
    tensors = tuple(tensor.detach().clone() for tensor in tensors)
    dim = torch.export.Dim
    least = min((len(tensor) for tensor in tensors if tensor.dim()), default=1)
    problems: list[Exception] = []
    # what holds for a size of at least that of the example, such as a `topk`, torch may not see for every size
    for rows in (dim.DYNAMIC, dim("rows", min=least)):
        shapes = tuple({0: rows} if tensor.dim() else None for tensor in tensors)
        with warnings.catch_warnings(), _quiet():
            warnings.simplefilter("ignore")
            try:
                exported = torch.export.export(step, tensors, dynamic_shapes={"batch": shapes}, strict=True)
                return _captured(_decomposed(exported, known), names)
            except Exception as problem:  # whatever torch's compiler raises about the user's code
                problems.append(problem)
    raise DiagnosticError([_refusal(problems[0])])


_OF_ELEMENTS = ("cross_entropy_loss", "nll_loss_nd", "nll_loss")
"""Losses whose dims torch 2.13 loses as it makes a graph without side effects, if they are not reduced."""


def _of_elements(node: Any) -> bool:
    """Whether a node is one of these losses, for each row."""
    name = getattr(node.target, "__name__", "").split(".")[0]
    return name in _OF_ELEMENTS and len(node.args) > 3 and node.args[3] == 0


_ROUNDS = 5
"""How often operators are replaced by others, whose own definitions may need it again."""


def _decomposed(exported: Any, known: Callable[[str], bool]) -> Any:
    """A graph without side effects, whose operators that are not known are replaced by those that define them."""
    every = torch_library("torch.export").default_decompositions()
    tried: set[Any] = set()
    if any(map(_of_elements, exported.graph.nodes)):  # each is defined by the next
        aten = torch_library().ops.aten
        tried = {getattr(aten, name).default for name in _OF_ELEMENTS}
    exported = exported.run_decompositions({one: every[one] for one in tried if one in every})
    for _ in range(_ROUNDS):
        targets = {node.target for node in exported.graph.nodes if node.op == "call_function"}
        missing = {one for one in targets if one in every and not known(getattr(one, "__name__", ""))} - tried
        if not missing:
            break
        tried |= missing
        exported = exported.run_decompositions({one: every[one] for one in missing})
    return exported


def _step(torch: Any, model: Any, loss: Loss | None, keys: list[str] | None) -> Any:
    """A module whose `forward` takes the tensors of a batch and gives the loss."""

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *batch: Any) -> Any:
            if keys is not None:
                named = dict(zip(keys, batch, strict=True))
                return self.model(**named) if loss is None else loss(self.model, **named)
            return self.model(*batch) if loss is None else loss(self.model, *batch)

    return Step()


@contextmanager
def _quiet() -> Generator[None]:
    """Keeps torch's own log of what it could not do off stderr; what is raised says it."""
    logger = logging.getLogger("torch")
    before = logger.disabled
    levels = {name: logging.getLogger(name).level for name in ("torch", "torch._subclasses.fake_tensor")}
    for name in levels:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _refusal(problem: Exception) -> Any:
    lines = [line for line in str(problem).splitlines() if line.strip()]
    return error("torch-export", f"torch can't export the model: {lines[0] if lines else type(problem).__name__}")


_PREFIX = "model."


def _of_model(target: str) -> str:
    return target.removeprefix(_PREFIX)


def _captured(exported: Any, names: Sequence[str]) -> Captured:
    signature = exported.graph_signature
    given = [spec.arg.name for spec in signature.input_specs if spec.kind.name == "USER_INPUT"]
    kept = {spec.arg.name: spec for spec in signature.input_specs}
    parameters = {name: _of_model(spec.target) for name, spec in kept.items() if spec.kind.name == "PARAMETER"}
    buffers = {name: _of_model(spec.target) for name, spec in kept.items() if spec.kind.name == "BUFFER"}
    constants = {
        name: exported.constants[spec.target] for name, spec in kept.items() if spec.kind.name == "CONSTANT_TENSOR"
    }
    changed = {
        spec.arg.name: _of_model(spec.target)
        for spec in signature.output_specs
        if spec.kind.name == "BUFFER_MUTATION"
    }
    losses = [spec.arg.name for spec in signature.output_specs if spec.kind.name == "USER_OUTPUT"]
    if len(losses) != 1:
        message = f"the loss gives {len(losses)} values; it must give one tensor of one element"
        raise DiagnosticError([error("torch-loss", message)])
    return Captured(
        list(exported.graph.nodes), parameters, buffers, constants, dict(zip(given, names, strict=True)), changed, losses[0]
    )
