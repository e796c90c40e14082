"""What scripts ask Fluid's core about op types: declarations, kernels, gradients."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from pstranspile.fluid.graph.desc import OpDesc
from pstranspile.fluid.graph.operator import Operator
from pstranspile.kernels.kernel import kernel_of
from pstranspile.ops import all_schemas
from pstranspile.ops.gradient import SUFFIX, Wanted, differentiated, gradient_rule


def get_all_op_protos() -> list[bytes]:
    """The declarations of all op types that are no gradients, as serialized OpProtos."""
    from pstranspile.fluid.op import get_all_op_protos

    return [proto.SerializeToString() for proto in get_all_op_protos()]


@cache
def _kernels() -> tuple[str, ...]:
    return tuple(op_type for op_type in all_schemas() if kernel_of(op_type) is not None)


def kernels_of_ops() -> dict[str, list[str]]:
    """By op type that can be run, where it is computed."""
    return {op_type: ["place[CPUPlace]"] for op_type in _kernels()}


def op_support_gpu(op_type: str) -> bool:
    """False: all is computed on the CPU."""
    return False


def has_grad_op_maker(op_type: str) -> bool:
    """Whether an op type has a gradient."""
    return gradient_rule(op_type) is not None


has_non_empty_grad_op_maker = has_grad_op_maker


def has_infer_inplace(op_type: str) -> bool:
    """False: no op has to share the memory of what it reads with what it writes."""
    return False


def get_grad_op_desc(
    op: OpDesc, no_grad_set: Iterable[str], grad_sub_block: Any
) -> tuple[list[OpDesc], dict[str, str]]:
    """The ops that give the gradients of an op, and by gradient the variable that it belongs to.

    `no_grad_set` names the gradients that are not wanted.
    """
    frozen = op.frozen
    rule = gradient_rule(frozen.type)
    made = () if rule is None else rule(frozen, Wanted(frozenset(no_grad_set)))
    names = dict.fromkeys(name for each in made for name in (*each.input_names, *each.output_names) if SUFFIX in name)
    return [Operator(None, each).desc for each in made], {name: differentiated(name) for name in names}
