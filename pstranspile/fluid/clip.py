"""Fluid's `clip`: limits gradients before they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from pstranspile.fluid.graph.program import LiveDraft
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends.autodiff import ParamGrad
from pstranspile.frontends.autodiff import clips as core
from pstranspile.ops.gradient import bare_op

Pairs: TypeAlias = "list[tuple[Any, Any]]"
"""Pairs of a parameter and its gradient."""


def _draft_and_pairs(pairs: Pairs) -> tuple[LiveDraft, list[ParamGrad]]:
    named = [ParamGrad(param.name, None if grad is None else grad.name) for param, grad in pairs]
    return pairs[0][0].block.program.live(), named


def _variable_pairs(before: Pairs, pairs: Iterable[ParamGrad]) -> Pairs:
    find = before[0][0].block.program.current_block()._var_recursive
    return [(find(pair.param), None if pair.grad is None else find(pair.grad)) for pair in pairs]


class GradientClipBase:
    """The base class of clips. `need_clip` decides for each parameter whether its gradient is clipped;
    None clips all.
    """

    def __init__(self, need_clip: Callable[[Any], bool] | None = None):
        if need_clip is not None and not callable(need_clip):
            raise TypeError("need_clip is a function of a parameter")
        self.need_clip = need_clip

    def need_clip_by_name(self, program: Any) -> core.NeedClip | None:
        """`need_clip` as a function of the names of the program's parameters, None for all."""
        need = self.need_clip
        return None if need is None else lambda name: bool(need(program.global_block().var(name)))

    def core(self, program: Any) -> core.Clip:
        """The clip in the form that optimizers of this package take."""
        raise NotImplementedError("GradientClipBase is the base of GradientClipByNorm and others")

    def __call__(self, params_grads: Pairs) -> Pairs:
        """Appends the ops that clip these gradients; returns the new pairs, without parameters that
        have no gradient.
        """
        if not any(grad is not None for _, grad in params_grads):
            return list(params_grads)
        draft, pairs = _draft_and_pairs(params_grads)
        return _variable_pairs(params_grads, core.clip_with_optimizer(draft, pairs, self.core(draft.program)))


class GradientClipByValue(GradientClipBase):
    """Limits every element to [min, max]; if `min` is None it is -max."""

    def __init__(self, max: float, min: float | None = None, need_clip: Callable[[Any], bool] | None = None):
        super().__init__(need_clip)
        self.max, self.min = float(max), float(-max if min is None else min)

    def core(self, program: Any) -> core.Clip:
        """The clip of elements in the form that optimizers of this package take."""
        return core.ClipByValue(self.max, self.min, self.need_clip_by_name(program))

    def __str__(self) -> str:
        return f"Clip gradients by value, min = {self.min:f}, max={self.max:f}"


class GradientClipByNorm(GradientClipBase):
    """Scales each gradient down to the norm `clip_norm`."""

    def __init__(self, clip_norm: float, need_clip: Callable[[Any], bool] | None = None):
        super().__init__(need_clip)
        self.clip_norm = float(clip_norm)

    def core(self, program: Any) -> core.Clip:
        """The clip by norm in the form that optimizers of this package take."""
        return core.ClipByNorm(self.clip_norm, self.need_clip_by_name(program))

    def __str__(self) -> str:
        return f"Gradient Clip By Norm, clip_norm={self.clip_norm:f}"


class GradientClipByGlobalNorm(GradientClipBase):
    """Scales all gradients by one factor, so that their global norm is at most `clip_norm`."""

    def __init__(
        self,
        clip_norm: float,
        group_name: str = "default_group",
        need_clip: Callable[[Any], bool] | None = None,
    ):
        super().__init__(need_clip)
        self.clip_norm, self.group_name = float(clip_norm), group_name

    def core(self, program: Any) -> core.Clip:
        """The clip by global norm in the form that optimizers of this package take."""
        return core.ClipByGlobalNorm(self.clip_norm, self.need_clip_by_name(program), self.group_name)

    def __str__(self) -> str:
        return f"Gradient Clip By GlobalNorm, global_norm={self.clip_norm:f}"


class BaseErrorClipAttr:
    """The base class of clips for gradients of intermediate values."""

    def _append_clip_op(self, block: Any, grad_name: str) -> None:
        raise NotImplementedError(f"{type(self).__name__} must define _append_clip_op(block, grad_name)")


class ErrorClipByValue(BaseErrorClipAttr):
    """Limits every element of the gradient of a variable to [min, max]; if `min` is None it is -max."""

    def __init__(self, max: float, min: float | None = None):
        self.max, self.min = float(max), float(-max if min is None else min)

    def __str__(self) -> str:
        return f"ByValue, min={self.min:f}, max={self.max:f}"

    def _append_clip_op(self, block: Any, grad_name: str) -> None:
        held, limits = (grad_name,), {"min": self.min, "max": self.max}
        made = bare_op("clip", {"X": held}, {"Out": held}, limits)  # without a role, as in Fluid
        block.insert_blank_op(block.op_size()).become(made._replace(role=None, role_vars=None))


def error_clip_callback(block: Any, context: dict[str, str]) -> None:
    """Clips the gradients that the last op of a block writes, if their variables have an `error_clip`.

    `context` maps the name of each gradient to its variable's. Raises TypeError where an `error_clip` is not of a class
    for this.
    """
    for gradient in [name for name in block.op(-1).output_arg_names if name in context]:
        variable = block._find_var_recursive(context[gradient])
        wanted = getattr(variable, "error_clip", None)
        if wanted is None:
            continue
        if not isinstance(wanted, BaseErrorClipAttr):
            kind = type(wanted).__name__
            raise TypeError(f"the error_clip of {context[gradient]} is an ErrorClipByValue, not a {kind}")
        wanted._append_clip_op(block, gradient)  # pyright: ignore[reportPrivateUsage]


def set_gradient_clip(clip: GradientClipBase, param_list: Any = None, program: Any = None) -> None:
    """Marks parameters (default: all that exist now), so that the next `minimize` clips their gradients."""
    from pstranspile.fluid.framework import default_main_program

    if not isinstance(clip, GradientClipBase):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"set_gradient_clip takes a GradientClipByValue or one of its like, not {clip!r}")
    program = program or default_main_program()
    names = None if param_list is None else [getattr(param, "name", param) for param in param_list]
    core.set_gradient_clip(program.live(), clip.core(program), names)


def append_gradient_clip_ops(param_grads: Pairs) -> Pairs:
    """Appends the ops of clips that `set_gradient_clip` has set; returns the new pairs."""
    if not param_grads:
        return []
    draft, pairs = _draft_and_pairs(param_grads)
    return _variable_pairs(param_grads, core.clip_as_set(draft, pairs))


ClipByValue, ClipByNorm, ClipByGlobalNorm = GradientClipByValue, GradientClipByNorm, GradientClipByGlobalNorm
ClipGradByValue, ClipGradByNorm, ClipGradByGlobalNorm = ClipByValue, ClipByNorm, ClipByGlobalNorm

__getattr__ = names_of_fluid(__name__, globals())
