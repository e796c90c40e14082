"""Averages of parameters, maintained during training: ModelAverage, ExponentialMovingAverage, Lookahead.

The first two also give programs that replace the parameters by their averages, and that restore them.
"""

from __future__ import annotations

from pstranspile.frontends.layers import basic
from pstranspile.frontends.layers.draft import Draft, Value
from pstranspile.frontends.layers.loops import Switch
from pstranspile.ir.attributes import Floats
from pstranspile.ir.model import Program, TensorType, Var
from pstranspile.ir.types import DType, OpRole

EMA_COUNTER = "@EMA_STEP_COUNTER@"


class ModelAverage:
    """Sums of parameters over windows of updates. It appends its ops when it is created, after `minimize`.

    `apply_program` sets every parameter to its average and keeps the old value; `restore_program` restores it.
    """

    def __init__(
        self,
        draft: Draft,
        average_window_rate: float,
        min_average_window: int = 10000,
        max_average_window: int = 10000,
        name: str = "",
    ):
        self._prefix = f"{name}_" if name else ""
        self._window = {
            "average_window": average_window_rate,
            "min_average_window": min_average_window,
            "max_average_window": max_average_window,
        }
        params = _averaged_parameters(draft)
        kept = [(param, _backup(param, f"{param.name}.tmp")) for param in params]
        self._states: dict[str, dict[str, Value]] = {}
        for param, backup in kept:
            with draft.roles(OpRole.OPTIMIZE, param.name, backup.name), draft.scope("move_average"):
                self._accumulate(param)
        self.apply_program = self._apply(draft, kept)
        self.restore_program = _restore(draft, kept)

    def _accumulate(self, param: Value) -> None:
        draft = param.draft
        draft.names.mint("average_accumulate")
        states: dict[str, Value] = {}
        for state in ("sum_1", "sum_2", "sum_3", "num_accumulates", "old_num_accumulates", "num_updates"):
            name = draft.names.mint(f"{param.name}_{self._prefix}{state}")
            counts = state.startswith(("num", "old"))
            tensor = TensorType(DType.INT64, (1,)) if counts else TensorType(param.dtype, param.shape)
            basic.declare_initialised(draft, name, tensor, 0.0)
            states[state] = Value(draft, name)
        inputs = {"param": param, **{f"in_{state}": value for state, value in states.items()}}
        outputs = {f"out_{state}": value for state, value in states.items()}
        draft.op("average_accumulates", inputs, outputs, self._window)
        self._states[param.name] = states

    def _apply(self, draft: Draft, kept: list[tuple[Value, Value]]) -> Program:
        other = draft.sibling()
        for param, backup in kept:
            states = {state: _seen_from(other, value) for state, value in self._states[param.name].items()}
            target = _seen_from(other, param)
            basic.assign(target, _seen_from(other, backup))
            updates = basic.sums([states["num_accumulates"], states["old_num_accumulates"]])
            total = basic.sums([states["sum_1"], states["sum_2"], states["sum_3"]])
            number, dividend = basic.cast(updates, DType.FP32), basic.cast(total, DType.FP32)
            other.op("elementwise_div", {"X": dividend, "Y": number}, {"Out": target})
        return other.main()


