"""From a Program to a ProgramDesc message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pstranspile.frontends.call_stacks import CALL_STACK, stack_of
from pstranspile.frontends.decode import ROLE, ROLE_VARS, SCALARS, VALUE_FIELDS
from pstranspile.frontends.decode_types import TENSOR_FIELDS, default_written
from pstranspile.ir.attributes import KINDS, AttrKind, AttrValue, Strings
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Block, Op, Program, Slots, TensorType, Var
from pstranspile.ir.types import VarKind


def fill_program(message: Any, program: Program) -> None:
    """Writes a program into an empty ProgramDesc message.

    Raises DiagnosticError, with the path of the field, for a value the format can't carry: a number outside
    its range, a name with lone surrogates that do not stand for bytes.
    """
    for index, block in enumerate(program.blocks):
        _fill_block(message.blocks.add(), block, index)
    if program.version is not None:
        message.version.version = _checked(program.version, 64, "version.version")


def _refuse(path: str, reason: str) -> DiagnosticError:
    return DiagnosticError([error("desc-unwritable", f"{path}: {reason}")])


def _checked(value: int, bits: int, path: str) -> int:
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise _refuse(path, f"{value} does not fit into {bits} bits")
    return value


def _raw(text: str, path: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise _refuse(path, f"{text!r} can't be written as UTF-8") from None


def _fill_block(message: Any, block: Block, index: int) -> None:
    path = f"blocks[{index}]"
    message.idx = index
    message.parent_idx = _checked(block.parent, 32, f"{path}.parent_idx")
    if block.forward_block != -1:
        message.forward_block_idx = _checked(block.forward_block, 32, f"{path}.forward_block_idx")
    for position, var in enumerate(block.vars.values()):
        _fill_var(message.vars.add(), var, f"{path}.vars[{position}]")
    for position, op in enumerate(block.ops):
        _fill_op(message.ops.add(), op, f"{path}.ops[{position}]")


def _fill_var(message: Any, var: Var, path: str) -> None:
    message.name = _raw(var.name, f"{path}.name")
    message.type.type = var.kind.value
    written = var.written_defaults
    if written is None:
        written = default_written(var.name, var.kind, var.tensor, var.persistable)
    if var.persistable or "persistable" in written:
        message.persistable = var.persistable
    if var.need_check_feed or "need_check_feed" in written:
        message.need_check_feed = var.need_check_feed
    field = TENSOR_FIELDS.get(var.kind)
    _check_description(var, path)
    if field is None:
        return
    spec = getattr(message.type, field)
    if var.kind is VarKind.READER:
        spec.SetInParent()
        for position, item in enumerate(var.readers):
            _fill_lod_tensor(spec.lod_tensor.add(), item, True, f"{path}.type.reader.lod_tensor[{position}]")
    elif var.kind is VarKind.TUPLE:
        spec.SetInParent()
        spec.element_type.extend(element.value for element in var.elements)
    elif var.tensor is None:
        return
    elif var.kind is VarKind.SELECTED_ROWS:
        _fill_tensor(spec, var.tensor, f"{path}.type.selected_rows")
    else:
        _fill_lod_tensor(spec, var.tensor, "lod_level" in written, f"{path}.type.{field}")


def _check_description(var: Var, path: str) -> None:
    """Refuses a description for which a variable of this kind has no field."""
    kind, tensor = var.kind, var.tensor
    if tensor is not None and kind is not VarKind.LOD_TENSOR and kind is not VarKind.LOD_TENSOR_ARRAY:
        if kind is not VarKind.SELECTED_ROWS:
            raise _refuse(f"{path}.type", f"a variable of kind {kind.name} has no element type and dims")
        if tensor.lod_level:
            raise _refuse(f"{path}.type.selected_rows", "SELECTED_ROWS have no LoD level")
    if (var.readers and kind is not VarKind.READER) or (var.elements and kind is not VarKind.TUPLE):
        raise _refuse(f"{path}.type", f"a variable of kind {kind.name} has no list of types")


def _fill_lod_tensor(message: Any, tensor: TensorType, write_level: bool, path: str) -> None:
    _fill_tensor(message.tensor, tensor, f"{path}.tensor")
    if tensor.lod_level or write_level:
        message.lod_level = _checked(tensor.lod_level, 32, f"{path}.lod_level")


def _fill_tensor(message: Any, tensor: TensorType, path: str) -> None:
    message.data_type = tensor.dtype.value
    try:
        message.dims.extend(tensor.shape)
    except ValueError:
        for position, dim in enumerate(tensor.shape):
            _checked(dim, 64, f"{path}.dims[{position}]")
        raise


def _fill_op(message: Any, op: Op, path: str) -> None:
    message.type = _raw(op.type, f"{path}.type")
    _fill_slots(message.inputs, op.inputs, f"{path}.inputs")
    _fill_slots(message.outputs, op.outputs, f"{path}.outputs")
    attrs: dict[str, AttrValue] = dict(op.attrs)
    if op.role is not None:
        attrs[ROLE] = int(op.role)
    if op.role_vars is not None:
        attrs[ROLE_VARS] = Strings(op.role_vars)
    script = op.origin.location.script if op.origin and op.origin.location else None
    if script is not None and CALL_STACK not in attrs:
        attrs[CALL_STACK] = stack_of(script)
    for name in sorted(attrs):
        _fill_attr(message.attrs.add(), name, attrs[name], path)
    if op.is_target:
        message.is_target = True


def _fill_slots(messages: Any, slots: Slots, path: str) -> None:
    for name in sorted(slots):
        message = messages.add()
        message.parameter = _raw(name, path)
        if slots[name]:
            message.arguments.extend(_raw_list(slots[name], path))


def _raw_list(names: Iterable[str], path: str) -> list[bytes]:
    return [_raw(name, path) for name in names]


def _fill_attr(message: Any, name: str, value: Any, path: str) -> None:
    where = f"{path}.attrs[{name}]"
    message.name = _raw(name, f"{path}.attrs")
    kind = KINDS[type(value)]
    message.type = kind.value
    field = VALUE_FIELDS[kind]
    if kind is AttrKind.STRING:
        value = _raw(value, where)
    elif kind is AttrKind.STRINGS:
        value = _raw_list(value, where)
    try:
        if kind in SCALARS:
            setattr(message, field, value)
        elif value:
            getattr(message, field).extend(value)
    except ValueError:
        bits = 64 if kind in (AttrKind.LONG, AttrKind.LONGS) else 32
        for number in value if isinstance(value, tuple) else (value,):  # pyright: ignore[reportUnknownVariableType]
            _checked(number, bits, where)  # pyright: ignore[reportUnknownArgumentType]
        raise
