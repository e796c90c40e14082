"""A PyTorch model with its loss and its optimizer as a training program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from pstranspile.frontends.autodiff.backward import ParamGrad, append_backward
from pstranspile.frontends.autodiff.clips import clip_with_optimizer
from pstranspile.frontends.autodiff.minimize import apply_gradients
from pstranspile.frontends.autodiff.schedules import COUNTER
from pstranspile.frontends.layers import basic
from pstranspile.frontends.layers.draft import Draft, Refused, Value
from pstranspile.frontends.torch import elements, images, losses, networks, recurrent, tables, tensors
from pstranspile.frontends.torch.capture import (
    Captured,
    Guard,
    Loss,
    batch_names,
    batches_of,
    capture_step,
    tensors_of,
    torch_library,
)
from pstranspile.frontends.torch.optimizers import OPTIMIZER_CODE, Clipping, Group, groups_of, single, states_of
from pstranspile.frontends.torch.refusals import CALLED, line_of, require_own_loss, user_line, user_place
from pstranspile.frontends.torch.stepping import LIMITED_ROWS, TorchStep
from pstranspile.frontends.torch.tracing import READERS, OwnCall, Tracing, aten, is_known, read_number, reader_of
from pstranspile.ir.argument_checks import expect, expect_number, expect_word, suggesting, wrong_type
from pstranspile.ir.attributes import Double
from pstranspile.ir.diagnostics import (
    Diagnostic,
    DiagnosticError,
    Note,
    did_you_mean,
    error,
    name_list,
    quantity,
    raise_errors,
)
from pstranspile.ir.model import MAIN, FrozenMap, Module, Op, Origin, Var
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.types import DType, OpRole, VarKind
from pstranspile.ops.gradient import EMPTY_NAME, bare_op
from pstranspile.ops.programs.modules import STEP
from pstranspile.ops.shapes import ShapeError
from pstranspile.runtime.kernels.programs.modules import hold
from pstranspile.runtime.run.prepared import run
from pstranspile.runtime.run.scope import Scope
from pstranspile.runtime.values import Array, array_of

_FAMILIES = (elements, images, losses, networks, recurrent, tables, tensors)
"""The modules with the readers of operators."""


def operators() -> dict[str, list[str]]:
    """The ATen operators that are translated, by module: `max.dim`, or `add` for all overloads of `add`."""
    made = {family.__name__.rpartition(".")[2]: family.__name__ for family in _FAMILIES}
    return {
        family: sorted(name for name, reader in READERS.items() if reader.__module__ == module)
        for family, module in made.items()
    }


def _numbers(name: str, value: Any) -> Array:
    """The array of a value. Raises ValueError for what holds no numbers."""
    try:
        array = np.asarray(value)
    except ValueError:
        array = None
    if array is None or array.dtype.kind not in "biuf":
        raise ValueError(f"{name} holds numbers; {type(value).__name__} is no array of some")
    return array


NO_LOSS = "without loss= what the model returns is taken as the loss; loss=lambda model, x, y: ... gives one of it"
"""What is said of a model that is traced without a loss."""


class Training:
    """What `trace` returns: a training program, and its state on one machine.

    `loss` names the loss, `inputs` are the names of what is fed, `shapes` are the dims in torch of the model's
    parameters and buffers, and `example` is what was fed of the batch that the model was traced with. `step` is what
    the step of the program calls, if that is one op of torch.
    """

    def __init__(
        self,
        module: Module,
        state: Mapping[str, Array],
        loss: str,
        inputs: Sequence[str],
        guards: Sequence[Guard] = (),
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        *,
        batch: Any,
        step: TorchStep | None = None,
    ):
        self._module = module
        self.step = step
        self.loss = loss
        self.inputs = tuple(inputs)
        self.guards = tuple(guards)
        self.shapes: Mapping[str, tuple[int, ...]] = shapes or {}
        self._scope = Scope()
        run(module["startup"], scope=self._scope)
        self.load(state)
        self.example: Mapping[str, Array] = self.feeds(batch)

    def __repr__(self) -> str:
        """The programs, the loss and the inputs, in one line."""
        return f"<Training of {self._module!r}: loss {self.loss}, inputs {name_list(self.inputs)}>"

    @property
    def module(self) -> Module:
        """The programs `@main` and `@startup`, with the values of now to start with, and the example batch."""
        return replace(self._module, start=FrozenMap(self._copy_persistables()), example=FrozenMap(self.example))

    @property
    def source(self) -> str:
        """The function `FILE.py:NAME` that gives the model to other processes, or a number where none is known; "" for
        a program that calls no model.
        """
        return "" if self.step is None else self.step.source

    def found_at(self, source: str) -> None:
        """Says which function `FILE.py:NAME` gives this training: a step that is one op of torch calls its model."""
        if self.step is None:
            return
        self.step.source = source
        hold(source, self.step)
        main = self._module.main
        ops = [
            op._replace(attrs=FrozenMap({**op.attrs, "source": source})) if op.type == STEP else op
            for op in main.main_block.ops
        ]
        blocks = (main.main_block._replace(ops=tuple(ops)), *main.blocks[1:])
        self._module = self._module.with_programs({MAIN: main._replace(blocks=blocks)})

    def _copy_persistables(self) -> dict[str, Array]:
        """Copies of all persistable variables, in their declared shapes."""
        names = [var.name for var in self._module.main.main_block.vars.values() if var.persistable]
        held = {name: self._scope.get(name) for name in names}
        return {name: np.array(value) for name, value in held.items() if isinstance(value, np.ndarray)}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the model's parameters and buffers."""
        return tuple(self.shapes)

    @property
    def state(self) -> dict[str, Array]:
        """An array for each parameter, buffer and variable of the optimizers, with torch's names of parameters and
        buffers.
        """
        return {
            name: value.reshape(self.shapes.get(name, value.shape)) for name, value in self._copy_persistables().items()
        }

    def load(self, state: Mapping[str, Array]) -> None:
        """Sets variables by name, such as what `state` gave or what a cluster has trained; others stay.

        Raises KeyError for a name that the program has not, ValueError for another number of elements, or for what
        holds no numbers.
        """
        expect(state, Mapping, "load", "arrays by name")
        declared = self._module.main.main_block.vars
        for name, value in state.items():
            if name not in declared:
                raise KeyError(f"the program has no variable {name!r}{did_you_mean(str(name), declared)}")
            var, array = declared[name], _numbers(name, value)
            kind = self._scope[name].dtype if name in self._scope else array.dtype
            dims = array.shape or (1,)
            if var.tensor is not None and -1 not in var.tensor.shape:
                dims = var.tensor.shape
            self._scope[name] = np.array(array, kind).reshape(dims)

    def feeds(self, batch: Any) -> dict[str, Array]:
        """What is fed for a batch: an array for each of its tensors, by name.

        Raises DiagnosticError (`torch-batch`) for a batch of other tensors, or of a size that the graph was not made
        for.
        """
        if isinstance(batch, Mapping):
            named = {str(name): value for name, value in cast("Mapping[Any, Any]", batch).items()}
        else:
            values = tensors_of(batch)
            named = dict(zip(self.inputs, values, strict=False))
            if len(values) != len(self.inputs):
                raise DiagnosticError([self._other_batch(quantity(len(values), "tensor"))])
        missing = [name for name in self.inputs if name not in named]
        if missing:
            raise DiagnosticError([self._other_batch(f"no {missing[0]}")])
        fed = {name: array_of(named[name]) for name in self.inputs}
        self.require_sizes(fed)
        return fed

    def require_sizes(self, fed: Mapping[str, Array]) -> None:
        """Raises DiagnosticError (`torch-batch`) for a batch of a size that the graph was not made for."""
        shapes = [fed[name].shape for name in self.inputs]
        broken = [guard for guard in self.guards if not guard.holds(shapes)]
        if broken:
            sizes = ", ".join(f"{name} {list(fed[name].shape)}" for name in self.inputs)
            message = f"the graph holds for batches with {broken[0].text_with_names(self.inputs)}; this one has {sizes}"
            raise DiagnosticError([error("torch-batch", message)])

    def _other_batch(self, what: str) -> Diagnostic:
        return error("torch-batch", f"the batch has {what}; the model was traced with {', '.join(self.inputs)}")

    def train(self, batches: Iterable[Any]) -> list[float]:
        """Makes a step with each batch on this machine; gives the losses.

        Raises DiagnosticError (`torch-batch`) for anything but batches that the graph was made for.
        """
        result: list[float] = []
        with np.errstate(all="ignore"):
            for batch in batches_of(batches, len(self.inputs)):
                out = run(self._module.main, feed=self.feeds(batch), fetch=[self.loss], scope=self._scope)
                result.append(float(np.asarray(out[self.loss]).reshape(())))
        return result

    def write_back(self, model: Any) -> None:
        """Puts parameters and buffers into a model of torch, by name; those that the loss does not use stay.

        Raises ValueError, before any is set, for a model that lacks one of them or has it with other dims.
        """
        torch, state = torch_library(), self.state
        expect(model, torch.nn.Module, "write_back", "a model of torch (nn.Module)")
        tensors = dict(model.named_parameters(remove_duplicate=False))
        tensors |= dict(model.named_buffers(remove_duplicate=False))
        kept = [name for name in self.names if name in state]
        missing = next((name for name in kept if name not in tensors), None)
        if missing is not None:
            there = f"{did_you_mean(missing, tensors)}; it has {name_list(tensors)}" if tensors else ""
            raise ValueError(f"write_back: the model has no parameter or buffer {missing!r}{there}")
        for name in kept:
            if tuple(tensors[name].shape) != state[name].shape:
                dims, own = list(tensors[name].shape), list(state[name].shape)
                raise ValueError(f"write_back: {name} of the model has the dims {dims}, that of the training {own}")
        with torch.no_grad():
            for name in kept:
                tensors[name].copy_(torch.from_numpy(np.array(state[name])))


