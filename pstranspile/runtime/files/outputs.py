"""Writing outputs: a set of files appears whole or not at all."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path, PurePath
from tempfile import TemporaryFile
from typing import Any, NamedTuple, NoReturn, TypeAlias, cast
from weakref import finalize

from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.reading import open_regular, read_regular, require_local

# Folders in which output is prepared: hidden, locked while their process lives, and renamed to their place at once.

try:
    import fcntl
except ImportError:  # on Windows; folders that killed processes leave are not removed there
    fcntl = None

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextlib.contextmanager
def work_folder(parent: Path, prefix: str, suffix: str = "", mode: int = 0o777) -> Generator[Path]:
    """A new folder `<prefix><process>-<number><suffix>` in `parent`, removed with its files at the end of the block.

    Folders of such names that killed processes have left are removed first: a folder whose lock is free belongs to no
    process. `mode` sets who may read it, as far as the process's mask allows it. Raises OSError.
    """
    remove_abandoned(parent, prefix, suffix)
    number = 0
    while True:
        work = parent / f"{prefix}{os.getpid()}-{number}{suffix}"
        number += 1
        try:
            work.mkdir(mode)
        except FileExistsError:  # of another thread
            continue
        lock = _acquire_lock(work)
        if lock is not None:
            break  # otherwise another process has removed the folder before it was locked
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if lock >= 0:
            os.close(lock)


@contextlib.contextmanager
def folder_lock(folder: Path) -> Generator[None]:
    """Holds a lock on a folder until the end of the block. Other processes that call this for the same folder wait."""
    handle = _acquire_lock(folder)
    try:
        yield
    finally:
        if handle is not None and handle >= 0:
            os.close(handle)


class ReadLock:
    """Protects a folder from being removed by users of `locked_if_free` until `close`, or until this object is deleted.

    `folder_exists` is false if the folder does not exist.
    """

    def __init__(self, folder: Path):
        try:
            handle = _acquire_lock(folder, shared=True)
        except OSError:  # the folder may not be listed: only the files in it may be read
            handle = -1
        self.folder_exists = handle is not None
        self.close = finalize(self, _close, handle)
        """Lets the folder be removed."""


def _close(handle: int | None) -> None:
    if handle is not None and handle >= 0:
        os.close(handle)


@contextlib.contextmanager
def locked_if_free(folder: Path) -> Generator[bool]:
    """Locks a folder until the end of the block, unless it is locked already. Yields whether this
    process got the lock.
    """
    handle = _acquire_lock(folder, wait=False) if fcntl is not None else -1
    try:
        yield handle is not None
    finally:
        _close(handle)


class FileLock:
    """A lock in the form of an empty file, held until `close`, until this object is deleted, or until the process ends.

    `shared` locks exclude only locks that are not shared. `held_by_another` is true if another process holds the lock.
    On a system without locks, everybody gets it. The last one that closes the lock removes the file. Raises OSError,
    also if the file exists and is not empty, thus not a lock.
    """

    def __init__(self, path: Path, *, shared: bool = False):
        handle = _file_handle(path, shared)
        self.held_by_another = handle is None
        self.close = finalize(self, _free, path, handle)
        """Releases the lock."""


def _file_handle(path: Path, shared: bool) -> int | None:
    if fcntl is None:
        return -1
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        there = os.fstat(handle)
        if there.st_size or not stat.S_ISREG(there.st_mode):
            os.close(handle)
            raise OSError(errno.EEXIST, "it is there, and is no lock; move it away", str(path))
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as problem:
            if problem.errno in (errno.EWOULDBLOCK, errno.EACCES):
                os.close(handle)
                return None
            return handle  # a file system without locks
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        os.close(handle)  # the previous holder has just removed the file


def _free(path: Path, handle: int | None) -> None:
    if handle is None or handle < 0 or fcntl is None:
        return
    with contextlib.suppress(OSError):  # others hold a shared lock
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    os.close(handle)


def _acquire_lock(folder: Path, *, wait: bool = True, shared: bool = False) -> int | None:
    """A file handle that holds the lock of a folder (-1 if there are no locks); None if the folder is locked, or does
    not exist.
    """
    if fcntl is None:
        return -1 if wait else None
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        if os.path.samestat(os.fstat(handle), os.stat(folder)):
            return handle
    except FileNotFoundError:
        pass
    except OSError as problem:  # locked by others, or a file system without locks
        if wait and problem.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            return handle
    os.close(handle)
    return None


def remove_abandoned(parent: Path, prefix: str, suffix: str = "") -> None:
    """Removes the work folders that killed processes have left in `parent`. Raises OSError.

    Other numbers may stand between `prefix` and a process's number.
    """
    left = re.compile(f"{re.escape(prefix)}[0-9.]+-[0-9]+{re.escape(suffix)}")
    with os.scandir(parent) as entries:
        folders = [
            Path(entry.path) for entry in entries if left.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        ]
    for folder in folders:
        with contextlib.suppress(OSError):  # of another user
            lock = _acquire_lock(folder, wait=False)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def exchange(one: Path, other: Path) -> bool:
    """Exchanges the names of two files or folders in one step of the file system. Returns False if that is not
    possible.
    """
    rename = _renameat2()
    if rename is None:
        return False
    names = (os.fsencode(one), os.fsencode(other))
    return rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0


@cache
def _renameat2() -> Any:
    """The function `renameat2` of the C library (Linux's); None if the library does not have it."""
    try:
        return ctypes.CDLL(None).renameat2
    except (OSError, AttributeError, TypeError):
        return None


PLAN_FILE = "plan.json"
"""The name of the file that every compile writes; a folder that has it holds the outputs of an earlier compile."""

START_FILE = "start.npz"
"""The file of the values that a compiled job starts with, if its source has values; the plan's key `start` names it."""

_MOST_OF_A_PLAN = 1 << 30
"""The most bytes that the file of a plan may have."""

_WORK_PREFIX = ".pstranspile-"
_ROLE_FILE = Pattern(r"(trainer|pserver)_(0|[1-9][0-9]*)\.(ir|main\.pb|startup\.pb|meta\.json)")


Content: TypeAlias = bytes | Sequence[bytes | memoryview]
"""The content of a file, in one piece or in several consecutive ones."""


def write_variables(folder: str | os.PathLike[str], files: Mapping[str, Sequence[bytes | memoryview]]) -> None:
    """Writes the files of variables as `write_outputs` writes a set of files; if names contain a `/`, which makes
    folders, one by one.

    Raises DiagnosticError.
    """
    if any(len(PurePath(name).parts) > 1 for name in files):
        from pstranspile.runtime.values.encoding import write_files

        write_files({Path(folder, name): pieces for name, pieces in files.items()})
    else:
        write_outputs(folder, files)


def _write(path: Path, data: Content) -> None:
    if isinstance(data, bytes):
        path.write_bytes(data)
        return
    with open(path, "wb") as file:
        file.writelines(data)


def write_outputs(folder: str | os.PathLike[str], files: Mapping[str, Content]) -> None:
    """Writes `files` (name -> content) into `folder`, which is made if it does not exist.

    The files are first written into a second folder next to it, together with the other files of `folder`; the second
    folder then replaces `folder` in one step. At any moment, also if this process is killed, `folder` holds the old set
    or the new one. If folders can't be exchanged (it is the current folder, holds other folders, or the system can't),
    the files are renamed one by one. If anything fails, the folder is as it was before (and is removed if it was made
    for this). When both the folder and `files` have a plan, files of roles that the earlier compile left and this one
    does not have are removed; all other files of the folder stay. Raises DiagnosticError when a file can't be written.
    """
    _require_names(folder, files)
    with _convert_file_errors(Path(folder)):
        require_local(folder)
    with _convert_file_errors(Path(folder)), _folder_made(Path(folder).parent), folder_lock(Path(folder).parent):
        if not os.path.lexists(folder):
            _write_new(Path(folder), files)
            return
        if not os.path.isdir(folder):
            raise NotADirectoryError(0, "", str(folder))
        _require_no_folders(Path(folder), files)
        target = Path(folder).resolve()
        if not _write_exchanged(target, files):
            _write_in_place(target, files)


def _require_names(folder: str | os.PathLike[str], files: Mapping[str, Content]) -> None:
    for name in files:
        if not name or name in (".", "..") or "/" in name or os.sep in name or "\0" in name:
            raise DiagnosticError([error("output-name", f"{name!r} is not a plain file name", Location(str(folder)))])


def _require_no_folders(folder: Path, files: Mapping[str, Content]) -> None:
    for name in files:
        if (folder / name).is_dir():
            raise IsADirectoryError(21, "there is a folder of this name", str(folder / name))


@contextmanager
def _convert_file_errors(target: Path) -> Generator[None]:
    """Converts errors of the file system into DiagnosticErrors."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as problem:  # RuntimeError: a loop of symbolic links
        raise _failure(target, problem) from None


def write_output(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes one file, whole or not at all; its folder is made if it does not exist.

    What is not a regular file (a terminal, a pipe) is written to directly. Raises DiagnosticError.
    """
    named = Path(path)
    with _convert_file_errors(named):
        require_local(path)
        if named.exists() and not named.is_file() and not named.is_dir():
            named.write_bytes(data)
            return
        target = named.resolve()
    files = {target.name: data}
    _require_names(named.parent, files)
    with _convert_file_errors(named), _folder_made(target.parent):
        _require_no_folders(target.parent, files)
        _write_in_place(target.parent, files)


class _Kind(NamedTuple):
    """A kind of file that commands write: its name in messages, a pattern of its first bytes, and a further check of
    its content.
    """

    description: str
    first_bytes: Pattern[bytes]
    is_content_right: Callable[[bytes, Path], bool] = lambda beginning, file: True


def _holds_arrays(beginning: bytes, file: Path) -> bool:
    """Whether the first file in an archive is an array. Other archives (documents, packages) begin with other files."""
    del file
    length = int.from_bytes(beginning[26:28], "little")
    return beginning.startswith(b"PK\x05") or beginning[30 : 30 + length].endswith(b".npy")


def _says_written(beginning: bytes, file: Path) -> bool:
    """Whether metadata are those of an export, which always has the key `declarations_in_order`."""
    del beginning
    try:
        held: Any = json.loads(read_regular(file, _MOST_OF_A_PLAN))
    except (OSError, ValueError, RecursionError):
        return False
    return held.get("declarations_in_order") is True


_TEXT = rb"(?:\xef\xbb\xbf)?(?:\s|#[^\n]*\n)*"
"""Matches what may precede the first statement of a text: a byte order mark, blanks and comments."""

_KINDS: Mapping[str, _Kind] = {
    "npz": _Kind("archive of arrays", Pattern(rb"PK\x03\x04|PK\x05\x06"), _holds_arrays),
    "png": _Kind("picture of a run", Pattern(rb"\x89PNG(?s:.){1,512}tEXtSoftware\0pstranspile")),
    "svg": _Kind(
        "picture of a run",
        Pattern(
            rb"\s*(?:<\?xml (?s:.){1,2048}<dc:title>pstranspile</dc:title>"
            rb'|<svg xmlns="[^"]*" width="[0-9.]+" height="[0-9.]+" viewBox="[^"]*" '
            rb'font-family="sans-serif" font-size="11">\n)'
        ),
    ),
    "html": _Kind(
        "page of pstranspile", Pattern(rb'\s*<!DOCTYPE html>(?s:.){1,1024}<meta name="generator" content="pst')
    ),
    "trace": _Kind("trace of a run", Pattern(rb'\s*\{\s*"(?:displayTimeUnit|traceEvents)"')),
    "record": _Kind("record of a run", Pattern(rb'\{"form": "pstranspile-record-')),
    "meta": _Kind("metadata of an exported program", Pattern(rb'\s*\{\s*"random_seed"'), _says_written),
    "ir": _Kind("text of a program", Pattern(_TEXT + rb"(?:ir[ \t]+[0-9]+\s|program[ \t]+@)")),
    "plan": _Kind("plan", Pattern(_TEXT + rb"plan[ \t]+[0-9]+\s")),
    "counts": _Kind("counts of ids", Pattern(rb'\s*\{\s*"version": [0-9]+,\s*"batch_rows": ')),
    "pace": _Kind("pace of a job", Pattern(rb'\s*\{\s*"version": [0-9]+,\s*"step": ')),
    "profile": _Kind("profile of a machine", Pattern(rb'\s*\{\s*"version": [0-9]+,\s*"processors": ')),
    "plan.json": _Kind("plan in JSON", Pattern(rb'\s*\{\s*"version": [0-9]+,\s*"source": "sha256:')),
    "pb": _Kind("ProgramDesc", Pattern(rb"\n[\x80-\xff]{0,4}[\0-\x7f]\x08\0\x10(?:\xff{9}\x01|\0)")),
    "onnx": _Kind("ONNX model of pstranspile", Pattern(rb"\x08[\x01-\x7f]\x12\x0bpstranspile")),
    "mlir": _Kind("MLIR of a program", Pattern(rb'"builtin\.module"\(\) \(\{\s*(?:"fluid\.|\}\))')),
    "dot": _Kind("drawing of a program", Pattern(rb'digraph "[^\n]*" \{\n  rankdir=LR;\n')),
    "mmd": _Kind("drawing of a program", Pattern(rb"flowchart LR\n(?:  (?:var|op|subgraph block)_|\s*$)")),
    "chart": _Kind("chart of messages", Pattern(rb"(?:trainer|pserver)_[0-9]+\s")),
    "values": _Kind("file of a variable", Pattern(rb"\0{4}[\0-\x1f]\0{7}")),
}
"""Kinds of files that commands write. Their first bytes or their content show that a command wrote them."""

_BEGINNING = 1 << 16
"""The number of bytes of a file that are examined for its kind."""


def require_writable(path: str | os.PathLike[str], inputs: Iterable[str | None] = (), kind: str = "") -> None:
    """Raises DiagnosticError if a file can't be written. It is called before the long work whose result the file will
    hold.

    The file may not be one of `inputs` (None for inputs that are not given). An existing file may only be replaced if
    it is empty or of this `kind` ("": any).
    """
    target = Path(path)
    with _convert_file_errors(target):
        require_local(path)
        _require_other(target, inputs)
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
        if target.exists() and not target.is_file():
            return
        _require_place(target.resolve().parent, target)
        _require_kind(target, kind)


def require_writable_folder(path: str | os.PathLike[str]) -> None:
    """Raises DiagnosticError if no files can be written to a folder, which need not exist yet."""
    with _convert_file_errors(Path(path)):
        require_local(path)
        _require_place(Path(path).resolve(), Path(path))


def _require_place(folder: Path, target: Path) -> None:
    """Raises OSError about `target` if no file can be written to a folder, or, if it does not exist, to the nearest
    folder above it that exists.
    """
    place = next(above for above in (folder, *folder.parents) if os.path.lexists(above))
    if not place.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "", str(place))
    try:  # Only trying shows why: rights may forbid it, or the file system may accept no files from anybody.
        TemporaryFile(dir=place).close()
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, str(target)) from None


