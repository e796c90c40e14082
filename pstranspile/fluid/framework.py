"""Default programs, context managers for them, and places, under the names of Fluid's `framework`.

Places are those on which scripts ask to compute. Everything is computed on the CPU.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from typing import Any

from pstranspile.fluid.graph.block import Block as Block
from pstranspile.fluid.graph.block import Operator as Operator
from pstranspile.fluid.graph.program import DEFAULTS, SCOPES
from pstranspile.fluid.graph.program import Program as Program
from pstranspile.fluid.graph.values import VarType, dtype_of, numpy_name, vartype_of
from pstranspile.fluid.graph.variable import Parameter as Parameter
from pstranspile.fluid.graph.variable import Variable as Variable
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.running.flags import get_flags as get_flags
from pstranspile.fluid.running.flags import set_flags as set_flags
from pstranspile.fluid.running.flags import whole
from pstranspile.ir.user_warnings import warn
from pstranspile.ops.gradient import SUFFIX, gradient_name

# Places on which scripts ask to compute.


class Place:
    """The base class of places; two places are equal if they have the same kind and number."""

    def __init__(self, device_id: int = 0):
        self.device_id = device_id

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Place) and other.device_id == self.device_id

    def set_place(self, place: Place) -> None:
        """Makes this general place stand for another place."""
        self._stands_for: Place = place

    def _equals(self, other: object) -> bool:
        """Whether this place equals another one."""
        return self == other

    def _type(self) -> int:
        """The number of the kind of place."""
        meant = getattr(self, "_stands_for", self)
        return ["Place", "CPUPlace", "CUDAPlace", "CUDAPinnedPlace"].index(type(meant).__name__)

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.device_id))

    def __repr__(self) -> str:
        return type(self).__name__


class CPUPlace(Place):
    """The CPU."""

    def __init__(self) -> None:
        super().__init__()


_TOLD: list[str] = []


def _report_missing_gpu(name: str) -> None:
    if not _TOLD:
        _TOLD.append(name)
        print(f"{name}: there is no GPU here, the CPU computes", file=sys.stderr)


class CUDAPlace(Place):
    """A GPU, which the CPU replaces; this is reported once on stderr."""

    def __init__(self, device_id: int = 0):
        super().__init__(device_id)
        _report_missing_gpu(f"CUDAPlace({device_id})")

    def __repr__(self) -> str:
        return f"CUDAPlace({self.device_id})"


class CUDAPinnedPlace(Place):
    """Memory that a GPU can read, which ordinary memory replaces."""

    def __init__(self) -> None:
        super().__init__()


# Default programs, and context managers for them.


GRAD_VAR_SUFFIX, TEMP_VAR_NAME, ZERO_VAR_SUFFIX = SUFFIX, "@TEMP@", "@ZERO"
EMPTY_VAR_NAME, CONTROL_DEP_VAR_PREFIX = "@EMPTY@", "__control_var"
_EDGES = count()


def default_main_program() -> Program:
    """The main program in use, to which layers add ops."""
    return DEFAULTS[0]


def default_startup_program() -> Program:
    """The start-up program in use, which initialises parameters."""
    return DEFAULTS[1]


def switch_main_program(program: Program) -> Program:
    """Makes another program the main program in use; returns the previous one."""
    before, DEFAULTS[0] = DEFAULTS[0], program
    return before


def switch_startup_program(program: Program) -> Program:
    """Makes another program the start-up program in use; returns the previous one."""
    before, DEFAULTS[1] = DEFAULTS[1], program
    return before


@contextmanager
def program_guard(main_program: Program, startup_program: Program | None = None) -> Generator[None]:
    """A context manager in which these programs are in use. Raises TypeError for values that are not programs."""
    for program in (main_program, startup_program or main_program):
        if not isinstance(program, Program):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"program_guard takes Programs, not a value of type {type(program).__name__}")
    main = switch_main_program(main_program)
    startup = switch_startup_program(startup_program) if startup_program is not None else None
    try:
        yield
    finally:
        switch_main_program(main)
        if startup is not None:
            switch_startup_program(startup)


@contextmanager
def name_scope(prefix: str | None = None) -> Generator[None]:
    """A context manager in which ops are made with a name scope."""
    if not prefix:
        raise ValueError("name_scope needs a name")
    with SCOPES[0].enter_scope(prefix):
        yield


@contextmanager
def device_guard(device: str | None = None) -> Generator[None]:
    """A context manager in which ops are made with the device on which Fluid would run them; here they all run on the
    CPU.
    """
    if device not in (None, "", "cpu", "gpu"):
        raise ValueError(f"a device is 'cpu' or 'gpu', not {device!r}")
    with SCOPES[0].on(device):
        yield


def in_dygraph_mode() -> bool:
    """False, because there are static graphs only."""
    return False


def _dygraph_tracer() -> None:  # pyright: ignore[reportUnusedFunction]
    """None, because there are static graphs only."""


_current_expected_place = _dygraph_tracer


def is_compiled_with_cuda() -> bool:
    """False, because everything is computed on the CPU."""
    return False


is_compiled_with_xpu = is_compiled_with_rocm = is_compiled_with_npu = is_compiled_with_cuda
is_compiled_with_mlu = is_compiled_with_ipu = is_compiled_with_cinn = is_compiled_with_cuda


def is_compiled_with_custom_device(device_type: str) -> bool:
    """False, because everything is computed on the CPU."""
    return False


def is_compiled_with_distribute() -> bool:
    """True, because programs of clusters can be run."""
    return True


def cpu_places(device_count: int | None = None) -> list[CPUPlace]:
    """A list of `device_count` CPU places (default: the number in the environment variable CPU_NUM, else 1)."""

    return [CPUPlace()] * (device_count or whole("CPU_NUM", 1))


def cuda_places(device_ids: Any = None) -> list[CUDAPlace]:
    """The GPUs that a script names; programs on them run on the CPU."""
    return [CUDAPlace(index) for index in (device_ids if device_ids is not None else [0])]


def cuda_pinned_places(device_count: int | None = None) -> list[CUDAPinnedPlace]:
    """A list of `device_count` places of pinned memory (default 1)."""
    return [CUDAPinnedPlace()] * (device_count or 1)


def convert_np_dtype_to_dtype_(np_dtype: Any) -> VarType:
    """Fluid's element type for numpy's element type."""
    return vartype_of(dtype_of(np_dtype))


def dtype_is_floating(dtype: Any) -> bool:
    """Whether an element type is a floating point type."""
    return numpy_name(dtype).startswith("float")


def grad_var_name(var_name: str) -> str:
    """The name of a variable's gradient."""
    return gradient_name(var_name)


