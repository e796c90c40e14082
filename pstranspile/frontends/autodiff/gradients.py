"""Gradients of some variables with respect to others (Fluid's `gradients`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pstranspile.frontends.autodiff.backward import (
    Backward,
    backward_parts,
    flush,
    mint_again,
    ops_from,
    ops_to,
    renamed,
    require_second,
    unwanted_gradients,
)
from pstranspile.frontends.autodiff.declare import declare_gradients
from pstranspile.frontends.layers.draft import Draft
from pstranspile.ir.attributes import Longs
from pstranspile.ir.model import TensorType
from pstranspile.ir.types import DType, OpRole
from pstranspile.ops.gradient import bare_op, differentiated, gradient_name


def append_gradients(
    draft: Draft,
    targets: Sequence[str],
    inputs: Sequence[str],
    given: Sequence[str | None],
    no_grad: Iterable[str] = (),
) -> tuple[str | None, ...]:
    """Appends the ops that compute the gradients of the sum of the targets with respect to the inputs, to block 0.

    `given` are the gradients of the targets, None for ones. Variables in `no_grad` or in `draft.stop_gradient` get no
    gradient. Returns for each input the name of its gradient, None if no path leads to it. Raises NoSecondGradient if a
    gradient op without a gradient is on the path.
    """
    earlier = backward_parts(draft)
    require_second(draft.blocks[0].all_ops(), set(inputs), targets, draft.stop_gradient.union(no_grad))
    draft.gradient_calls += 1
    flush(draft)
    block = draft.blocks[0]
    unwanted = unwanted_gradients(draft, floats=False)
    unwanted[0] |= {gradient_name(name) for name in no_grad}
    names = {differentiated(name) for name in unwanted[0]}
    path = ops_from(ops_to(block.ops, set(targets), names), inputs)
    unwanted[0] |= {gradient_name(name) for name in names - set(inputs)}
    start = len(block.ops)
    with draft.roles(OpRole.BACKWARD):
        for target, gradient in zip(targets, given, strict=True):
            if gradient is None:
                _ones(draft, target)
    started = {gradient_name(target) for target in targets}
    made = Backward(draft, unwanted, earlier, own_names=False)
    made.append(0, path, set(started))
    renames = {gradient_name(target): name for target, name in zip(targets, given, strict=True) if name is not None}
    block.ops[start:] = [op._replace(inputs=renamed(op.inputs, renames)) for op in block.ops[start:]]
    mint_again(draft, start, made)
    grads = declare_gradients(draft, 0, start, made.variable_of)
    return tuple(grads.get(name) for name in inputs)


def _ones(draft: Draft, target: str) -> None:
    """The gradient of a target with respect to itself."""
    var = draft.blocks[0].vars[target]
    dims = f"{target}_shape"
    untyped = TensorType(DType.BOOL, ())  # BOOL is what Fluid leaves of an element type that is not given
    draft.declare(
        var._replace(name=dims, tensor=untyped, persistable=False, parameter=None, need_check_feed=False),
        0,
    )
    device = {"op_device": ""}
    attrs = {**device, "shape": Longs(var.shape), "value": 1.0, "dtype": var.dtype.value if var.dtype else 5}
    made = (
        bare_op("shape", {"Input": (target,)}, {"Out": (dims,)}, device),
        bare_op("fill_constant", {"ShapeTensor": (dims,)}, {"Out": (gradient_name(target),)}, attrs),
    )
    for op in made:
        draft.block.ops.append(op._replace(role=OpRole.BACKWARD, origin=draft.origin))
        draft.type_outputs(op)