@suggesting
def trace(
    model: Any,
    batch: Any,
    *,
    loss: Loss | None = None,
    optimizer: Any,
    clip: Clipping | None = None,
    schedule: Any = None,
    steps: int | None = None,
    accumulate: int = 1,
    step: Literal["program", "torch"] = "program",
    source: str = "",
) -> Training:
    """The training program of a PyTorch model, with its parameters, buffers and optimizers' state as they are.

    `batch` is a tuple or a mapping of tensors whose first dim is that of rows. `loss` is called with the model and the
    tensors of a batch; None if the model gives the loss itself. `optimizer` is an optimizer of `torch.optim` over the
    model's parameters, or a list of them; `clip` says how gradients are clipped before (`clip_grad_norm(1.0)`).
    `schedule` is a scheduler of `torch.optim.lr_scheduler` or a list of them, stepped after each step; the program has
    the rates of the first `steps`, and more steps are an error. With `accumulate`, the rows of a batch are dealt to as
    many micro-batches, and the gradient is that of the mean of their losses. Modules train or evaluate as they are set:
    batch norm and dropout of a model in `eval()` do as in torch. Two steps of torch on `batch` tell first whether a
    program can show what a step does; the model is as before.

    With `step` "torch" the loss and all gradients are one op, in which torch calls the model, on its own device; only
    the updates are ops of the program. That is for models that torch can't export. Every process calls the function
    `source` (`FILE.py:NAME`), which takes nothing and gives this training, to have a model of its own; the input
    `FILE.py:NAME` of a command says it.

    Raises DiagnosticError: `torch-export` for a model that torch can't export, `torch-op` for every operator that is
    not translated and for what no operator shows, such as a state that is no buffer, `torch-loss` for a loss that is no
    number, `torch-optimizer` for options that are not translated, `torch-random` for a step of torch that draws random
    numbers.
    """
    _expect_arguments(model, loss, optimizer, clip, schedule, steps, accumulate, source)
    expect_word(step, "trace", "a kind of step", ("program", "torch"))
    _require_names(model, batch, loss)
    if step == "torch":
        return _torch_training(model, batch, loss, optimizer, clip, schedule, steps, accumulate, source)
    if source:
        raise ValueError('source is for step="torch": a program of ops needs no file of the model')
    graph = capture_step(model, batch, loss, is_known, accumulate)
    names = {id(param): name for name, param in model.named_parameters()}
    groups = groups_of(optimizer, names, schedule, steps)
    tracing = translate_graph(graph, model)
    name = _loss_of(graph, tracing, model if loss is None else loss, given=loss is not None)
    _prune(tracing, {name, *graph.changed.values()})
    states = _append_updates(tracing, name, groups, clip)
    state = {held: array for held, array in tracing.arrays.items() if tracing.draft.find(held, 0) is not None}
    shapes = {held: array.shape for held, array in state.items()}
    declared = tracing.draft.blocks[0].vars
    state |= {held: array for held, array in {**tracing.values, **states}.items() if held in declared}
    inputs = list(graph.inputs.values())
    return Training(tracing.draft.module(), state, name, inputs, graph.guards, shapes, batch=batch)


