"""Optimizers, schedules, clips and regularizers from text, for the command line: `piecewise:values=0.1/0.01`.

All functions raise ValueError with a sentence that names the mistake and a valid form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from math import isfinite
from typing import Any

from pstranspile.frontends.autodiff.clips import Clip, ClipByGlobalNorm, ClipByNorm, ClipByValue
from pstranspile.frontends.autodiff.optimizers import L1, L2, OPTIMIZERS, Optimizer, Regularizer
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
from pstranspile.ir.diagnostics import did_you_mean

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


def parse_optimizer(
    name: str,
    settings: Sequence[str] = (),
    rate: float | Schedule | None = None,
    regularizer: Regularizer | None = None,
    clip: Clip | None = None,
) -> Optimizer:
    """The optimizer called `name` with these `KEY=VALUE` settings."""
    kind = _chosen(name, OPTIMIZERS, "optimizer")
    known = {field.name: field for field in fields(kind) if field.name not in _NOT_SETTINGS}
    arguments = _settings(settings, known, f"optimizer {name}")
    if isinstance(rate, float) and not isfinite(rate):
        raise ValueError(f"the learning rate is {rate}, it must be a finite number")
    if rate is not None:
        arguments["learning_rate"] = rate
    return kind(regularizer=regularizer, clip=clip, **arguments)


def parse_schedule(text: str, rate: float | None, inner: Schedule | None = None) -> Schedule:
    """A schedule such as `exponential:decay_steps=100,decay_rate=0.5`; lists are `0.1/0.01`.

    `rate` is the initial learning rate, `inner` the schedule after `warmup`.
    """
    name, _, settings = text.partition(":")
    kind = _chosen(name, SCHEDULES, "schedule")
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
    kind = _chosen(name, {"global_norm": ClipByGlobalNorm, "norm": ClipByNorm, "value": ClipByValue}, "clip")
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
    return _chosen(name, {"l1": L1, "l2": L2}, "regularizer")(_number(value, f"regularizer {name}"))


def _chosen(name: str, known: Mapping[str, Any], what: str) -> Any:
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


def _settings(given: Sequence[str], known: Mapping[str, Field[Any]], what: str) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"{what}: {item!r} is not KEY=VALUE")
        if key not in known:
            hint = did_you_mean(key, known) or f"; it has {', '.join(known) or 'none'}"
            raise ValueError(f"{what} has no setting {key!r}{hint}")
        if key in result:
            raise ValueError(f"{what}: {key} is given twice")
        result[key] = _converted(value, str(known[key].type), f"{what}: {key}")
    return result


def _converted(text: str, kind: str, what: str) -> Any:
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
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{what} takes a whole number, got {text!r}") from None
