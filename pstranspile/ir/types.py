"""Data types and variable kinds of a ProgramDesc."""

from __future__ import annotations

from enum import Enum, IntFlag

# The roles of ops in training.


class OpRole(IntFlag):
    """The role of an op (Fluid's attribute `op_role`). Roles can be combined, such as `LOSS | BACKWARD`.

    As in Fluid, the transpiler compares roles by equality: OPTIMIZE is an update of a parameter, OPTIMIZE | LR_SCHED
    computes a learning rate.
    """

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZE = 2
    RPC = 4
    DIST = 8
    LR_SCHED = 16
    LOSS = 256
    NOT_SPECIFIED = 4096


RUN_BY_FLUID = frozenset({*OpRole, OpRole.LOSS | OpRole.BACKWARD, OpRole.OPTIMIZE | OpRole.LR_SCHED, OpRole.FORWARD})
"""The roles of ops that Fluid runs; it refuses an op with any other number."""

LR_ROLES = frozenset({OpRole.LR_SCHED, OpRole.LR_SCHED | OpRole.OPTIMIZE})
"""Roles of the ops that compute learning rates."""


class DType(Enum):
    """The dtype of a tensor; the value is Fluid's number for it (`framework.proto`, VarType.Type)."""

    __hash__ = object.__hash__  # Enum calls the built-in hash, which a script may replace

    BOOL = 0
    INT16 = 1
    INT32 = 2
    INT64 = 3
    FP16 = 4
    FP32 = 5
    FP64 = 6
    SIZE_T = 19
    UINT8 = 20
    INT8 = 21

    @property
    def text(self) -> str:
        """The name in the textual IR and in messages: `f32`, `i64`, ..."""
        return _TEXT[self]

    @property
    def size(self) -> int:
        """The bytes of an element."""
        return _SIZES[self.text]


_SIZES = {"bool": 1, "i8": 1, "u8": 1, "i16": 2, "f16": 2, "i32": 4, "f32": 4, "i64": 8, "f64": 8, "size_t": 8}

_TEXT = {
    DType.BOOL: "bool",
    DType.INT16: "i16",
    DType.INT32: "i32",
    DType.INT64: "i64",
    DType.FP16: "f16",
    DType.FP32: "f32",
    DType.FP64: "f64",
    DType.SIZE_T: "size_t",
    DType.UINT8: "u8",
    DType.INT8: "i8",
}
DTYPES: dict[str, DType] = {text: dtype for dtype, text in _TEXT.items()}
"""Element types by their textual name."""

_LONG = {"i": "int", "u": "uint", "f": "float"}
_ANY_NAME = DTYPES | {_LONG[name[0]] + name[1:]: dtype for name, dtype in DTYPES.items() if name[1:].isdigit()}


def element_type(given: DType | str) -> DType:
    """The dtype by its textual name or its name in Fluid and numpy (`float32`).

    Raises ValueError for other names.
    """
    if isinstance(given, DType):
        return given
    if not isinstance(given, str) or given not in _ANY_NAME:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"{given!r} is no element type; known are {', '.join(_ANY_NAME)}")
    return _ANY_NAME[given]


class VarKind(Enum):
    """The kind of a variable; the value is Fluid's number for it (`framework.proto`, VarType.Type)."""

    __hash__ = object.__hash__  # Enum calls the built-in hash, which a script may replace

    LOD_TENSOR = 7
    SELECTED_ROWS = 8
    FEED_MINIBATCH = 9
    FETCH_LIST = 10
    STEP_SCOPES = 11
    LOD_RANK_TABLE = 12
    LOD_TENSOR_ARRAY = 13
    PLACE_LIST = 14
    READER = 15
    RAW = 17
    TUPLE = 18