def _expect_arguments(
    model: Any, loss: Any, optimizer: Any, clip: Any, schedule: Any, steps: Any, accumulate: Any, source: Any
) -> None:
    """Raises TypeError for arguments of `trace` of another type, ValueError for numbers below 1, and DiagnosticError
    (`torch-loss`) for a loss function of torch itself.
    """
    torch = torch_library()
    expect(model, torch.nn.Module, "model", "a model of torch (nn.Module)")
    if loss is not None and not callable(loss):
        raise wrong_type("loss", "a function of the model and the tensors of a batch", loss)
    require_own_loss(loss)
    listed = cast("Sequence[Any]", optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
    for one in listed:
        expect(one, torch.optim.Optimizer, "optimizer", "an optimizer of torch.optim, or a list of them")
    if clip is not None:
        expect(clip, Clipping, "clip", "what clip_grad_norm(1.0) or clip_grad_value(1.0) gives")
    for one in cast("Sequence[Any]", schedule) if isinstance(schedule, list | tuple) else [schedule]:
        if one is not None and not hasattr(one, "optimizer"):
            raise wrong_type("schedule", "a scheduler of torch.optim.lr_scheduler, or a list of them", one)
    if steps is not None:
        expect_number(steps, "steps", "a number of steps", least=1)
    expect_number(accumulate, "accumulate", "a number of micro-batches", least=1)
    expect(source, str, "source", "a text FILE.py:NAME")


_MARKED = Pattern(r"@[A-Z_]+")
"""What names of a program mark gradients and counters with, such as `w@GRAD`."""


def _require_names(model: Any, batch: Any, loss: Loss | None) -> None:
    """Raises DiagnosticError (`torch-batch`, `torch-op`) unless parameters, buffers and tensors of the batch can have
    their names in one program.
    """
    place = line_of(model if loss is None else loss)
    kinds = {name: "parameter" for name, _ in model.named_parameters(remove_duplicate=False)}
    kinds |= {name: "buffer" for name, _ in model.named_buffers(remove_duplicate=False)}
    tensors_of(batch)  # tells what is no batch
    inputs = batch_names(model, batch, loss)
    findings: list[Diagnostic] = []
    for name in inputs:
        if name in kinds:
            message = f"{name} is a tensor of the batch and a {kinds[name]} of the model; a program has one {name}"
            other = "key of the batch" if isinstance(batch, Mapping) else "argument of the loss"
            near = f"another {other}, or another attribute of the model than .{name}, tells them apart"
            findings.append(error("torch-batch", message, place, notes=[Note(near)]))
    for name, kind in (*kinds.items(), *((name, "tensor of the batch") for name in inputs)):
        if (mark := _MARKED.search(name)) is not None:
            message = f"{name!r} is no name for a {kind}: {mark[0]} marks what a program makes of others"
            findings.append(error("torch-op", message, place))
    raise_errors(findings)


# A step that is one op of torch.


def _torch_training(
    model: Any,
    batch: Any,
    loss: Loss | None,
    optimizer: Any,
    clip: Clipping | None,
    schedule: Any,
    steps: int | None,
    accumulate: int,
    source: str,
) -> Training:
    """The training program whose loss and gradients torch computes. Raises DiagnosticError."""
    raise_errors(_of_all_ranks(model))
    called = TorchStep(model, batch, loss, accumulate)
    shared = called.shared
    names = {id(param): name for name, param in model.named_parameters()}
    groups = groups_of(optimizer, names, schedule, steps)
    tensors = dict((*model.named_parameters(), *model.named_buffers()))
    arrays = {name: _array_copy(tensor) for name, tensor in tensors.items()}
    inputs = dict(zip(called.inputs, tensors_of(batch), strict=True))
    tracing = Tracing(Captured((), {}, {}, {}, {name: name for name in inputs}, {}, "", ()), arrays)
    for name, tensor in inputs.items():
        tracing.declare(name, _AnyRows(tensor), fed=True)
    trained = {*shared.parameters, *shared.tables}
    parameters = {name for name, _ in model.named_parameters()}
    for name, tensor in tensors.items():
        frozen = name in parameters and name not in trained
        tracing.keep(name, arrays[name], tensor, trained=name in parameters, frozen=frozen)
    draft = tracing.draft
    draft.origin = None if called.location is None else Origin("main", 0, -1, called.location)
    out = "loss" if "loss" not in (*inputs, *tensors) else draft.names.mint("loss")
    taken = draft.names.reserved_names
    gradients = {name: f"{name}.gradient" for name in (*shared.parameters, *shared.tables)}
    gradients = {name: made if made not in taken else draft.names.mint(made) for name, made in gradients.items()}
    dense = [gradients[name] for name in shared.parameters]
    rows = [gradients[name] for name in shared.tables]
    for name, of in zip(rows, shared.tables, strict=True):
        var = draft.blocks[0].vars[of]
        draft.declare(Var(name, kind=VarKind.SELECTED_ROWS, tensor=var.tensor), 0)
    tracing.op(
        STEP,
        {"X": list(inputs), "Param": list(shared.parameters), "Table": list(shared.tables),
         "Fixed": list(shared.fixed), "Buffer": list(shared.buffers)},
        {"Out": out, "Gradients": dense, "Rows": rows, "BufferOut": list(shared.buffers)},
        source=called.source, fed=list(inputs), parameters=list(shared.parameters), tables=list(shared.tables),
        fixed=list(shared.fixed), buffers=list(shared.buffers),
    )  # fmt: skip
    draft.stop_gradient.update((*dense, *rows, *shared.buffers))
    states = _append_updates(tracing, out, groups, clip)
    declared = draft.blocks[0].vars
    state = {**arrays, **{name: array for name, array in {**tracing.values, **states}.items() if name in declared}}
    shapes = {name: array.shape for name, array in arrays.items()}
    made = Training(draft.module(), state, out, list(inputs), (), shapes, batch=batch, step=called)
    if source:
        made.found_at(source)
    return made


class _AnyRows:
    """The type of a tensor whose first dim may have any size."""

    def __init__(self, tensor: Any):
        self.dtype = tensor.dtype
        self.shape = (_RowCount(), *tensor.shape[1:]) if tensor.dim() else ()


class _RowCount:
    """A number of rows that is known at run time only."""

    node = None


# The forward program.


_MALFORMED = (ArithmeticError, LookupError, TypeError, ValueError, AttributeError)
"""The exceptions that a reader raises for arguments of an operator that it does not expect."""


_OF_A_RUN = "it depends on a size that a run knows"
"""What is said where torch itself raises, because a size follows from the data."""


def translate_graph(graph: Captured, model: Any) -> Tracing:
    """The forward program of a graph.

    Raises DiagnosticError (`torch-op`) with a finding for every operator that is not translated.
    """
    fixed = {
        name: one for name, one in model.named_buffers() if one.is_complex() and name not in graph.changed.values()
    }
    tensors = [*model.named_parameters(), *((name, one) for name, one in model.named_buffers() if name not in fixed)]
    arrays = {name: _array_copy(tensor) for name, tensor in tensors}
    tracing = Tracing(graph, arrays)
    owned = _Owned(model)
    findings = [*owned.hooks(), *_of_all_ranks(model)]
    lost: set[str] = set()
    for node in graph.nodes:
        try:
            if node.op == "placeholder":
                _input(node, graph, owned, tracing)
            elif node.op == "call_function":
                if lost.intersection(one.name for one in node.all_input_nodes):
                    lost.add(node.name)
                    continue
                _read(node, tracing)
        except (Refused, ShapeError, *_MALFORMED, RuntimeError) as problem:
            reason = _OF_A_RUN if isinstance(problem, RuntimeError) else problem
            lost.add(node.name)
            stack = node.meta.get("stack_trace")
            location = user_place(stack) or user_line(stack)
            way_out = LIMITED_ROWS if "embedding_renorm" in str(node.target) else CALLED
            notes = [*_calls(node), way_out]
            findings.append(error("torch-op", f"{_title(node)}: {reason}", location, notes=notes))
    if findings:
        raise DiagnosticError(findings)
    by_name = {node.name: node for node in graph.nodes}
    for made, buffer in graph.changed.items():
        source = tracing.resolve_alias(tracing.names[made])
        if source != buffer:
            tracing.come_from(by_name.get(made))
            tracing.op("assign", {"X": source}, {"Out": buffer})
    tracing.draft.origin = None
    return tracing


def _loss_of(graph: Captured, tracing: Tracing, called: Any, *, given: bool) -> str:
    """The variable of the loss. Raises DiagnosticError (`torch-loss`) unless it is a number."""
    if graph.loss not in tracing.names:
        raise DiagnosticError([error("torch-loss", "the loss gives no tensor", line_of(called))])
    name = tracing.names[graph.loss]
    if tracing.dtype(name) not in (DType.FP32, DType.FP64):
        message = "the loss is of flags or whole numbers, which have no gradient"
        raise DiagnosticError([error("torch-loss", message, line_of(called))])
    try:
        return tracing.finish_loss(name)
    except Refused as reason:
        notes = [] if given else [Note(NO_LOSS)]
        raise DiagnosticError([error("torch-loss", str(reason), line_of(called), notes=notes)]) from None


def _array_copy(tensor: Any) -> Array:
    """A copy of a tensor as an array. Raises DiagnosticError for types that programs lack, such as bfloat16."""
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind in ("bfloat16", "complex64", "complex128") or kind.startswith("float8"):
        message = f"the model has parameters or buffers of {kind}, which is not translated; model.float() has others"
        raise DiagnosticError([error("torch-op", message)])
    return tensor.detach().cpu().numpy().copy()


class _Owned:
    """The names of a model's parameters and buffers; a shared one may have several names."""

    def __init__(self, model: Any):
        self._model = model
        first: dict[int, str] = {}
        self._names: dict[str, str] = {}
        for name, tensor in (
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ):
            self._names[name] = first.setdefault(id(tensor), name)
        self.frozen = {name for name, param in model.named_parameters() if not param.requires_grad}

    def name(self, name: str) -> str:
        """The first name of the parameter or buffer with this name."""
        return self._names.get(name, name)

    def complex_buffer(self, name: str | None) -> Any:
        """The buffer of this name if it has complex numbers, else None."""
        made = None if name is None else dict(self._model.named_buffers(remove_duplicate=False)).get(name)
        return made if made is not None and made.is_complex() else None

    def hooks(self) -> Iterator[Diagnostic]:
        """Errors for hooks on gradients, which a graph does not contain."""
        for name, param in self._model.named_parameters():
            if getattr(param, "_backward_hooks", None) or getattr(param, "_post_accumulate_grad_hooks", None):
                yield error("torch-op", f"the parameter {name} has a hook on its gradient, which no graph shows")
        for name, module in self._model.named_modules():
            if getattr(module, "_backward_hooks", None) or getattr(module, "_backward_pre_hooks", None):
                message = f"{name or type(module).__name__} has a hook on its gradients, which no graph shows"
                yield error("torch-op", message)


def _of_all_ranks(model: Any) -> Iterator[Diagnostic]:
    """Errors for modules such as SyncBatchNorm, which need the batches of all ranks in one step."""
    for name, module in model.named_modules():
        if type(module).__name__ == "SyncBatchNorm" and module.training:
            message = (
                f"{name or 'the model'} is a SyncBatchNorm, which takes its statistics from the batches of all ranks; "
                "it is not translated, so nothing can be said of it"
            )
            notes = [Note("with nn.BatchNorm in its place a check says what else differs")]
            yield error("torch-op", message, notes=notes)


def _title(node: Any) -> str:
    return str(getattr(node.target, "name", lambda: getattr(node.target, "__name__", node.target))()).replace("::", ".")


def _calls(node: Any) -> list[Note]:
    """A note on the function or method of torch that calls the operator of a node, where its name is another one."""
    kind, _, name = str(node.meta.get("torch_fn", ("", ""))[1]).rpartition(".")
    if not name or name == _title(node).rpartition(".")[2]:
        return []
    if kind == "method_descriptor":
        return [Note(f"Tensor.{name} calls it")]
    for part in ("linalg", "fft", "special"):
        if name.startswith(f"{part}_"):
            return [Note(f"torch.{part}.{name.removeprefix(f'{part}_')} calls it")]
    return [Note(f"torch.{'' if hasattr(torch_library(), name) else 'nn.functional.'}{name} calls it")]


def _input(node: Any, graph: Captured, owned: _Owned, tracing: Tracing) -> None:
    value = node.meta["val"]
    complex_buffer = owned.complex_buffer(graph.buffers.get(node.name))
    if complex_buffer is not None and graph.buffers[node.name] not in graph.changed.values():
        name = tracing.temp("constant")
        tracing.known_values[name] = complex_buffer.detach().cpu().numpy()
    elif node.name in graph.parameters or node.name in graph.buffers:
        trained = node.name in graph.parameters
        name = owned.name(graph.parameters[node.name] if trained else graph.buffers[node.name])
        if tracing.draft.find(name, 0) is None:
            tracing.keep(name, tracing.arrays[name], value, trained=trained, frozen=name in owned.frozen)
    elif node.name in graph.constants:
        name = tracing.temp("constant")
        tracing.known_values[name] = graph.constants[node.name].detach().cpu().numpy()
        tracing.note(name, value)
    else:
        name = graph.inputs[node.name]
        tracing.declare(name, value, fed=True)
        tracing.shape_of(value, name)
    tracing.names[node.name] = name


_PASSED = ("_assert", "sym_constrain", "sym_storage_offset", "_check")
"""The beginnings of the names of functions that check sizes and compute nothing."""


def _read(node: Any, tracing: Tracing) -> None:
    name: str = getattr(node.target, "__name__", str(node.target))
    if name == "getitem":
        _part(node, tracing)
    elif getattr(node.target, "__module__", "") == "_operator":
        read_number(node, name, tracing)  # what takes a number that is not translated is refused
    elif name.startswith("sym_size"):
        tracing.integers[node.name] = tracing.size(tracing.value(node.args[0]), node.args[1])
    elif name.startswith("sym_numel"):
        size, value = 1, tracing.value(node.args[0])
        for axis in range(len(tracing.dims(value))):
            size = tracing.integer("Mul", size, tracing.size(value, axis))
        tracing.integers[node.name] = size
    elif not name.startswith(_PASSED) and not _of_numbers(node, name, tracing):
        reader = reader_of(name)
        if reader is None:
            raise Refused("it is not translated")
        reader(node, tracing, tracing.begin(node))


def _of_numbers(node: Any, name: str, tracing: Tracing) -> bool:
    """Whether a node makes a number of others, and that is translated."""
    return not hasattr(node.meta.get("val"), "shape") and bool(node.args) and read_number(node, name, tracing)


def _part(node: Any, tracing: Tracing) -> None:
    source, at = node.args
    made: str | None = tracing.parts[str(source.name)][int(at)]
    if made is None:
        raise Refused(f"its result {at} is asked for, which is not made")
    tracing.names[node.name] = made
    if made not in tracing.known_values:
        tracing.note(made, node.meta.get("val"))


def _prune(tracing: Tracing, wanted: set[str]) -> None:
    """Removes ops that the `wanted` variables do not depend on, and variables that no other op uses."""
    block, needed = tracing.draft.blocks[0], {*wanted}
    kept: list[Op] = []
    for op in reversed(block.ops):
        if needed.intersection(op.output_names):
            needed.update(op.input_names)
            kept.append(op)
    block.ops[:] = reversed(kept)
    used = {name for inner in tracing.draft.blocks for op in inner.ops for name in (*op.input_names, *op.output_names)}
    for name, var in [*block.vars.items()]:
        if name not in used and not var.need_check_feed and var.parameter is None:
            del block.vars[name]
            tracing.draft.startup.vars.pop(name, None)
    startup = tracing.draft.startup
    startup.ops[:] = [op for op in startup.ops if all(name in startup.vars for name in op.output_names)]


# The backwards of functions of the user's own: their ops take the place of gradients that rules derive. A call of such
# a function stands as one op until gradients are derived, and so does its gradient.

_STANDS_FOR = "py_func"


@aten("upstream_gradient")
def _upstream(node: Any, tracing: Tracing, out: str) -> None:
    """A variable that no op writes before gradients are derived."""
    tracing.declare(out, node.meta["val"])
    tracing.draft.stop_gradient.add(out)
    tracing.upstream.add(out)


@aten("own_gradient")
def _call(node: Any, tracing: Tracing, out: str) -> None:
    """The results of a function: copies of what its forward computes."""
    results, arguments, upstream, gradients = node.args
    draft = tracing.draft
    del tracing.names[node.name]

    def copies(nodes: Sequence[Any]) -> list[str]:
        made: list[str] = []
        for one in nodes:
            made.append(name := tracing.temp(out))
            tracing.op("assign", {"X": tracing.value(one)}, {"Out": name})
            draft.stop_gradient.add(name)
        return made

    given = [tracing.name(tracing.value(one)) for one in arguments]
    computed, own = copies(results), copies(gradients)
    made = [tracing.temp(out) for _ in results]
    for name, value in zip(made, node.meta["val"], strict=True):
        tracing.declare(name, value)
    attrs = {
        "forward_callable_id": 0,
        "backward_callable_id": len(tracing.own_backwards) + 1,
        "backward_skip_vars": [*given, *computed, *own, *made],
    }
    draft.blocks[0].ops.append(draft.make(_STANDS_FOR, {"X": [*given, *computed, *own]}, {"Out": made}, attrs))
    stands = tuple(tracing.value(one) for one in upstream)
    tracing.own_backwards.append(OwnCall(len(given), len(computed), stands, tuple(own)))
    tracing.parts[node.name] = [*made]


class OwnBackward(NamedTuple):
    """What a call of a function computes in the backward pass."""

    copies: tuple[str, ...]
    """The variables of what its forward computes."""
    upstream: tuple[str, ...]
    """The variables that stand for the gradients of its results."""
    gradients: tuple[str, ...]
    """The variables of the gradients of its arguments."""


class OwnBackwards:
    """The backwards of a program's calls, which are put aside while gradients of other ops are derived."""

    def __init__(self, tracing: Tracing):
        self._draft = tracing.draft
        self._backwards: dict[int, OwnBackward] = {}
        self._ops: list[Op] = []
        if tracing.own_backwards:
            self._put_aside(tracing)

    def _put_aside(self, tracing: Tracing) -> None:
        """Takes the ops of all backwards out of the program."""
        block = self._draft.blocks[0]
        derived, kept = {*tracing.upstream}, list[Op]()
        made = {name for call in tracing.own_backwards for name in call.gradients}
        for op in block.ops:
            number = op.attrs.get("backward_callable_id") if op.type == _STANDS_FOR else None
            if isinstance(number, int):
                call, names = tracing.own_backwards[number - 1], op.inputs["X"]
                count = call.arguments + call.results
                self._backwards[number] = OwnBackward(names[call.arguments : count], call.upstream, call.gradients)
                kept.append(op._replace(inputs=FrozenMap({"X": names[:count]})))
            elif derived.isdisjoint(op.input_names) and made.isdisjoint(op.output_names):
                kept.append(op)
            else:
                derived.update(op.output_names)
                self._ops.append(op)
                self._require_own(op)
        block.ops[:] = kept
        self._require_kept()

    def _require_own(self, op: Op) -> None:
        """Raises DiagnosticError for an op of a backward that writes a state."""
        written = [name for name in op.output_names if (var := self._draft.find(name, 0)) and var.persistable]
        if written:
            message = f"the backward of a torch.autograd.Function writes {written[0]}, which is not translated"
            raise DiagnosticError([error("torch-op", message, op.location, notes=[CALLED])])

    def _require_kept(self) -> None:
        """Raises DiagnosticError for a backward that reads a state which the step overwrites: torch calls it after."""
        block = self._draft.blocks[0]
        written = {name for op in block.ops for name in op.output_names}
        for op in self._ops:
            for name in op.input_names:
                if name in written and name in block.vars and block.vars[name].persistable:
                    message = f"the backward of a torch.autograd.Function reads {name}, which the step writes before"
                    raise DiagnosticError([error("torch-op", message, op.location, notes=[CALLED])])

    def put_back(self) -> None:
        """Has the ops of backwards take the places of gradients of calls, and results be what forwards compute."""
        if not self._backwards:
            return
        block = self._draft.blocks[0]
        ops: list[Op] = []
        results: dict[str, str] = {}
        for op in block.ops:
            if op.type == _STANDS_FOR and op.role is not None and not op.role & OpRole.BACKWARD:
                copies = self._backwards[cast("int", op.attrs["backward_callable_id"])].copies
                results |= dict(zip(copies, op.outputs["Out"], strict=True))
            elif op.type == _STANDS_FOR:
                ops += self._of_call(op)
            else:
                ops.append(op)
        block.ops[:] = [op._replace(outputs=_renamed(op.outputs, results)) for op in ops]
        used = {name for op in block.ops for name in (*op.input_names, *op.output_names)}
        own = {name for op in self._ops for name in (*op.input_names, *op.output_names)}
        own.update(name for one in self._backwards.values() for name in (*one.upstream, *one.copies))
        for name in own - used:
            var = block.vars.get(name)
            if var is not None and not var.persistable and var.parameter is None and not var.need_check_feed:
                del block.vars[name]

    def _of_call(self, op: Op) -> list[Op]:
        """The ops of a backward, in the place of the op that stands for the gradient of its call."""
        own = self._backwards[cast("int", op.attrs["forward_callable_id"])]
        wanted = dict(zip(own.gradients, op.outputs["Out"], strict=False))
        wanted = {name: gradient for name, gradient in wanted.items() if gradient != EMPTY_NAME}
        given = dict(zip(own.upstream, op.inputs["X"], strict=True))
        names, made = {*wanted}, list[Op]()
        for one in reversed(self._ops):
            if names.intersection(one.output_names):
                names.update(one.input_names)
                made.append(one)
        made.reverse()
        if any("sub_block" in one.attrs for one in made):  # whose ops read the variables too
            copies = [bare_op("assign", {"X": (gradient,)}, {"Out": (name,)}) for name, gradient in given.items()]
            made = [*(one._replace(origin=op.origin) for one in copies), *made]
        else:
            made = [one._replace(inputs=_renamed(one.inputs, given)) for one in made]
        made = [one._replace(outputs=_renamed(one.outputs, wanted), role=OpRole.BACKWARD) for one in made]
        return [*made[:-1], made[-1]._replace(role_vars=op.role_vars)]


def _renamed(slots: Any, names: Mapping[str, str]) -> Any:
    """The slots of an op with other names of variables."""
    if not any(name in names for held in slots.values() for name in held):
        return slots
    return FrozenMap({slot: tuple(names.get(name, name) for name in held) for slot, held in slots.items()})


# The updates.


def _append_updates(tracing: Tracing, loss: str, groups: Sequence[Group], clip: Clipping | None) -> dict[str, Array]:
    """Appends backward, clipping and the updates of each group; returns the initial values of their state variables."""
    draft, kind = tracing.draft, tracing.dtype(loss)
    trained = [name for group in groups for name in group.parameters]
    parameters = [name for name in draft.blocks[0].vars if name in {*trained}]
    rates = [_rate(tracing, group, kind) for group in groups]
    own = OwnBackwards(tracing)
    draft.stop_gradient |= _independent_of(trained, draft)
    pairs = append_backward(draft, loss, parameters)
    own.put_back()
    if not pairs:
        message = "none of the optimizer's parameters would be trained: they require no gradient, or the loss has none"
        raise DiagnosticError([error(OPTIMIZER_CODE, message)])
    if clip is not None:
        pairs = clip_with_optimizer(draft, pairs, clip)
    by_name = {pair.param: pair for pair in pairs}
    states: dict[str, Array] = {}
    for group, rate in zip(groups, rates, strict=True):
        updated: list[ParamGrad] = [by_name[param] for param in group.parameters if param in by_name]
        if not updated:
            continue
        optimizer = group.optimizer if kind is DType.FP64 else single(group.optimizer)
        applied = apply_gradients(draft, updated, optimizer, rate, kind)
        for param, variables in applied.states.items():
            states |= states_of(group, param, variables)
    return states


def _independent_of(trained: Sequence[str], draft: Draft) -> set[str]:
    """The variables of the main block that are computed without any of the trained parameters: nobody needs their
    gradients, which are often as large as the batch.
    """
    reached, others = {*trained}, set[str]()
    for op in draft.blocks[0].ops:
        depends = "sub_block" in op.attrs or not reached.isdisjoint(op.input_names)
        (reached if depends else others).update(op.output_names)
    return others - reached


def _rate(tracing: Tracing, group: Group, kind: DType) -> float | Value:
    """The learning rate of a group: a number, or a variable with the rate of the current step."""
    if len(group.rates) == 1:
        return Double(group.rates[0]) if kind is DType.FP64 else group.rates[0]
    draft = tracing.draft
    with draft.roles(OpRole.LR_SCHED):
        table, rate = draft.names.mint("learning_rates"), draft.names.mint("learning_rate")
        array = np.array(group.rates, "float64" if kind is DType.FP64 else "float32")
        tracing.keep_array(table, array, trained=False)
        counter = basic.step_counter(draft, COUNTER, 0)
        tracing.op("gather", {"X": table, "Index": counter.name}, {"Out": rate})
    draft.stop_gradient.update((table, rate))
    return Value(draft, rate)
