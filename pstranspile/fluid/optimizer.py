"""Fluid's `optimizer`: appends gradients and updates to programs, and averages parameters."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NoReturn

from pstranspile.fluid.backward import append_backward
from pstranspile.fluid.clip import GradientClipBase, error_clip_callback
from pstranspile.fluid.clip import append_gradient_clip_ops as append_gradient_clip_ops
from pstranspile.fluid.framework import default_main_program, default_startup_program, program_guard
from pstranspile.fluid.graph.program import Program
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.missing import NotHere, names_of_fluid, unsupported_error
from pstranspile.fluid.regularizer import append_regularization_ops as append_regularization_ops
from pstranspile.fluid.running.large_tables import make_states_large, require_rows_alone
from pstranspile.fluid.running.rates import LRScheduler
from pstranspile.frontends import autodiff
from pstranspile.frontends.autodiff.minimize import apply_gradients
from pstranspile.frontends.layers import basic
from pstranspile.frontends.layers.draft import Value
from pstranspile.ir.types import DType


class _Average:
    """Replaces parameters by their averages for a while: one program puts the averages in their place, another restores
    them.
    """

    def __init__(self, core: autodiff.ModelAverage | autodiff.ExponentialMovingAverage):
        self._core = core
        self.apply_program = Program.of(core.apply_program)
        self.restore_program = Program.of(core.restore_program)

    @contextmanager
    def apply(self, executor: Any, need_restore: bool = True) -> Generator[None]:
        """A context manager in which the parameters are their averages; at its end they are restored, with
        `need_restore`.
        """
        executor.run(self.apply_program)
        try:
            yield
        finally:
            if need_restore:
                self.restore(executor)

    def restore(self, executor: Any) -> None:
        """Restores the values that the parameters had before `apply`."""
        executor.run(self.restore_program)


class ModelAverage(_Average):
    """Averages of parameters over windows of updates; create it after `minimize`."""

    def __init__(
        self,
        average_window_rate: float,
        min_average_window: int = 10000,
        max_average_window: int = 10000,
        regularization: Any = None,
        name: str | None = None,
    ):
        draft = default_main_program().live()
        super().__init__(
            autodiff.ModelAverage(draft, average_window_rate, min_average_window, max_average_window, name or "")
        )


class ExponentialMovingAverage(_Average):
    """Exponential moving averages of parameters; create it after `minimize`, then call `update` to append its ops.

    With `thres_steps`, a variable that counts the steps, the decay rate rises to `decay`.
    """

    def __init__(self, decay: float = 0.999, thres_steps: Any = None, name: str | None = None):
        draft = default_main_program().live()
        steps = None if thres_steps is None else thres_steps.value
        self._moving = autodiff.ExponentialMovingAverage(draft, decay, name or "", steps=steps)
        super().__init__(self._moving)

    def update(self) -> None:
        """Appends the ops that update the averages."""
        self._moving.update()


Pairs = list[tuple[Any, Any]]


class Optimizer:
    """The base class of optimizers: `minimize` appends gradients and updates to the program of a loss."""

    kind: Callable[..., autodiff.Optimizer]
    type: str | None = None

    def __init__(
        self,
        learning_rate: Any,
        parameter_list: Any = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
        **settings: Any,
    ):
        if not isinstance(learning_rate, int | float | Variable | LRScheduler):
            kind = type(learning_rate).__name__
            raise TypeError(f"a learning rate is a number, a variable or a schedule, not a {kind}")
        if grad_clip is not None and not isinstance(grad_clip, GradientClipBase):
            raise TypeError(f"grad_clip is a GradientClipByNorm or one of its like, not a {type(grad_clip).__name__}")
        self.regularization, self._grad_clip = regularization, grad_clip
        self._learning_rate, self._name, self._parameters = learning_rate, name or "", parameter_list
        self.settings = settings
        self._served: autodiff.Schedule | None = None
        self._rates: dict[int, tuple[Any, str]] = {}
        self._of_loss: Any = None
        self._accumulators: dict[str, dict[str, Variable]] = defaultdict(dict)

    def core(self, program: Any, rate: Any) -> autodiff.Optimizer:
        """The optimizer in the form of `pstranspile.frontends.autodiff`."""
        return type(self).kind(
            learning_rate=rate,
            regularizer=None if self.regularization is None else self.regularization.core(),
            clip=None if self._grad_clip is None else self._grad_clip.core(program),
            name=self._name,
            **{key: value.value if isinstance(value, Variable) else value for key, value in self.settings.items()},
        )

    def _rate_for(self, program: Any) -> Any:
        if isinstance(self._learning_rate, Variable):
            return self._learning_rate.value
        if self._served is not None:
            self._learning_rate = program.wrap(self._served.emit(program.live()))
            return self._learning_rate.value
        known = self._rates.get(id(program))
        return program.live().value(known[1]) if known is not None else self.get_lr()

    def decay_on_servers(self, steps: int) -> None:
        """Makes servers follow the script's schedule; an epoch of it is `steps` updates."""
        if isinstance(self._learning_rate, LRScheduler):
            self._served = self._learning_rate.on_servers(steps)

    def get_lr(self) -> Any:
        """The present learning rate: a number, or the variable that the script passed."""
        given = self._learning_rate
        return given if isinstance(given, Variable) else float(given() if isinstance(given, LRScheduler) else given)

    def _take_rate(self, program: Any, name: str) -> None:
        """Records the variable of a program's learning rate, which every run sets if the rate follows a schedule."""
        self._rates[id(program)] = program, name
        if isinstance(self._learning_rate, LRScheduler):
            self._learning_rate._var_name = name  # pyright: ignore[reportPrivateUsage]
            program.schedules[name] = self._learning_rate

    def _create_global_learning_rate(self) -> None:
        """Makes the variable of the learning rate in the program in use, if there is none."""
        program = default_main_program()
        if self._global_learning_rate() is None:
            live = program.live()
            name = live.names.mint("learning_rate")
            basic.global_var(live, name, (1,), DType.FP32, self.get_lr())
            self._take_rate(program, name)

    def hold_learning_rate(self, make: Callable[[float], Variable]) -> None:
        """Makes the variable of a constant learning rate now, instead of with the first update."""
        if isinstance(self._learning_rate, float):
            program = default_main_program()
            self._rates[id(program)] = program, make(self._learning_rate).name

    def _global_learning_rate(self, program: Any = None) -> Any:
        """The variable of the learning rate, None before the first `minimize`."""
        program = program or default_main_program()
        if isinstance(self._learning_rate, Variable):
            return self._learning_rate
        known = self._rates.get(id(program))
        return None if known is None else program.global_block().var(known[1])

    def backward(
        self,
        loss: Variable,
        startup_program: Any = None,
        parameter_list: Any = None,
        no_grad_set: Any = None,
        callbacks: Any = None,
    ) -> Pairs:
        """Appends the gradients of `loss`; returns pairs of a parameter and its gradient.

        `callbacks` are those of `append_backward`; None means the one that clips where variables have an `error_clip`.
        """
        self._of_loss = loss.var.dtype
        calls = [error_clip_callback] if callbacks is None else callbacks
        with program_guard(loss.block.program, startup_program or default_startup_program()):
            return append_backward(loss, parameter_list or self._parameters, no_grad_set, calls)

    def apply_gradients(self, params_grads: Pairs) -> list[Any]:
        """Appends clipping, weight decay and updates for these pairs; returns the ops that update, and those that they
        need.

        The latter compute learning rates of single parameters, and the optimizer's counters.
        """
        program = params_grads[0][0].block.program if params_grads else default_main_program()
        live = program.live()
        pairs = [autodiff.ParamGrad(p.name, None if g is None else g.name) for p, g in params_grads]
        rate = self._rate_for(program)
        applied_gradients = apply_gradients(live, pairs, self.core(program, rate), rate, self._of_loss)
        if not isinstance(rate, Value):
            self._take_rate(program, applied_gradients.rate.name)
        block = program.global_block()
        for param, states in applied_gradients.states.items():
            for name, variable in states.items():
                self._accumulators[self._state_name(name)][param] = block.var(variable)
        make_states_large(
            live.startup_program, {param: states.values() for param, states in applied_gradients.states.items()}
        )
        require_rows_alone(program, live.startup_program)
        views = {id(op.frozen): op for made_in in program.blocks for op in made_in.ops}
        return [views[id(op)] for op in applied_gradients.ops]

    def _state_name(self, name: str) -> str:
        return f"{self._name}_{name}" if self._name else name

    def _get_accumulator(self, name: str, param: Any) -> Variable:
        """The variable of a parameter's state, such as `velocity`. Raises KeyError if there is none."""
        return self._accumulators[self._state_name(name)][param.name]

    def get_opti_var_name_list(self) -> list[str]:
        """The names of all state variables."""
        return [var.name for held in self._accumulators.values() for var in held.values()]

    def apply_optimize(self, loss: Variable, startup_program: Any, params_grads: Pairs) -> list[Any]:
        """Appends the ops of `apply_gradients`, with initialisers in `startup_program`."""
        with program_guard(loss.block.program, startup_program or default_startup_program()):
            return self.apply_gradients(params_grads)

    def minimize(
        self, loss: Variable, startup_program: Any = None, parameter_list: Any = None, no_grad_set: Any = None
    ) -> tuple[list[Any], Pairs]:
        """Appends the ops that train the parameters on `loss`; returns the ops that update, and pairs of a parameter
        and its gradient.
        """
        if not isinstance(loss, Variable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"minimize takes the variable of a loss, not a {type(loss).__name__}")
        pairs = self.backward(loss, startup_program, parameter_list, no_grad_set)
        return self.apply_optimize(loss, startup_program, pairs), pairs


