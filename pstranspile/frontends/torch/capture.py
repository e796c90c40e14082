"""The graph of one training step of a PyTorch model: `torch.export` of the model with its loss."""

from __future__ import annotations

import importlib
import inspect
import io
import itertools
import logging
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import is_dataclass
from functools import cache
from typing import Any, NamedTuple, NoReturn, cast

from pstranspile.frontends.torch.complex_numbers import has_complex, has_rule, is_complex, split_complex
from pstranspile.frontends.torch.definitions import DEFINITIONS, as_written
from pstranspile.frontends.torch.derivatives import (
    Call,
    Differentiation,
    exported_backwards,
    exported_gradients,
    noted_calls,
    noted_gradients,
    with_gradients,
)
from pstranspile.frontends.torch.packed import noted_packs, whole_sequences
from pstranspile.frontends.torch.refusals import calling_line, is_own, line_of, refusal, require_arguments, user_place
from pstranspile.frontends.torch.trial_steps import (
    Checks,
    HeldState,
    ObservedStep,
    as_before,
    data_as_alias,
    inline_checkpoints,
    make_lazy,
    noted_checks,
    passed_checks,
    require_shown,
)
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, error, installing, name_list, quantity
from pstranspile.ir.model import Location
from pstranspile.ir.patterns import Pattern


def torch_library(part: str = "torch") -> Any:
    """The package torch, or a part of it such as `torch.export`. Raises DiagnosticError if it is not installed."""
    try:
        return importlib.import_module(part)
    except ImportError:
        message = f"PyTorch models need the package torch: {installing('torch')}"
        raise DiagnosticError([error("torch-library", message)]) from None


class Captured(NamedTuple):
    """A graph of ATen operators without side effects, and the meaning of its inputs and outputs."""

    nodes: Sequence[Any]
    """The nodes of the graph (`torch.fx.Node`), in order."""
    parameters: Mapping[str, str]
    """The name in the model of each parameter, by the name of its input node."""
    buffers: Mapping[str, str]
    """The name in the model of each buffer, by the name of its input node."""
    constants: Mapping[str, Any]
    """Constant tensors that the model's code creates, by the name of their input node."""
    inputs: Mapping[str, str]
    """The name of each tensor of the batch, by the name of its input node."""
    changed: Mapping[str, str]
    """The buffer, or frozen parameter, that is overwritten at the end of the step, by the name of the node with its new
    value.
    """
    loss: str
    """The name of the node that computes the loss."""
    guards: tuple[Guard, ...]
    """The conditions on the sizes of a batch under which the graph is valid."""


class TrialNotes(NamedTuple):
    """What is noted of the step that torch tries: whether it packs sequences, what its checks of data found, and which
    functions it calls.
    """

    packs: bool
    checks: Checks
    calls: Sequence[Call]
    """The calls of functions with a backward of the user's own, if a gradient goes through one."""
    gradients: Sequence[Differentiation]
    """The gradients that the step computes."""

    @property
    def runs(self) -> bool:
        """Whether only an export that runs the code has a graph of the step."""
        return self.packs or bool(self.calls) or bool(self.gradients)


Loss = Callable[..., Any]
"""A function of the model and the tensors of a batch that returns the loss, a tensor of one element."""


def batch_names(model: Any, batch: Any, loss: Loss | None) -> list[str]:
    """A name for each tensor of a batch: the keys of a mapping, else the parameters of `loss` or of `forward`."""
    if isinstance(batch, Mapping):
        return [str(key) for key in cast("Mapping[Any, Any]", batch)]
    called = loss if loss is not None else model.forward
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    if loss is not None:
        parameters = parameters[1:]
    given = tensors_of(batch)
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = positional[: len(given)]
    for at in range(len(positional), len(given)):
        name = f"input_{at}"
        while name in names:
            name += "_"
        names.append(name)
    return names


def tensors_of(batch: Any) -> tuple[Any, ...]:
    """The tensors of a batch, which is a mapping or a sequence of them, or one tensor.

    Raises DiagnosticError (`torch-batch`) for anything else.
    """
    if isinstance(batch, Mapping):
        return tuple(cast("Mapping[Any, Any]", batch).values())
    if hasattr(batch, "detach"):
        return (batch,)
    if not isinstance(batch, Sequence):
        message = f"a batch is a tuple or dict of tensors, not {type(batch).__name__}"
        raise DiagnosticError([error("torch-batch", message)])
    return tuple(cast("Sequence[Any]", batch))


def batches_of(given: Any, inputs: int) -> Iterable[Any]:
    """Returns `given` if it may be several batches of `inputs` tensors each.

    Raises DiagnosticError (`torch-batch`) for a single batch, and for anything that can't be iterated over.
    """
    is_one = hasattr(given, "detach") or isinstance(given, Mapping)
    parts: Sequence[Any] = cast("Sequence[Any]", given) if isinstance(given, tuple | list) else ()
    if is_one or (inputs > 1 and any(hasattr(part, "detach") for part in parts)):
        raise DiagnosticError([error("torch-batch", "a list of batches is expected, and one batch is given")])
    if not isinstance(given, Iterable):
        message = f"a list of batches is expected, and {type(given).__name__} is given"
        raise DiagnosticError([error("torch-batch", message)])
    return cast("Iterable[Any]", given)


