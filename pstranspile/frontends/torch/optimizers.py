"""Optimizers of `torch.optim` as optimizers of programs, by parameter group, with their schedules and state."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from pstranspile.frontends.autodiff.clips import ClipByGlobalNorm, ClipByNorm, ClipByValue
from pstranspile.frontends.autodiff.optimizers import (
    L2,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    Momentum,
    Optimizer,
    RMSProp,
)
from pstranspile.ir.argument_checks import check_arguments
from pstranspile.ir.attributes import Double
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, error
from pstranspile.runtime.values import Array


class Group(NamedTuple):
    """A parameter group: the names of its parameters, and the optimizer that updates them."""

    parameters: tuple[str, ...]
    optimizer: Optimizer
    rates: tuple[float, ...]
    """The learning rate of each step; a single rate is that of all steps."""
    kind: str
    """The class name of the torch optimizer."""
    states: Mapping[str, Mapping[str, Any]]
    """The state that torch's optimizer has for each parameter, such as `exp_avg`, by parameter name."""
    maximize: bool = False
    """Whether the loss is maximized. Then rates and decays are negated, which gives the same step to the last bit."""


OPTIMIZER_CODE = "torch-optimizer"
"""The code of findings about optimizers and options that are not translated."""

REFUSED = ("differentiable",)
"""Options that are refused if they are set."""

_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
"""The attributes with an optimizer's hooks, which a graph does not contain."""


def groups_of(
    optimizers: Any, names: Mapping[int, str], schedules: Any = None, steps: int | None = None
) -> list[Group]:
    """The parameter groups of a torch optimizer or a list of them; `names` maps a parameter's `id` to its name.

    `schedules` is a scheduler of `torch.optim.lr_scheduler` or a list of them; the groups list their rates of the first
    `steps` steps. Raises DiagnosticError (`torch-optimizer`) with a finding for everything that is not translated.
    """
    listed = _as_list(optimizers)
    findings: list[Diagnostic] = []
    result: list[Group] = []
    seen: set[str] = set()
    rates = _rates(listed, _as_list(schedules), steps, findings)
    for which, optimizer in enumerate(listed):
        kind = type(optimizer).__name__
        if any(getattr(optimizer, name, None) for name in _HOOKS):
            findings.append(error(OPTIMIZER_CODE, f"{kind} has hooks on its steps, which no program shows"))
        own = cast("Any", type(optimizer))
        if inspect.unwrap(optimizer.step) is not inspect.unwrap(own.step):  # schedulers wrap it, too
            findings.append(error(OPTIMIZER_CODE, f"{kind} has a step of its own, which no program shows"))
        groups: Sequence[Mapping[str, Any]] = optimizer.param_groups
        for number, group in enumerate(groups):
            at = f"{kind}, group {number}" if len(groups) > 1 else kind
            held = [names[id(param)] for param in group["params"] if id(param) in names]
            reasons = [*_wrong_members(group, held, names, seen), *_wrong_options(group)]
            seen.update(held)
            made = _translate_group(kind, group)
            findings += [error(OPTIMIZER_CODE, f"{at}: {reason}") for reason in reasons]
            if isinstance(made, str):
                findings.append(error(OPTIMIZER_CODE, f"{at}: {made}"))
            elif held:
                states = {names[id(p)]: optimizer.state[p] for p in group["params"] if optimizer.state.get(p)}
                each = rates.get((which, number)) or (float(group["lr"]),)
                if group.get("maximize"):
                    each = tuple([-rate for rate in each])
                result.append(Group(tuple(held), made, each, kind, states, bool(group.get("maximize"))))
    if findings:
        raise DiagnosticError(findings)
    return result


def _as_list(given: Any) -> list[Any]:
    """A list of what is given: one object, a list or tuple of them, or None."""
    if given is None:
        return []
    return list(given) if isinstance(given, list | tuple) else [given]  # pyright: ignore[reportUnknownArgumentType]


def _wrong_members(
    group: Mapping[str, Any], held: Sequence[str], names: Mapping[int, str], seen: set[str]
) -> Iterator[str]:
    unknown = [param for param in group["params"] if id(param) not in names]
    if unknown:
        whose = "parameter is not one of the model's" if len(unknown) == 1 else "parameters are not the model's"
        yield f"{len(unknown)} of its {whose}; it is to be made from the parameters() of the model that is traced"
    twice = [name for name in held if name in seen]
    if twice:
        yield f"{twice[0]} is another optimizer's parameter already"


