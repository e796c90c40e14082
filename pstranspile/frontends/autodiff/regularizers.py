"""Weight decay: terms added to gradients."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from pstranspile.frontends.autodiff.backward import ParamGrad
from pstranspile.frontends.layers.draft import Draft, Value
from pstranspile.ir.model import Var
from pstranspile.ir.roles import OpRole
from pstranspile.ir.types import VarKind

NEW_GRADIENT = "@NEWGRAD@"
"""Suffix of the dense gradient that replaces a sparse one when a term is added."""


class L1(NamedTuple):
    """Adds coefficient * sign(parameter) to the gradient."""

    coefficient: float = 0.0

    def __str__(self) -> str:
        """The text that Fluid writes, and that a ParameterInfo keeps."""
        return f"L1Decay, regularization_coeff={self.coefficient:f}"


class L2(NamedTuple):
    """Adds coefficient * parameter to the gradient."""

    coefficient: float = 0.0

    def __str__(self) -> str:
        """The text that Fluid writes, and that a ParameterInfo keeps."""
        return f"L2Decay, regularization_coeff={self.coefficient:f}"


Regularizer: TypeAlias = L1 | L2
"""A term added to a gradient."""

_WRITTEN = re.compile(r"L([12])Decay, regularization_coeff=(\S+)\Z")


def parse_regularizer(text: str) -> Regularizer:
    """The regularizer that a ParameterInfo's text names. Raises ValueError when it names none."""
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
        return tuple(_regularized(draft, pair, default) for pair in pairs)


def _regularized(draft: Draft, pair: ParamGrad, default: Regularizer | None) -> ParamGrad:
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
    """The regularizer that a parameter has of its own."""
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