def require_kinds(folder: str | os.PathLike[str], kinds: Mapping[str, str]) -> None:
    """Raises DiagnosticError if a file in a folder would be replaced that is not of the kind to be written. `kinds`
    maps the names of files to kinds.
    """
    with _convert_file_errors(Path(folder)):
        for name, kind in kinds.items():
            _require_kind(Path(folder, name), kind)


def _require_kind(target: Path, kind: str) -> None:
    if kind not in _KINDS or not target.is_file():
        return
    description, first_bytes, is_content_right = _KINDS[kind]
    with open_regular(target) as file:
        held = file.read(_BEGINNING)
    if held.strip() and not (first_bytes.match(held) and is_content_right(held, target)):
        _foreign(target, f"it is there, and is no {description}; name another file, or move it away")


def _require_other(target: Path, inputs: Iterable[str | None]) -> None:
    """Raises DiagnosticError if a file that is to be written is one of the files that are read."""
    there = [read for read in inputs if read is not None and os.path.exists(read)] if target.exists() else []
    if any(map(target.samefile, there)):
        raise DiagnosticError([error("output-unwritable", "is read, so it can't be written", Location(str(target)))])


def _foreign(place: Path, message: str) -> NoReturn:
    raise DiagnosticError([error("output-foreign", message, Location(str(place)))])


