"""Trained models under the interface of Fluid's inference engine: configurations, predictors, and their tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NoReturn

import numpy as np

from pstranspile.fluid.communicator import warn_unused
from pstranspile.fluid.executor import Executor, scope_guard
from pstranspile.fluid.framework import CPUPlace, CUDAPlace
from pstranspile.fluid.graph.values import Numbers
from pstranspile.fluid.io import load_inference_model
from pstranspile.fluid.lod_tensor import LoDTensor
from pstranspile.fluid.missing import unsupported_error
from pstranspile.fluid.scope import Scope

# Tensors of Fluid's inference engine: the inputs and outputs of predictors.


class PaddleDType(Numbers):
    """Element types of the engine."""

    FLOAT32 = 0
    INT64 = 1
    INT32 = 2


def element_type(array: Any) -> PaddleDType:
    """The element type of an array. Raises TypeError for a type that the engine does not have."""
    name = str(array.dtype).upper()
    if name not in PaddleDType.__members__:
        raise TypeError(f"predictors take float32, int64 and int32, not {array.dtype}")
    return PaddleDType[name]


class PaddleBuf:
    """The elements of a tensor as bytes, made from an array, numbers (as float32), or a number of zero bytes."""

    def __init__(self, data: Any = ()):
        self._bytes = b""
        self.reset(np.zeros(data, "uint8") if isinstance(data, int) else data)

    def reset(self, data: Any) -> None:
        """Replaces the elements."""
        self._bytes = (data if isinstance(data, np.ndarray) else np.array(data, "float32")).tobytes()

    def resize(self, length: int) -> None:
        """Changes the length in bytes; new bytes are zero."""
        self._bytes = self._bytes[:length].ljust(length, b"\0")

    def length(self) -> int:
        """The length in bytes."""
        return len(self._bytes)

    def empty(self) -> bool:
        """Whether the length is 0."""
        return not self._bytes

    def array(self, dtype: PaddleDType) -> Any:
        """The elements as an array with one dim."""
        return np.frombuffer(self._bytes, dtype.name.lower())

    def float_data(self) -> list[float]:
        """The elements as a list, read as float32."""
        return self.array(PaddleDType.FLOAT32).tolist()

    def int64_data(self) -> list[int]:
        """The elements as a list, read as int64."""
        return self.array(PaddleDType.INT64).tolist()

    def int32_data(self) -> list[int]:
        """The elements as a list, read as int32."""
        return self.array(PaddleDType.INT32).tolist()

    def tolist(self, dtype: str) -> list[Any]:
        """The elements as a list, read as the named type. Raises KeyError for a type that the engine does not have."""
        return self.array(PaddleDType[dtype.upper()]).tolist()


class PaddleTensor:
    """A tensor with a name: `data`, `shape`, `dtype`, and in `lod` the offsets of sequences.

    It is made from an array of float32, int64 or int32 (TypeError for others), or empty, to be filled later.
    """

    def __init__(self, data: Any = None, name: str = "", lod: Sequence[Sequence[int]] = (), copy: bool = True):
        self.name, self.lod = name, [list(level) for level in lod]
        self.shape: list[int] = [] if data is None else list(np.shape(data))
        self.dtype = PaddleDType.FLOAT32 if data is None else element_type(data)
        self.data = PaddleBuf() if data is None else PaddleBuf(data)

    def as_ndarray(self) -> Any:
        """The tensor as an array."""
        return self.data.array(self.dtype).reshape(self.shape)

    def as_lod_tensor(self) -> LoDTensor:
        """The tensor in the form in which runs of programs are fed."""
        made = LoDTensor(self.as_ndarray())
        if self.lod:
            made.set_lod(self.lod)
        return made


class ZeroCopyTensor:
    """An input or output of a predictor, whose value can be set and read."""

    def __init__(self) -> None:
        self.lod_tensor = LoDTensor()

    def copy_from_cpu(self, data: Any) -> None:
        """Sets the value to a copy of an array of float32, int64 or int32. Raises TypeError for others."""
        element_type(data)
        lod = self.lod_tensor.lod()
        self.lod_tensor = LoDTensor(np.array(data))
        if lod:
            self.lod_tensor.set_lod(lod)

    def copy_to_cpu(self) -> Any:
        """A copy of the value as an array."""
        return np.array(self.lod_tensor)

    def reshape(self, shape: Sequence[int]) -> None:
        """Does nothing, because arrays that are set have their own dims."""

    def shape(self) -> list[int]:
        """The dims of the value."""
        return list(self.lod_tensor.shape())

    def type(self) -> PaddleDType:
        """The element type of the value."""
        return element_type(np.array(self.lod_tensor))

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        """Sets the offsets at which sequences begin, for each LoD level."""
        self.lod_tensor.set_lod(lod)

    def lod(self) -> list[list[int]]:
        """The offsets at which sequences begin, for each LoD level; an empty list for plain tensors."""
        return self.lod_tensor.lod()


# Configurations of Fluid's inference engine: where a model is, and how to run it.


class NativeConfig:
    """A model's folder, or its program and parameters as files; with `use_gpu` a warning says that the CPU computes."""

    def __init__(self) -> None:
        self.model_dir = self.prog_file = self.param_file = ""
        self.use_gpu, self.device, self.fraction_of_gpu_memory = False, 0, -1.0
        self.specify_input_name = False
        self._threads = 1

    def set_cpu_math_library_num_threads(self, threads: int) -> None:
        """Sets the number of threads, which has no effect, because numpy's library takes it from the environment."""
        self._threads = threads

    def cpu_math_library_num_threads(self) -> int:
        """The number of threads that was set."""
        return self._threads

    def files(self) -> tuple[str, str | None, str | None]:
        """The folder, and the names in it of the files of the program and of all parameters; None for Fluid's default
        names.
        """
        if self.use_gpu:
            CUDAPlace(self.device)
        return model_location(self.model_dir, self.prog_file, self.param_file)


