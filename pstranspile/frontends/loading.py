"""Loads any INPUT as a Module (program text, text on stdin, or serialized ProgramDescs), and exports
modules for Fluid.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable
from typing import TypeAlias

from pstranspile.frontends.meta import (
    Meta,
    apply_meta,
    infer_parameters,
    meta_of,
    parse_meta,
    warn_of_newer_ops,
    with_sorted_declarations,
)
from pstranspile.ir.argument_checks import check_arguments, expect, expect_module, path_of
from pstranspile.ir.codes import Code
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, render
from pstranspile.ir.json_text import json_text
from pstranspile.ir.model import MAIN, STARTUP, FrozenMap, Location, Module, Program
from pstranspile.ir.reading import PROGRAM, kind_of, misspelt, open_regular, read_named, read_stream
from pstranspile.ir.user_warnings import warn

STDIN = "<stdin>"
"""The name that messages give to what is read from stdin."""

Report: TypeAlias = Callable[[Iterable[Diagnostic]], object]
"""A function that receives the warnings of a load."""

LARGEST = 1 << 30
"""The most bytes of an input."""

_TEXT_BYTES = b"\t\n\v\f\r\x1b" + bytes(range(0x20, 0x100))
_PROGRAM_DESC_STARTS = frozenset({0x0A, 0x1A, 0x22})  # protobuf fields 1, 3 and 4, each with a length
_SNIFFED_BYTES = 4096


@check_arguments
def load(
    path: str | os.PathLike[str],
    startup: str | os.PathLike[str] | None = None,
    meta: str | os.PathLike[str] | None = None,
    *,
    call_stacks: bool = False,
    report: Report | None = None,
) -> Module:
    """The module in a file: `.ir` text or a serialized ProgramDesc, recognized by its content; `-` is stdin.

    `FILE.py:NAME` is the result of a function in a Python file: a module, or a model that `pstranspile.torch` has
    traced. `startup` is the file of the startup program, for inputs that hold only the main program; `meta` is a JSON
    file with what a ProgramDesc does not carry (see `pstranspile.frontends.meta`). For a ProgramDesc, parameters that
    no meta names are inferred. Its declarations are sorted unless the meta says that they are in order. Of the call
    stack of each op the place in the user's script is kept. With `call_stacks` the order is kept, and the whole stack
    as an attribute. Warnings go to `report`, by default to Python's `warnings`. Raises DiagnosticError.
    """
    name = path_of(path, "load")
    if (named := of_python(name)) is not None:
        return in_place(_made_by_python(*named, startup, meta), name)
    data, shown = (read_stdin(), STDIN) if name == "-" else (read_bytes(name), name)
    return load_bytes(data, shown, startup, meta, call_stacks=call_stacks, report=report)


@check_arguments
def loads(text: str) -> Module:
    """The module in the text of a program. Raises DiagnosticError."""
    expect(text, str, "loads", "text")
    from pstranspile.ops.textual import parse

    return in_place(parse(text, "<string>"), "<string>")


def load_bytes(
    data: bytes,
    file: str,
    startup: str | os.PathLike[str] | None = None,
    meta: str | os.PathLike[str] | None = None,
    *,
    call_stacks: bool = False,
    report: Report | None = None,
) -> Module:
    """The module in `data`, which messages call `file`; otherwise as `load`. Raises DiagnosticError."""
    warnings: list[Diagnostic] = []
    module, serialized = _read_module(data, file, MAIN, warnings, call_stacks)
    in_place(module, file)
    unordered = set(module.programs) if serialized else set[str]()
    if startup is not None:
        module, serialized = _with_startup(module, data, file, path_of(startup, "load"), warnings, call_stacks)
        unordered |= {STARTUP} if serialized else set()
    settings = Meta()
    if meta is not None:
        meta_file = path_of(meta, "load")
        settings = parse_meta(decode_text(read_bytes(meta_file), meta_file), meta_file)
    if unordered and not settings.in_order and not call_stacks:
        module = with_sorted_declarations(module, unordered)
    module, unknown = apply_meta(module, settings)
    warnings += unknown
    if unordered:
        from pstranspile.frontends.program_desc import with_short_scripts

        module = with_short_scripts(infer_parameters(module))
    (report or _warn)(warnings)
    return module


def read_bytes(path: str) -> bytes:
    """The content of an input file. Raises DiagnosticError when it can't be read or is empty."""
    if not path:
        raise DiagnosticError([error("input-unreadable", "the name of a file is empty")])
    try:
        data = read_named(path, LARGEST)
    except (OSError, ValueError) as problem:  # ValueError: a path with a NUL character
        raise _unreadable(path, problem) from None
    if not data:
        raise _failure("input-empty", path, "the file is empty")
    return data