def require_own(folder: str | os.PathLike[str], names: Iterable[str], inputs: Iterable[str | None] = ()) -> None:
    """Raises DiagnosticError if files of these names in a folder would replace files in `inputs`, or, if `names`
    includes a plan, files that no compile has written.
    """
    place, files = Path(folder), dict.fromkeys(names, b"")
    read = [*inputs]
    with _convert_file_errors(place):
        stale = stale_files(place, files)
        for name in [*files, *stale]:
            _require_other(place / name, read)
        there = [name for name in files if os.path.lexists(place / name)] if PLAN_FILE in files else []
        known = _machines_of(place / PLAN_FILE) if PLAN_FILE in there else set[str]()
        if known is None and not _is_blank(place / PLAN_FILE):
            _foreign(place / PLAN_FILE, "it is there, and is no plan that `compile` wrote; name another folder")
        if START_FILE in there and PLAN_FILE in there and not _names_start(place / PLAN_FILE):
            _foreign(place / START_FILE, f"it is there, and {PLAN_FILE} does not name it; name another folder")
        for name in there:
            if name not in (PLAN_FILE, START_FILE) and name.partition(".")[0] not in (known or ()):
                message = "it is there, and no plan.json says that `compile` wrote it; name another folder"
                _foreign(place / name, message)
        for name in [*there, *stale]:
            if is_role(name.partition(".")[0]):
                _require_kind(place / name, name.rpartition(".")[2])