def _optimizer(name: str, kind: Callable[..., autodiff.Optimizer], fluid: str, **renamed: str) -> Any:
    """An optimizer class with Fluid's signature; `fluid` are the class's own parameters, with defaults."""
    from pstranspile.fluid.layers.adapt import bound, signature_of

    tail = "parameter_list=None, regularization=None, grad_clip=None, name=None"
    first, _, last = fluid.partition(" | ")
    if "parameter_list" in first:
        first, _, middle = first.partition(", parameter_list=None")
        tail = tail.replace("parameter_list=None", f"parameter_list=None{middle}")
    signature = signature_of(", ".join(part for part in (first, tail, last) if part))
    common = ("parameter_list", "regularization", "grad_clip", "name", "learning_rate")

    def start(self: Optimizer, *args: Any, **options: Any) -> None:
        given = bound(name, signature, args, options)
        own = {renamed.get(key, key): value for key, value in given.items() if key not in common}
        Optimizer.__init__(self, **{key: given[key] for key in common}, **own)

    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    # what `help` shows of the class, and what `--compat` looks for arguments in
    vars(start)["__signature__"] = signature.replace(parameters=[this, *signature.parameters.values()])
    doc = f"Fluid's {name}: {(kind.__doc__ or '').strip()}"
    states = {f"_{state.name.strip('_')}_acc_str": state.name for state in kind().update("").states}
    members = {"__init__": start, "kind": staticmethod(kind), "type": name, "__doc__": doc}
    return type(name, (Optimizer,), {**members, **states})


