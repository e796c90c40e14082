"""Reads files from untrusted sources: only regular files, and never more bytes than such a file can have.

A refusal is an OSError whose `strerror` says why, like the system's own errors. The kind of a file that can't be read
as what was expected is recognised, so that the message can name it.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from collections.abc import Callable
from io import BufferedReader
from typing import BinaryIO, NamedTuple, cast

from pstranspile.ir.diagnostics import did_you_mean, visible
from pstranspile.ir.patterns import Pattern

_AT_ONCE = 1 << 20

_ADDRESS = Pattern(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_address(path: str) -> bool:
    """Whether a path is the address of a file system: `hdfs://host/x`, `s3://bucket/x`."""
    return _ADDRESS.match(path) is not None


def shown_path(path: str) -> str:
    """A path as messages name it: that of a file below the working folder relative to it."""
    return path.removeprefix(os.path.join(os.getcwd(), ""))


def require_local(path: str | os.PathLike[str]) -> None:
    """Raises OSError for the address of another file system (`hdfs://host/x`), which would name a folder `hdfs:`."""
    if is_address(os.fspath(path)):
        raise OSError(errno.EINVAL, "it is an address; name a file or folder of this file system", os.fspath(path))


def read_stream(stream: BinaryIO, most: int) -> bytes:
    """The content of a stream. Raises OSError if it exceeds `most` bytes, as the content of a device may."""
    parts: list[bytes] = []
    size = 0
    while part := stream.read(_AT_ONCE):
        parts.append(part)
        size += len(part)
        if size > most:
            raise too_large(most)
    return b"".join(parts)


def too_large(most: int) -> OSError:
    """The OSError for more than `most` bytes."""
    size = f"{most >> 20} MiB" if most >> 20 else f"{most} bytes"
    return OSError(errno.EFBIG, f"there are more than {size}")


def read_named(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a file or pipe that the user named, of at most `most` bytes. Raises OSError, also for a device
    other than a terminal and the null device, which may have no end.

    A pipe that nobody writes to is waited for, which is said on stderr after a moment.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISSOCK(mode):
        raise OSError(errno.EINVAL, "it is a socket, a file is needed", os.fspath(path))
    if stat.S_ISBLK(mode):
        raise OSError(errno.EINVAL, "it is a device, a file is needed", os.fspath(path))
    if stat.S_ISFIFO(mode):
        return _read_pipe(path, most)
    with open(path, "rb") as stream:
        if stat.S_ISCHR(mode) and not (stream.isatty() or os.path.samefile(path, os.devnull)):
            raise OSError(errno.EINVAL, "it is a device, a file is needed", os.fspath(path))
        if stat.S_ISREG(os.fstat(stream.fileno()).st_mode) and os.fstat(stream.fileno()).st_size > most:
            raise too_large(most)
        return read_stream(stream, most)


WAIT = 2.0
"""Seconds after which is said that a pipe is waited for."""


def _read_pipe(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a pipe, of at most `most` bytes. Raises OSError."""
    from threading import Timer

    timer = Timer(WAIT, _tell_of_wait, [os.fspath(path)])
    timer.daemon = True
    timer.start()
    try:
        with open(path, "rb") as stream:
            first = stream.read(1)
            timer.cancel()
            return first + read_stream(stream, most - 1) if first else b""
    finally:
        timer.cancel()


def _tell_of_wait(path: str) -> None:
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        print(f"waiting for {visible(path)}, a pipe that nobody writes to yet", file=sys.stderr, flush=True)


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Opens a file of a folder that others may have filled.

    Raises OSError unless it is a regular file. It does not wait for the other end of a pipe.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return open(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "it is a pipe or a device, a file is needed", os.fspath(path))


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a regular file of at most `most` bytes. Raises OSError, also if memory runs out."""
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > most:
            raise too_large(most)
        try:
            return stream.read(size)
        except MemoryError:
            raise OSError(errno.ENOMEM, f"there is no memory for its {size} bytes") from None


# The kind of a file that can't be read as what was expected, so that the message can name it.


class FileKind(NamedTuple):
    """A kind of file in words, such as `a CSV file`, and what it is for."""

    description: str
    use: str = ""

    @property
    def is_job(self) -> bool:
        """Whether the file describes a job, or may describe one."""
        return self in (JOB, _JSON)

    def __str__(self) -> str:
        """The sentence for a message: `this is an archive of arrays; --feed of run takes it`."""
        return f"this is {self.description}{'; ' if self.use else ''}{self.use}"


_ROWS = "its rows are data, for `pstranspile run --feed FILE --batch N`"
_ARRAYS = "`pstranspile run` takes its arrays as --feed, or as --init"

PROGRAM = FileKind("the text of a program", "`pstranspile run` takes it")
"""The text of a module."""

ARRAYS = FileKind("an archive of arrays (.npz)", _ARRAYS)
"""Arrays by name."""

SAVED = FileKind(
    "what torch.save has written",
    "in Python, load_state_dict gives what torch.load reads of it to a model, which pstranspile.torch traces "
    "(docs/guides/pytorch.md); np.savez writes tensors by name (.npz)",
)
"""What PyTorch writes: a model's state, or a model, as an archive with a pickle."""