def _is_blank(file: Path) -> bool:
    """Whether a file holds only blanks, so that nothing is lost if it is replaced."""
    with open_regular(file) as stream:
        return not stream.read(256).strip()


_OF_A_PLAN = {
    "version": int,
    "source": str,
    "mode": str,
    "pservers": list,
    "trainers": int,
    "distributed_vars": list,
}
"""The required keys of a plan's JSON, with their types."""


def _machines_of(plan: Path) -> set[str] | None:
    """The machines of the job whose plan is in a file; None if the file is no plan that a compile wrote."""
    try:
        given: object = json.loads(read_regular(plan, _MOST_OF_A_PLAN))
    except (OSError, ValueError, RecursionError):
        return None
    held = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    if any(type(held.get(key)) is not kind for key, kind in _OF_A_PLAN.items()):
        return None
    if not held["source"].startswith("sha256:"):
        return None
    servers, trainers = len(held["pservers"]), min(held["trainers"], 1 << 20)
    return {*(f"pserver_{j}" for j in range(servers)), *(f"trainer_{i}" for i in range(trainers))}


def _names_start(plan: Path) -> bool:
    """Whether a plan names the file of start values, and this file exists beside it."""
    try:
        held: Any = json.loads(read_regular(plan, _MOST_OF_A_PLAN))
        return held.get("start") == START_FILE and (plan.parent / START_FILE).is_file()
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def _failure(folder: Path, problem: Exception) -> DiagnosticError:
    place, reason = str(folder), str(problem)
    if isinstance(problem, OSError):
        named = problem.filename2 or problem.filename
        if isinstance(named, str) and _WORK_PREFIX not in named:
            place = _as_given(named, folder)
        reason = problem.strerror or reason
        if isinstance(problem, FileExistsError | NotADirectoryError):
            reason = "there is a file where a folder is needed"
    return DiagnosticError([error("output-unwritable", f"can't be written: {reason}", Location(place))])