def require_regular(*paths: str | os.PathLike[str]) -> None:
    """Raises DiagnosticError unless these are regular files. For files of a folder that others may have filled, in
    which a pipe would keep the reader waiting.
    """
    for path in paths:
        try:
            open_regular(path).close()
        except (OSError, ValueError) as problem:
            raise _unreadable(os.fspath(path), problem) from None


def _made_by_python(
    file: str, name: str, startup: str | os.PathLike[str] | None, meta: str | os.PathLike[str] | None
) -> Module:
    """The module that a function of a Python file returns. It must be complete, so `startup` and `meta` are refused."""
    from pstranspile.runtime.files.python_file import module_of

    for given, what in ((startup, "a startup program"), (meta, "what a ProgramDesc does not carry")):
        if given is not None:
            message = f"{what} comes with what {name} of {file} gives; no file of it can be given"
            raise _failure("input-startup", path_of(given, "load"), message)
    return module_of(file, name)


def of_python(name: str) -> tuple[str, str] | None:
    """(file, name) of an input `FILE.py:NAME`; None for other inputs, such as a file with this name."""
    file, _, function = name.rpartition(":")
    if not file.endswith(".py") or not function.isidentifier() or os.path.exists(name):
        return None
    return file, function


def _unreadable(path: str, problem: Exception) -> DiagnosticError:
    if isinstance(problem, OSError) and problem.errno == errno.EFBIG:
        return _failure("input-large", path, f"{problem.strerror}, which no program has")
    return _failure("input-unreadable", path, _reason(path, problem))


def _reason(path: str, problem: Exception) -> str:
    if isinstance(problem, FileNotFoundError):
        return f"there is no such file{misspelt(path)}"
    if isinstance(problem, IsADirectoryError) or os.path.isdir(path):
        return "this is a folder, a file is needed"
    if isinstance(problem, PermissionError):
        return "the file may not be read (permission denied)"
    return f"the file can't be read: {problem.strerror if isinstance(problem, OSError) else problem}"


def _failure(code: Code, file: str, message: str) -> DiagnosticError:
    return DiagnosticError([error(code, message, Location(file))])


def read_stdin() -> bytes:
    """All of stdin. Raises DiagnosticError when it is closed or holds nothing."""

    closed = sys.stdin is None  # pyright: ignore[reportUnnecessaryComparison]
    try:
        data = b"" if closed else read_stream(sys.stdin.buffer, LARGEST)
    except OSError as problem:
        if problem.errno == errno.EFBIG:
            raise _unreadable(STDIN, problem) from None
        raise
    if not data:
        raise _failure("input-empty", STDIN, "there is nothing on stdin")
    return data


def _warn(findings: Iterable[Diagnostic]) -> None:
    for finding in findings:
        warn(render([finding]))


def is_text(data: bytes) -> bool:
    """Whether the start of `data` looks like text: no control characters except those for layout, such as line ends.

    Every ProgramDesc holds such characters in its first bytes (the index 0 of its first block).
    """
    return not data[:_SNIFFED_BYTES].translate(None, _TEXT_BYTES)


def is_onnx(data: bytes) -> bool:
    """Whether bytes begin like an ONNX model: with its version, which neither a ProgramDesc nor text does."""
    return data[:1] == b"\x08"


def _read_module(
    data: bytes, file: str, program: str, warnings: list[Diagnostic], call_stacks: bool
) -> tuple[Module, bool]:
    """The module in `data`, and whether its parameters are still to be inferred (text declares them)."""
    if is_text(data) or data[:2] in _UTF_16:
        from pstranspile.ops.textual import parse

        try:
            return parse(decode_text(data, file), file), False
        except DiagnosticError:
            require_program(data, file)
            raise
    if is_onnx(data):
        raise _failure("input-format", file, "this looks like an ONNX model; `pstranspile import` makes text of it")
    if data[0] not in _PROGRAM_DESC_STARTS:
        kind = kind_of(data, file)
        if kind is not None and kind.use:
            raise _failure("input-format", file, str(kind))
        at = next(position for position, byte in enumerate(data) if byte not in _TEXT_BYTES)
        message = (
            f"{f'{kind}, ' if kind else ''}neither a serialized ProgramDesc nor program text: "
            f"byte 0x{data[at]:02x} at offset {at} does not occur in text"
        )
        raise _failure("input-format", file, message)
    from pstranspile.frontends.program_desc import read_program

    value, left_out = read_program(data, file, program, call_stacks)
    warnings += left_out
    return Module(FrozenMap({program: value})), True


