"""From the VarType message of a variable to its kind and description."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

from pstranspile.ir.codes import Code
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, warning
from pstranspile.ir.model import Location, TensorType
from pstranspile.ir.types import DType, VarKind

TENSOR_FIELDS: dict[VarKind, str] = {
    VarKind.LOD_TENSOR: "lod_tensor",
    VarKind.SELECTED_ROWS: "selected_rows",
    VarKind.LOD_TENSOR_ARRAY: "tensor_array",
    VarKind.READER: "reader",
    VarKind.TUPLE: "tuple",
}
"""The field of a VarType message that describes a variable of each kind; the other kinds have none."""

_DTYPES = {dtype.value: dtype for dtype in DType}
_VAR_KINDS = {kind.value: kind for kind in VarKind}


class Findings:
    """What reading one file has to say: errors end it, left-out parts are collected."""

    def __init__(self, file: str) -> None:
        self.location = Location(file)
        self.left_out: list[Diagnostic] = []

    def fail(self, code: Code, path: str, message: str) -> NoReturn:
        """Raises DiagnosticError about the field at `path`."""
        raise DiagnosticError([error(code, f"{path}: {message}", self.location)])

    def leave_out(self, path: str, message: str) -> None:
        """Notes that the field at `path` is not kept."""
        self.left_out.append(warning("desc-not-kept", f"{path}: {message}", self.location))

    def required(self, message: Any, field: str, path: str) -> Any:
        """The value of a field that must be there. Raises DiagnosticError if it is not."""
        if not message.HasField(field):
            self.fail("desc-missing", f"{path}.{field}", "the field is missing")
        return getattr(message, field)


class VarTypeValue(NamedTuple):
    """A decoded VarType: the fields of Var it fills, and whether it writes out a LoD level of 0."""

    kind: VarKind
    tensor: TensorType | None = None
    readers: tuple[TensorType, ...] = ()
    elements: tuple[VarKind | DType, ...] = ()
    writes_level: bool = False


class TypeDecoder:
    """Decodes VarType messages; those with equal bytes become one value."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._cache: dict[bytes, VarTypeValue] = {}

    def decode(self, message: Any, path: str) -> VarTypeValue:
        """The value of the VarType at `path`. Raises DiagnosticError naming a field that is wrong."""
        key = message.SerializeToString()
        value = self._cache.get(key)
        if value is None:
            left_out = len(self._findings.left_out)
            value = self._decode(message, path)
            if len(self._findings.left_out) == left_out:  # one warning for all variables
                self._cache[key] = value
        return value

    def _decode(self, message: Any, path: str) -> VarTypeValue:
        number = self._findings.required(message, "type", path)
        kind = _VAR_KINDS.get(number)
        if kind is None:
            self._findings.fail("desc-enum", f"{path}.type", f"{number} is not a kind of variable")
        field = TENSOR_FIELDS.get(kind)
        described = False
        for descriptor, _ in message.ListFields():
            if descriptor.name == field:
                described = True
            elif descriptor.name != "type":
                text = f"it does not describe a variable of kind {kind.name} and is left out"
                self._findings.leave_out(f"{path}.{descriptor.name}", text)
        if field is None or not described:
            return VarTypeValue(kind)
        inner, where = getattr(message, field), f"{path}.{field}"
        if kind is VarKind.READER:
            items = enumerate(inner.lod_tensor)
            readers = tuple(self._lod_tensor(item, f"{where}.lod_tensor[{i}]") for i, item in items)
            return VarTypeValue(kind, readers=readers)
        if kind is VarKind.TUPLE:
            numbers = enumerate(inner.element_type)
            return VarTypeValue(
                kind, elements=tuple(self._element(n, f"{where}.element_type[{i}]") for i, n in numbers)
            )
        if kind is VarKind.SELECTED_ROWS:
            return VarTypeValue(kind, self._tensor(inner, 0, where))
        tensor = self._lod_tensor(inner, where)
        return VarTypeValue(kind, tensor, writes_level=not tensor.lod_level and inner.HasField("lod_level"))

    def _element(self, number: int, path: str) -> VarKind | DType:
        element = _DTYPES.get(number) or _VAR_KINDS.get(number)
        if element is None:
            self._findings.fail("desc-enum", path, f"{number} is not an element type or a kind of variable")
        return element

    def _lod_tensor(self, message: Any, path: str) -> TensorType:
        tensor = self._findings.required(message, "tensor", path)
        return self._tensor(tensor, message.lod_level, f"{path}.tensor")

    def _tensor(self, message: Any, lod_level: int, path: str) -> TensorType:
        number = self._findings.required(message, "data_type", path)
        dtype = _DTYPES.get(number)
        if dtype is None:
            if number not in _VAR_KINDS:
                self._findings.fail("desc-enum", f"{path}.data_type", f"{number} is not an element type")
            # sampled_softmax_with_cross_entropy makes a variable of this sort; no op asks for its element type
            text = f"{number} is the kind {_VAR_KINDS[number].name}, not an element type; it counts as not set"
            self._findings.leave_out(f"{path}.data_type", text)
            dtype = DType.BOOL
        return TensorType(dtype, tuple(message.dims), lod_level)


def default_written(name: str, kind: VarKind, tensor: TensorType | None, persistable: bool) -> tuple[str, ...]:
    """The optional fields at their default that Fluid usually writes for such a variable.

    Its Python layer writes `persistable` of the variables it makes; gradients, and what has no description,
    are made below it. The LoD level is written of what ops compute, not of parameters and other state.
    """
    if persistable or tensor is None or kind is VarKind.SELECTED_ROWS:
        return ()
    made_by_python = kind is VarKind.LOD_TENSOR and "@GRAD" not in name
    level = () if tensor.lod_level else ("lod_level",)
    return ("persistable", *level) if made_by_python else level
