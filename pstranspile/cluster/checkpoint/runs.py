"""Ownership of checkpoint folders: only one run saves in a folder, and a run resumes from what is there.

A folder of numbered checkpoints belongs to one run. Another run that saved in it would overwrite its checkpoints, which
have the same names, and delete them as outdated: it is refused before its first step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple, NoReturn
from weakref import finalize

from pstranspile.cluster.checkpoint import numbered_checkpoints
from pstranspile.cluster.checkpoint.layout import Layout
from pstranspile.cluster.checkpoint.manifest import (
    MANIFEST,
    Manifest,
    Settings,
    limits_of,
    machine_file,
    require_names,
    require_settings,
    table_file,
)
from pstranspile.cluster.checkpoint.store import read_manifest
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, shell_word, warning
from pstranspile.ir.model import Location
from pstranspile.ir.reading import misspelt, reason_for, require_local
from pstranspile.runtime.files.outputs import FileLock, ReadLock, locked_if_free, remove_abandoned, work_folder

KEPT = 2
"""How many checkpoints of a run stay."""

LOCK = ".lock"
"""The file in a folder of checkpoints that is locked while a run saves there. It is gone when the run has ended."""

ALONE = "alone"
"""The mode in the manifest of a run on one machine."""


class Identity(NamedTuple):
    """What distinguishes one run from another: the program, the seed of random numbers, and the rows of data ("":
    none).
    """

    program: str
    seed: int | None
    data: str = ""

    def is_of(self, other: Identity) -> bool:
        """Whether both can be of the same run."""
        return self[:2] == other[:2] and (self.data == other.data or not (self.data and other.data))


def identity_of(manifest: Manifest) -> Identity:
    """The run that a checkpoint is of."""
    data = "" if manifest.dealing is None else manifest.dealing.data
    return Identity(manifest.fingerprint, manifest.seed, data)


class RunProgress(NamedTuple):
    """The progress of a run when it begins to save: the steps done, and the checkpoint that it resumed from, if that is
    known.
    """

    run: Identity
    step: int
    place: Path | None = None


def step_folder(folder: str | os.PathLike[str], step: int) -> Path:
    """The path of the checkpoint after a step in a folder of checkpoints: `<folder>/step_00000010`."""
    return Path(folder) / f"step_{step:08d}"


def newest(folder: str | os.PathLike[str]) -> Path:
    """The checkpoint that a folder is, or the one after the latest step in it. Raises DiagnosticError.

    A checkpoint that is still being written has no name yet and is ignored. Checkpoints of several runs in one folder
    are refused.
    """
    place = Path(folder)
    if (place / MANIFEST).is_file():
        return place
    try:
        there = numbered_checkpoints(place)
    except (OSError, ValueError) as problem:
        missing = isinstance(problem, FileNotFoundError)
        message = (
            f"there is no such folder{misspelt(place)}" if missing else f"can't be read: {reason_for(problem, place)}"
        )
        raise DiagnosticError([error("checkpoint-manifest", message, Location(str(place)))]) from None
    if not there:
        message = f"it is no checkpoint (it has no {MANIFEST}) and holds none (step_00000001, ...)"
        raise DiagnosticError([error("checkpoint-manifest", message, Location(str(place)))])
    *others, (_, last) = there
    runs = {name: run for _, name in others if (run := _run_in(place / name)) is not None}
    own = _run_in(place / last)
    strange = [name for name, run in runs.items() if own is not None and not run.is_of(own)]
    if strange:
        message = f"{strange[-1]} and {last} are checkpoints of different runs; name the one to go on from"
        raise DiagnosticError([error("checkpoint-run", message, Location(str(place)))])
    _require_own_name(place / last)
    return place / last


def _require_own_name(place: Path) -> None:
    """Raises DiagnosticError for a numbered checkpoint whose name does not have the step of its manifest, as its place
    in the order would be wrong.
    """
    try:
        own = step_folder(place.parent, read_manifest(place).step)
    except DiagnosticError:
        return  # the code that reads the checkpoint reports why it can't be read
    if own.name != place.name:
        message = f"its manifest says that it is {own.name}, and it was renamed: give it back its name"
        raise DiagnosticError([error("checkpoint-run", message, Location(str(place)))])


def _run_in(place: Path) -> Identity | None:
    """The run that a checkpoint is of; None if that can't be read."""
    try:
        return identity_of(read_manifest(place))
    except DiagnosticError:
        return None