_ADAM = "beta1=0.9, beta2=0.999"
SGD = SGDOptimizer = _optimizer("SGD", autodiff.SGD, "learning_rate")
Momentum = MomentumOptimizer = _optimizer(
    "Momentum", autodiff.Momentum, "learning_rate, momentum, parameter_list=None, use_nesterov=False"
)
Adagrad = AdagradOptimizer = _optimizer(
    "Adagrad", autodiff.Adagrad, "learning_rate, epsilon=1e-06 | initial_accumulator_value=0.0"
)
Adam = AdamOptimizer = _optimizer(
    "Adam", autodiff.Adam, f"learning_rate=0.001, {_ADAM}, epsilon=1e-08 | lazy_mode=False"
)
Adamax = AdamaxOptimizer = _optimizer("Adamax", autodiff.Adamax, f"learning_rate=0.001, {_ADAM}, epsilon=1e-08")
Dpsgd = DpsgdOptimizer = _optimizer(
    "Dpsgd", autodiff.Dpsgd, "learning_rate=0.001, clip=0.9, batch_size=0.999, sigma=1e-08", clip="clip_norm"
)
DecayedAdagrad = DecayedAdagradOptimizer = _optimizer(
    "DecayedAdagrad", autodiff.DecayedAdagrad, "learning_rate, decay=0.95, epsilon=1e-06"
)
RMSProp = RMSPropOptimizer = _optimizer(
    "RMSProp", autodiff.RMSProp, "learning_rate, rho=0.95, epsilon=1e-06, momentum=0.0, centered=False"
)
Ftrl = FtrlOptimizer = _optimizer("Ftrl", autodiff.Ftrl, "learning_rate, l1=0.0, l2=0.0, lr_power=-0.5")
Adadelta = AdadeltaOptimizer = _optimizer("Adadelta", autodiff.Adadelta, "learning_rate, epsilon=1e-06, rho=0.95")
LarsMomentum = LarsMomentumOptimizer = _optimizer(
    "LarsMomentum", autodiff.LarsMomentum, "learning_rate, momentum, lars_coeff=0.001, lars_weight_decay=0.0005"
)
_Lamb = _optimizer(
    "Lamb",
    autodiff.Lamb,
    f"learning_rate=0.001, lamb_weight_decay=0.01, {_ADAM}, epsilon=1e-06 | exclude_from_weight_decay_fn=None",
    exclude_from_weight_decay_fn="exclude",
)


