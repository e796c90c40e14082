"""Training programs: backward, clipping, regularisation and updates, in the order of Fluid's `minimize`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pstranspile.frontends.autodiff.backward import (
    ParamGrad,
    append_backward,
    missing_gradient_findings,
    stopped_by_default,
    trained_block,
)
from pstranspile.frontends.autodiff.clips import clip_as_set, clip_with_optimizer
from pstranspile.frontends.autodiff.optimizers import Optimizer, State, Update, append_regularization
from pstranspile.frontends.layers import basic
from pstranspile.frontends.layers.draft import Draft, Value
from pstranspile.ir.argument_checks import require_programs
from pstranspile.ir.diagnostics import (
    Diagnostic,
    DiagnosticError,
    Severity,
    at_op,
    did_you_mean,
    error,
    file_of,
    raise_errors,
)
from pstranspile.ir.model import MAIN, Module, Op, TensorType
from pstranspile.ir.text.literals import var_text
from pstranspile.ir.types import DType, OpRole


def train(
    module: Module,
    loss: str,
    optimizer: Optimizer,
    parameters: Iterable[str] | None = None,
    no_grad: Iterable[str] = (),
) -> Module:
    """A training module from a forward one: `@main` with backward and update ops, `@startup` with their state.

    `loss` names a variable with one element. `parameters` are the ones to train (default: all trainable ones). Raises
    DiagnosticError if the loss is unknown or has another shape, or if a parameter can't be trained.
    """
    require_programs(module, (MAIN,))
    draft = draft_of_module(module)
    trained, stopped = list(parameters) if parameters is not None else None, list(no_grad)
    raise_errors(_unknown_name_errors(module, trained or (), stopped))
    pairs = minimize(Value(draft, loss), optimizer, trained, stopped)
    wanted = (
        trained
        if trained is not None
        else [var.name for var in draft.main().parameters() if _trainable(draft, var.name)]
    )
    missing = set(wanted) - {pair.param for pair in pairs}
    raise_errors(missing_gradient_findings(draft, loss, missing))
    made = draft.module()
    return module.with_programs(made.programs)


def _unknown_name_errors(module: Module, parameters: Iterable[str], others: Iterable[str]) -> list[Diagnostic]:
    known, place = module.main.main_block.vars, file_of(module.main.main_block.ops)
    names = {var.name for var in module.main.parameters()}
    given = (("a parameter", parameters, names), ("declared", others, known))
    return [
        error("training-name-unknown", f"%{name} is not {what}{did_you_mean(name, sorted(there), var_text)}", place)
        for what, wanted, there in given
        for name in wanted
        if name not in there
    ]


def trained_already(module: Module, parameters: Iterable[str] | None = None) -> list[Diagnostic]:
    """A warning at the first op of the program that already updates one of the parameters.

    Updating a parameter twice is intended if two losses train it, and a mistake if a training program is passed as a
    forward one.
    """
    wanted = set(parameters) if parameters is not None else {var.name for var in module.main.parameters()}
    block = module.main.main_block
    updates = [(op, name) for op in block.ops if op.role == OpRole.OPTIMIZE for name in op.inputs.get("Param", ())]
    result = {name: op for op, name in reversed(updates) if name in wanted}
    if not result:
        return []
    name, op = list(result.items())[-1]
    others = f" (and {len(result) - 1} more)" if len(result) > 1 else ""
    message = f"%{name}{others} is updated by this op; with another update each step changes it twice"
    return [at_op("trained-twice", message, op, focus=f"%{name}", severity=Severity.WARNING)]


def draft_of_module(module: Module) -> Draft:
    """A draft that continues a finished module. Variables without a gradient are inferred."""
    draft = Draft(module.main, module.startup, seed=module.main.random_seed)
    draft.stop_gradient |= stopped_by_default(module.main)
    return draft


def minimize(
    loss: Value, optimizer: Optimizer, parameters: Sequence[str] | None = None, no_grad: Iterable[str] = ()
) -> tuple[ParamGrad, ...]:
    """Appends the ops that train the parameters on `loss`; returns each with the gradient of its update.

    A schedule of the learning rate comes first. Raises DiagnosticError.
    """
    draft = loss.draft
    rate = optimizer.learning_rate
    if not isinstance(rate, int | float | Value):
        rate = rate.emit(draft)
    pairs = append_backward(draft, loss.name, parameters, no_grad)
    if not pairs:
        names = {var.name for var in draft.blocks[0].vars.values() if var.parameter}
        findings = missing_gradient_findings(draft, loss.name, names)
        raise DiagnosticError(findings or [_nothing_to_train(loss.name)])
    return apply_gradients(draft, pairs, optimizer, rate, loss.dtype).pairs


def _nothing_to_train(loss: str) -> Diagnostic:
    return Diagnostic("no-trainable-parameters", f"no trainable parameter leads to the loss %{loss}")


class AppliedGradients(NamedTuple):
    """The result of `apply_gradients`: each parameter with the gradient of its update, the ops, the states and the
    rate.
    """

    pairs: tuple[ParamGrad, ...]
    ops: tuple[Op, ...]
    """The updates, with the ops of their learning rates and the ops after all updates; updates of tables are last."""
    states: Mapping[str, Mapping[str, str]]
    """The state variables of each parameter, by their role (`velocity`)."""
    rate: Value
    """The learning rate."""


def apply_gradients(
    draft: Draft,
    pairs: Iterable[ParamGrad],
    optimizer: Optimizer,
    rate: float | Value,
    of_loss: DType | None = None,
) -> AppliedGradients:
    """Appends clipping, regularisation and updates for these gradients, in alphabetical order of the parameters.

    A learning rate that is a number becomes a variable of the loss's element type (default: f32).
    """
    with draft.enter_block(trained_block(draft) or draft.current):
        return _apply_gradients(draft, pairs, optimizer, rate, of_loss)


def _apply_gradients(
    draft: Draft, pairs: Iterable[ParamGrad], optimizer: Optimizer, rate: float | Value, of_loss: DType | None
) -> AppliedGradients:
    ordered = sorted(pairs, key=lambda pair: pair.param)
    updates = _Updates(draft, optimizer, rate, of_loss or DType.FP32)
    table = distributed_table(draft)
    tables = [pair for pair in ordered if pair.param == table]
    ordered = [pair for pair in ordered if pair.param != table]
    before = len(draft.block.ops)
    for pair in tables:
        updates.table(pair)
    of_tables = tuple(draft.block.ops[before:])
    clipped = clip_with_optimizer(draft, ordered, optimizer.clip) if optimizer.clip else clip_as_set(draft, ordered)
    final = append_regularization(draft, clipped, optimizer.regularizer)
    before = len(draft.block.ops)
    updates.append(final)
    made = (*draft.block.ops[before:], *of_tables)
    return AppliedGradients((*final, *tables), made, updates.states, updates.declared_rate())


def distributed_table(draft: Draft) -> str | None:
    """The table of the `lookup_table` ops with `is_distributed`, which plain SGD updates as in Fluid; None if there is
    none.
    """
    for op in draft.blocks[0].all_ops():
        if op.type == "lookup_table" and op.attrs.get("is_distributed") is True:
            return op.input("W")
    return None


class _Updates:
    """The update ops of one `minimize`, and their learning rate."""

    def __init__(self, draft: Draft, optimizer: Optimizer, rate: float | Value, of_rate: DType):
        self.draft = draft
        self.of_rate = of_rate
        self.optimizer = optimizer
        self.rate = rate
        self.states: dict[str, dict[str, str]] = {}
        self.devices = _devices(draft)

    def table(self, pair: ParamGrad) -> None:
        """Appends the update of a distributed table."""
        draft = self.draft
        with draft.roles(OpRole.OPTIMIZE, pair.param, pair.grad or ""), draft.scope("optimizer"):
            self.declared_rate()
            self._op(Update("sgd"), pair, {})

    def append(self, pairs: Sequence[ParamGrad]) -> None:
        """Appends the ops that create the state, one update for each parameter, and the ops after all updates."""
        draft = self.draft
        trained = [pair for pair in pairs if _trainable(draft, pair.param)]
        self.states = {pair.param: self._states(pair.param) for pair in trained}
        self.declared_rate()
        for pair in pairs:
            if pair.grad is None:
                continue
            with draft.roles(OpRole.OPTIMIZE, pair.param, pair.grad), draft.scope("optimizer"):
                if pair in trained:
                    with draft.scopes.on(self.devices.get(pair.param)):
                        self._op(self.optimizer.update(pair.param), pair, self.states[pair.param])
        for pair in trained:
            finish = self.optimizer.update(pair.param).finish
            if finish and pair.grad is not None:
                power = self.states[pair.param][finish[0]]
                with draft.roles(OpRole.OPTIMIZE, pair.param, pair.grad), draft.scope("adamx"):  # Fluid's spelling
                    draft.op("scale", {"X": power}, {"Out": power}, {"scale": finish[1]})

    def _states(self, param: str) -> dict[str, str]:
        return {state.name: self._state(param, state) for state in self.optimizer.update(param).states}

    def _state(self, param: str, state: State) -> str:
        prefix = f"{self.optimizer.name}_" if self.optimizer.name else ""
        name = self.draft.names.mint(f"{param}_{prefix}{state.name}")
        like = Value(self.draft, param)
        tensor = TensorType(like.dtype, (1,) if state.scalar else like.shape)
        with self.draft.scopes.on(state.device or self.devices.get(param)):
            basic.declare_initialised(self.draft, name, tensor, state.start)
        return name

    def declared_rate(self) -> Value:
        """The learning rate as a variable, created for a number."""
        if not isinstance(self.rate, Value):
            name = self.draft.names.mint("learning_rate")
            self.rate = basic.global_var(self.draft, name, (1,), self.of_rate, self.rate)
        return self.rate

    def _op(self, update: Update, pair: ParamGrad, states: dict[str, str]) -> None:
        inputs: dict[str, Value | str] = {"Param": pair.param, "Grad": pair.grad or "", **update.inputs}
        outputs = {"ParamOut": pair.param}
        for state in update.states:
            inputs[state.input] = states[state.name]
            if state.output:
                outputs[state.output] = states[state.name]
        if update.takes_rate:
            inputs["LearningRate"] = self._rate_of(pair.param)
        self.draft.op(update.op_type, inputs, outputs, update.attrs)

    def _rate_of(self, param: str) -> Value:
        rate = self.declared_rate()
        info = self.draft.blocks[0].vars[param].parameter
        factor = info.learning_rate if info else 1.0
        if factor == 1.0:
            return rate
        with self.draft.roles(OpRole.OPTIMIZE | OpRole.LR_SCHED), self.draft.scope("scale_with_param_lr"):
            return rate * factor


def _devices(draft: Draft) -> dict[str, str]:
    """The device of the first op that reads each variable, where it has one."""
    result: dict[str, str] = {}
    for op in draft.block.all_ops():
        for name in op.input_names:
            result.setdefault(name, str(op.attrs.get("op_device", "")))
    return result


def _trainable(draft: Draft, param: str) -> bool:
    info = draft.blocks[0].vars[param].parameter
    return info is not None and info.trainable
