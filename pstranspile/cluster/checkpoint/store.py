"""Checkpoints on disk: a state with its manifest, written whole and read only if all of it is as it was written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from hashlib import sha256
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn, TypeAlias

import numpy as np

from pstranspile.cluster.checkpoint.layout import Layout, VariablePart
from pstranspile.cluster.checkpoint.manifest import (
    COMBINED,
    MANIFEST,
    SAFETENSORS,
    FileEntry,
    Manifest,
    SavedValue,
    machine_file,
    manifest_bytes,
    memory_file,
    parse_manifest,
    require_names,
    table_file,
)
from pstranspile.cluster.checkpoint.state import Copy, State
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, first_findings, raise_errors
from pstranspile.ir.model import Location
from pstranspile.ir.reading import open_regular, read_regular, require_local
from pstranspile.runtime.files.outputs import exchange, work_folder
from pstranspile.runtime.files.variables import safetensors_pieces, tensors_from_bytes
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.large.forms import Stream, TablePart, rows_from, streams_of, written
from pstranspile.runtime.run.step_feeds import Dealing
from pstranspile.runtime.values import NUMPY_TYPES, LoDTensor, SelectedRows
from pstranspile.runtime.values.encoding import (
    FieldReader,
    decode_selected_rows,
    decode_tensor,
    end,
    most_bytes,
    require_encodable,
)

# A folder that is written as a whole or not at all.


def previous_of(folder: Path) -> Path:
    """The temporary path of an old folder between the two renames that replace it with a new one."""
    return folder.parent / f".{folder.name}.previous"


def present(folder: Path) -> Path:
    """The folder itself or, if a crash interrupted its replacement between two renames, the folder that was being
    replaced.
    """
    previous = previous_of(folder)
    return previous if not os.path.lexists(folder) and previous.is_dir() else folder


def require_target(folder: Path) -> None:
    """Raises DiagnosticError unless `folder` can be written: it is not there, is empty, or is a checkpoint."""
    if folder.name in ("", ".."):
        _refuse(folder, "a checkpoint needs a folder of its own")
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        _refuse(folder, "it is there, and is no folder")
    try:
        held = sorted(entry.name for entry in os.scandir(folder))
    except OSError as problem:
        _refuse(folder, f"can't be read: {problem.strerror}")
    if held and MANIFEST not in held:
        _refuse(folder, f"it holds other things ({held[0]}); a checkpoint replaces only another checkpoint")


def _refuse(folder: Path, reason: str) -> NoReturn:
    raise DiagnosticError([error("checkpoint-target", reason, Location(str(folder)))])


class NewFolder:
    """A folder being written next to its final place. Leaving the context without `publish` removes it.

    Every file and folder is on disk (fsync) before the folder gets its name.
    """

    def __init__(self, target: Path):
        self.target = Path(os.path.abspath(target))
        self.entries: list[FileEntry] = []
        self.work = self.target
        self._resources = ExitStack()

    def __enter__(self) -> NewFolder:
        require_target(self.target)
        self.target.parent.mkdir(parents=True, exist_ok=True)
        held = self._resources.enter_context(work_folder(self.target.parent, f".{self.target.name}.", ".part"))
        self.work = held / self.target.name
        self.work.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def write(self, path: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Writes a file of the folder, and records its size and hash in `entries`."""
        digest, size = sha256(), 0
        file = self.work / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "xb") as stream:
            for piece in pieces:
                digest.update(piece)
                size += len(piece)
                stream.write(piece)
            stream.flush()
            os.fsync(stream.fileno())
        self.entries.append(FileEntry(path, size, digest.hexdigest()))

    def publish(self) -> None:
        """Gives the folder its final name; a folder that has this name is replaced."""
        for folder, _, _ in os.walk(self.work, topdown=False):
            _sync(Path(folder))
        previous = previous_of(self.target)
        if not os.path.lexists(self.target):
            os.rename(self.work, self.target)
        elif not exchange(self.work, self.target):
            if previous.exists():
                shutil.rmtree(previous)
            os.rename(self.target, previous)
            try:
                os.rename(self.work, self.target)
            except OSError:
                os.rename(previous, self.target)
                raise
        _sync(self.target.parent)
        shutil.rmtree(previous, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Writes the entries of a folder to disk (fsync), where the system can do that for folders."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        if os.name == "nt":  # folders can't be opened there
            return
        raise
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_folder(target: Path, files: Mapping[str, Iterable[bytes | memoryview]]) -> None:
    """Writes a folder of files, whole or not at all. Raises OSError, and DiagnosticError for the target."""
    with NewFolder(target) as new:
        for path, pieces in files.items():
            new.write(path, pieces)
        new.publish()


MOST_OF_A_MANIFEST = 1 << 28
"""The largest size of a manifest, in bytes."""

Format: TypeAlias = Literal["files", "combined", "safetensors"]
"""How the whole variables are written: a file for each, one file in Fluid's layout, one safetensors file."""

SHARED = "shared"
"""Stands for a machine's name in the path of whole variables that the layout's one file can't contain."""

LARGE = "large_table."
"""Stands before the name of a large table, in place of a machine that keeps arrays."""

TENSOR = "tensor"
"""The kind of a saved value that is a tensor."""

ROWS = "rows"
"""The kind of a saved value that is sparse rows."""

MEMORY = "memory"
"""The kind of a saved value that is a machine's state besides its variables."""


class Progress(NamedTuple):
    """The progress of a job that is recorded: steps done, steps of each machine (for its random numbers), the seed it
    was given, how rows of data were dealt, and other settings that decide its numbers.
    """

    step: int = 0
    steps: Mapping[str, int] = {}
    seed: int | None = None
    dealing: Dealing | None = None
    settings: Mapping[str, str] = {}


# Writing


def write_checkpoint(target: str | os.PathLike[str], layout: Layout, state: State, form: str, at: Progress) -> Manifest:
    """Writes a checkpoint to the folder `target`, whole or not at all.

    Only another checkpoint is replaced. Raises DiagnosticError; ValueError for an unknown form.
    """
    if form not in ("files", "combined", "safetensors"):
        raise ValueError(f"the formats are files, combined and safetensors, not {form!r}")
    folder = Path(target)
    values = list(_values_to_write(layout, state, form))
    paths = list(dict.fromkeys(saved.file for saved, _ in values))
    require_names([*paths, MANIFEST], (s.name for s, _ in values if s.file == s.name), str(folder))
    for saved, value in values:
        if not isinstance(value, Stream):
            require_encodable(value, saved.name, str(folder / saved.file))
    try:
        require_local(target)
        with NewFolder(folder) as new:
            for path in paths:
                new.write(path, _pieces(path, [(s.name, value) for s, value in values if s.file == path]))
            manifest = Manifest(
                form,
                layout.fingerprint,
                layout.mode,
                layout.pservers,
                layout.trainers,
                layout.servers,
                at.step,
                dict(at.steps),
                at.seed,
                tuple(saved for saved, _ in values),
                tuple(new.entries),
                at.dealing,
                dict(at.settings),
            )
            new.write(MANIFEST, [manifest_bytes(manifest)])
            new.publish()
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else str(problem)
        raise DiagnosticError(
            [error("checkpoint-target", f"can't be written: {reason}", Location(os.fspath(target)))]
        ) from None
    return manifest


def _values_to_write(layout: Layout, state: State, form: str) -> Iterator[tuple[SavedValue, Value]]:
    """Yields every value to write with its entry in the manifest; whole variables in the order of names."""
    together = {"files": "", "combined": COMBINED, "safetensors": SAFETENSORS}[form]
    for name, value in sorted(state.values.items()):
        with_lod = isinstance(value, LoDTensor) and form == "safetensors"
        file = together or name
        if together and (with_lod or layout.variables[name].optional):
            file = machine_file(SHARED, name)
        yield _entry(name, file, value), value
    for name, parts in sorted(state.tables.items()):
        for number, part in enumerate(parts):
            yield _entry(name, table_file(name, number), part)._replace(part=number, parts=len(parts)), part
    for part, origin, value in sorted(state.copies, key=lambda copy: copy.part):
        entry = _entry(part.name, machine_file(part.machine, part.name), value)
        yield entry._replace(origin=origin, machine=part.machine, offset=part.offset), value
    large = {f"{LARGE}{name}": streams_of(parts) for name, parts in state.large.items()}
    for machine, held in sorted({**state.memory, **large}.items()):
        for name, value in sorted(held.items()):
            entry = _entry(name, memory_file(machine, name), value)
            yield entry._replace(kind=MEMORY, machine=machine), value


def _entry(name: str, file: str, value: Value) -> SavedValue:
    data = value.value if isinstance(value, SelectedRows) else value.data if isinstance(value, LoDTensor) else value
    kind = ROWS if isinstance(value, SelectedRows) else TENSOR
    return SavedValue(name, file, kind, data.dtype.name, tuple(data.shape))


def _pieces(path: str, values: list[tuple[str, Value]]) -> Iterable[bytes | memoryview]:
    if path == SAFETENSORS:
        return safetensors_pieces(dict(values), path)
    return (piece for _, value in values for piece in written(value))


# Reading


def read_manifest(source: str | os.PathLike[str]) -> Manifest:
    """The manifest of a checkpoint. Raises DiagnosticError."""
    folder = present(Path(source))
    try:
        data = read_regular(folder / MANIFEST, MOST_OF_A_MANIFEST)
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else str(problem)
        message = f"can't be read: {reason}. A checkpoint has one; files that Fluid wrote: load_persistables"
        raise DiagnosticError([error("checkpoint-manifest", message, Location(str(folder / MANIFEST)))]) from None
    return parse_manifest(data, str(folder))


def read_checkpoint(source: str | os.PathLike[str], most: int | None = None) -> tuple[Manifest, State]:
    """Reads a checkpoint and checks every file against the manifest. Raises DiagnosticError with all that is wrong.

    `most` is the most bytes that the variables may have together; if the manifest lists more, no file is read.
    """
    folder = present(Path(source))
    manifest = read_manifest(source)
    _require_sizes(manifest, most, str(folder / MANIFEST))
    data: dict[str, bytes] = {}
    findings: list[Diagnostic] = []
    for entry in manifest.files:
        content = _content(folder, entry)
        if isinstance(content, Diagnostic):
            findings.append(content)
        else:
            data[entry.path] = content
    raise_errors(findings)
    return manifest, _state(folder, manifest, data)


def _require_sizes(manifest: Manifest, most: int | None, place: str) -> None:
    """Raises DiagnosticError if a file is larger than its values can be, or the values larger than `most` together."""
    needed: dict[str, int] = {}
    for saved in manifest.values:
        width = np.dtype(saved.dtype).itemsize if saved.dtype in NUMPY_TYPES.values() else 8
        needed[saved.file] = needed.get(saved.file, 0) + prod(saved.shape) * width + len(saved.name)
    findings: list[Diagnostic] = []
    for entry in manifest.files:
        takes = needed.get(entry.path, 0)
        if entry.size > most_bytes(takes):
            message = f"it lists {entry.size} bytes for {entry.path}, whose values take {takes}"
            findings.append(error("checkpoint-manifest", message, Location(place)))
    total = sum(needed.values())
    if most is not None and total > most:
        message = f"its values take {total} bytes, which are more than the job's variables can take ({most})"
        findings.append(error("checkpoint-manifest", message, Location(place)))
    raise_errors(first_findings(findings))


def _content(folder: Path, entry: FileEntry) -> bytes | Diagnostic:
    file = folder / entry.path
    where = Location(str(file))
    try:
        if file.resolve().is_relative_to(folder.resolve()):
            with open_regular(file) as stream:
                size = os.fstat(stream.fileno()).st_size
                if size != entry.size:
                    return error("checkpoint-file", f"has {size} bytes, the manifest lists {entry.size}", where)
                data = stream.read(size)
        else:
            return error("checkpoint-name", "it leads out of the checkpoint", where)
    except (OSError, ValueError, RuntimeError) as problem:  # RuntimeError: a loop of symbolic links
        reason = problem.strerror if isinstance(problem, OSError) else str(problem)
        return error("checkpoint-file", f"can't be read: {reason}", where)
    except MemoryError:
        return error("checkpoint-file", f"can't be read: there is no memory for its {entry.size} bytes", where)
    if sha256(data).hexdigest() != entry.sha256:
        return error("checkpoint-file", "is not the file that the manifest lists: its hash (sha256) is another", where)
    return data


def _state(folder: Path, manifest: Manifest, data: Mapping[str, bytes]) -> State:
    state = State(servers=manifest.servers, place=str(folder))
    tables: dict[str, dict[int, SelectedRows]] = {}
    memory: dict[str, dict[str, Value]] = {}
    by_file: dict[str, list[SavedValue]] = {}
    for saved in manifest.values:
        by_file.setdefault(saved.file, []).append(saved)
    for path, entries in by_file.items():
        for saved, value in _values(str(folder / path), path, data[path], entries):
            if saved.kind == MEMORY:
                memory.setdefault(saved.machine, {})[saved.name] = value
            elif saved.parts:
                tables.setdefault(saved.name, {})[saved.part] = value
            elif saved.machine:
                part = VariablePart(saved.machine, saved.name, saved.offset, saved.shape)
                state.copies.append(Copy(part, saved.origin, value))
            else:
                state.values[saved.name] = value
                state.files[saved.name] = str(folder / path)
    for saved in manifest.values:
        if saved.parts and (len(tables[saved.name]), max(tables[saved.name]) + 1) != (saved.parts, saved.parts):
            message = f"not all {saved.parts} parts of the table {saved.name} are listed"
            raise DiagnosticError([error("checkpoint-manifest", message, Location(str(folder / MANIFEST)))])
    for key in [key for key in memory if key.startswith(LARGE)]:
        try:
            state.large[key.removeprefix(LARGE)] = [TablePart(0, rows_from(memory.pop(key)))]
        except ValueError as problem:
            name = key.removeprefix(LARGE)
            message = f"{name} is no large table: {problem}"
            raise DiagnosticError([error("checkpoint-table", message, Location(str(folder / MANIFEST)))]) from None
    state.memory = memory
    state.tables = {name: [parts[n] for n in sorted(parts)] for name, parts in tables.items()}
    return state


def _values(file: str, path: str, data: bytes, entries: list[SavedValue]) -> Iterator[tuple[SavedValue, Value]]:
    if path == SAFETENSORS:
        held = tensors_from_bytes(data, file)
        if sorted(held) != sorted(saved.name for saved in entries):
            raise DiagnosticError(
                [error("checkpoint-file", "holds other variables than the manifest lists", Location(file))]
            )
        values: Iterable[Value] = (held[saved.name] for saved in entries)
    else:
        values = _decode_values(FieldReader(BytesIO(data), file), entries)
    for saved, value in zip(entries, values, strict=True):
        entry = _entry(saved.name, saved.file, value)
        kind = TENSOR if saved.kind == MEMORY else saved.kind
        if (entry.kind, entry.dtype, entry.shape) != (kind, saved.dtype, saved.shape):
            have, want = f"{entry.dtype}{list(entry.shape)}", f"{saved.dtype}{list(saved.shape)}"
            message = f"{saved.name} is {have} there, the manifest lists {want}"
            raise DiagnosticError([error("checkpoint-file", message, Location(file))])
        yield saved, value


def _decode_values(reader: FieldReader, entries: list[SavedValue]) -> list[Value]:
    values: list[Value] = []
    for saved in entries:
        reader.begin(saved.name, most_bytes(prod(saved.shape) * 8))
        values.append((decode_selected_rows if saved.kind == ROWS else decode_tensor)(reader))
    reader.begin()
    end(reader)
    return values