class Source:
    """The checkpoint from which a run resumes: the newest in a folder, or a named one.

    It is locked until `close`, so that no process removes it as outdated. Raises DiagnosticError.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        for tries_left in (2, 1, 0):
            self.place: Path = newest(folder)
            self._read_lock = ReadLock(self.place)
            if self._read_lock.folder_exists or not tries_left:
                break  # otherwise another run has just removed it as outdated, and there is a newer one
        self.manifest: Manifest = read_manifest(self.place)

    def close(self) -> None:
        """Unlocks the checkpoint, so that it may be removed as outdated."""
        self._read_lock.close()

    @property
    def step(self) -> int:
        """How many steps were done."""
        return self.manifest.step

    @property
    def standing(self) -> RunProgress:
        """The progress of a run that resumes from here."""
        return RunProgress(identity_of(self.manifest), self.step, self.place)

    def require_seed(self, seed: int | None) -> None:
        """Raises DiagnosticError if a seed is given and the run was begun with another one."""
        if seed is not None:
            require_seed(self.manifest, seed, self.place)

    def require_settings(self, settings: Settings) -> None:
        """Raises DiagnosticError if the run had other values of the settings that decide its numbers."""
        require_settings(self.manifest.settings, settings, self.place)

    def require_program(self, fingerprint: str) -> None:
        """Raises DiagnosticError if the run was of a program with another hash."""
        require_program(self.manifest, fingerprint, str(self.place))

    def require_steps(self, steps: int, *, known: bool = True) -> None:
        """Raises DiagnosticError if the run has done more than `steps` steps, counted from its beginning.

        `known`: whether data or the user say how many steps the run is to have.
        """
        if steps < self.step:
            message = f"it has done {self.step} steps, and the run is to have {steps}, counted from the beginning"
            if not known:
                message = f"it has done {self.step} steps, and nothing says how many the run is to have: "
                message += "--feed names the data, --steps the number"
            raise DiagnosticError([error("checkpoint-run", message, Location(str(self.place)))])

    def resume_findings(self, steps: int, mode: str, *, rows: bool) -> list[Diagnostic]:
        """Findings about resuming a run for `steps` steps in this mode: that all steps were done, that the mode
        differs, or that it is fed data of another kind. `rows`: whether it is fed rows, which are dealt to its
        trainers, and not arrays with all steps.
        """
        here, had = Location(str(self.place)), self.manifest.mode
        findings: list[Diagnostic] = []
        if steps == self.step:
            findings.append(
                warning("checkpoint-run", f"all {steps} steps were done before: nothing is left to do", here)
            )
        elif mode != had and ALONE not in (mode, had):
            findings.append(warning("checkpoint-run", f"it was saved in mode {had}, and goes on in mode {mode}", here))
        had_rows = self.manifest.dealing is not None
        if steps > self.step and self.step and rows != had_rows:
            before, after = (
                ("rows", "arrays") if had_rows else ("no rows of data", "rows, from those of its next step on")
            )
            message = f"it was fed {before}, and goes on with {after}; whether these are the same data is not compared"
            findings.append(warning("checkpoint-run", message, here))
        return findings


def require_program(manifest: Manifest, fingerprint: str, folder: str) -> None:
    """Raises DiagnosticError if a checkpoint was made for another program than that with this hash."""
    if manifest.fingerprint != fingerprint:
        message = (
            "it is a checkpoint of another program: ops, attributes or variables differ from this one's "
            f"({manifest.fingerprint[:19]}... and {fingerprint[:19]}...); variables of the same names can be taken "
            "over by load_checkpoint in Python, with same_program=False"
        )
        raise DiagnosticError([error("checkpoint-model", message, Location(folder))])


def require_seed(manifest: Manifest, seed: int | None, place: Path) -> None:
    """Raises DiagnosticError if a run goes on with another seed than the one that its checkpoint names."""
    had = manifest.seed
    if had != seed:
        which = "the programs' own seeds; give no other" if had is None else f"the seed {had}; give the same"
        message = f"it was run with {which}, so that the random numbers go on"
        raise DiagnosticError([error("checkpoint-model", message, Location(str(place)))])


class Target:
    """A folder for the numbered checkpoints of one run. It is made if there is none; no other run saves in it until
    `close`, or until the process has ended, however it ends.

    It should be made before training begins, so that a folder that can't be used is refused first. `standing` is where
    the run is (None: at its beginning). A folder that holds another run's checkpoints, or later ones of this run, is
    refused. `layout` says what will be saved, in files of their own if there is no other format. Incomplete checkpoints
    that killed processes have left are removed. Raises DiagnosticError.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        layout: Layout | None,
        standing: RunProgress | None,
        *,
        as_files: bool = True,
    ):
        self.folder = Path(folder)
        made = _make(folder)
        try:
            lock = _lock_folder(self.folder)
        except BaseException:
            _remove_empty(made)
            raise
        self.close = finalize(self, _let_go, lock, made)
        """Unlocks the folder for other runs; removes it if it was made for this run and is empty."""
        self._run_identities: dict[str, Identity] = {}
        try:
            remove_abandoned(self.folder, ".step_", ".part")
            require_own(self.folder, standing)
            if layout is not None:
                require_storable(layout, self.folder, as_files=as_files)
        except BaseException:
            self.close()
            raise

    def place(self, step: int) -> Path:
        """The path for the checkpoint after a step."""
        return step_folder(self.folder, step)

    def record_checkpoint(self, manifest: Manifest, keep: int = KEPT) -> None:
        """Notes that a checkpoint was written, and removes all but the latest `keep` of this run."""
        self._run_identities[self.place(manifest.step).name] = identity_of(manifest)
        forget_older(self.folder, keep, identity_of(manifest), self._run_identities)