def _wrong_options(group: Mapping[str, Any]) -> Iterator[str]:
    for name in REFUSED:
        if group.get(name):
            yield f"{name}={group[name]} is not translated"


# Each of torch's optimizers.


_Translation: TypeAlias = "Callable[[Mapping[str, Any], dict[str, Any]], Optimizer | str]"
"""Makes the optimizer of a group from torch's options and common arguments, or says why it can't be translated."""


def _translate_group(kind: str, group: Mapping[str, Any]) -> Optimizer | str:
    """The optimizer of a group, or the reason why it can't be translated."""
    if kind not in TRANSLATED:
        return f"it is not translated; there are {', '.join(TRANSLATED)}"
    decay = _decay(group)
    common: dict[str, Any] = {"learning_rate": _number(-group["lr"] if group.get("maximize") else group["lr"])}
    if decay:
        common["regularizer"] = L2(decay)
    return TRANSLATED[kind](group, common)


def single(optimizer: Optimizer) -> Optimizer:
    """The same optimizer with its numbers as attributes of single precision (`float` in place of `Double`)."""
    fields = {field.name: getattr(optimizer, field.name) for field in dataclasses.fields(optimizer)}
    plain: dict[str, Any] = {name: float(value) for name, value in fields.items() if isinstance(value, Double)}
    if isinstance(optimizer.regularizer, L2):
        plain["regularizer"] = L2(float(optimizer.regularizer.coefficient))
    return dataclasses.replace(optimizer, **plain)


def _number(given: Any) -> Double:
    """A number, or a tensor of one element, in double precision."""
    return Double(float(given))


def _decay(group: Mapping[str, Any]) -> Double:
    """The weight decay of a group. With `maximize` it is negated like the rate, so their product is the same."""
    decay = group.get("weight_decay", 0.0)
    return _number(-decay if group.get("maximize") else decay)


def _sgd(group: Mapping[str, Any], common: dict[str, Any]) -> Optimizer | str:
    if not group["momentum"]:
        return SGD(**common)
    dampening = _number(group["dampening"])
    return Momentum(
        momentum=_number(group["momentum"]), use_nesterov=bool(group["nesterov"]), dampening=dampening, **common
    )


def _adam(group: Mapping[str, Any], common: dict[str, Any]) -> Optimizer | str:
    beta1, beta2 = map(_number, group["betas"])
    largest = bool(group["amsgrad"])
    return Adam(beta1=beta1, beta2=beta2, epsilon=_number(group["eps"]), later=True, amsgrad=largest, **common)


def _adam_or_adamw(group: Mapping[str, Any], common: dict[str, Any]) -> Optimizer | str:
    return _adamw(group, common) if group.get("decoupled_weight_decay") else _adam(group, common)


def _adamw(group: Mapping[str, Any], common: dict[str, Any]) -> Optimizer | str:
    beta1, beta2 = map(_number, group["betas"])
    common.pop("regularizer", None)
    return Adam(
        beta1=beta1,
        beta2=beta2,
        epsilon=_number(group["eps"]),
        later=True,
        decoupled_decay=_decay(group),
        amsgrad=bool(group["amsgrad"]),
        **common,
    )


def _sparse_adam(group: Mapping[str, Any], common: dict[str, Any]) -> Optimizer | str:
    beta1, beta2 = map(_number, group["betas"])
    return Adam(beta1=beta1, beta2=beta2, epsilon=_number(group["eps"]), lazy_mode=True, powers_after=True, **common)


def _adagrad(group: Mapping[str, Any], common: dict[str, Any]) -> Optimizer | str:
    return Adagrad(
        epsilon=_number(group["eps"]),
        initial_accumulator_value=_number(group["initial_accumulator_value"]),
        rate_decay=_number(group["lr_decay"]),
        **common,
    )


def _rmsprop(group: Mapping[str, Any], common: dict[str, Any]) -> Optimizer | str:
    return RMSProp(
        rho=_number(group["alpha"]),
        epsilon=_number(group["eps"]),
        momentum=_number(group["momentum"]),
        centered=bool(group["centered"]),
        of_root=True,
        **common,
    )


