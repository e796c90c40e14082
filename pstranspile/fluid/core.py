"""The parts of Fluid's C++ core that scripts use, with its queries about op types: declarations, kernels, gradients."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from pstranspile.fluid.dataset import InMemoryDataset
from pstranspile.fluid.executor import Scope as Scope
from pstranspile.fluid.framework import CPUPlace as CPUPlace
from pstranspile.fluid.framework import CUDAPinnedPlace as CUDAPinnedPlace
from pstranspile.fluid.framework import CUDAPlace as CUDAPlace
from pstranspile.fluid.framework import Place as Place
from pstranspile.fluid.framework import is_compiled_with_cuda as is_compiled_with_cuda
from pstranspile.fluid.framework import is_compiled_with_xpu as is_compiled_with_xpu
from pstranspile.fluid.graph.block import Operator as GraphOperator
from pstranspile.fluid.graph.desc import AttrType as AttrType
from pstranspile.fluid.graph.desc import BlockDesc as BlockDesc
from pstranspile.fluid.graph.desc import OpDesc as OpDesc
from pstranspile.fluid.graph.desc import VarDesc as VarDesc
from pstranspile.fluid.graph.program import ProgramDesc as ProgramDesc
from pstranspile.fluid.graph.values import numpy_name
from pstranspile.fluid.inference import AnalysisConfig as AnalysisConfig
from pstranspile.fluid.inference import AnalysisPredictor as AnalysisPredictor
from pstranspile.fluid.inference import NativeConfig as NativeConfig
from pstranspile.fluid.inference import NativePaddlePredictor as NativePaddlePredictor
from pstranspile.fluid.inference import PaddleBuf as PaddleBuf
from pstranspile.fluid.inference import PaddleDType as PaddleDType
from pstranspile.fluid.inference import PaddlePredictor as PaddlePredictor
from pstranspile.fluid.inference import PaddleTensor as PaddleTensor
from pstranspile.fluid.inference import ZeroCopyTensor as ZeroCopyTensor
from pstranspile.fluid.inference import create_paddle_predictor as create_paddle_predictor
from pstranspile.fluid.lod_tensor import LoDTensor as LoDTensor
from pstranspile.fluid.lod_tensor import LoDTensorArray as LoDTensorArray
from pstranspile.fluid.lod_tensor import from_dlpack as from_dlpack
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.reader import EOFException as EOFException
from pstranspile.fluid.running.flags import FLAGS, Flags
from pstranspile.fluid.scope import ScopeVariable as Variable
from pstranspile.fluid.scope import SelectedRows as SelectedRows
from pstranspile.ir.diagnostics import DiagnosticError as EnforceNotMet
from pstranspile.ir.diagnostics import error
from pstranspile.ir.types import OpRole as _Role
from pstranspile.ops import all_schemas
from pstranspile.ops.gradient import SUFFIX, WantedGradients, gradient_rule, variable_of_gradient
from pstranspile.runtime.kernels.kernel import kernel_of


def get_all_op_protos() -> list[bytes]:
    """The declarations of all op types except gradients, as serialized OpProtos."""
    from pstranspile.fluid.op import get_all_op_protos

    return [proto.SerializeToString() for proto in get_all_op_protos()]


@cache
def _kernels() -> tuple[str, ...]:
    return tuple(op_type for op_type in all_schemas() if kernel_of(op_type) is not None)


def kernels_of_ops() -> dict[str, list[str]]:
    """For each op type that can be run, the places where it is computed, which is always the CPU."""
    return {op_type: ["place[CPUPlace]"] for op_type in _kernels()}


def op_support_gpu(op_type: str) -> bool:
    """False, because everything is computed on the CPU."""
    return False


def has_grad_op_maker(op_type: str) -> bool:
    """Whether an op type has a gradient."""
    return gradient_rule(op_type) is not None


has_non_empty_grad_op_maker = has_grad_op_maker


def has_infer_inplace(op_type: str) -> bool:
    """False, because no op needs to share the memory of an input with an output."""
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
"""Input slot -> the ops of Fluid that read only the dims and the kind of the input, not its elements."""


def infer_no_need_buffer_slots(op_type: str, inputs: Any, outputs: Any, attrs: Any) -> set[str]:
    """The input slots of an op whose elements Fluid does not read. Raises ValueError for an unknown op type."""
    if op_type not in all_schemas():
        raise ValueError(f"there is no op type {op_type}")
    return {slot for slot, ops in _UNREAD.items() if slot in inputs and op_type in ops.split()}


def get_grad_op_desc(
    op: OpDesc, no_grad_set: Iterable[str], grad_sub_block: Any
) -> tuple[list[OpDesc], dict[str, str]]:
    """The ops that compute the gradients of an op, and for each gradient the variable that it belongs to.

    `no_grad_set` names the gradients that are not computed.
    """
    frozen = op.frozen
    rule = gradient_rule(frozen.type)
    made = () if rule is None else rule(frozen, WantedGradients(frozenset(no_grad_set)))
    names = dict.fromkeys(name for each in made for name in (*each.input_names, *each.output_names) if SUFFIX in name)
    return [GraphOperator(None, each).desc for each in made], {name: variable_of_gradient(name) for name in names}


_ = Variable
Tensor, _Scope = LoDTensor, Scope
_get_all_register_op_kernels = kernels_of_ops


class op_proto_and_checker_maker:
    """Names of the attributes that every op may have, and the roles of ops."""

    class OpRole:
        """The roles of ops, as in Fluid."""

        Forward = _Role.FORWARD
        Backward = _Role.BACKWARD
        Optimize = _Role.OPTIMIZE
        RPC = _Role.RPC
        Dist = _Role.DIST
        LRSched = _Role.LR_SCHED
        Loss = _Role.LOSS
        NotSpecified = _Role.NOT_SPECIFIED

    @staticmethod
    def kOpRoleAttrName() -> str:
        """The name of the attribute for the role."""
        return "op_role"

    @staticmethod
    def kOpRoleVarAttrName() -> str:
        """The name of the attribute for the role variables."""
        return "op_role_var"

    @staticmethod
    def kOpNameScopeAttrName() -> str:
        """The name of the attribute for the name scope."""
        return "op_namescope"

    @staticmethod
    def kOpDeviceAttrName() -> str:
        """The name of the attribute for the device."""
        return "op_device"


def globals() -> Flags:
    """All flags by name."""
    return FLAGS


def Dataset(kind: str) -> InMemoryDataset:
    """A data set of the only kind, `MultiSlotDataset`. Raises ValueError for others."""
    if kind != "MultiSlotDataset":
        raise ValueError(f"the core has data sets of the kind MultiSlotDataset, not {kind}")
    return InMemoryDataset()


def set_feed_variable(scope: Scope, tensor: LoDTensor, name: str, index: int) -> None:
    """Sets the tensor at an index of a list of tensors in a scope."""
    held = scope.var(name).get_fetch_list()
    held.extend(LoDTensor() for _ in range(index + 1 - len(held)))
    held[index] = tensor


def get_fetch_variable(scope: Scope, name: str, index: int) -> LoDTensor:
    """The tensor at an index of a list of tensors in a scope."""
    return scope.var(name).get_fetch_list()[index]


def _set_eager_deletion_mode(threshold: float, fraction: float, use_cuda: bool) -> None:  # pyright: ignore[reportUnusedFunction]
    """Does nothing, because variables are always freed when no op reads them any more."""


def _set_fuse_parameter_group_size(size: int) -> None:  # pyright: ignore[reportUnusedFunction]
    """Does nothing, because parameter updates are not fused."""


def _set_fuse_parameter_memory_size(size: float) -> None:  # pyright: ignore[reportUnusedFunction]
    """Does nothing, because parameter updates are not fused."""


def __unittest_throw_exception__() -> None:
    """Raises the core's exception, for tests of code that catches it."""
    raise EnforceNotMet([error("run-op-failed", "This is a test exception of the core")])


