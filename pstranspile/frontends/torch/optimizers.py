"""Optimizers of `torch.optim` as optimizers of programs, group of parameters by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pstranspile.frontends.autodiff.clips import Clip
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
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error


class Group(NamedTuple):
    """Parameters that are updated alike, by their names, and how."""

    parameters: tuple[str, ...]
    optimizer: Optimizer
    rate: float
    kind: str
    """The name of torch's class."""


_REFUSED = ("maximize", "amsgrad", "differentiable")
"""Options that are refused if they are set."""


def groups_of(optimizers: Any, names: Mapping[int, str], clip: Clip | None = None) -> list[Group]:
    """The groups of one optimizer of torch, or of several; `names` has parameters' names by `id`.

    Raises DiagnosticError (`torch-optimizer`) for what is not translated, everything at once.
    """
    listed: Sequence[Any] = optimizers if isinstance(optimizers, list | tuple) else [optimizers]
    findings: list[Diagnostic] = []
    result: list[Group] = []
    seen: set[str] = set()
    for optimizer in listed:
        for number, group in enumerate(optimizer.param_groups):
            kind = type(optimizer).__name__
            at = f"{kind}, group {number}" if len(optimizer.param_groups) > 1 else kind
            unknown = [param for param in group["params"] if id(param) not in names]
            if unknown:
                findings.append(error("torch-optimizer", f"{at}: {len(unknown)} of its parameters are not the model's"))
            held = tuple(names[id(param)] for param in group["params"] if id(param) in names)
            twice = [name for name in held if name in seen]
            if twice:
                findings.append(error("torch-optimizer", f"{at}: {twice[0]} is another optimizer's parameter already"))
            seen.update(held)
            refusals = [name for name in _REFUSED if group.get(name)]
            findings += [error("torch-optimizer", f"{at}: {name}={group[name]} is not translated") for name in refusals]
            made = _translated(kind, group, clip)
            if isinstance(made, str):
                findings.append(error("torch-optimizer", f"{at}: {made}"))
            elif held:
                result.append(Group(held, made, float(group["lr"]), kind))
    if findings:
        raise DiagnosticError(findings)
    return result


def _translated(kind: str, group: Mapping[str, Any], clip: Clip | None) -> Optimizer | str:
    """The optimizer of a group, or why there is none."""
    decay = float(group.get("weight_decay", 0.0))
    common: dict[str, Any] = {"learning_rate": float(group["lr"]), "clip": clip}
    if decay and kind not in ("AdamW", "SparseAdam"):
        common["regularizer"] = L2(decay)
    if kind == "SGD":
        if group["dampening"]:
            return f"dampening={group['dampening']} is not translated"
        if not group["momentum"]:
            return SGD(**common)
        return Momentum(momentum=float(group["momentum"]), use_nesterov=bool(group["nesterov"]), **common)
    if kind in ("Adam", "AdamW"):
        beta1, beta2 = map(float, group["betas"])
        decoupled = decay if kind == "AdamW" or group.get("decoupled_weight_decay") else 0.0
        if decoupled:
            common.pop("regularizer", None)
        return Adam(
            beta1=beta1, beta2=beta2, epsilon=float(group["eps"]), later=True, decoupled_decay=decoupled, **common
        )
    if kind == "SparseAdam":
        beta1, beta2 = map(float, group["betas"])
        return Adam(beta1=beta1, beta2=beta2, epsilon=float(group["eps"]), lazy_mode=True, powers_after=True, **common)
    if kind == "Adagrad":
        if group["lr_decay"]:
            return f"lr_decay={group['lr_decay']} is not translated; use a scheduler"
        return Adagrad(
            epsilon=float(group["eps"]), initial_accumulator_value=float(group["initial_accumulator_value"]), **common
        )
    if kind == "RMSprop":
        return RMSProp(
            rho=float(group["alpha"]),
            epsilon=float(group["eps"]),
            momentum=float(group["momentum"]),
            centered=bool(group["centered"]),
            of_root=True,
            **common,
        )
    if kind == "Adamax":
        beta1, beta2 = map(float, group["betas"])
        return Adamax(beta1=beta1, beta2=beta2, epsilon=float(group["eps"]), of_gradient=True, **common)
    if kind == "Adadelta":
        return Adadelta(epsilon=float(group["eps"]), rho=float(group["rho"]), later=True, **common)
    known = "SGD, Adam, AdamW, SparseAdam, Adagrad, RMSprop, Adamax, Adadelta"
    return f"it is not translated; there are {known}"
