"""The optimizers of Fluid 1.8.5, and of Paddle 2.x where it has other formulas: their update ops and state.

An optimizer is a frozen value. Its `Update` describes the ops of `minimize`: an op type, the state variables for each
parameter, and attributes.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from math import isfinite
from typing import Any, NamedTuple, TypeAlias

from pstranspile.frontends.autodiff.backward import ParamGrad
from pstranspile.frontends.autodiff.clips import Clip, ClipByGlobalNorm, ClipByNorm, ClipByValue
from pstranspile.frontends.autodiff.schedules import (
    Cosine,
    Exponential,
    InverseTime,
    LinearWarmup,
    NaturalExp,
    Noam,
    Piecewise,
    Polynomial,
    Schedule,
)
from pstranspile.frontends.layers.draft import Draft, Value
from pstranspile.ir.diagnostics import did_you_mean
from pstranspile.ir.model import Var
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.types import OpRole, VarKind

# Weight decay: terms added to gradients.

NEW_GRADIENT = "@NEWGRAD@"
"""Suffix of the dense gradient that replaces a sparse one when a term is added."""


class L1(NamedTuple):
    """Adds coefficient * sign(parameter) to the gradient."""

    coefficient: float = 0.0

    def __str__(self) -> str:
        """The text that Fluid writes for the regularizer, and that a ParameterInfo stores."""
        return f"L1Decay, regularization_coeff={self.coefficient:f}"


class L2(NamedTuple):
    """Adds coefficient * parameter to the gradient."""

    coefficient: float = 0.0

    def __str__(self) -> str:
        """The text that Fluid writes for the regularizer, and that a ParameterInfo stores."""
        return f"L2Decay, regularization_coeff={self.coefficient:f}"


Regularizer: TypeAlias = L1 | L2
"""A term added to a gradient."""

_WRITTEN = Pattern(r"L([12])Decay, regularization_coeff=(\S+)\Z")


def parse_regularizer(text: str) -> Regularizer:
    """The regularizer that a ParameterInfo's text describes. Raises ValueError for other text."""
    match = _WRITTEN.match(text)
    if not match:
        raise ValueError(f"{text!r} is not a regularizer, expected 'L2Decay, regularization_coeff=0.1' or L1Decay")
    return (L1 if match[1] == "1" else L2)(float(match[2]))


def append_regularization(
    draft: Draft, pairs: Sequence[ParamGrad], default: Regularizer | None
) -> tuple[ParamGrad, ...]:
    """Adds each parameter's regularization term, or the default one, to its gradient.

    A sparse gradient becomes a dense one with a new name. Returns the pairs with the gradients to use from now on.
    """
    with draft.scope("regularization"):
        return tuple(_regularize_gradient(draft, pair, default) for pair in pairs)


def _regularize_gradient(draft: Draft, pair: ParamGrad, default: Regularizer | None) -> ParamGrad:
    own = regularizer_of(draft, pair.param) or default
    if own is None or pair.grad is None:
        return pair
    param, grad = Value(draft, pair.param), Value(draft, pair.grad)
    with draft.roles(OpRole.OPTIMIZE, pair.param, pair.grad):
        term = _term(param, own)
        total = grad
        if grad.var.kind is VarKind.SELECTED_ROWS:
            total = draft.declare(Var(grad.name + NEW_GRADIENT, tensor=param.tensor), 0)
        draft.op("sum", {"X": [grad, term]}, {"Out": total})
    return ParamGrad(pair.param, total.name)


def regularizer_of(draft: Draft, param: str) -> Regularizer | None:
    """The regularizer that is set on a parameter itself, None if there is none."""
    given = draft.regularizers.get(param)
    if isinstance(given, L1 | L2):
        return given
    info = draft.blocks[0].vars[param].parameter
    return parse_regularizer(info.regularizer) if info and info.regularizer else None


def _term(param: Value, kind: Regularizer) -> Value:
    draft = param.draft
    term = draft.fresh("_generated_var")
    draft.declare(Var(term.name, tensor=param.tensor))
    if isinstance(kind, L1):
        draft.op("sign", {"X": param}, {"Out": term})
        draft.op("scale", {"X": term}, {"Out": term}, {"scale": kind.coefficient})
    else:
        draft.op("scale", {"X": param}, {"Out": term}, {"scale": kind.coefficient})
    return term