class SharedTarget:
    """A folder of checkpoints that the servers of one job write as separate processes, as one of them uses it.

    Until `close`, other runs are refused, and so is another process that plays the same server. `work` is the folder of
    the servers' parts. Raises DiagnosticError.
    """

    def __init__(self, folder: str | os.PathLike[str], work: Path, role: str):
        self._new_folders = _make(folder)
        work.mkdir(exist_ok=True)
        self._locks = [_lock_folder(Path(folder), shared=True)]
        try:
            self._locks.append(_lock_folder(Path(folder), work / f"{role}.lock"))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unlocks the folder."""
        for lock in reversed(self._locks):
            lock.close()
        _remove_empty(self._new_folders)


def _make(path: str | os.PathLike[str]) -> list[Path]:
    """Makes the folder for numbered checkpoints unless it exists; returns it and the folders above it that were made,
    deepest first.

    Raises DiagnosticError if it can't be made or written to.
    """
    folder, reason, new_folders = Path(path), "", list[Path]()
    try:
        require_local(path)
        new_folders = [each for each in (folder, *folder.parents) if not os.path.lexists(each)]
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
        if (folder / MANIFEST).exists():
            reason = "it is a checkpoint itself; name the folder that it lies in, or a new one"
    except (OSError, ValueError) as problem:
        detail = problem.strerror if isinstance(problem, OSError) else str(problem)
        reason = f"can't be written: {detail}"
    if reason:
        raise DiagnosticError([error("checkpoint-target", reason, Location(os.fspath(path)))])
    return new_folders


def _let_go(lock: FileLock, made: Sequence[Path]) -> None:
    lock.close()
    _remove_empty(made)


def _remove_empty(folders: Sequence[Path]) -> None:
    """Removes folders, deepest first, as long as they are empty."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _lock_folder(folder: Path, file: Path | None = None, *, shared: bool = False) -> FileLock:
    """Locks a folder of checkpoints, or with `file` one server's part in it. Raises DiagnosticError."""
    path = file or folder / LOCK
    try:
        lock = FileLock(path, shared=shared)
    except OSError as problem:
        message = f"can't be written: {problem.strerror}"
        raise DiagnosticError([error("checkpoint-target", message, Location(str(path)))]) from None
    if lock.held_by_another:
        message = "another run is saving its checkpoints here; wait for its end, or name another folder"
        raise DiagnosticError([error("checkpoint-busy", message, Location(str(folder)))])
    return lock