def require_program(data: bytes, file: str) -> None:
    """Raises DiagnosticError if data that are no program have a recognisable other format, which the error names."""
    kind = kind_of(data, file)
    if kind is not None and kind != PROGRAM:
        raise _failure("input-format", file, str(kind) if kind.use else f"{kind}, and no program")


_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""The byte order marks with which texts in UTF-16 begin."""


def decode_text(data: bytes, file: str) -> str:
    """The text of a file in UTF-8, without a byte order mark. Raises DiagnosticError for other encodings."""
    if data[:2] in _UTF_16:
        raise _failure("input-encoding", file, "the text is UTF-16, it must be UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        message = f"the text is not UTF-8: byte 0x{data[problem.start]:02x} at offset {problem.start}, line {line}"
        raise _failure("input-encoding", file, message) from None


def _with_startup(
    module: Module, data: bytes, file: str, startup: str, warnings: list[Diagnostic], call_stacks: bool
) -> tuple[Module, bool]:
    if STARTUP in module.programs:
        message = f"the input {file} holds a program @{STARTUP} already"
        raise _failure("input-startup", startup, message)
    read = read_bytes(startup)
    if read == data and any(block.ops for program in module.programs.values() for block in program.blocks):
        message = f"it is the same program as {file}; the startup program is the one that initialises parameters"
        raise _failure("input-startup", startup, message)
    other, infer = _read_module(read, startup, STARTUP, warnings, call_stacks)
    program = _startup_program(other, startup)
    if MAIN in module.programs and _are_exchanged(module.programs[MAIN], program):
        message = f"this program uses what the program in {file} initialises: the two files are exchanged"
        raise _failure("input-startup", startup, message)
    return module.with_programs({STARTUP: program}), infer


def in_place(module: Module, file: str) -> Module:
    """The module. Raises DiagnosticError if its programs @main and @startup are exchanged."""
    main, startup = module.programs.get(MAIN), module.programs.get(STARTUP)
    if main is not None and startup is not None and _are_exchanged(main, startup):
        message = f"@{STARTUP} uses what @{MAIN} initialises: the two programs are exchanged"
        raise _failure("input-startup", file, message)
    return module


def _are_exchanged(main: Program, startup: Program) -> bool:
    """Whether the two programs were given in the wrong order: main only initialises variables, and startup reads some
    of them.
    """
    if not only_initialises(main):
        return False
    made = {name for block in main.blocks for op in block.ops for name in op.output_names}
    return any(name in made for block in startup.blocks for op in block.ops for name in op.input_names)


def only_initialises(program: Program) -> bool:
    """Whether no op of a program has an input, as in startup programs."""
    return not any(name for block in program.blocks for op in block.ops for name in op.input_names)


def _startup_program(module: Module, file: str) -> Program:
    """The program @startup of the file given for it, or the only program in the file."""
    if STARTUP in module.programs:
        return module.programs[STARTUP]
    if len(module.programs) == 1:
        return next(iter(module.programs.values()))
    names = ", ".join(f"@{name}" for name in module.programs) or "no program"
    raise _failure("input-startup", file, f"no program @{STARTUP} here; the file holds {names}")


@check_arguments
def export(module: Module, folder: str | os.PathLike[str]) -> None:
    """Writes every program of the module to `<name>.pb`, a serialized ProgramDesc, and the rest to `meta.json`.

    `load(folder/main.pb, startup=folder/startup.pb, meta=folder/meta.json)` gives the module again. The folder is made
    if it does not exist; all files are written, or none. Raises DiagnosticError for a value that a ProgramDesc can't
    hold, and when a file can't be written. Warns of ops that Fluid computes by another formula.
    """
    from pstranspile.frontends.program_desc import program_to_bytes
    from pstranspile.runtime.files.outputs import write_outputs

    expect_module(module, "export")
    path_of(folder, "export")
    warn_of_newer_ops(module.programs.values())
    files = {f"{name}.pb": program_to_bytes(program) for name, program in module.programs.items()}
    files["meta.json"] = json_text(meta_of(module)).encode("utf-8")
    write_outputs(folder, files)
