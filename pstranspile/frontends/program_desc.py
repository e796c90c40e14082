"""Reading and writing serialized ProgramDescs (`framework.proto` of Fluid 1.8)."""

from __future__ import annotations

import warnings
from typing import Any

from pstranspile.frontends import wire
from pstranspile.frontends.decode import Decoder
from pstranspile.frontends.encode import fill_program
from pstranspile.frontends.protobuf_schema import program_desc_class
from pstranspile.ir.collector import collector_paused
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, raise_errors
from pstranspile.ir.model import Location, Program

__all__ = ["program_from_bytes", "program_to_bytes", "read_program"]


def read_program(
    data: bytes, file: str, program: str, call_stacks: bool = False
) -> tuple[Program, tuple[Diagnostic, ...]]:
    """The program in a serialized ProgramDesc, and a warning for every part of it that is left out.

    `file` is the name messages give the data, `program` the name the program will have in its module (it is
    part of the origin of each op). Of the call stack of an op, the place in the user's script is kept; the stack itself
    with `call_stacks`. Raises DiagnosticError, with the byte offset or the path of the field, for data that is not a
    complete and consistent ProgramDesc.
    """
    from google.protobuf.message import DecodeError

    message, raw_size = program_desc_class()(), 0
    try:
        message.ParseFromString(data)
        raw_size = message.ByteSize()
        message.ParseFromString(data)
    except DecodeError as refusal:
        damage = wire.find_damage(data, file)
        reason = damage or error("desc-damaged", f"protobuf can't read the data: {refusal}", Location(file))
        raise DiagnosticError([reason]) from None
    message.DiscardUnknownFields()
    # Cheaper than looking at every message: without what protobuf did not know, is there less? (Parsed twice,
    # because protobuf without its C part does not count again after the discarding.)
    left_out = () if message.ByteSize() == raw_size else wire.unknown_fields(data, file)
    raise_errors(left_out)
    decoder = Decoder(file, program, call_stacks)
    with collector_paused():
        result = decoder.decode(message)
    return result, (*left_out, *decoder.findings.left_out)


def program_from_bytes(data: bytes, file: str, program: str) -> Program:
    """The program in a serialized ProgramDesc, as `read_program` gives it.

    What is left out is reported through Python's `warnings`. Raises DiagnosticError.
    """
    result, left_out = read_program(data, file, program)
    if left_out:
        for finding in left_out:
            warnings.warn(str(DiagnosticError([finding])), stacklevel=2)
    return result


def program_to_bytes(program: Program) -> bytes:
    """The serialized ProgramDesc of a program: the same bytes for equal programs, on every machine.

    Slots and attributes stand in alphabetical order (as Fluid writes slots), variables and ops in their own.
    Raises DiagnosticError for a value that the format can't carry.
    """
    message: Any = program_desc_class()()
    with collector_paused():
        fill_program(message, program)
    return message.SerializeToString(deterministic=True)