class ExponentialMovingAverage:
    """average = decay * average + (1 - decay) * parameter, for every parameter; see `update`.

    `apply_program` sets every parameter to its average, corrected for the start at zero, and keeps the old value;
    `restore_program` restores it. With `steps`, a count of the steps, the decay is (steps + 1) / (steps + 10) while
    that is less than `decay`.
    """

    def __init__(self, draft: Draft, decay: float = 0.999, name: str = "", *, steps: Value | None = None):
        self._draft = draft
        with draft.roles(OpRole.LR_SCHED):
            self._decay = basic.global_var(draft, "scheduled_ema_decay_rate", (1,), DType.FP32, decay)
            if steps is not None:
                self._limit(steps, decay)
        params = _averaged_parameters(draft)
        self._backups = [(param, _backup(param, f"{name}{param.name}.ema_tmp")) for param in params]
        self._averages: dict[str, Value] = {}
        for param, backup in self._backups:
            with draft.roles(OpRole.OPTIMIZE, param.name, backup.name), draft.scope("moving_average"):
                minted = draft.names.mint(f"{name}{param.name}_ema")
                self._averages[param.name] = basic.global_var(draft, minted, param.shape, param.dtype, 0.0)
        self.apply_program = self._apply()
        self.restore_program = _restore(draft, self._backups)

    def _limit(self, steps: Value, decay: float) -> None:
        early = (steps + 1.0) / (steps + 10.0)
        switch = Switch()
        with switch.case(early < decay):
            basic.assign(early, self._decay)
        with switch.default():
            attrs = {"shape": (1,), "dtype": DType.FP32, "fp32_values": Floats([decay])}
            self._draft.names.mint("assign")
            self._draft.op("assign_value", None, {"Out": self._decay}, attrs)

    def _apply(self) -> Program:
        other = self._draft.sibling()
        counter = basic.global_var(other, EMA_COUNTER, (1,), DType.INT64, 0)
        step = basic.cast(counter, DType.FP32)
        power = basic.elementwise("elementwise_pow", _seen_from(other, self._decay), step)
        for param, backup in self._backups:
            target, average = _seen_from(other, param), _seen_from(other, self._averages[param.name])
            basic.assign(target, _seen_from(other, backup))
            with Switch().case(step > 0):
                basic.assign(average / (1.0 - power), average)
            basic.assign(average, target)
        return other.main()

    def update(self) -> None:
        """Appends the ops that update the averages, after `minimize`."""
        draft = self._draft
        basic.step_counter(draft, EMA_COUNTER)
        for param, backup in self._backups:
            with draft.roles(OpRole.OPTIMIZE, param.name, backup.name), draft.scope("moving_average"):
                average = self._averages[param.name]
                basic.assign(average * self._decay + param * (1 - self._decay), average)


def lookahead(draft: Draft, alpha: float = 0.5, k: int = 5) -> None:
    """Adds slow copies of the parameters, after `minimize`; every `k` steps they move by `alpha` towards the fast ones.

    Raises ValueError unless 0 <= alpha <= 1 and k > 0.
    """
    if not 0.0 <= alpha <= 1.0 or k <= 0:
        raise ValueError(f"lookahead needs 0 <= alpha <= 1 and k > 0, got alpha={alpha} and k={k}")
    params = [Value(draft, var.name) for var in draft.parameters()]
    slow = {param.name: _slow_copy(param) for param in params}
    every = basic.global_var(draft, "lookahead_k", (1,), DType.INT32, k)
    weight = basic.global_var(draft, "lookahead_alpha", (1,), DType.FP32, alpha)
    step = basic.global_var(draft, "lookahead_step", (1,), DType.INT32, 0)
    basic.increment(step)
    zero = basic.fill_constant(draft, (1,), DType.FP32, 0.0)
    one = basic.fill_constant(draft, (1,), DType.FP32, 1.0)
    rest = basic.elementwise_mod(step, every)
    switch = Switch()
    with switch.case(rest.equal(zero)):
        for param in params:
            towards = basic.elementwise_mul(param, weight)
            kept = basic.elementwise_mul(slow[param.name], basic.elementwise_sub(one, weight))
            moved = basic.elementwise_add(towards, kept)
            basic.assign(moved, slow[param.name])
            basic.assign(moved, param)
    with switch.default():
        pass


def _averaged_parameters(draft: Draft) -> list[Value]:
    """The parameters that are averaged."""
    return [Value(draft, var.name) for var in draft.parameters() if var.name not in draft.unaveraged]


def _slow_copy(param: Value) -> Value:
    draft = param.draft
    var = Var(f"{param.name}@SLOW", tensor=TensorType(param.dtype, param.shape), persistable=True)
    draft.startup.vars[var.name] = var
    draft.startup.ops.append(draft.make("assign", {"X": param}, {"Out": var.name}))
    return draft.declare(var, 0)


def _backup(param: Value, key: str) -> Value:
    """The variable that keeps a parameter's value while its average replaces it. `key` is part of its name."""
    return param.draft.fresh(key, param.dtype, stop_gradient=True)


def _seen_from(draft: Draft, value: Value) -> Value:
    """The same variable, declared in the program of another draft, which runs in the same scope."""
    return draft.declare(value.var._replace(persistable=True))


def _restore(draft: Draft, kept: list[tuple[Value, Value]]) -> Program:
    other = draft.sibling()
    for param, backup in kept:
        target = _seen_from(other, param)
        basic.assign(_seen_from(other, backup), target)
        target.redeclare_dims((0,))  # as Fluid declares a copy of a variable without dims
    return other.main()