class LambOptimizer(_Lamb):  # pyright: ignore[reportUntypedBaseClass]
    """Fluid's Lamb; `exclude_from_weight_decay_fn` returns True for parameters without weight decay."""

    def core(self, program: Any, rate: Any) -> autodiff.Optimizer:
        """The optimizer in the form of `pstranspile.frontends.autodiff`."""
        from dataclasses import replace

        optimizer = Optimizer.core(self, program, rate)
        without = self.settings.get("exclude")
        block = program.global_block()

        def is_excluded(name: str) -> bool:
            return bool(without is not None and without(block.var(name)))

        assert isinstance(optimizer, autodiff.Lamb)
        return replace(optimizer, exclude=is_excluded if without is not None else None)


Lamb = LambOptimizer


class LookaheadOptimizer:
    """An optimizer with slow copies of the parameters, which every `k` steps move towards the fast ones by the share
    `alpha`.
    """

    def __init__(self, inner_optimizer: Optimizer, alpha: float = 0.5, k: int = 5):
        self.inner_optimizer, self.alpha, self.k = inner_optimizer, alpha, k

    def minimize(self, loss: Variable, startup_program: Any = None) -> Any:
        """Appends the ops of the inner optimizer, and those of the copies."""
        made = self.inner_optimizer.minimize(loss, startup_program)
        program = loss.block.program
        autodiff.lookahead(program.live(startup_program), self.alpha, self.k)
        return made


class RecomputeOptimizer(Optimizer):
    """An optimizer that computes the values between checkpoints again for the gradients, instead of keeping them."""

    def __init__(self, optimizer: Optimizer):
        self.inner = optimizer
        self._checkpoints: Any = None

    def _set_checkpoints(self, checkpoints: Any) -> None:
        """Sets the variables that are kept (a list; by default all are)."""
        self._checkpoints = checkpoints

    def backward(
        self,
        loss: Variable,
        startup_program: Any = None,
        parameter_list: Any = None,
        no_grad_set: Any = None,
        callbacks: Any = None,
    ) -> Pairs:
        """Appends the gradients of `loss`; returns pairs of a parameter and its gradient."""
        with program_guard(loss.block.program, startup_program or default_startup_program()):
            return append_backward(loss, parameter_list or self._parameters, no_grad_set, callbacks, self._checkpoints)

    def apply_gradients(self, params_grads: Pairs) -> list[Any]:
        """Appends the updates of the inner optimizer."""
        return self.inner.apply_gradients(params_grads)

    def apply_optimize(self, loss: Variable, startup_program: Any, params_grads: Pairs) -> list[Any]:
        """Appends the updates of the inner optimizer."""
        return self.inner.apply_optimize(loss, startup_program, params_grads)

    def load(self, _state: Any) -> NoReturn:
        """Raises NotHere with Fluid's message; the state of an optimizer is loaded together with its program's
        variables.
        """
        raise NotHere("load function is not supported by Recompute Optimizer for now")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)


class DGCMomentumOptimizer:
    """Fluid's deep gradient compression, which needs GPUs; making one raises NotHere."""

    def __init__(self, *_: Any, **__: Any):
        raise unsupported_error("optimizer.DGCMomentumOptimizer", "it compresses gradients between GPUs; take Momentum")


class PipelineOptimizer:
    """Fluid's pipelines of devices; making one raises NotHere."""

    def __init__(self, *_: Any, **__: Any):
        raise unsupported_error("optimizer.PipelineOptimizer", "a program runs on one device; take its inner optimizer")


__getattr__ = names_of_fluid(__name__, globals())
