"""The names of `paddle.fluid`: its modules, and the functions and classes that it exports from them."""

from __future__ import annotations

from pstranspile.fluid import backward as backward
from pstranspile.fluid import clip as clip
from pstranspile.fluid import core as core
from pstranspile.fluid import executor as executor
from pstranspile.fluid import framework as framework
from pstranspile.fluid import initializer as initializer
from pstranspile.fluid import input as input
from pstranspile.fluid import io as io
from pstranspile.fluid import layers as layers
from pstranspile.fluid import metrics as metrics
from pstranspile.fluid import nets as nets
from pstranspile.fluid import optimizer as optimizer
from pstranspile.fluid import profiler as profiler
from pstranspile.fluid import regularizer as regularizer
from pstranspile.fluid import transpiler as transpiler
from pstranspile.fluid import unique_name as unique_name
from pstranspile.fluid.backward import append_backward as append_backward
from pstranspile.fluid.backward import gradients as gradients
from pstranspile.fluid.compiler import BuildStrategy as BuildStrategy
from pstranspile.fluid.compiler import CompiledProgram as CompiledProgram
from pstranspile.fluid.compiler import ExecutionStrategy as ExecutionStrategy
from pstranspile.fluid.compiler import ParallelExecutor as ParallelExecutor
from pstranspile.fluid.data_feeder import DataFeeder as DataFeeder
from pstranspile.fluid.dataset import DatasetFactory as DatasetFactory
from pstranspile.fluid.dataset import InMemoryDataset as InMemoryDataset
from pstranspile.fluid.dataset import QueueDataset as QueueDataset
from pstranspile.fluid.executor import Executor as Executor
from pstranspile.fluid.executor import global_scope as global_scope
from pstranspile.fluid.executor import scope_guard as scope_guard
from pstranspile.fluid.framework import CPUPlace as CPUPlace
from pstranspile.fluid.framework import CUDAPinnedPlace as CUDAPinnedPlace
from pstranspile.fluid.framework import CUDAPlace as CUDAPlace
from pstranspile.fluid.framework import Program as Program
from pstranspile.fluid.framework import Variable as Variable
from pstranspile.fluid.framework import cpu_places as cpu_places
from pstranspile.fluid.framework import cuda_pinned_places as cuda_pinned_places
from pstranspile.fluid.framework import cuda_places as cuda_places
from pstranspile.fluid.framework import default_main_program as default_main_program
from pstranspile.fluid.framework import default_startup_program as default_startup_program
from pstranspile.fluid.framework import device_guard as device_guard
from pstranspile.fluid.framework import get_flags as get_flags
from pstranspile.fluid.framework import in_dygraph_mode as in_dygraph_mode
from pstranspile.fluid.framework import is_compiled_with_cuda as is_compiled_with_cuda
from pstranspile.fluid.framework import load_op_library as load_op_library
from pstranspile.fluid.framework import name_scope as name_scope
from pstranspile.fluid.framework import program_guard as program_guard
from pstranspile.fluid.framework import require_version as require_version
from pstranspile.fluid.framework import set_flags as set_flags
from pstranspile.fluid.input import data as data
from pstranspile.fluid.input import embedding as embedding
from pstranspile.fluid.input import one_hot as one_hot
from pstranspile.fluid.io import load as load
from pstranspile.fluid.io import save as save
from pstranspile.fluid.lod_tensor import LoDTensor as LoDTensor
from pstranspile.fluid.lod_tensor import LoDTensorArray as LoDTensorArray
from pstranspile.fluid.lod_tensor import create_lod_tensor as create_lod_tensor
from pstranspile.fluid.lod_tensor import create_random_int_lodtensor as create_random_int_lodtensor
from pstranspile.fluid.metrics import WeightedAverage as WeightedAverage
from pstranspile.fluid.param_attr import ParamAttr as ParamAttr
from pstranspile.fluid.param_attr import WeightNormParamAttr as WeightNormParamAttr
from pstranspile.fluid.scope import Scope as Scope
from pstranspile.fluid.transpiler import Collective as Collective
from pstranspile.fluid.transpiler import DistributeTranspiler as DistributeTranspiler
from pstranspile.fluid.transpiler import DistributeTranspilerConfig as DistributeTranspilerConfig
from pstranspile.fluid.transpiler import GeoSgdTranspiler as GeoSgdTranspiler
from pstranspile.fluid.transpiler import GradAllReduce as GradAllReduce
from pstranspile.fluid.transpiler import HashName as HashName
from pstranspile.fluid.transpiler import LocalSGD as LocalSGD
from pstranspile.fluid.transpiler import RoundRobin as RoundRobin
from pstranspile.fluid.transpiler import SingleProcessMultiThread as SingleProcessMultiThread
from pstranspile.fluid.transpiler import memory_optimize as memory_optimize
from pstranspile.fluid.transpiler import release_memory as release_memory

core_avx = core
"""The core, under the name by which Fluid loads it on processors with AVX."""

Tensor = LoDTensor
