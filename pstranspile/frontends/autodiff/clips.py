"""Gradient clipping as in Fluid: requested with the optimizer, or earlier with `set_gradient_clip`.

Both create the same ops, but in other name scopes and in another order; the transpiler treats them differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from pstranspile.frontends.autodiff.backward import ParamGrad
from pstranspile.frontends.layers import basic
from pstranspile.frontends.layers.draft import Draft, Value
from pstranspile.ir.types import DType, OpRole, VarKind
from pstranspile.ir.user_warnings import warn

NeedClip: TypeAlias = Callable[[str], bool]
"""A function that returns whether the gradient of the parameter with this name is clipped."""


class ClipByValue(NamedTuple):
    """Limits every element to [low, high]; `low` None means -high."""

    high: float
    low: float | None = None
    need_clip: NeedClip | None = None


class ClipByNorm(NamedTuple):
    """Scales each gradient down to the L2 norm `max_norm` if its norm is larger."""

    max_norm: float
    need_clip: NeedClip | None = None


class ClipByGlobalNorm(NamedTuple):
    """Scales all gradients by one factor, so that the norm over all of them is at most `max_norm`.

    `epsilon`: as in PyTorch, it is added to the norm, and gradients of a norm just below `max_norm` become smaller.
    """

    max_norm: float
    need_clip: NeedClip | None = None
    group: str = "default_group"
    epsilon: float = 0.0


Clip: TypeAlias = ClipByValue | ClipByNorm | ClipByGlobalNorm
"""A kind of gradient clipping."""


def set_gradient_clip(draft: Draft, clip: Clip, parameters: Sequence[str] | None = None) -> None:
    """Marks parameters (default: all existing ones) to have their gradients clipped by the next `minimize`.

    As in Fluid, `minimize` clips nothing unless the first parameter in order of names is marked, and uses the last
    marked clip for all; it warns if this matters.
    """
    if parameters is None:
        parameters = [var.name for var in draft.blocks[0].vars.values() if var.parameter]
    for name in parameters:
        draft.clips[name] = clip


def clip_with_optimizer(draft: Draft, pairs: Sequence[ParamGrad], clip: Clip) -> tuple[ParamGrad, ...]:
    """Clips as an optimizer's `grad_clip`. Returns the pairs with the clipped gradients."""
    with draft.scope("gradient_clip"):
        clipped = (
            _global_norm(draft, pairs, clip) if isinstance(clip, ClipByGlobalNorm) else _clip_each(draft, pairs, clip)
        )
    _name_clipped(draft, pairs, clipped)
    return clipped


def _needs_clip(clip: Clip, param: str) -> bool:
    return clip.need_clip is None or clip.need_clip(param)


def _with_gradients(pairs: Sequence[ParamGrad]) -> list[tuple[str, str]]:
    return [(pair.param, pair.grad) for pair in pairs if pair.grad is not None]


def _clip_each(draft: Draft, pairs: Sequence[ParamGrad], clip: ClipByValue | ClipByNorm) -> tuple[ParamGrad, ...]:
    clipped: list[ParamGrad] = []
    for param, grad in _with_gradients(pairs):
        if _needs_clip(clip, param):
            with draft.roles(OpRole.OPTIMIZE, param, grad):
                grad = _clip_gradient(Value(draft, grad), clip).name
        clipped.append(ParamGrad(param, grad))
    return tuple(clipped)


def _clip_gradient(grad: Value, clip: ClipByValue | ClipByNorm) -> Value:
    if isinstance(clip, ClipByNorm):
        return basic.clip_by_norm(grad, clip.max_norm)
    return basic.clip(grad, -clip.high if clip.low is None else clip.low, clip.high)


def _square_sum(grad: Value) -> Value:
    if grad.var.kind is VarKind.SELECTED_ROWS:
        grad = basic.get_tensor_from_selected_rows(basic.merge_selected_rows(grad))
    return basic.reduce_sum(basic.square(grad))


def _global_norm(draft: Draft, pairs: Sequence[ParamGrad], clip: ClipByGlobalNorm) -> tuple[ParamGrad, ...]:
    with_gradients = _with_gradients(pairs)
    parts: list[Value] = []
    for param, grad in with_gradients:
        if _needs_clip(clip, param):
            with draft.roles(OpRole.OPTIMIZE, param, grad):
                parts.append(_square_sum(Value(draft, grad)))
    if not parts:
        return tuple(pairs)
    last = pairs[-1]
    with draft.roles(OpRole.OPTIMIZE, last.param, last.grad or ""):
        norm = basic.sqrt(basic.sums(parts))
        factor = _factor(draft, norm, clip)
    clipped: list[ParamGrad] = []
    for param, grad in with_gradients:
        if _needs_clip(clip, param):
            with draft.roles(OpRole.OPTIMIZE, param, grad):
                grad = basic.elementwise_mul(Value(draft, grad), factor).name
        clipped.append(ParamGrad(param, grad))
    return tuple(clipped)