def init_devices(init_p2p: bool = False) -> None:
    """Does nothing, because the CPU is the only device."""


def init_glog(program: str) -> None:
    """Does nothing, because problems are raised as exceptions, not logged."""


def set_num_threads(count: int) -> None:
    """Does nothing, because `OMP_NUM_THREADS` sets the number of threads that numpy uses."""


def size_of_dtype(dtype: Any) -> int:
    """The size in bytes of an element of a type."""
    return np.dtype(numpy_name(dtype)).itemsize


def get_op_attrs_default_value(op_type: str | bytes) -> dict[str, Any]:
    """The defaults of an op type's attributes. Raises KeyError for an unknown type."""
    name = op_type.decode() if isinstance(op_type, bytes) else op_type
    schema = all_schemas()[name]
    return {key: [*value] if isinstance(value, tuple) else value for key, value in schema.defaults.items()}  # pyright: ignore


def get_variable_tensor(scope: Scope, name: str) -> LoDTensor:
    """The tensor of a variable of a scope."""
    return scope.var(name).get_tensor()


def get_cuda_device_count() -> int:
    """The number of GPUs, which is always 0."""
    return 0


def is_compiled_with_mkldnn() -> bool:
    """False, because ops are computed in numpy."""
    return False


def is_compiled_with_brpc() -> bool:
    """False, because brpc is not used."""
    return False


def is_compiled_with_dist() -> bool:
    """True, because programs of clusters can be run."""
    return True


def kEmptyVarName() -> str:
    """The name that stands for no variable."""
    return "@EMPTY@"


def kGradVarSuffix() -> str:
    """The suffix of the name of a gradient."""
    return "@GRAD"


def kZeroVarSuffix() -> str:
    """The suffix of the name of a gradient that is zero."""
    return "@ZERO"


def kTempVarName() -> str:
    """The name of a variable that only one op uses."""
    return "@TEMP@"


def kControlDepVarName() -> str:
    """The prefix of the name of an edge between ops that share no variable."""
    return "__control_var"


def kNewGradSuffix() -> str:
    """The suffix of the name of a gradient that is added to another one."""
    return "@NEWGRAD@"


def loaded_var_suffix() -> str:
    """The suffix of the name of a variable that was read from a file."""
    return "@LOADED"


empty_var_name, grad_var_suffix = kEmptyVarName, kGradVarSuffix


__getattr__ = names_of_fluid(__name__, vars(sys.modules[__name__]))