def _as_given(path: str, given: Path) -> str:
    """A path that the system reports, in the form that the user gave: relative to the folder that they named, or to one
    above it.
    """
    if os.path.isabs(path) and not given.is_absolute():
        for above in (given, *given.parents):
            with suppress(OSError, ValueError, RuntimeError):
                return str(above / Path(path).relative_to(above.resolve()))
    return path


@contextmanager
def _folder_made(folder: Path) -> Generator[None]:
    """Makes `folder` and the missing folders above it; removes them again if the block fails."""
    new_folders: list[Path] = []
    try:
        missing = [folder, *folder.parents][: next(n for n, p in enumerate([folder, *folder.parents]) if p.exists())]
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            new_folders.append(path)
        if not folder.is_dir():
            raise NotADirectoryError(0, "", str(folder))
        yield
    except BaseException:
        for path in reversed(new_folders):
            with suppress(OSError):  # somebody else has put a file there
                path.rmdir()
        raise


def is_role(name: str) -> bool:
    """Whether a name is that of a machine: `trainer_0`, `pserver_12`."""
    return _ROLE_FILE.fullmatch(f"{name}.ir") is not None


def stale_files(folder: Path, files: Mapping[str, Content]) -> list[str]:
    """The files of roles that an earlier compile left in a folder and that are not among `files`, the outputs of a new
    compile.

    Files of machines that are not in the earlier compile's plan are not included.
    """
    if PLAN_FILE not in files or not (folder / PLAN_FILE).is_file():
        return []
    machines = _machines_of(folder / PLAN_FILE)
    names = superfluous_files(folder, files)
    values = [START_FILE] if START_FILE not in files and _names_start(folder / PLAN_FILE) else []
    return [*(name for name in names if machines is None or name.partition(".")[0] in machines), *values]