def _adamax(group: Mapping[str, Any], common: dict[str, Any]) -> Optimizer | str:
    beta1, beta2 = map(_number, group["betas"])
    return Adamax(beta1=beta1, beta2=beta2, epsilon=_number(group["eps"]), of_gradient=True, **common)


def _adadelta(group: Mapping[str, Any], common: dict[str, Any]) -> Optimizer | str:
    return Adadelta(epsilon=_number(group["eps"]), rho=_number(group["rho"]), later=True, **common)


TRANSLATED: Mapping[str, _Translation] = {
    "SGD": _sgd,
    "Adam": _adam_or_adamw,
    "AdamW": _adamw,
    "SparseAdam": _sparse_adam,
    "Adagrad": _adagrad,
    "RMSprop": _rmsprop,
    "Adamax": _adamax,
    "Adadelta": _adadelta,
}
"""The optimizers of torch that are translated, by the names of their classes."""


# The state of an optimizer.


_STATES: Mapping[str, Mapping[str, str]] = {
    "SGD": {"velocity": "momentum_buffer"},
    "Adam": {"moment1": "exp_avg", "moment2": "exp_avg_sq", "moment2_max": "max_exp_avg_sq"},
    "AdamW": {"moment1": "exp_avg", "moment2": "exp_avg_sq", "moment2_max": "max_exp_avg_sq"},
    "SparseAdam": {"moment1": "exp_avg", "moment2": "exp_avg_sq"},
    "Adagrad": {"moment": "sum", "updates": "step"},
    "RMSprop": {"momentum": "momentum_buffer", "mean_square": "square_avg", "mean_grad": "grad_avg"},
    "Adamax": {"moment": "exp_avg", "inf_norm": "exp_inf"},
    "Adadelta": {"_avg_squared_grad": "square_avg", "_avg_squared_update": "acc_delta"},
}
"""For each torch optimizer, torch's name of a state by the program's. Powers of beta follow from torch's `step`."""

_OF_GRADIENTS = ("momentum_buffer", "exp_avg", "grad_avg")
"""Torch's states that are linear in the gradients, and so change sign with `maximize`."""

_POWERS = ("beta1_pow_acc", "beta2_pow_acc")
"""States that hold a power of beta: `beta ** (n + 1)` after n steps."""


def states_of(group: Group, param: str, variables: Mapping[str, str]) -> dict[str, Array]:
    """The initial values of a parameter's state variables, from torch's optimizer state.

    `variables` maps a role such as `moment1` to the variable's name. A state that torch doesn't have yet is left out.
    """
    held = group.states.get(param)
    if held is None:
        return {}
    result: dict[str, Array] = {}
    for role, name in variables.items():
        if role in _POWERS and isinstance(group.optimizer, Adam | Adamax):
            beta: Any = group.optimizer.beta1 if role == _POWERS[0] else group.optimizer.beta2
            result[name] = np.array([float(beta) ** (float(held["step"]) + 1)])
            continue
        if role == "grad_share" and isinstance(group.optimizer, Momentum):
            if held.get("momentum_buffer") is not None:
                result[name] = np.array([1 - float(group.optimizer.dampening)])
            continue
        own = _STATES[group.kind].get(role, "")
        if held.get(own) is not None:
            array = held[own].detach().cpu().numpy()
            result[name] = -array if group.maximize and own in _OF_GRADIENTS else array.copy()
    return result


# Rates that change from step to step.