def _factor(draft: Draft, norm: Value, clip: ClipByGlobalNorm) -> Value:
    """The factor by which gradients of this norm are multiplied."""
    kind = norm.dtype if clip.epsilon else DType.FP32
    most = basic.fill_constant(draft, (1,), kind, clip.max_norm)
    if not clip.epsilon:
        return basic.elementwise_div(most, basic.elementwise_max(most, norm))
    one = basic.fill_constant(draft, (1,), kind, 1.0)
    return basic.elementwise_min(basic.elementwise_div(most, norm + clip.epsilon), one)


def _name_clipped(draft: Draft, before: Sequence[ParamGrad], after: Sequence[ParamGrad]) -> None:
    """Sets the clipped gradient in the role variables of the clipping ops, as Fluid does."""
    old = {pair.param: pair.grad for pair in before}
    new = {pair.param: pair.grad for pair in after if pair.grad and pair.grad != old.get(pair.param)}
    ops = draft.block.ops
    for index, op in enumerate(ops):
        scope = op.attrs.get("op_namescope")
        if op.role_vars and isinstance(scope, str) and "gradient_clip" in scope and op.role_vars[0] in new:
            param = op.role_vars[0]
            ops[index] = op._replace(role_vars=(param, new[param] or ""))


@dataclass
class _Group:
    """The parameters that share a global norm."""

    max_norm: float
    max_norm_value: Value
    parts: list[Value] = field(default_factory=list[Value])
    factor: Value | None = None


def clip_as_set(draft: Draft, pairs: Sequence[ParamGrad]) -> tuple[ParamGrad, ...]:
    """Clips as `set_gradient_clip` requested; returns the pairs with the gradients to use from now on."""
    groups: dict[str, _Group] = {}
    clip: Clip | None = None
    with_gradients = _with_gradients(pairs)
    for param, grad in with_gradients:
        with draft.roles(OpRole.OPTIMIZE, param, grad), draft.scope("gradient_clip_@CLIP"):
            clip = _clip_of(draft, param)
            if clip is None:
                _warn_unclipped(draft, param, [name for name, _ in with_gradients])
                return tuple(pairs)
            if isinstance(clip, ClipByGlobalNorm):
                _join(draft, groups, clip, Value(draft, grad))
    if clip is None:
        return tuple(pairs)
    clipped: list[ParamGrad] = []
    for param, grad in with_gradients:
        # Fluid misspells the scope of this second part; the transpiler looks for `@CLIP`, so the name matters.
        with draft.roles(OpRole.OPTIMIZE, param, grad), draft.scope("graident_clip_@CLIP"):
            clipped.append(ParamGrad(param, _apply_set(draft, groups, clip, Value(draft, grad)).name))
    _name_clipped(draft, pairs, clipped)
    return tuple(clipped)


def _clip_of(draft: Draft, param: str) -> Clip | None:
    clip = draft.clips.get(param)
    return clip if isinstance(clip, ClipByValue | ClipByNorm | ClipByGlobalNorm) else None


def _warn_unclipped(draft: Draft, param: str, names: Sequence[str]) -> None:
    marked = [name for name in names if _clip_of(draft, name)]
    if marked:
        warn(
            f"no gradient is clipped, because set_gradient_clip leaves out %{param}: as in Fluid, it works for all "
            f"parameters or none (it names {len(marked)}); use the optimizer's clip with need_clip instead",
        )


def _join(draft: Draft, groups: dict[str, _Group], clip: ClipByGlobalNorm, grad: Value) -> None:
    group = groups.get(clip.group)
    if group is None:
        most = basic.fill_constant(draft, (1,), DType.FP32, clip.max_norm)
        group = groups[clip.group] = _Group(clip.max_norm, most)
    elif group.max_norm != clip.max_norm:
        raise ValueError(
            f"the parameters of clip group {clip.group!r} have different norms, {group.max_norm} and {clip.max_norm}"
        )
    group.parts.append(_square_sum(grad))


def _apply_set(draft: Draft, groups: dict[str, _Group], clip: Clip, grad: Value) -> Value:
    if not isinstance(clip, ClipByGlobalNorm):
        return _clip_gradient(grad, clip)
    group = groups[clip.group]
    if group.factor is None:
        norm = basic.sqrt(basic.sums(group.parts))
        group.factor = basic.elementwise_div(group.max_norm_value, basic.elementwise_max(group.max_norm_value, norm))
    return basic.elementwise_mul(grad, group.factor)
