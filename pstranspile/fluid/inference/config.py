"""What Fluid's inference engine is told of a model: where it lies, and how to run it."""

from __future__ import annotations

import os
from enum import Enum
from typing import Any, NoReturn

from pstranspile.fluid.missing import refused
from pstranspile.fluid.places import CUDAPlace
from pstranspile.fluid.running.communicating import warn_unused


class NativeConfig:
    """A model's folder, or its program and parameters as files; `use_gpu` is told to compute on the CPU."""

    def __init__(self) -> None:
        self.model_dir = self.prog_file = self.param_file = ""
        self.use_gpu, self.device, self.fraction_of_gpu_memory = False, 0, -1.0
        self.specify_input_name = False
        self._threads = 1

    def set_cpu_math_library_num_threads(self, threads: int) -> None:
        """Sets the number of threads, which numpy's library takes from the environment instead."""
        self._threads = threads

    def cpu_math_library_num_threads(self) -> int:
        """The number of threads that was set."""
        return self._threads

    def files(self) -> tuple[str, str | None, str | None]:
        """The folder, and the files in it of the program and of all parameters, None where Fluid's names are meant."""
        if self.use_gpu:
            CUDAPlace(self.device)
        return located(self.model_dir, self.prog_file, self.param_file)


def located(folder: str, program: str, parameters: str) -> tuple[str, str | None, str | None]:
    """A model's folder and files; those of a program elsewhere are taken with its folder. ValueError for neither."""
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
    """The element types that engines compute in."""

    __hash__ = object.__hash__  # Enum calls the built-in hash, which a script may replace

    Float32, Int8, Half = 0, 1, 2


class AnalysisConfig:
    """A model's folder, its program and parameters as files, or another configuration; and how to run it.

    What steers passes and libraries of Fluid changes no result here and is told on stderr; other engines are refused.
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
        """Sets the folder, or the files of the program and of the parameters."""
        self._dir, self._program, self._params = ("", model, params) if params else (model, "", "")

    def set_prog_file(self, path: str) -> None:
        """Sets the file of the program."""
        self._dir, self._program = "", path

    def set_params_file(self, path: str) -> None:
        """Sets the file of the parameters."""
        self._dir, self._params = "", path

    def model_dir(self) -> str:
        """The folder."""
        return self._dir

    def prog_file(self) -> str:
        """The file of the program."""
        return self._program

    def params_file(self) -> str:
        """The file of the parameters."""
        return self._params

    def model_from_memory(self) -> bool:
        """False."""
        return False

    def enable_use_gpu(self, memory_pool_init_size_mb: int, device_id: int = 0) -> None:
        """Asks for a GPU, for which the CPU computes; that is told."""
        self._device = device_id
        CUDAPlace(device_id)

    def disable_gpu(self) -> None:
        """Asks for the CPU."""
        self._device = None

    def use_gpu(self) -> bool:
        """Whether a GPU was asked for."""
        return self._device is not None

    def gpu_device_id(self) -> int:
        """The number of the GPU that was asked for."""
        return self._device or 0

    def switch_ir_optim(self, x: bool = True) -> None:
        """Whether Fluid may rewrite the program; here it is run as it is."""
        self._set["ir_optim"] = x

    def ir_optim(self) -> bool:
        """What was said of rewriting."""
        return self._set["ir_optim"]

    def switch_use_feed_fetch_ops(self, x: bool = True) -> None:
        """Whether `run` is meant (True), or `zero_copy_run` (False); both can be called anyway."""
        self._set["feed_fetch"] = x

    def use_feed_fetch_ops_enabled(self) -> bool:
        """What was said of `run` and `zero_copy_run`."""
        return self._set["feed_fetch"]

    def switch_specify_input_names(self, x: bool = True) -> None:
        """Whether `run` goes by the names of its inputs, not by their order."""
        self._set["input_names"] = x

    def specify_input_name(self) -> bool:
        """Whether `run` goes by the names of its inputs."""
        return self._set["input_names"]

    def set_cpu_math_library_num_threads(self, threads: int) -> None:
        """Sets the number of threads, which numpy's library takes from the environment instead."""
        self._set["threads"] = threads

    def cpu_math_library_num_threads(self) -> int:
        """The number of threads that was set."""
        return self._set["threads"]

    def disable_glog_info(self) -> None:
        """Asks for no messages; there are none."""
        self._quiet = True

    def glog_info_disabled(self) -> bool:
        """Whether no messages were asked for."""
        return self._quiet

    def tensorrt_engine_enabled(self) -> bool:
        """False."""
        return False

    def mkldnn_enabled(self) -> bool:
        """False."""
        return False

    def files(self) -> tuple[str, str | None, str | None]:
        """The folder, and the files in it of the program and of all parameters, None where Fluid's names are meant."""
        return located(self._dir, self._program, self._params)

    def __getattr__(self, name: str) -> Any:
        if name not in _REFUSED and name not in _WITHOUT_EFFECT:
            raise AttributeError(f"AnalysisConfig has no {name!r}", name=name, obj=self)

        def fail(*_: Any, **__: Any) -> NoReturn:
            raise refused(f"AnalysisConfig.{name}", _REFUSED[name])

        def tell(*args: Any, **__: Any) -> None:
            warn_unused(f"AnalysisConfig.{name}", args, _WITHOUT_EFFECT[name])

        return fail if name in _REFUSED else tell