Rate: TypeAlias = "float | Schedule | Value"
"""A learning rate: a number, a schedule, or a variable (f32[1]) of the program."""


class State(NamedTuple):
    """A state variable of each parameter, `<param>_<name>_0`: its slots and its initial value.

    `scalar`: one element; otherwise it has the parameter's dims. `output` is "" if the op only reads it.
    """

    name: str
    input: str
    output: str
    start: float = 0.0
    scalar: bool = False
    device: str = ""


class Update(NamedTuple):
    """The update op of an optimizer. `inputs` are variables that all parameters share.

    `finish` describes an op for each parameter after all updates: the state to scale, and the factor.
    """

    op_type: str
    states: tuple[State, ...] = ()
    attrs: Mapping[str, object] = {}
    inputs: Mapping[str, Value] = {}
    takes_rate: bool = True
    finish: tuple[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class _OptimizerSettings:
    """The settings of every optimizer: weight decay, clipping, and a prefix for the names of its state."""

    regularizer: Regularizer | None = None
    clip: Clip | None = None
    name: str = ""


@dataclass(frozen=True)
class Optimizer(_OptimizerSettings, ABC):
    """Base class of optimizers; `update(param)` gives the update op of a parameter."""

    learning_rate: Rate = 0.001

    @abstractmethod
    def update(self, param: str) -> Update:
        """The update op of the parameter called `param`, and the state it needs."""


@dataclass(frozen=True)
class SGD(Optimizer):
    """param - rate * grad."""

    def update(self, param: str) -> Update:
        """One `sgd` op, no state."""
        return Update("sgd")


@dataclass(frozen=True)
class Momentum(Optimizer):
    """velocity = momentum * velocity + grad; param - rate * velocity, or, with `use_nesterov`,
    param - rate * (grad + momentum * velocity).

    `dampening`: as in PyTorch, from the second update on, 1 - dampening times the gradient is added to the velocity.
    """

    momentum: float = 0.9
    use_nesterov: bool = False
    dampening: float = 0.0

    def update(self, param: str) -> Update:
        """One `momentum` op and a velocity; with dampening, also a variable that holds the gradient's factor."""
        attrs: dict[str, object] = {"mu": self.momentum, "use_nesterov": self.use_nesterov}
        if not self.dampening:
            return Update("momentum", (_VELOCITY,), attrs)
        share = State("grad_share", "GradShare", "GradShareOut", 1.0, scalar=True)
        return Update("momentum", (_VELOCITY, share), {**attrs, "dampening": self.dampening})


@dataclass(frozen=True)
class LarsMomentum(Optimizer):
    """Momentum with a rate of its own for each parameter, from the norms of parameter and gradient."""

    momentum: float = 0.9
    lars_coeff: float = 0.001
    lars_weight_decay: float = 0.0005
    exclude: Callable[[str], bool] | None = None
    """A function that says by name which parameters have no weight decay."""

    def update(self, param: str) -> Update:
        """One `lars_momentum` op and a velocity."""
        decay = 0.0 if self.exclude and self.exclude(param) else self.lars_weight_decay
        attrs = {"mu": self.momentum, "lars_coeff": self.lars_coeff, "lars_weight_decay": decay}
        return Update("lars_momentum", (_VELOCITY,), attrs)


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Steps divided by the root of the sum of squared gradients.

    `rate_decay`: as in PyTorch, the learning rate is divided by 1 + rate_decay times the number of earlier updates.
    """

    epsilon: float = 1e-06
    initial_accumulator_value: float = 0.0
    rate_decay: float = 0.0

    def update(self, param: str) -> Update:
        """One `adagrad` op and a moment; with `rate_decay`, also the number of updates."""
        moment = State("moment", "Moment", "MomentOut", self.initial_accumulator_value)
        attrs: dict[str, object] = {"epsilon": self.epsilon}
        if not self.rate_decay:
            return Update("adagrad", (moment,), attrs)
        updates = State("updates", "Updates", "UpdatesOut", scalar=True)
        return Update("adagrad", (moment, updates), {**attrs, "rate_decay": self.rate_decay})


@dataclass(frozen=True)
class DecayedAdagrad(Optimizer):
    """Adagrad with a decaying average in place of the sum."""

    decay: float = 0.95
    epsilon: float = 1e-06

    def update(self, param: str) -> Update:
        """One `decayed_adagrad` op and a moment."""
        attrs = {"decay": self.decay, "epsilon": self.epsilon}
        return Update("decayed_adagrad", (State("moment", "Moment", "MomentOut"),), attrs)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam; `beta1` and `beta2` may be variables. `lazy_mode` updates only the rows that a sparse gradient has.

    `later`: as in Paddle 2.x, epsilon is added to the corrected root, which makes epsilon's effect smaller in early
    steps. `decoupled_decay`: the parameter is multiplied by 1 - rate * decoupled_decay first (AdamW, arXiv 1711.05101).
    `powers_after`: as in PyTorch, sparse rows are updated with the powers of beta that dense gradients are. `amsgrad`:
    steps are divided by the root of the largest second moment so far (arXiv 1904.09237).
    """

    beta1: float | Value = 0.9
    beta2: float | Value = 0.999
    epsilon: float = 1e-08
    lazy_mode: bool = False
    later: bool = False
    decoupled_decay: float = 0.0
    powers_after: bool = False
    amsgrad: bool = False

    def update(self, param: str) -> Update:
        """One `adam` op, two moments and two powers of beta; with `amsgrad`, also the largest second moment."""
        attrs: dict[str, object] = {
            "epsilon": self.epsilon,
            "lazy_mode": self.lazy_mode,
            "min_row_size_to_use_multithread": 1000,
            **({"scaled_epsilon": True} if self.later else {}),
            **({"powers_after": True} if self.powers_after else {}),
            **({"decoupled_decay": self.decoupled_decay} if self.decoupled_decay else {}),
            **({"amsgrad": True} if self.amsgrad else {}),
        }
        largest = (State("moment2_max", "Moment2Max", "Moment2MaxOut"),) if self.amsgrad else ()
        inputs: dict[str, Value] = {}
        for key, slot, beta in (("beta1", "Beta1Tensor", self.beta1), ("beta2", "Beta2Tensor", self.beta2)):
            if isinstance(beta, Value):
                inputs[slot] = beta
            else:
                attrs[key] = beta
        states = _adam_states(self.beta1, self.beta2, powers_written=True)
        return Update("adam", (*states, *largest), attrs, inputs)


@dataclass(frozen=True)
class Adamax(Optimizer):
    """Adam with the infinity norm in place of the second moment.

    `of_gradient`: as in PyTorch, epsilon is added to the size of the gradient, not to the previous norm.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-08
    of_gradient: bool = False

    def update(self, param: str) -> Update:
        """One `adamax` op, a moment, a norm and a power of beta, which a `scale` op advances after all updates."""
        states = (
            State("moment", "Moment", "MomentOut"),
            State("inf_norm", "InfNorm", "InfNormOut"),
            State("beta1_pow_acc", "Beta1Pow", "", self.beta1, scalar=True),
        )
        attrs: dict[str, object] = {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon}
        attrs |= {"epsilon_of_gradient": True} if self.of_gradient else {}
        return Update("adamax", states, attrs, finish=("beta1_pow_acc", self.beta1))


@dataclass(frozen=True)
class Dpsgd(Optimizer):
    """SGD with gradients clipped by norm and with noise (differential privacy)."""

    clip_norm: float = 0.9
    batch_size: float = 0.999
    sigma: float = 1e-08
    seed: int = 0

    def update(self, param: str) -> Update:
        """One `dpsgd` op, no state."""
        attrs = {"clip": self.clip_norm, "batch_size": self.batch_size, "sigma": self.sigma, "seed": self.seed}
        return Update("dpsgd", (), attrs)


@dataclass(frozen=True)
class Adadelta(Optimizer):
    """Steps sized by running averages; the learning rate is declared, but the op does not read it (as in Fluid).

    `later`: as in Paddle 2.x, steps are multiplied by the learning rate.
    """

    epsilon: float = 1e-06
    rho: float = 0.95
    later: bool = False

    def update(self, param: str) -> Update:
        """One `adadelta` op and two averages."""
        states = (
            State("_avg_squared_grad", "AvgSquaredGrad", "AvgSquaredGradOut"),
            State("_avg_squared_update", "AvgSquaredUpdate", "AvgSquaredUpdateOut"),
        )
        attrs: dict[str, object] = {"epsilon": self.epsilon, "rho": self.rho}
        if self.later:
            attrs["scaled"] = True
        return Update("adadelta", states, attrs, takes_rate=self.later)


@dataclass(frozen=True)
class RMSProp(Optimizer):
    """Steps divided by the root of a running average of squared gradients, less the mean if `centered`.

    `of_root`: as in PyTorch, epsilon is added to the root, and the momentum accumulates steps that are not yet
    multiplied by the learning rate.
    """

    rho: float = 0.95
    epsilon: float = 1e-06
    momentum: float = 0.0
    centered: bool = False
    of_root: bool = False

    def update(self, param: str) -> Update:
        """One `rmsprop` op, a momentum, a mean square and a mean gradient."""
        states = (
            State("momentum", "Moment", "MomentOut"),
            State("mean_square", "MeanSquare", "MeanSquareOut"),
            State("mean_grad", "MeanGrad", "MeanGradOut"),
        )
        attrs = {"decay": self.rho, "epsilon": self.epsilon, "momentum": self.momentum, "centered": self.centered}
        return Update("rmsprop", states, {**attrs, "epsilon_of_root": True} if self.of_root else attrs)


@dataclass(frozen=True)
class Ftrl(Optimizer):
    """Follow the regularised leader. (Fluid 1.8.5 passes its l1 as l2 too; this passes both as given.)"""

    l1: float = 0.0
    l2: float = 0.0
    lr_power: float = -0.5

    def update(self, param: str) -> Update:
        """One `ftrl` op and two accumulators."""
        states = (
            State("squared", "SquaredAccumulator", "SquaredAccumOut"),
            State("linear", "LinearAccumulator", "LinearAccumOut"),
        )
        return Update("ftrl", states, {"l1": self.l1, "l2": self.l2, "lr_power": self.lr_power})


@dataclass(frozen=True)
class Lamb(Optimizer):
    """Adam's step scaled by the norm of the parameter; parameters whose name `exclude` accepts have no weight decay.

    `later`: as in Paddle 2.x, moments are corrected for their start at 0. A step without weight decay is not scaled.
    """

    lamb_weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-06
    exclude: Callable[[str], bool] | None = field(default=None, compare=False)
    later: bool = False

    def update(self, param: str) -> Update:
        """One `lamb` op, two moments and two powers of beta."""
        decay = 0.0 if self.exclude and self.exclude(param) else self.lamb_weight_decay
        attrs: dict[str, object] = {
            "beta1": self.beta1,
            "beta2": self.beta2,
            "epsilon": self.epsilon,
            "weight_decay": decay,
            **({"corrected": True} if self.later else {}),
        }
        return Update("lamb", _adam_states(self.beta1, self.beta2, powers_written=self.later), attrs)


_VELOCITY = State("velocity", "Velocity", "VelocityOut")


def _adam_states(beta1: float | Value, beta2: float | Value, *, powers_written: bool) -> tuple[State, ...]:
    """Moments, and powers of beta that start at beta (at 0.9 and 0.999 where it is a variable)."""
    first = 0.9 if isinstance(beta1, Value) else beta1
    second = 0.999 if isinstance(beta2, Value) else beta2
    outputs = ("Beta1PowOut", "Beta2PowOut") if powers_written else ("", "")
    return (
        State("moment1", "Moment1", "Moment1Out"),
        State("moment2", "Moment2", "Moment2Out"),
        State("beta1_pow_acc", "Beta1Pow", outputs[0], first, scalar=True, device="cpu"),
        State("beta2_pow_acc", "Beta2Pow", outputs[1], second, scalar=True, device="cpu"),
    )


OPTIMIZERS: Mapping[str, type[Optimizer]] = {
    "sgd": SGD,
    "momentum": Momentum,
    "lars_momentum": LarsMomentum,
    "adagrad": Adagrad,
    "decayed_adagrad": DecayedAdagrad,
    "adam": Adam,
    "adamax": Adamax,
    "dpsgd": Dpsgd,
    "adadelta": Adadelta,
    "rmsprop": RMSProp,
    "ftrl": Ftrl,
    "lamb": Lamb,
}
"""Optimizers by the name of their op."""


# Optimizers, schedules, clips and regularizers from text, for the command line: `piecewise:values=0.1/0.01`.
#
# All functions raise ValueError with a sentence that names the mistake and a valid form.


SCHEDULES: Mapping[str, type[Any]] = {
    "exponential": Exponential,
    "natural_exp": NaturalExp,
    "inverse_time": InverseTime,
    "polynomial": Polynomial,
    "piecewise": Piecewise,
    "noam": Noam,
    "cosine": Cosine,
    "warmup": LinearWarmup,
}
"""Schedules by their name on the command line."""

_NOT_SETTINGS = ("learning_rate", "regularizer", "clip", "exclude")


class _Bounds(NamedTuple):
    """The numbers with which a setting has a meaning: what a message calls them, the least, the most, and whether these
    two are among them.
    """

    words: str
    least: float = float("-inf")
    most: float = float("inf")
    with_least: bool = True
    with_most: bool = True

    def holds(self, value: float) -> bool:
        """Whether a number is among them."""
        above = self.least <= value if self.with_least else self.least < value
        return above and (value <= self.most if self.with_most else value < self.most)


_SHARE = _Bounds("at least 0 and less than 1", 0, 1, with_most=False)
_NOT_NEGATIVE = _Bounds("at least 0", 0)
_POSITIVE = _Bounds("greater than 0", 0, with_least=False)

_BOUNDS: Mapping[str, _Bounds] = {
    **dict.fromkeys(("beta1", "beta2", "rho", "decay", "momentum"), _SHARE),
    "dampening": _Bounds("at least 0 and at most 1", 0, 1),
    **dict.fromkeys(("epsilon", "initial_accumulator_value", "rate_decay", "sigma", "l1", "l2"), _NOT_NEGATIVE),
    **dict.fromkeys(("decoupled_decay", "lars_weight_decay", "lamb_weight_decay"), _NOT_NEGATIVE),
    **dict.fromkeys(("lars_coeff", "clip_norm", "batch_size"), _POSITIVE),
    "lr_power": _Bounds("at most 0", most=0),
    **dict.fromkeys(("decay_rate", "power"), _NOT_NEGATIVE),
}
"""The bounds of numbers that are written as text, by the names of settings, which mean the same in every optimizer and
schedule. The classes themselves take any number, as Fluid does.
"""


def _require_in_bounds(value: Any, bounds: _Bounds | None, what: str) -> Any:
    if bounds is not None and not bounds.holds(value):
        raise ValueError(f"{what} is {value:g}, it must be {bounds.words}")
    return value


def parse_optimizer(
    name: str,
    settings: Sequence[str] = (),
    rate: float | Schedule | None = None,
    regularizer: Regularizer | None = None,
    clip: Clip | None = None,
) -> Optimizer:
    """The optimizer called `name` with these `KEY=VALUE` settings."""
    kind = _entry_by_name(name, OPTIMIZERS, "optimizer")
    known = _settings_of(kind)
    arguments = _settings(settings, known, f"optimizer {name}", _elsewhere)
    if isinstance(rate, float) and not isfinite(rate):
        raise ValueError(f"the learning rate is {rate}, it must be a finite number")
    if rate is not None:
        arguments["learning_rate"] = rate
    return kind(regularizer=regularizer, clip=clip, **arguments)


def _settings_of(optimizer: Any) -> dict[str, Field[Any]]:
    return {field.name: field for field in fields(optimizer) if field.name not in _NOT_SETTINGS}


def _elsewhere(key: str) -> str:
    """Where a setting is, which an optimizer does not have: in an option, or in the optimizer that is most called like
    it; "" if nowhere.
    """
    if key in ("learning_rate", "regularizer", "clip"):
        return f"; --{'lr' if key == 'learning_rate' else key} gives it"
    having = [name for name, kind in OPTIMIZERS.items() if key in _settings_of(kind)]
    return f"; --optimizer {key if key in having else having[0]} has it" if having else ""


def parse_schedule(text: str, rate: float | None, inner: Schedule | None = None) -> Schedule:
    """A schedule such as `exponential:decay_steps=100,decay_rate=0.5`; lists are `0.1/0.01`.

    `rate` is the initial learning rate, `inner` the schedule after `warmup`.
    """
    name, _, settings = text.partition(":")
    kind = _entry_by_name(name, SCHEDULES, "schedule")
    known = {field.name: field for field in fields(kind)}
    arguments = _settings([part for part in settings.split(",") if part], known, f"schedule {name}")
    takes_rate = "learning_rate" in known
    if inner is not None and kind is not LinearWarmup:
        raise ValueError(f"schedule {name} does not follow another schedule; only warmup does")
    if takes_rate and "learning_rate" not in arguments:
        start = inner if inner is not None else rate
        if start is not None:
            arguments["learning_rate"] = start
    missing = [key for key, field in known.items() if key not in arguments and field.default is MISSING]
    if missing:
        hint = " (--lr gives learning_rate)" if "learning_rate" in missing else ""
        raise ValueError(f"schedule {name} needs {', '.join(missing)}{hint}")
    return kind(**arguments)


def parse_clip(text: str) -> Clip:
    """A clip such as `global_norm:1.0`, `norm:0.5`, `value:0.1` or `value:-0.1/0.2`."""
    name, _, value = text.partition(":")
    kind = _entry_by_name(name, {"global_norm": ClipByGlobalNorm, "norm": ClipByNorm, "value": ClipByValue}, "clip")
    if kind is ClipByValue and "/" in value:
        low, _, high = value.partition("/")
        bounds = _number(low, "clip value"), _number(high, "clip value")
        if bounds[0] > bounds[1]:
            raise ValueError(f"clip value is {value}, its lower bound is above the upper")
        return ClipByValue(bounds[1], bounds[0])
    limit = _number(value, f"clip {name}")
    if limit <= 0:
        raise ValueError(f"clip {name} is {value}, it must be greater than 0")
    return kind(limit)


def parse_decay(text: str) -> Regularizer:
    """A regularizer such as `l2:0.0001`."""
    name, _, value = text.partition(":")
    return _entry_by_name(name, {"l1": L1, "l2": L2}, "regularizer")(
        _require_in_bounds(_number(value, f"regularizer {name}"), _NOT_NEGATIVE, f"regularizer {name}")
    )


def _entry_by_name(name: str, known: Mapping[str, Any], what: str) -> Any:
    if name in known:
        return known[name]
    hint = did_you_mean(name, known) or f"; there are {', '.join(known)}"
    raise ValueError(f"there is no {what} {name!r}{hint}")


def _number(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{what} takes a number, got {text!r}") from None
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"{what} takes a finite number, got {text!r}")
    return value


def _settings(
    given: Sequence[str], known: Mapping[str, Field[Any]], what: str, elsewhere: Callable[[str], str] = lambda _: ""
) -> dict[str, Any]:
    """The values of `KEY=VALUE` settings, of which those `known` are there. `elsewhere` says where another one is.
    Raises ValueError.
    """
    result: dict[str, Any] = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"{what}: {item!r} is not KEY=VALUE")
        if key not in known:
            hint = did_you_mean(key, known) or f"; it has {', '.join(known) or 'none'}"
            raise ValueError(f"{what} has no setting {key!r}{elsewhere(key)}{hint}")
        if key in result:
            raise ValueError(f"{what}: {key} is given twice")
        result[key] = _require_in_bounds(
            _parse_value(value, str(known[key].type), f"{what}: {key}"), _BOUNDS.get(key), f"{what}: {key}"
        )
    return result


def _parse_value(text: str, kind: str, what: str) -> Any:
    if kind == "bool":
        if text not in ("true", "false"):
            raise ValueError(f"{what} is true or false, got {text!r}")
        return text == "true"
    if kind == "str":
        return text
    if kind == "int":
        return _integer(text, what)
    if kind == "tuple[int, ...]":
        return tuple(_integer(part, what) for part in text.split("/"))
    if kind == "tuple[float, ...]":
        return tuple(_number(part, what) for part in text.split("/"))
    return _number(text, what)


def _integer(text: str, what: str) -> int:
    if not re.fullmatch("[+-]?[0-9]{1,18}", text):
        raise ValueError(f"{what} takes a whole number, got {text[:40]!r}")
    value = int(text)
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueError(f"{what} is {value}, more than an integer of 32 bits holds")
    return value
