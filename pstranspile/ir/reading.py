"""Reads files from untrusted sources: only regular files, and never more bytes than such a file can have.

A refusal is an OSError whose `strerror` says why, like the system's own errors.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from io import BufferedReader
from typing import BinaryIO

from pstranspile.ir.diagnostics import visible
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