def model_location(folder: str, program: str, parameters: str) -> tuple[str, str | None, str | None]:
    """A model's folder and files; for two files without a folder, the folder of the program. Raises ValueError without
    any.
    """
    if folder:
        return folder, None, None
    if not program or not parameters:
        raise ValueError("a configuration needs the folder of a model, or the files of its program and its parameters")
    home = os.path.dirname(program)
    return home or ".", os.path.basename(program), os.path.relpath(parameters, home or ".")


_REFUSED = {
    "enable_tensorrt_engine": "numpy computes the ops",
    "enable_lite_engine": "numpy computes the ops",
    "enable_quantizer": "ops are computed in the element types of the program",
    "set_model_buffer": "write both files and name them",
    "set_trt_dynamic_shape_info": "numpy computes the ops",
}
_WITHOUT_EFFECT = {
    "enable_mkldnn": "numpy computes the ops",
    "set_mkldnn_op": "numpy computes the ops",
    "set_mkldnn_cache_capacity": "numpy computes the ops",
    "enable_memory_optim": "values are let go when nothing reads them any more",
    "enable_profile": "use fluid.profiler",
    "set_optim_cache_dir": "nothing is cached",
    "switch_ir_debug": "there are no passes",
    "delete_pass": "there are no passes",
}


class Precision(Enum):
    """The element types in which engines compute."""

    __hash__ = object.__hash__  # Enum calls the built-in hash, which a script may replace

    Float32, Int8, Half = 0, 1, 2