def _rates(
    optimizers: Sequence[Any], schedules: Sequence[Any], steps: int | None, findings: list[Diagnostic]
) -> dict[tuple[int, int], tuple[float, ...]]:
    """The rates of the first steps of each group with a schedule, by (index of optimizer, index of group).

    Appends a finding to `findings` for each schedule that is not translated.
    """
    result: dict[tuple[int, int], tuple[float, ...]] = {}
    together: dict[int, list[Any]] = {}
    for schedule in schedules:
        kind = type(schedule).__name__
        which = [at for at, one in enumerate(optimizers) if one is getattr(schedule, "optimizer", None)]
        if not which:
            findings.append(error(OPTIMIZER_CODE, f"{kind} is a scheduler of another optimizer"))
        elif kind == "ReduceLROnPlateau":
            findings.append(error(OPTIMIZER_CODE, f"{kind} is not translated: its rates depend on more than the step"))
        elif steps is None or steps < 1:
            message = f"{kind}: how many steps it is asked for must be said (steps=1000)"
            findings.append(error(OPTIMIZER_CODE, message))
        else:
            together.setdefault(which[0], []).append(schedule)
    for which, listed in together.items():
        try:
            rates, changed = _first_rates(optimizers[which], listed, steps or 1)
        except Exception as problem:  # whatever a scheduler of the user's own raises
            kinds = ", ".join(type(one).__name__ for one in listed)
            findings.append(error(OPTIMIZER_CODE, f"{kinds}: a copy of it can't be stepped: {problem}"))
            continue
        for kind, name in changed:
            notes = [Note("with cycle_momentum=False it changes the rate alone")] if kind in _CYCLING else []
            findings.append(error(OPTIMIZER_CODE, f"{kind} changes {name}, too, which is not translated", notes=notes))
        for number, held in enumerate(rates):
            result[which, number] = held
    return result


def _first_rates(
    optimizer: Any, schedules: Sequence[Any], steps: int
) -> tuple[list[tuple[float, ...]], list[tuple[str, str]]]:
    """The rates of each parameter group in the next `steps` steps, after each of which all the schedulers of an
    optimizer are stepped, in order; and the other options that they change, with the kind of the scheduler.

    The schedulers, those that they call, and the optimizer are not changed.
    """
    mine = copy.copy(optimizer)
    groups: list[dict[str, Any]] = [
        {name: value.detach().clone() if hasattr(value, "detach") else value for name, value in group.items()}
        for group in optimizer.param_groups
    ]
    mine.param_groups = groups
    params = [param for group in groups for param in group["params"]]
    # what refers to the optimizer or to its parameters, at any depth, refers to the copy, or to these
    known = {id(optimizer): mine, **{id(param): param for param in params}}
    copies: list[Any] = copy.deepcopy(list(schedules), known)
    rates: list[list[float]] = [[] for _ in groups]
    changed: dict[tuple[str, str], None] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(steps):
            for held, group in zip(rates, groups, strict=True):
                held.append(float(group["lr"]))
            for schedule in copies:
                before = [{name: group.get(name) for name in _SETTINGS} for group in groups]
                schedule.step()
                pairs = list(zip(groups, before, strict=True))
                names = [name for new, old in pairs for name in _SETTINGS if new.get(name) != old[name]]
                changed |= {(type(schedule).__name__, name): None for name in names}
    return [tuple(held) for held in rates], list(changed)


_CYCLING = ("OneCycleLR", "CyclicLR")
"""Schedulers that change the momentum (of Adam: betas) unless `cycle_momentum` is False."""

_SETTINGS = ("momentum", "betas", "weight_decay", "alpha", "rho", "eps")
"""The options of a group, besides the rate, that a scheduler may change."""


# Clipping.


Clipping: TypeAlias = ClipByValue | ClipByGlobalNorm | ClipByNorm
"""A rule by which gradients are clipped before the updates."""

NORM_EPSILON = 1e-6
"""The number that torch adds to the norm before it divides gradients by it."""


def _require_bound(bound: float, caller: str) -> None:
    """Raises ValueError for a number below 0, to which no norm and no element can be limited."""
    if bound < 0:
        raise ValueError(f"{caller} takes a number, 0 at least, not {bound}")


@check_arguments
def clip_grad_norm(max_norm: float) -> Clipping:
    """Clipping as in `torch.nn.utils.clip_grad_norm_`: all gradients are scaled so that their total norm is at most
    `max_norm`.
    """
    _require_bound(max_norm, "clip_grad_norm")
    return ClipByGlobalNorm(float(max_norm), epsilon=NORM_EPSILON)


@check_arguments
def clip_grad_value(clip_value: float) -> Clipping:
    """Clipping as in `torch.nn.utils.clip_grad_value_`: each element is limited to [-`clip_value`, `clip_value`]."""
    _require_bound(clip_value, "clip_grad_value")
    return ClipByValue(float(clip_value))