def capture_step(model: Any, batch: Any, loss: Loss | None, known: Callable[[str], bool], parts: int = 1) -> Captured:
    """Exports one training step of `model` on `batch`, whose first dim may have any size of at least 2.

    With `parts` > 1 the rows are split evenly into that many micro-batches, and the loss is the mean of their losses.
    Operators that are not `known` are decomposed where torch has a decomposition. Raises DiagnosticError:
    `torch-export` if torch can't export the model, `torch-batch` if the batch holds anything but tensors or has too
    few rows, `torch-op` if the model writes into the batch, `torch-loss` unless the loss is one value of the batch.
    """
    torch = torch_library()
    given = tensors_of(batch)
    names = batch_names(model, batch, loss)
    for name, tensor in zip(names, given, strict=True):
        if not isinstance(tensor, torch.Tensor):
            message = f"a batch is a tuple or dict of tensors; {name} is of type {type(tensor).__name__}"
            raise DiagnosticError([error("torch-batch", message)])
    require_arguments(model, loss, names, isinstance(batch, Mapping))
    if parts > 1:
        _require_parts(dict(zip(names, tensors_of(batch), strict=True)), parts)
    step = step_of(torch, model, loss, names if isinstance(batch, Mapping) else None, parts)
    tensors = tuple(tensor.detach().clone() for tensor in tensors_of(batch))
    called = model if loss is None else loss
    trial = ObservedStep(step, tensors, called)
    make_lazy(torch, model, trial)
    with _without_compilation(torch, model, loss), as_before(torch, model, called) as held:
        with (
            noted_packs(torch) as packs,
            noted_checks(torch) as checks,
            noted_calls(torch) as calls,
            noted_gradients(torch) as gradients,
        ):
            _require_one(require_shown(torch, model, trial, held), called, given=loss is not None)
        own = calls if any(call.has_gradient for call in calls) else ()
        notes = TrialNotes(bool(packs), checks, own, gradients)
        made = _exported_step(torch, model, loss, step, dict(zip(names, tensors, strict=True)), known, parts, notes)
        return _with_own(made, model, held.held)


def _require_one(made: Any, called: Any, *, given: bool) -> None:
    """Raises DiagnosticError (`torch-loss`) if a step gives a dict or a dataclass, which holds the loss among others.

    `given` says that the loss is a function of the user's, which is `called`; else it is the model.
    """
    if not isinstance(made, Mapping) and not is_dataclass(made):
        return
    kind = type(cast("Any", made)).__name__
    message = f"the {'loss' if given else 'model'} gives a {kind}; it must give one tensor of one element"
    notes = (
        [] if given else [Note("say which of its values is the loss: loss=lambda model, **batch: model(**batch).loss")]
    )
    raise DiagnosticError([error("torch-loss", message, line_of(called), notes=notes)])


def _exported_step(
    torch: Any,
    model: Any,
    loss: Loss | None,
    step: Any,
    batch: Mapping[str, Any],
    known: Callable[[str], bool],
    parts: int,
    notes: TrialNotes,
) -> Captured:
    """The graph of a step that `step_of` gives for `parts` micro-batches, exported in the first way that torch
    can. A strict export is not of one that packs sequences, or has a backward of the user's own.

    Raises DiagnosticError.
    """
    names, tensors = list(batch), tuple(batch.values())
    dim = torch.export.Dim
    least = min((len(tensor) for tensor in tensors if tensor.dim()), default=1)
    problems: list[Exception] = []
    # A `topk`, for example, may need at least as many rows as the example batch has: torch can't export it for every
    # size. Code that strict mode can't read, such as numpy arrays, may still be exported by running it.
    for strict, rows in itertools.product(
        (False,) if notes.runs else (True, False), (dim.DYNAMIC, dim("rows", min=least))
    ):
        shapes = tuple({0: rows} if tensor.dim() else None for tensor in tensors)
        with (
            warnings.catch_warnings(),
            _quiet(),
            _mark_cumulative_norms(torch, model),
            torch.enable_grad(),
            inline_checkpoints(torch),
            _sized_alignments(torch),
            _sized_losses(torch),
            _unchecked_distributions(),
            _masks_as_given(),
            as_written(torch),
            data_as_alias(torch),
            whole_sequences(torch) if notes.packs else nullcontext(),
            exported_backwards(torch, notes.calls) if notes.calls else nullcontext(),
            exported_gradients(torch, notes.gradients) if notes.gradients else nullcontext(),
            nullcontext() if strict else passed_checks(torch, notes.checks),
            nullcontext() if strict else _own_lines(),
        ):
            warnings.simplefilter("ignore")
            try:
                exported = _run_export(torch, step, tensors, dynamic_shapes={"batch": shapes}, strict=strict)
                texts = [_BATCH.sub("L['flat_args']", text) for text in getattr(exported, "_guards_code", ())]
                guards = [Guard(text) for text in texts if not _of_speed(text, exported)]
                _detach_blocks(torch, exported)
                stacks = _inner_stacks(exported)
                found = _with_stacks(_decompose_graph(exported, known), stacks)
                if notes.gradients:
                    found = _decompose_graph(with_gradients(torch, found), known)
                return _captured_graph(found, names, guards, line_of(model if loss is None else loss))
            except DiagnosticError:
                raise
            except Exception as problem:  # whatever torch's compiler raises about the user's code
                problems.append(problem)
    rowed = next((name for name, tensor in zip(names, tensors, strict=True) if tensor.dim()), "x")
    if least < 2:
        message = (
            f"the batch that a model is traced with has {quantity(least, 'row')}; at least 2 tell rows from other dims"
        )
        raise DiagnosticError([error("torch-batch", message), refusal(problems, model, loss, rowed)])
    if least // parts < 2:
        message = (
            f"accumulate={parts} deals {least} rows to micro-batches of one row; trace with at least {2 * parts} rows"
        )
        note = Note("at least 2 rows of a micro-batch tell rows from other dims")
        raise DiagnosticError([error("torch-batch", message, calling_line(), notes=[note])])
    raise DiagnosticError([*_uneven(batch), refusal(problems, model, loss, rowed)])