def require_own(folder: Path, standing: RunProgress | None) -> None:
    """Raises DiagnosticError if a run with this progress would overwrite or remove other checkpoints in a folder."""
    there = numbered_checkpoints(folder)
    for _, name in there:
        place = folder / name
        if place.is_symlink() or not (place / MANIFEST).is_file():
            message = "it has the name of a checkpoint and is none; move it away, or name another folder"
            raise DiagnosticError([error("checkpoint-target", message, Location(str(place)))])
    if not there:
        return
    last, name = there[-1]
    _require_own_name(folder / name)
    given = f"--resume {shell_word(str(folder))}"
    go_on = f"{given} goes on with that run; a new run needs another folder"
    if standing is None:
        add = f"add {given} to go on with that run, or name another folder for a new one"
        _refuse(folder, f"it holds checkpoints of an earlier run, the last one {name}: {add}")
    if standing.place is not None and not _is_in(standing.place, folder):
        _refuse(folder, f"it holds checkpoints of another run than {standing.place}, the last one {name}; {go_on}")
    run = _run_in(folder / name)
    if last != standing.step or (run is not None and not run.is_of(standing.run)):
        if standing.place is None:
            what = f"this run has done {standing.step} steps and is not what {name} was saved of"
            _refuse(folder, f"it holds checkpoints of another run: {what}; {go_on}")
        what = f"the run goes on from {standing.place.name}, and {name} was saved later"
        _refuse(folder, f"{what}; name another folder, or move away what is later")


def _is_in(place: Path, folder: Path) -> bool:
    try:
        return os.path.samefile(Path(os.path.abspath(place)).parent, folder)
    except OSError:
        return False


def _refuse(folder: Path, reason: str) -> NoReturn:
    raise DiagnosticError([error("checkpoint-run", reason, Location(str(folder)))])


def require_storable(layout: Layout, folder: Path, *, as_files: bool = True) -> None:
    """Raises DiagnosticError for each variable of a job whose name can't be that of a file in a checkpoint in this
    folder.

    With `as_files` every variable has a file of its own, else only the values of single machines have.
    """
    placed = layout.variables.values()
    whole = [one.name for one in placed if as_files and not one.table]
    parts = [table_file(one.name, len(one.parts) - 1) for one in placed if one.table]
    own = [machine_file(part.machine, part.name) for one in placed for part in one.other_parts]
    require_names([*whole, *parts, *own], whole, str(folder), limits_of(folder))


def forget_older(
    folder: str | os.PathLike[str], keep: int, run: Identity | None = None, known: Mapping[str, Identity] = {}
) -> None:
    """Removes all but the `keep` latest numbered checkpoints of a folder, of those of this run (None: of all).

    Other files stay, and so does a checkpoint that a run is reading. `known` are the runs of checkpoints by name; that
    of any other checkpoint is read from its manifest. A checkpoint loses its name before it is removed, so that no
    partial one remains if the process is killed.
    """
    place = Path(folder)
    own = [name for _, name in numbered_checkpoints(place) if (place / name / MANIFEST).is_file()]
    if run is not None:
        own = [name for name in own if (of := known.get(name) or _run_in(place / name)) is not None and of.is_of(run)]
    for name in own[: max(len(own) - keep, 0)]:
        with locked_if_free(place / name) as free:
            if free:
                with work_folder(place, f".{name}.", ".part") as work:
                    os.rename(place / name, work / name)