_BINARY: tuple[tuple[bytes, FileKind], ...] = (
    (
        b"\x93NUMPY",
        FileKind("a single array (.npy)", "np.savez writes arrays by name (.npz)"),
    ),
    (b"PAR1", FileKind("a Parquet file", _ROWS)),
    (b"ARROW1", FileKind("an Arrow file", _ROWS)),
    (b"\x1f\x8b", FileKind("a file compressed with gzip", "decompress it first")),
    (b"\x89PNG", FileKind("a picture")),
    (b"\xff\xd8\xff", FileKind("a picture")),
    (b"%PDF", FileKind("a PDF file")),
    (b"\x7fELF", FileKind("a program of this machine, or a library")),
    (b"\x89HDF", FileKind("an HDF5 file")),
    (b"SQLite format", FileKind("a database")),
    (b"BZh", FileKind("a file compressed with bzip2", "decompress it first")),
    (b"\xfd7zXZ", FileKind("a file compressed with xz", "decompress it first")),
    (b"(\xb5/\xfd", FileKind("a file compressed with zstd", "decompress it first")),
    (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", SAVED),  # before it wrote archives
    (b"\x80\x02", FileKind("a pickle of Python")),
    (b"\x80\x03", FileKind("a pickle of Python")),
    (b"\x80\x04", FileKind("a pickle of Python")),
    (b"\x80\x05", FileKind("a pickle of Python")),
    (b"\0\0\0\0", FileKind("a variable, or several, as Fluid saves them", "`pstranspile run --init` takes it")),
    (b"\x08", FileKind("an ONNX model", "`pstranspile import` makes text of it")),
)
"""The first bytes of binary files, by kind."""

_DESC = FileKind("a serialized ProgramDesc", "`pstranspile import` makes text of it")

_TENSORS = FileKind(
    "a safetensors file", "`load_variables` of Python reads it; np.savez writes what `run` takes as --init (.npz)"
)

_TEXTS: tuple[tuple[Pattern[str], FileKind], ...] = (
    (Pattern(r"ir\s+\d+|program\s+@"), PROGRAM),
    (
        Pattern(r'\{"form": "pstranspile-record-'),
        FileKind("a record of a run", "`pstranspile run --replay` takes it"),
    ),
    (Pattern(r"plan[ \t]+[0-9]+\s"), FileKind("the plan of a job", "--plan takes it")),
    (Pattern(r"module\s*\{|\"builtin\.module\""), FileKind("MLIR")),
    (Pattern(r"(?:strict\s+)?(?:di)?graph\s[^\n]*\{"), FileKind("a drawing for Graphviz")),
    (Pattern(r"flowchart\s"), FileKind("a drawing for Mermaid")),
    (Pattern(r"<!DOCTYPE|<\?xml|<html|<svg", re.IGNORECASE), FileKind("a page or a picture of XML")),
)
"""Patterns of the beginnings of text files, after comments, by kind."""

JOB = FileKind("a job file", "--config takes it")
"""The description of a job."""

_JSON = FileKind("JSON")

SCRIPT = FileKind(
    "a Python script",
    "dump its programs where it runs (docs/guides/from_fluid.md), and import these, run it with `pstranspile fluid`, "
    "or name a function of it that gives a program: FILE.py:NAME",
)
"""Text that Python runs."""

_CODE = Pattern(r"(?m)^(?:import [\w.]+|from [\w.]+ import |def \w+\(|class \w+|@\w+|#!.*python)")

_MOST = 1 << 16
"""The number of bytes of a file that are examined."""

_SEPARATORS = ",;\t|"
"""The characters that may separate the fields of a row."""


def misspelt(path: str | os.PathLike[str]) -> str:
    """The end of a message about a path where nothing is: the most similar name in its folder, or the folder that is
    missing; "" if neither is known.
    """
    text = os.fspath(path)
    if os.path.lexists(text):
        return ""
    folder, name = os.path.split(text.rstrip(os.sep) or text)
    try:
        there = sorted(entry for entry in os.listdir(folder or os.curdir) if not entry.startswith("."))
    except FileNotFoundError:
        return f"; there is no folder {visible(folder)}{misspelt(folder)}"
    except (OSError, ValueError):  # a path with a NUL is no path
        return ""
    return did_you_mean(name, there, lambda near: visible(os.path.join(folder, near)))


def reason_for(problem: Exception, path: str | os.PathLike[str]) -> str:
    """Why a file or folder that the user has named can't be read, as the system says it; where nothing is, with what
    `misspelt` says.
    """
    reason = problem.strerror if isinstance(problem, OSError) else None
    return f"{reason or problem}{misspelt(path)}"


def beginning(path: str) -> bytes:
    """The first bytes of a file, as many as `kind_of` examines; empty for a file that can't be read."""
    try:
        with open_regular(path) as file:
            return file.read(_MOST + 1)
    except (OSError, ValueError):
        return b""


def kind_of(data: bytes, name: str = "") -> FileKind | None:
    """The kind of a file with this content; None if it is not clear. `name` is the file's name."""
    begin = data[:_MOST]
    if begin.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _archive(begin)
    for start, kind in _BINARY:
        if begin.startswith(start):
            return kind
    if begin[4:8] == bytes(4) and begin[8:10] == b'{"':  # the length of the header, and the header
        return _TENSORS
    if begin.translate(None, _TEXT_BYTES):
        return _DESC if begin[:1] in (b"\n", b"\x1a", b'"') and b"\0" in begin else None
    return _text_kind(begin.decode("utf-8-sig", errors="replace"), name.lower(), whole=len(data) <= _MOST)


_TEXT_BYTES = b"\t\n\v\f\r\x1b" + bytes(range(0x20, 0x100))


def _archive(begin: bytes) -> FileKind:
    if b"data.pkl" in begin:
        return SAVED
    if b".npy" in begin:
        return ARRAYS
    return FileKind("an archive (.zip)")


def _text_kind(text: str, name: str, *, whole: bool) -> FileKind | None:
    if name.endswith((".py", ".ipynb")):
        return SCRIPT
    plain = re.sub(r"\A(?:\s|#(?!!)[^\n]*(?:\n|\Z)|//[^\n]*(?:\n|\Z))*", "", text)
    for begins, kind in _TEXTS:
        if begins.match(plain):
            return kind
    lines = [line for line in plain.split("\n")[: None if whole else -1] if line.strip()]
    if not lines:
        return None
    tests: tuple[Callable[[], FileKind | None], ...] = (
        lambda: _json_kind(plain, lines),
        lambda: SCRIPT if _CODE.search(text) and (not whole or _is_python(text)) else None,
        lambda: JOB if name.endswith(".toml") or re.match(r"(?:pservers|trainers|mode)\s*=", plain) else None,
        lambda: _table_kind(lines, name),
    )
    return next((kind for test in tests if (kind := test()) is not None), None)


def _is_python(text: str) -> bool:
    import ast

    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _json_kind(text: str, lines: list[str]) -> FileKind | None:
    if text[:1] not in ("{", "["):
        return None
    first, whole = _json(lines[0]), _json(text)
    if isinstance(first, dict) and (whole is None or len(lines) > 1):
        return FileKind("JSON lines", _ROWS)
    if whole is None:
        return None
    keys = set(cast("dict[str, object]", whole)) if isinstance(whole, dict) else set[str]()
    if keys >= {"version", "pservers", "source"}:
        return FileKind("the plan of a job", "`pstranspile compile --plan` takes it")
    if keys & {"random_seed", "startup_parameter_order"}:
        return FileKind("the metadata of a program", "--meta takes it")
    return JOB if keys & {"pservers", "trainers"} else _JSON


def _json(text: str) -> object:
    import json

    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _table_kind(lines: list[str], name: str) -> FileKind | None:
    """A CSV file, recognised by its name, or because all lines have the same number of fields and none looks like a
    line of a program; None for other lines.
    """
    named = name.endswith((".csv", ".tsv", ".psv"))
    shown = lines[:20]
    if any(mark in line for line in shown for mark in ("->", "%", "^", "{", "}")) and not named:
        return None
    for separator in _SEPARATORS:
        counts = {line.count(separator) for line in shown}
        if len(counts) == 1 and counts != {0} and (named or len(shown) > 1):
            return FileKind("a CSV file", _ROWS)
    return FileKind("a CSV file", _ROWS) if named else None