class AnalysisConfig:
    """A model's folder, its program and parameters as files, or a copy of another configuration; and how to run the
    model.

    Settings for Fluid's passes and libraries change no result and are reported on stderr; other engines are refused.
    """

    Precision = Precision

    def __init__(self, model: str | AnalysisConfig = "", params: str = ""):
        self._dir = self._program = self._params = ""
        self._device: int | None = None
        self._set: dict[str, Any] = {"ir_optim": True, "feed_fetch": True, "input_names": False, "threads": 1}
        self._quiet = False
        if isinstance(model, AnalysisConfig):
            vars(self).update({**vars(model), "_set": dict(model._set)})
        else:
            self.set_model(model, params)

    def set_model(self, model: str, params: str = "") -> None:
        """Sets the folder, or with `params` the files of the program and of the parameters."""
        self._dir, self._program, self._params = ("", model, params) if params else (model, "", "")

    def set_prog_file(self, path: str) -> None:
        """Sets the file of the program."""
        self._dir, self._program = "", path

    def set_params_file(self, path: str) -> None:
        """Sets the file of the parameters."""
        self._dir, self._params = "", path

    def model_dir(self) -> str:
        """The model's folder."""
        return self._dir

    def prog_file(self) -> str:
        """The file of the program."""
        return self._program

    def params_file(self) -> str:
        """The file of the parameters."""
        return self._params

    def model_from_memory(self) -> bool:
        """False, because models are always read from files."""
        return False

    def enable_use_gpu(self, memory_pool_init_size_mb: int, device_id: int = 0) -> None:
        """Selects a GPU; a warning says that the CPU computes."""
        self._device = device_id
        CUDAPlace(device_id)

    def disable_gpu(self) -> None:
        """Selects the CPU."""
        self._device = None

    def use_gpu(self) -> bool:
        """Whether a GPU is selected."""
        return self._device is not None

    def gpu_device_id(self) -> int:
        """The number of the selected GPU."""
        return self._device or 0

    def switch_ir_optim(self, x: bool = True) -> None:
        """Sets whether Fluid may rewrite the program, which has no effect, because the program runs unchanged."""
        self._set["ir_optim"] = x

    def ir_optim(self) -> bool:
        """Whether rewriting is switched on."""
        return self._set["ir_optim"]

    def switch_use_feed_fetch_ops(self, x: bool = True) -> None:
        """Sets whether the script uses `run` (True) or `zero_copy_run` (False); both can be called anyway."""
        self._set["feed_fetch"] = x

    def use_feed_fetch_ops_enabled(self) -> bool:
        """Whether the script uses `run`, by `switch_use_feed_fetch_ops`."""
        return self._set["feed_fetch"]

    def switch_specify_input_names(self, x: bool = True) -> None:
        """Sets whether `run` matches its inputs by name instead of by position."""
        self._set["input_names"] = x

    def specify_input_name(self) -> bool:
        """Whether `run` matches its inputs by name."""
        return self._set["input_names"]

    def set_cpu_math_library_num_threads(self, threads: int) -> None:
        """Sets the number of threads, which has no effect, because numpy's library takes it from the environment."""
        self._set["threads"] = threads

    def cpu_math_library_num_threads(self) -> int:
        """The number of threads that was set."""
        return self._set["threads"]

    def disable_glog_info(self) -> None:
        """Switches messages off, of which there are none."""
        self._quiet = True

    def glog_info_disabled(self) -> bool:
        """Whether messages are switched off."""
        return self._quiet

    def tensorrt_engine_enabled(self) -> bool:
        """False, because TensorRT is not used."""
        return False

    def mkldnn_enabled(self) -> bool:
        """False, because MKL-DNN is not used."""
        return False

    def files(self) -> tuple[str, str | None, str | None]:
        """The folder, and the names in it of the files of the program and of all parameters; None for Fluid's default
        names.
        """
        return model_location(self._dir, self._program, self._params)

    def __getattr__(self, name: str) -> Any:
        if name not in _REFUSED and name not in _WITHOUT_EFFECT:
            raise AttributeError(f"AnalysisConfig has no {name!r}", name=name, obj=self)

        def fail(*_: Any, **__: Any) -> NoReturn:
            raise unsupported_error(f"AnalysisConfig.{name}", _REFUSED[name])

        def warn_without_effect(*args: Any, **__: Any) -> None:
            warn_unused(f"AnalysisConfig.{name}", args, _WITHOUT_EFFECT[name])

        return fail if name in _REFUSED else warn_without_effect