def _uneven(batch: Mapping[str, Any]) -> list[Diagnostic]:
    """An error if tensors of the batch differ in their first dim, which may be why torch can't export the step."""
    rows = {name: len(tensor) for name, tensor in batch.items() if tensor.dim()}
    if len({*rows.values()}) < 2:
        return []
    told = name_list(f"{name} {count}" for name, count in rows.items())
    return [error("torch-batch", f"the tensors of the batch have different numbers of rows: {told}", calling_line())]


def _require_parts(tensors: Mapping[str, Any], parts: int) -> None:
    """Raises DiagnosticError (`torch-batch`) unless the rows are as many for each micro-batch."""
    for name, tensor in tensors.items():
        if tensor.dim() and len(tensor) % parts:
            micro = quantity(parts, "micro-batch").removesuffix("s") + "es"
            message = f"accumulate deals the rows of a batch to {micro} of one size, and {name} has {len(tensor)} rows"
            near = f"give whole micro-batches, such as {name}[:{len(tensor) // parts * parts}]"
            raise DiagnosticError([error("torch-batch", message, calling_line(), notes=[Note(near)])])


_BATCH = Pattern(r"L\['batch'\]")
"""The name `batch` that guards of a non-strict export use; guards of a strict one have `flat_args` in its place."""

_MANY = Pattern(r"(?:<=|>|<|>=) 25$")
"""The end of the condition by which `cdist` chooses the faster of two equivalent computations."""


def _of_speed(guard: str, exported: Any) -> bool:
    """Whether a guard affects only the speed of the graph, not its results."""
    distances = any("cdist" in str(node.target) for node in exported.graph.nodes)
    return distances and _MANY.search(guard) is not None


def _inner_stacks(exported: Any) -> dict[str, str]:
    """The stacks of the nodes of inner graphs, such as that of a `torch.no_grad()` block, by the line of code that
    torch writes for a node. Of lines that several have, none.
    """
    result: dict[str, str] = {}
    for name, module in exported.graph_module.named_modules():
        if not name or not hasattr(module, "graph"):
            continue
        stacks = {node.name: node.meta.get("stack_trace") for node in module.graph.nodes}
        for line in str(module.code).splitlines():
            stack = stacks.get(line.strip().partition(" ")[0])
            if stack:
                result[line.strip()] = "" if result.get(line.strip(), stack) != stack else stack
    return result


def _with_stacks(exported: Any, stacks: Mapping[str, str]) -> Any:
    """The graph, with stack traces of the user's code where torch has put lines of an inner graph's generated code."""
    for node in exported.graph.nodes if stacks else ():
        lines = (node.meta.get("stack_trace") or "").splitlines()
        known = [stack for line in lines if (stack := stacks.get(line.strip()))]
        if known:
            node.meta["stack_trace"] = known[-1]
    return exported


_OF_ELEMENTS = ("cross_entropy_loss", "nll_loss_nd", "nll_loss")
"""Losses whose dims torch 2.13 drops when it removes side effects, if `reduction` is 'none'."""


def _of_elements(node: Any) -> bool:
    """Whether a node is one of the losses `_OF_ELEMENTS` with `reduction` 'none'."""
    name = getattr(node.target, "__name__", "").split(".")[0]
    return name in _OF_ELEMENTS and len(node.args) > 3 and node.args[3] == 0


_ROUNDS = 5
"""The most rounds of decomposition: a decomposition may contain operators that must be decomposed in turn."""


@cache
def _decompositions() -> Mapping[Any, Any]:
    """Torch's decomposition of each operator. Cached because torch takes long to build the table."""
    further = torch_library("torch._decomp").decomposition_table
    return {**further, **dict(torch_library("torch.export").default_decompositions())}


def _decompose_graph(exported: Any, known: Callable[[str], bool]) -> Any:
    """The graph without side effects, with operators that are not `known` replaced by their decompositions."""
    exported = _without_complex(exported, known)
    if _can_be_read(exported, known):
        exported.graph.eliminate_dead_code()
        return exported
    every = _decompositions()
    tried: set[Any] = set()
    if any(map(_of_elements, exported.graph.nodes)):  # each is defined by the next
        aten = torch_library().ops.aten
        tried = {getattr(aten, name).default for name in _OF_ELEMENTS}
    missing = {one: every[one] for one in tried | _missing(exported, every, known) if one in every}
    missing |= _own_definitions(exported)
    for _ in range(_ROUNDS):
        tried |= missing.keys()
        with _fewer_kept_whole(exported, known):
            exported = exported.run_decompositions(missing)
        missing = {one: every[one] for one in _missing(exported, every, known)} | _own_definitions(exported)
        missing = {one: function for one, function in missing.items() if one not in tried}
        if not missing:
            break
    return exported