def superfluous_files(folder: Path, files: Mapping[str, Content]) -> list[str]:
    """The files in a folder that have names of roles' files and are not among `files`."""
    with os.scandir(folder) as entries:
        return sorted(
            entry.name
            for entry in entries
            if _ROLE_FILE.fullmatch(entry.name) and entry.name not in files and entry.is_file(follow_symlinks=False)
        )


def _write_new(target: Path, files: Mapping[str, Content]) -> None:
    """Writes a folder that does not exist yet."""
    with work_folder(target.parent, _WORK_PREFIX) as work:
        new = work / "new"
        new.mkdir()
        for name, data in files.items():
            _write(new / name, data)
        os.rename(new, target)


def _write_exchanged(folder: Path, files: Mapping[str, Content]) -> bool:
    """Writes a new folder next to the old one, with links to the old folder's other files, and exchanges the two.
    Returns False if that is not possible.
    """
    if not _is_exchangeable(folder):
        return False
    stale = stale_files(folder, files)
    with work_folder(folder.parent, _WORK_PREFIX) as work:
        new = work / "new"
        new.mkdir()
        for name, data in files.items():
            _write(new / name, data)
            _keep_permissions(folder / name, new / name)
        try:
            shutil.copystat(folder, new)
            for name in os.listdir(folder):
                if name not in files and name not in stale:
                    os.link(folder / name, new / name, follow_symlinks=False)
        except (OSError, NotImplementedError):  # a file of another user, a system without links
            return False
        if not exchange(new, folder):
            return False
        for name in os.listdir(new):  # files that somebody has added meanwhile
            if not os.path.lexists(folder / name) and name not in stale:
                os.rename(new / name, folder / name)
    return True


def _is_exchangeable(folder: Path) -> bool:
    """Whether a folder can be replaced by another one without loss: it is no mount point or current folder, and holds
    only files.
    """
    if os.path.ismount(folder) or os.path.samefile(folder, os.curdir) or not os.access(folder.parent, os.W_OK):
        return False
    with os.scandir(folder) as entries:
        return all(
            entry.name.startswith(_WORK_PREFIX) or entry.is_symlink() or entry.is_file(follow_symlinks=False)
            for entry in entries
        )


def _write_in_place(folder: Path, files: Mapping[str, Content]) -> None:
    """Writes the files into a work folder inside `folder` (on the same file system), then renames them, and undoes this
    on failure.
    """
    stale = stale_files(folder, files)
    with work_folder(folder, _WORK_PREFIX) as work:
        new, old = work / "new", work / "old"
        new.mkdir()
        old.mkdir()
        for name, data in files.items():
            _write(new / name, data)
            _keep_permissions(folder / name, new / name)
        _commit(folder, list(files), stale, new, old)


def _keep_permissions(old: Path, new: Path) -> None:
    """Gives a new file the permissions of the one it replaces. Raises PermissionError when that is read-only."""
    if old.is_file():
        if not os.access(old, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            raise PermissionError(13, "Permission denied", str(old))
        new.chmod(stat.S_IMODE(old.stat().st_mode))


def _commit(folder: Path, names: list[str], stale: list[str], new: Path, old: Path) -> None:
    placed: list[str] = []
    kept_names: list[str] = []
    try:
        for name in names:
            if os.path.lexists(folder / name):
                _keep(folder / name, old / name)
                kept_names.append(name)
            os.rename(new / name, folder / name)
            placed.append(name)
        for name in stale:
            os.rename(folder / name, old / name)
            kept_names.append(name)
    except BaseException:
        for name in placed:
            if name not in kept_names:
                os.unlink(folder / name)
        for name in kept_names:
            os.rename(old / name, folder / name)
        raise


def _keep(file: Path, copy: Path) -> None:
    """Gives a file a second name `copy`. On a system without links it is renamed instead, so that it is briefly missing
    under its own name.
    """
    try:
        os.link(file, copy, follow_symlinks=False)
    except (OSError, NotImplementedError):
        os.rename(file, copy)