class PaddlePredictor:
    """Runs a model that `io.save_inference_model` wrote, with variables of its own.

    Raises ValueError or OSError if there is no model.
    """

    def __init__(self, config: AnalysisConfig | NativeConfig):
        self.config = config
        self._executor, self._scope = Executor(CPUPlace()), Scope()
        folder, program, parameters = config.files()
        with scope_guard(self._scope):
            self._program, self._inputs, self._targets = load_inference_model(
                folder, self._executor, program, parameters
            )
        self._input_tensors = {name: ZeroCopyTensor() for name in self._inputs}
        self._output_tensors = {var.name: ZeroCopyTensor() for var in self._targets}

    def get_input_names(self) -> list[str]:
        """The names of the inputs, in order."""
        return list(self._inputs)

    def get_output_names(self) -> list[str]:
        """The names of the outputs, in order."""
        return list(self._output_tensors)

    def get_input_tensor_shape(self) -> dict[str, list[int]]:
        """The dims of the inputs by name, -1 for dims that differ from run to run."""
        block = self._program.global_block()
        return {name: list(block.var(name).shape) for name in self._inputs}

    def run(self, inputs: Sequence[PaddleTensor]) -> list[PaddleTensor]:
        """The outputs for input tensors, which are matched by position, or by name if the configuration says so.

        Raises ValueError for another number of tensors, or other names.
        """
        if len(inputs) != len(self._inputs):
            raise ValueError(
                f"the model takes {len(self._inputs)} tensors, not {len(inputs)}: {', '.join(self._inputs)}"
            )
        config = self.config
        by_name = config.specify_input_name() if isinstance(config, AnalysisConfig) else config.specify_input_name
        names = [tensor.name for tensor in inputs] if by_name else self._inputs
        for name in names:
            self._require(name, self._input_tensors)
        feed = {name: tensor.as_lod_tensor() for name, tensor in zip(names, inputs, strict=True)}
        made = zip(self._targets, self._values(feed), strict=True)
        return [PaddleTensor(np.array(value), var.name, value.lod()) for var, value in made]

    def get_input_tensor(self, name: str) -> ZeroCopyTensor:
        """The tensor that `zero_copy_run` reads for an input. Raises ValueError for an unknown name."""
        return self._require(name, self._input_tensors)

    def get_output_tensor(self, name: str) -> ZeroCopyTensor:
        """The tensor that `zero_copy_run` writes for an output. Raises ValueError for an unknown name."""
        return self._require(name, self._output_tensors)

    def zero_copy_run(self) -> None:
        """Computes the output tensors from the input tensors."""
        made = self._values({name: tensor.lod_tensor for name, tensor in self._input_tensors.items()})
        for var, value in zip(self._targets, made, strict=True):
            self._output_tensors[var.name].lod_tensor = value

    def clone(self) -> PaddlePredictor:
        """Another predictor for the same model."""
        return type(self)(self.config)

    def program(self) -> Any:
        """The model's program."""
        return self._program

    def get_serialized_program(self) -> bytes:
        """The model's program as the bytes of a ProgramDesc."""
        return self._program.desc.serialize_to_string()

    def _values(self, feed: Mapping[str, Any]) -> list[Any]:
        return self._executor.run(self._program, feed, self._targets, scope=self._scope, return_numpy=False)

    @staticmethod
    def _require(name: str, known: Mapping[str, ZeroCopyTensor]) -> ZeroCopyTensor:
        if name not in known:
            raise ValueError(f"the model has no tensor {name!r}; it has {', '.join(known)}")
        return known[name]


class AnalysisPredictor(PaddlePredictor):
    """The predictor of an AnalysisConfig."""


class NativePaddlePredictor(PaddlePredictor):
    """The predictor of a NativeConfig."""


def create_paddle_predictor(config: AnalysisConfig | NativeConfig) -> PaddlePredictor:
    """A predictor for the model that a configuration names. Raises ValueError or OSError if there is no model."""
    return AnalysisPredictor(config) if isinstance(config, AnalysisConfig) else NativePaddlePredictor(config)