def generate_control_dev_var_name() -> str:
    """A new name for an edge between ops that share no variable."""
    return f"{CONTROL_DEP_VAR_PREFIX}@{next(_EDGES)}"


def _get_var(name: str, program: Program | None = None) -> Variable:
    """The variable of block 0 with this name."""
    return (program or default_main_program()).global_block().var(name)


get_var = _get_var


def require_version(min_version: str, max_version: str | None = None) -> None:
    """Raises RuntimeError unless `paddle.version` lies between two versions such as `1.8` or `1.8.5.0`.

    Raises TypeError for a value that is not a text, ValueError for a text that is not a version.
    """
    from pstranspile.fluid.paddle import version

    versions = [min_version] if max_version is None else [min_version, max_version]
    for wanted in versions:
        if not isinstance(wanted, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a version is text, such as '1.8.5', not a value of type {type(wanted).__name__}")
        if not re.fullmatch(r"\d+(\.\d+){0,3}", wanted):
            raise ValueError(f"a version is up to four numbers with dots between them, not {wanted!r}")
    here = _numbers(".".join((version.major, version.minor, version.patch, version.rc)))
    limits = [_numbers(wanted) for wanted in versions]
    if here == (0, 0, 0, 0):
        warn(f"the script needs Fluid {' to '.join(versions)}; this is a version without a number")
    elif here < limits[0] or (here > limits[-1] and max_version is not None):
        wanted = f"Fluid {min_version} to {max_version or 'any'}"
        raise RuntimeError(f"the script needs {wanted}; this is {version.full_version}'s interface")


def _numbers(text: str) -> tuple[int, ...]:
    numbers = [int(part) for part in text.split(".")]
    return (*numbers, *[0] * (4 - len(numbers)))


def load_op_library(lib_filename: str) -> None:
    """Raises NotHere, because a user's own ops are added as Python kernels."""
    from pstranspile.fluid.missing import unsupported_error

    raise unsupported_error("load_op_library", "ops of your own are declared in Python (docs/guides/write_a_pass.md)")


__getattr__ = names_of_fluid(__name__, globals())
