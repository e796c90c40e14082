"""`paddle.static` of the first 2.x versions: Fluid's programs, executors and files under their later names.

`paddle.static.InputSpec` describes an input of a program.
"""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.backward import append_backward as append_backward
from pstranspile.fluid.backward import gradients as gradients
from pstranspile.fluid.compiler import BuildStrategy as BuildStrategy
from pstranspile.fluid.compiler import CompiledProgram as CompiledProgram
from pstranspile.fluid.compiler import ExecutionStrategy as ExecutionStrategy
from pstranspile.fluid.compiler import ParallelExecutor as ParallelExecutor
from pstranspile.fluid.executor import Executor as Executor
from pstranspile.fluid.executor import global_scope as global_scope
from pstranspile.fluid.executor import scope_guard as scope_guard
from pstranspile.fluid.framework import Program as Program
from pstranspile.fluid.framework import Variable as Variable
from pstranspile.fluid.framework import cpu_places as cpu_places
from pstranspile.fluid.framework import cuda_places as cuda_places
from pstranspile.fluid.framework import default_main_program as default_main_program
from pstranspile.fluid.framework import default_startup_program as default_startup_program
from pstranspile.fluid.framework import device_guard as device_guard
from pstranspile.fluid.framework import name_scope as name_scope
from pstranspile.fluid.framework import program_guard as program_guard
from pstranspile.fluid.graph.values import numpy_name
from pstranspile.fluid.input import data as data
from pstranspile.fluid.io import load as load
from pstranspile.fluid.io import load_program_state as load_program_state
from pstranspile.fluid.io import load_vars as load_vars
from pstranspile.fluid.io import save_vars as save_vars
from pstranspile.fluid.io import set_program_state as set_program_state
from pstranspile.fluid.layers import accuracy as accuracy
from pstranspile.fluid.layers import auc as auc
from pstranspile.fluid.layers import create_global_var as create_global_var
from pstranspile.fluid.layers import create_parameter as create_parameter
from pstranspile.fluid.layers import py_func as py_func
from pstranspile.fluid.layers.control_flow import print_tensor
from pstranspile.fluid.optimizer import ExponentialMovingAverage as ExponentialMovingAverage
from pstranspile.fluid.paddle.static import files, nn
from pstranspile.fluid.paddle.static.files import deserialize_persistables as deserialize_persistables
from pstranspile.fluid.paddle.static.files import deserialize_program as deserialize_program
from pstranspile.fluid.paddle.static.files import load_from_file as load_from_file
from pstranspile.fluid.paddle.static.files import load_inference_model as load_inference_model
from pstranspile.fluid.paddle.static.files import normalize_program as normalize_program
from pstranspile.fluid.paddle.static.files import save as save
from pstranspile.fluid.paddle.static.files import save_inference_model as save_inference_model
from pstranspile.fluid.paddle.static.files import save_to_file as save_to_file
from pstranspile.fluid.paddle.static.files import serialize_persistables as serialize_persistables
from pstranspile.fluid.paddle.static.files import serialize_program as serialize_program
from pstranspile.fluid.paddle.static.nn import ctr_metric_bundle as ctr_metric_bundle
from pstranspile.fluid.param_attr import WeightNormParamAttr as WeightNormParamAttr
from pstranspile.fluid.scope import Scope as Scope
from pstranspile.frontends.layers.draft import whole_dim


def Print(
    input: Any,
    first_n: int = -1,
    message: str | None = None,
    summarize: int = 20,
    print_tensor_name: bool = True,
    print_tensor_type: bool = True,
    print_tensor_shape: bool = True,
    print_tensor_layout: bool = True,
    print_tensor_lod: bool = True,
    print_phase: str = "both",
) -> Any:
    """The same tensor, printed whenever it is computed, with a line for each thing that is told of it."""
    return print_tensor(
        input,
        first_n,
        message,
        summarize,
        print_phase,
        print_tensor_name=print_tensor_name,
        print_tensor_type=print_tensor_type,
        print_tensor_shape=print_tensor_shape,
        print_tensor_layout=print_tensor_layout,
        print_tensor_lod=print_tensor_lod,
    )


class InputSpec:
    """A description of an input: its dims, element type and name; a dim that is known at run time only
    is None or -1.
    """

    def __init__(self, shape: Any, dtype: Any = "float32", name: str | None = None):
        self.shape = tuple(-1 if dim is None else whole_dim(dim) for dim in shape)
        self.dtype = dtype if isinstance(dtype, str) else numpy_name(dtype)
        self.name = name

    @classmethod
    def from_tensor(cls, tensor: Any, name: str | None = None) -> InputSpec:
        """The description of a variable."""
        return cls(tensor.shape, tensor.dtype, name or tensor.name)

    @classmethod
    def from_numpy(cls, ndarray: Any, name: str | None = None) -> InputSpec:
        """The description of an array."""
        return cls(ndarray.shape, str(ndarray.dtype), name)

    def batch(self, batch_size: int) -> InputSpec:
        """Inserts the size of a batch in front of the dims; returns the description."""
        self.shape = (int(batch_size), *self.shape)
        return self

    def unbatch(self) -> InputSpec:
        """Removes the first dim; returns the description. Raises ValueError if there is none."""
        if not self.shape:
            raise ValueError("there is no dim to take away")
        self.shape = self.shape[1:]
        return self

    def __repr__(self) -> str:
        return f"InputSpec(shape={self.shape}, dtype={self.dtype}, name={self.name})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InputSpec) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype, self.name))


_ = files, nn


def __getattr__(name: str) -> Any:
    from pstranspile.fluid.paddle.later import not_there

    raise not_there(f"paddle.static.{name}", globals())
