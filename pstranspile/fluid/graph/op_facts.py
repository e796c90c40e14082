"""What scripts ask Fluid's core about op types: declarations, kernels, gradients."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from pstranspile.fluid.graph.desc import OpDesc
from pstranspile.fluid.graph.operator import Operator
from pstranspile.ops import all_schemas
from pstranspile.ops.gradient import SUFFIX, Wanted, differentiated, gradient_rule
from pstranspile.runtime.kernels.kernel import kernel_of


def get_all_op_protos() -> list[bytes]:
    """The declarations of all op types that are no gradients, as serialized OpProtos."""
    from pstranspile.fluid.op import get_all_op_protos

    return [proto.SerializeToString() for proto in get_all_op_protos()]


@cache
def _kernels() -> tuple[str, ...]:
    return tuple(op_type for op_type in all_schemas() if kernel_of(op_type) is not None)


def kernels_of_ops() -> dict[str, list[str]]:
    """The places where each op type that can be run is computed, which is always the CPU."""
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


_UNREAD = {
    "X": """argsort_grad bicubic_interp_grad bilinear_interp_grad center_loss_grad concat_grad cvm_grad
        elementwise_add_grad elementwise_sub_grad expand_as_grad expand_grad fill_zeros_like2 flatten_grad gather_grad
        gather_nd_grad index_sample_grad index_select_grad kldiv_loss_grad lod_reset_grad max_pool2d_with_index_grad
        max_pool3d_with_index_grad mean_grad nearest_interp_grad pad2d_grad reduce_mean_grad reduce_sum_grad
        roi_align_grad roll_grad sequence_concat_grad sequence_expand_as_grad sequence_expand_grad sequence_pad_grad
        sequence_pool_grad sequence_slice_grad sequence_softmax_grad sequence_unpad_grad space_to_depth_grad
        squared_l2_distance_grad squeeze_grad trilinear_interp_grad unfold_grad unsqueeze_grad where_grad""",
    "Y": """crop elementwise_add_grad elementwise_add_grad_grad elementwise_sub_grad elementwise_sub_grad_grad
        sequence_expand sequence_expand_as sequence_expand_as_grad sequence_expand_grad squared_l2_distance_grad
        where_grad""",
    "DOut": "elementwise_add_grad_grad elementwise_sub_grad_grad reshape2_grad_grad",
    "Input": """fill_constant_batch_size_like gaussian_random_batch_size_like gru_grad slice_grad strided_slice_grad
        trace_grad uniform_random_batch_size_like""",
    "Bias": "gru_grad gru_unit_grad hierarchical_sigmoid_grad layer_norm_grad nce_grad",
    "Updates": "scatter_grad scatter_nd_add_grad sequence_scatter_grad",
    "W": "lookup_table_grad lookup_table_v2_grad",
    "CVM": "cvm",
    "Emission": "linear_chain_crf_grad",
    "Transition": "linear_chain_crf_grad",
    "Logits": "warpctc_grad",
}
"""The ops of Fluid that read only the dims and the kind of an input, not its elements, by input slot."""


def infer_no_need_buffer_slots(op_type: str, inputs: Any, outputs: Any, attrs: Any) -> set[str]:
    """The input slots of an op of which Fluid reads no elements. Raises ValueError for an op type that there is not."""
    if op_type not in all_schemas():
        raise ValueError(f"there is no op type {op_type}")
    return {slot for slot, ops in _UNREAD.items() if slot in inputs and op_type in ops.split()}


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