_WRITE_BUFFERS = ("batch_norm", "instance_norm")
"""Operators that write the running statistics of a layer although their schema does not say so."""

_CUTS = ("chunk", "tensor_split")
"""Operators that cut a tensor into a number of parts; decomposed they say what sizes parts of the rows have."""

_CHECKS = ("sym_size.int", "_assert_tensor_metadata.default", "_assert_scalar.default")
"""Operators of torch that compute nothing of a step: sizes, and checks of sizes and dtypes."""


def _can_be_read(exported: Any, known: Callable[[str], bool]) -> bool:
    """Whether a graph has nothing to decompose: no inner graphs, no side effects, and only operators that are `known`.

    Such a graph needs no decomposition, which takes torch as long as the export itself.
    """
    if sum(hasattr(module, "graph") for module in exported.graph_module.modules()) > 1 or _own_definitions(exported):
        return False
    for node in exported.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None:  # a function of Python, of sizes
            continue
        name = str(node.target.__name__)
        if name in _CHECKS:
            continue
        if schema.is_mutable or not known(name) or _of_elements(node):
            return False
        if name.split(".")[0] in (*_WRITE_BUFFERS, *_CUTS):
            return False
    return True


def _without_complex(exported: Any, known: Callable[[str], bool]) -> Any:
    """The graph, in which pairs of real numbers are in the place of complex ones, if it has any."""
    if not any(has_complex(one.graph) for one in exported.graph_module.modules() if hasattr(one, "graph")):
        return exported
    every = _decompositions()
    for _ in range(_ROUNDS):
        nodes = [node for node in exported.graph.nodes if any(map(is_complex, (node, *node.all_input_nodes)))]
        missing = {one.target for one in nodes if one.target in every and not has_rule(one)}
        with _fewer_kept_whole(exported, known):
            exported = exported.run_decompositions({one: every[one] for one in missing})
        if not missing:
            break
    split_complex(torch_library(), exported)
    return exported


_COLLECT = "_collect_all_valid_cia_ops"
"""The function of torch that lists the composite operators which a decomposition keeps whole."""


@cache
def _composite() -> frozenset[Any]:
    """The composite operators that a decomposition keeps whole. Cached because torch takes long to list them."""
    collect = getattr(torch_library("torch.export.exported_program"), _COLLECT, None)
    return frozenset() if collect is None else frozenset(collect())


@contextmanager
def _fewer_kept_whole(exported: Any, known: Callable[[str], bool]) -> Generator[None]:
    """Lets a decomposition keep only those composite operators whole that are `known` or in the graph.

    Torch overrides each of some 500 operators for every kind of device, twice, which takes as long as the rest of a
    small model's decomposition. The others could come from decompositions alone, where they are decomposed as well. A
    graph with operators of other packages, and a torch without the function, are left as they are.
    """
    targets = {node.target for node in exported.graph.nodes if node.op == "call_function"}
    program = torch_library("torch.export.exported_program")
    foreign = any(getattr(one, "namespace", "aten") != "aten" for one in targets)
    if foreign or not _composite():
        yield
        return
    kept = {one for one in _composite() if one in targets or known(str(getattr(one, "__name__", "")))}
    collect = getattr(program, _COLLECT)
    setattr(program, _COLLECT, lambda: set(kept))
    try:
        yield
    finally:
        setattr(program, _COLLECT, collect)


def _own_definitions(exported: Any) -> dict[Any, Any]:
    """The operators of a graph that this package defines in terms of others, with their definitions."""
    result: dict[Any, Any] = {}
    for node in exported.graph.nodes:
        if node.op == "call_function":
            name = str(getattr(node.target, "__name__", ""))
            defined = DEFINITIONS.get(name) or DEFINITIONS.get(name.replace("_.", ".", 1))
            if defined is not None and (defined.needed is None or defined.needed(node)):
                result[node.target] = defined.function
    return result


def _missing(exported: Any, every: Mapping[Any, Any], known: Callable[[str], bool]) -> set[Any]:
    """The operators of a graph that are not known but have a decomposition.

    An in-place operator such as `add_` counts as known if `add` is: without side effects it becomes `add`.
    """
    targets = {node.target for node in exported.graph.nodes if node.op == "call_function" and node.target in every}
    names = {one: str(getattr(one, "__name__", "")) for one in targets}
    return {one for one, name in names.items() if not known(name) and not known(name.replace("_.", ".", 1))}


def step_of(torch: Any, model: Any, loss: Loss | None, keys: list[str] | None, parts: int) -> Any:
    """A module whose `forward` takes the tensors of a batch and returns the loss."""
    base: type[Any] = torch.nn.Module

    class Step(base):
        def forward(self, *batch: Any) -> Any:
            if parts == 1:
                return self.loss_of(batch)
            dealt = [t.reshape(parts, -1, *t.shape[1:]) if t.dim() else t.expand(parts) for t in batch]
            total = self.loss_of([t[0] for t in dealt])
            for at in range(1, parts):
                total = total + self.loss_of([t[at] for t in dealt])
            return total / parts

        def loss_of(self, batch: Sequence[Any]) -> Any:
            if keys is not None:
                named = dict(zip(keys, batch, strict=True))
                return self.model(**named) if loss is None else loss(self.model, **named)
            return self.model(*batch) if loss is None else loss(self.model, *batch)

    step = Step()
    step.model = model
    return step


