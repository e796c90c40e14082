"""`paddle.device`: where programs are computed, which is on the CPU."""

from pstranspile.fluid.framework import is_compiled_with_cinn as is_compiled_with_cinn
from pstranspile.fluid.framework import is_compiled_with_cuda as is_compiled_with_cuda
from pstranspile.fluid.framework import is_compiled_with_custom_device as is_compiled_with_custom_device
from pstranspile.fluid.framework import is_compiled_with_distribute as is_compiled_with_distribute
from pstranspile.fluid.framework import is_compiled_with_ipu as is_compiled_with_ipu
from pstranspile.fluid.framework import is_compiled_with_mlu as is_compiled_with_mlu
from pstranspile.fluid.framework import is_compiled_with_npu as is_compiled_with_npu
from pstranspile.fluid.framework import is_compiled_with_rocm as is_compiled_with_rocm
from pstranspile.fluid.paddle import get_cudnn_version as get_cudnn_version
from pstranspile.fluid.paddle import get_device as get_device
from pstranspile.fluid.paddle import is_compiled_with_xpu as is_compiled_with_xpu
from pstranspile.fluid.paddle import set_device as set_device