@contextmanager
def _sized_alignments(torch: Any) -> Generator[None]:
    """Has torch know the dims of what `ctc_loss` makes inside the block; its own export takes them to depend on data.

    A torch without the table of such rules is left as it is.
    """
    table = getattr(torch_library("torch._subclasses.fake_impls"), "op_implementations_dict", None)
    operators = [getattr(torch.ops.aten._ctc_loss, name) for name in ("default", "Tensor")]
    added = [] if table is None else [one for one in operators if one not in table]

    def empty_alignments(_mode: Any, _function: Any, scores: Any, labels: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        steps, rows = scores.shape[:2] if scores.dim() == 3 else (scores.shape[0], 1)
        each = scores.new_empty((rows,))
        return each, scores.new_empty((rows, steps, 2 * labels.shape[-1] + 1))

    for one in added:
        cast("dict[Any, Any]", table)[one] = empty_alignments
    try:
        yield
    finally:
        for one in added:
            del cast("dict[Any, Any]", table)[one]


@contextmanager
def _sized_losses(torch: Any) -> Generator[None]:
    """Has torch know the dims of what `nll_loss` makes of chosen rows inside the block; its own rule asks whether there
    are any, which depends on data.
    """
    table: dict[Any, Any] = torch_library("torch._decomp").decomposition_table
    operator = torch.ops.aten.nll_loss.default
    before = table.get(operator)

    def empty_losses(scores: Any, labels: Any, _weight: Any = None, reduction: int = 1, *_: Any, **__: Any) -> Any:
        return scores.new_empty(labels.shape if reduction == 0 else ())

    if before is not None:
        table[operator] = empty_losses
    try:
        yield
    finally:
        if before is not None:
            table[operator] = before


@contextmanager
def _unchecked_distributions() -> Generator[None]:
    """Has `torch.distributions` not check its arguments inside the block.

    The checks change no numbers: they raise an error for some, by which no graph can branch. A step of torch has made
    them for the batch that is exported.
    """
    kind = torch_library("torch.distributions").Distribution
    before = kind._validate_args
    kind.set_default_validate_args(False)
    try:
        yield
    finally:
        kind.set_default_validate_args(before)


@contextmanager
def _masks_as_given() -> Generator[None]:
    """Has the transformers of `torch.nn` apply a mask as it is given inside the block, unless `is_causal=True` says
    that it is causal.

    Without `is_causal` they look whether it is, by which no graph can branch. Attention takes a faster way then, with
    the same numbers.
    """
    module = torch_library("torch.nn.modules.transformer")
    before = getattr(module, _CAUSAL, None)
    if before is None:
        yield
        return

    def said_to_be_causal(_mask: Any, is_causal: bool | None = None, _size: int | None = None) -> bool:
        return is_causal is True

    setattr(module, _CAUSAL, said_to_be_causal)
    try:
        yield
    finally:
        setattr(module, _CAUSAL, before)


_CAUSAL = "_detect_is_causal_mask"
"""Torch's name for the function that looks whether a mask is causal."""

CUMULATIVE = -1.0
"""The placeholder for `momentum=None` of a batch norm, whose running statistics are averages over all batches."""


@contextmanager
def _mark_cumulative_norms(torch: Any, model: Any) -> Generator[None]:
    """Sets `momentum=None` of batch norms to `CUMULATIVE` inside the block.

    Without it the momentum depends on the number of batches seen, which torch can't export.
    """
    kind = torch.nn.modules.batchnorm._NormBase
    norms = [one for one in model.modules() if isinstance(one, kind) and one.momentum is None]
    for one in norms:
        one.momentum = CUMULATIVE
    try:
        yield
    finally:
        for one in norms:
            one.momentum = None


def _without_compilation(torch: Any, model: Any, loss: Loss | None) -> Any:
    """Runs functions compiled by `torch.compile` as they are written, inside the block."""
    compiled = any(type(one).__name__ == "OptimizedModule" for one in model.modules())
    if compiled or hasattr(loss, "_torchdynamo_orig_callable"):
        return torch.compiler.set_stance("force_eager")
    return nullcontext()


class _OwnFrames(set[tuple[str, str]]):
    """All functions of the user's files, as pairs of a file and a name."""

    def __contains__(self, frame: object) -> bool:
        """Whether the file of a function is the user's."""
        return isinstance(frame, tuple) and is_own(str(cast("tuple[Any, ...]", frame)[0]))


@contextmanager
def _own_lines() -> Generator[None]:
    """Has an export that runs the code keep the lines of all of the user's functions inside the block, such as the
    loss; torch keeps those of functions that are called `forward`.
    """
    proxy = torch_library("torch.fx.proxy")
    before = getattr(proxy, _ANCHORS, None)
    if before is None:
        yield
        return
    setattr(proxy, _ANCHORS, _OwnFrames())
    try:
        yield
    finally:
        setattr(proxy, _ANCHORS, before)


_ANCHORS = "_STACK_TRACE_ANCHORS"
"""Torch's name for the functions whose lines it keeps in an export that runs the code."""


@contextmanager
def _quiet() -> Generator[None]:
    """Silences torch's log of a failed export inside the block; the exception has the same information."""
    logger = logging.getLogger("torch")
    before = logger.disabled
    levels = {
        name: logging.getLogger(name).level for name in ("torch", "torch.__trace", "torch._subclasses.fake_tensor")
    }
    for name in levels:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _run_export(torch: Any, *arguments: Any, **options: Any) -> Any:
    """The result of `torch.export.export`.

    If a step branches on its data, torch prints the partial graph to stderr. This print is dropped, because the
    exception names the user's line.
    """
    told, graph = io.StringIO(), ""
    try:
        with redirect_stderr(told):
            exported = torch.export.export(*arguments, **options)
        if any(type(tensor).__name__ == "FakeTensor" for tensor in exported.constants.values()):  # it has no numbers
            message = "its code takes a tensor in a way that export doesn't follow, such as `.data` of a parameter"
            raise ValueError(message)
        return exported
    except Exception as problem:
        graph = getattr(problem, "partial_fx_graph", "")
        raise
    finally:
        printed = told.getvalue()
        print(printed.replace(f"{graph}\n", "") if graph else printed, end="", file=sys.stderr)


# Conditions under which a graph is valid.


class Guard(NamedTuple):
    """A condition on the sizes of a batch, as torch writes it: `L['flat_args'][0].size()[0] % 2 == 0`."""

    text: str

    def holds(self, shapes: Sequence[Sequence[int]]) -> bool:
        """Whether the condition holds for tensors of these shapes. One that can't be evaluated holds."""
        names = {"L": {"flat_args": [_Sized(tuple(shape)) for shape in shapes]}, "Min": min, "Max": max}
        try:
            return bool(eval(self.text, {"__builtins__": {}}, names))
        except (NameError, AttributeError, KeyError, IndexError, TypeError, SyntaxError, ArithmeticError):
            return True

    def text_with_names(self, names: Sequence[str]) -> str:
        """The condition with the names of the batch's tensors, such as `x.shape[0] % 2 == 0`."""
        return _SIZE.sub(lambda made: f"{names[int(made[1])]}.shape[{made[2]}]", self.text)


_SIZE = Pattern(r"L\['flat_args'\]\[(\d+)\]\.size\(\)\[(\d+)\]")


class _Sized(NamedTuple):
    """A stand-in for a tensor, with its dims only."""

    dims: tuple[int, ...]

    def size(self) -> tuple[int, ...]:
        return self.dims


def _captured_graph(exported: Any, names: Sequence[str], guards: Sequence[Guard], of_loss: Location | None) -> Captured:
    """The graph of an exported step; `of_loss` is the line where the function of the loss begins."""
    signature = exported.graph_signature
    given = [spec.arg.name for spec in signature.input_specs if spec.kind.name == "USER_INPUT"]
    kept = {spec.arg.name: spec for spec in signature.input_specs}
    parameters = {name: _of_model(spec.target) for name, spec in kept.items() if spec.kind.name == "PARAMETER"}
    buffers = {name: _of_model(spec.target) for name, spec in kept.items() if spec.kind.name == "BUFFER"}
    constants = {
        name: exported.constants[spec.target] for name, spec in kept.items() if spec.kind.name == "CONSTANT_TENSOR"
    }
    lost = [name for name, tensor in constants.items() if hasattr(tensor, "fake_mode")]
    if lost:
        raise ValueError(f"the numbers of {lost[0]}, a tensor made of an array of numpy, are lost in export")
    held = ("BUFFER_MUTATION", "PARAMETER_MUTATION")
    changed = {spec.arg.name: _of_model(spec.target) for spec in signature.output_specs if spec.kind.name in held}
    written = [spec for spec in signature.output_specs if spec.kind.name == "USER_INPUT_MUTATION"]
    if written:
        place = names[given.index(written[0].target)] if written[0].target in given else written[0].target
        raise DiagnosticError([error("torch-op", f"the model writes into {place}, which is of the batch")])
    losses = [spec.arg for spec in signature.output_specs if spec.kind.name == "USER_OUTPUT"]
    if len(losses) != 1 or not hasattr(losses[0], "name"):
        message = f"the loss gives {len(losses)} values; it must give one tensor of one element"
        raise DiagnosticError([error("torch-loss", message, of_loss)])
    inputs = dict(zip(given, names, strict=True))
    places = {name: place for place, name in enumerate(exported.state_dict)}

    def place_of_node(node: Any) -> int:
        """Parameters come in the order of the model, and then the other nodes in their own."""
        return places.get(kept[node.name].target, len(places)) if node.name in parameters else len(places)

    nodes = sorted(exported.graph.nodes, key=place_of_node)
    return Captured(nodes, parameters, buffers, constants, inputs, changed, losses[0].name, tuple(guards))


def _with_own(made: Captured, model: Any, held: HeldState) -> Captured:
    """The graph, in which parameters and buffers of the model that its code takes from a list or a closure are what
    they are, and no constants. Raises DiagnosticError (`torch-op`) for another tensor with the memory of one.
    """
    own = {_memory(one): (made.parameters, name) for name, one in model.named_parameters() if one.numel()}
    own |= {_memory(one): (made.buffers, name) for name, one in model.named_buffers() if one.numel()}
    taken = {name: own[place] for name, one in made.constants.items() if (place := _memory(one)) in own}
    tensors = dict((*model.named_parameters(), *model.named_buffers()))
    for _, name in taken.values():
        others = [
            path for path, one in held.tensors() if one is not tensors[name] and _memory(one) == _memory(tensors[name])
        ]
        if others:
            message = f"{others[0]} is a tensor with the memory of {name}, which no graph shows"
            near = f"the step may take {name} itself, or {name}.detach(), which it makes"
            raise DiagnosticError([error("torch-op", message, line_of(model), notes=[Note(near)])])
    parameters = {name: of for name, (kind, of) in taken.items() if kind is made.parameters}
    buffers = {name: of for name, (kind, of) in taken.items() if kind is made.buffers}
    constants = {name: one for name, one in made.constants.items() if name not in taken}
    return made._replace(
        parameters={**made.parameters, **parameters}, buffers={**made.buffers, **buffers}, constants=constants
    )


def _memory(tensor: Any) -> tuple[Any, ...]:
    """What two tensors of the same elements in memory have in common."""
    return tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype


_PREFIX = "model."


def _of_model(target: str) -> str:
    return target.removeprefix(_PREFIX)


# Parts of a graph without a gradient, found before it is decomposed: `torch.no_grad()` blocks, `detach_()`.

_BLOCK = "wrap_with_set_grad_enabled"
"""The operator that calls a graph of its own with gradients on or off."""


def _detach_blocks(torch: Any, exported: Any) -> None:
    """Has everything that an exported graph computes without gradient take detached values.

    A decomposition puts the graphs of blocks into that around them, after which nothing tells that they had no
    gradient. What a block takes is detached at its begin, and `detach_()` becomes `detach()`. A tensor with a gradient
    that is written without one goes on with the gradient that it had before, as in torch. Raises DiagnosticError
    (`torch-op`) where a graph can't say that.
    """
    detach = torch.ops.aten.detach.default
    graphs = [one for one in exported.graph_module.modules() if hasattr(one, "graph")]
    changed: set[Any] = set()
    for module in graphs:
        if _detach_in_place(torch, module.graph, detach):
            changed.add(module)
    with_gradient = _with_gradient(torch, exported)
    if _keep_gradients(torch, exported.graph_module, with_gradient):
        changed.add(exported.graph_module)
    for module in graphs:
        for node in [*module.graph.nodes]:
            block = _block_of(module, node)
            if block is None:
                continue
            if module is not exported.graph_module:
                _require_unwritten(node, block.graph, with_gradient)
            for inner in [one for one in block.graph.nodes if one.op == "placeholder"]:
                if hasattr(inner.meta.get("val"), "shape"):
                    _detach(block.graph, inner, detach)
            changed.add(block)
    for module in changed:
        module.recompile()


def _detach(graph: Any, node: Any, detach: Any) -> None:
    """Has all users of a node take it detached."""
    users = [*node.users]
    if not users:
        return
    with graph.inserting_after(node):
        made = graph.call_function(detach, (node,))
    made.meta = {**node.meta, "stack_trace": users[0].meta.get("stack_trace")}
    for user in users:
        user.replace_input_with(node, made)


def _detach_in_place(torch: Any, graph: Any, detach: Any) -> bool:
    """Replaces each `detach_()` of a graph by `detach()`, which all later users of the tensor take."""
    found = [node for node in graph.nodes if node.target is torch.ops.aten.detach_.default]
    for node in found:
        order = {one: at for at, one in enumerate(graph.nodes)}
        tensor = node.args[0]
        node.target = detach
        for user in [one for one in tensor.users if order[one] > order[node]]:
            user.replace_input_with(tensor, node)
    return bool(found)


def _written(node: Any) -> Iterator[Any]:
    """The arguments that an operator writes into."""
    for arg, told in zip(node.args, _arguments(node), strict=False):
        if told.alias_info is not None and told.alias_info.is_write and hasattr(arg, "op"):
            yield arg
    for told in _arguments(node):
        arg = node.kwargs.get(told.name)
        if told.alias_info is not None and told.alias_info.is_write and hasattr(arg, "op"):
            yield arg


def _arguments(node: Any) -> list[Any]:
    schema = getattr(node.target, "_schema", None)
    return [] if schema is None else list(schema.arguments)


def _bases(node: Any) -> Iterator[Any]:
    """A node, and the nodes whose memory it shows."""
    yield node
    for arg, told in zip(node.args, _arguments(node), strict=False):
        if told.alias_info is not None and hasattr(arg, "op"):
            yield from _bases(arg)


def _with_gradient(torch: Any, exported: Any) -> set[Any]:
    """The nodes of the outer graph that have a gradient."""
    trained = {
        spec.arg.name
        for spec in exported.graph_signature.input_specs
        if spec.kind.name == "PARAMETER" and exported.state_dict[spec.target].requires_grad
    }
    result: set[Any] = set()
    for node in exported.graph.nodes:
        name = getattr(node.target, "__name__", "")
        if node.op == "placeholder" and node.name in trained:
            result.add(node)
            continue
        if name == _BLOCK or node.target is torch.ops.aten.detach.default:
            continue
        if result.intersection(node.all_input_nodes):
            result.add(node)
            for arg in _written(node):
                result.update(_bases(arg))
    return result


def _block_of(module: Any, node: Any) -> Any:
    """The graph that a node calls with gradients off; None for another node."""
    if getattr(node.target, "__name__", "") != _BLOCK or node.args[0] is not False:
        return None
    return getattr(module, node.args[1].target)


def _keep_gradients(torch: Any, module: Any, with_gradient: set[Any]) -> bool:
    """Has tensors with a gradient that are written without one, in a block or through `detach()`, go on with what is
    written and the gradient that they had before: `new.detach() + (x - x.detach())`. Whether there are any.

    Raises DiagnosticError (`torch-op`) where a view that was taken before is read after it, or the tensor is written
    with a gradient after it.
    """
    graph, detach = module.graph, torch.ops.aten.detach.default
    nodes = [*graph.nodes]
    places = {node: at for at, node in enumerate(nodes)}
    carriers: dict[Any, Any] = {}
    """The node that has the gradient of a tensor, for each that has been written."""

    def call(target: Any, *arguments: Any) -> Any:
        made = graph.call_function(target, arguments)
        made.meta = {**base.meta, "stack_trace": node.meta.get("stack_trace")}
        return made

    for at, node in enumerate(nodes):
        for base in dict.fromkeys(_written_without_gradient(torch, module, node)):
            if base not in with_gradient:
                continue
            before = carriers.get(base, base)
            results = [*_results_of(module, node, base)]
            later = [(one, user) for one in (before, *results) for user in one.users if places.get(user, -1) > at]
            _require_separate(nodes, places, node, {base, *results}, detach)
            with graph.inserting_before(node):
                carried = call(torch.ops.aten.sub.Tensor, before, call(detach, before))
            with graph.inserting_after(node):
                new = call(detach, base)
            with graph.inserting_after(new):
                carriers[base] = after = call(torch.ops.aten.add.Tensor, new, carried)
            for one, user in later:
                is_without = user.target is detach or _block_of(module, user) is not None
                if user not in results and (one is not base or not is_without):
                    user.replace_input_with(one, base if is_without else after)
    return bool(carriers)


def _written_without_gradient(torch: Any, module: Any, node: Any) -> Iterator[Any]:
    """The tensors that a node writes into through `detach()`, or with gradients off."""
    block = _block_of(module, node)
    if block is None:
        for arg in _written(node):
            bases = [*_bases(arg)]
            if any(one.target is torch.ops.aten.detach.default for one in bases):
                yield bases[-1]
        return
    outside = dict(zip((one for one in block.graph.nodes if one.op == "placeholder"), node.args[2:], strict=True))
    for inner in block.graph.nodes:
        for base in (one for arg in _written(inner) for one in _bases(arg)):
            if hasattr(outside.get(base), "op"):
                yield [*_bases(outside[base])][-1]


def _results_of(module: Any, node: Any, base: Any) -> Iterator[Any]:
    """The nodes that are results of a block and the tensor that it has written into.

    Raises DiagnosticError (`torch-op`) for a result that is a view of it.
    """
    block = _block_of(module, node)
    if block is None:
        return
    given = [one for one in block.graph.nodes if one.op == "placeholder"]
    inside = {one for one, outer in zip(given, node.args[2:], strict=True) if base in (outer, *_bases(outer))}
    made = next(one for one in block.graph.nodes if one.op == "output").args[0]
    for user in node.users:
        result = made[user.args[1]]
        bases = [*_bases(result)]
        if inside.intersection(bases):
            written = {arg for one in bases for arg in _written(one)}
            if not written.issuperset(bases[1:]) or len([*_bases(bases[-1])]) > 1:
                _refuse_write(node, "and a view of it is read afterwards")
            yield user


def _require_separate(nodes: Sequence[Any], places: Mapping[Any, int], node: Any, same: set[Any], detach: Any) -> None:
    """Raises DiagnosticError (`torch-op`) unless what a node writes without a gradient is read as a whole after it, and
    not written with one. `same` are the nodes that are the tensor.
    """
    at = places[node]
    for view in nodes[:at]:
        bases = [*_bases(view)]
        is_view = len(bases) > 1 and same.intersection(bases) and not any(one.target is detach for one in bases)
        if is_view and any(places.get(user, -1) > at for user in view.users):
            _refuse_write(node, "and a view of it is read afterwards")
    for other in nodes[at + 1 :]:
        for arg in _written(other):
            bases = [*_bases(arg)]
            if same.intersection(bases) and not any(one.target is detach for one in bases):
                _refuse_write(other, "and is written with a gradient afterwards")


def _refuse_write(node: Any, why: str) -> NoReturn:
    message = f"a tensor that has a gradient is written without one (torch.no_grad, .data), {why}"
    notes = [Note("torch keeps the gradient that the tensor had before; y = x + (new - x).detach() does that")]
    raise DiagnosticError([error("torch-op", message, user_place(node.meta.get("stack_trace")), notes=notes)])


def _require_unwritten(call: Any, block: Any, with_gradient: set[Any]) -> None:
    """Raises DiagnosticError if the graph of a block writes into a tensor that has a gradient."""
    given = [one for one in block.nodes if one.op == "placeholder"]
    outside = dict(zip(given, call.args[2:], strict=True))
    for node in block.nodes:
        for base in (one for arg in _written(node) for one in _bases(arg)):
            if outside.get(base) in with_gradient:
                message = "it writes into a tensor that has a gradient, where gradients are off (torch.no_grad)"
                says = "torch keeps the gradient that the tensor had before; y = x + (new - x).detach() does that"
                place = user_place(node.meta.get("stack_trace"))
                raise DiagnosticError([error("torch-op", message, place, notes=[Note(says)])])
