"""Checkpoints of a job's servers only: where trainers don't report what they keep, or make it anew.

They are like those of whole jobs, without the variables that only trainers hold. So are those of servers whose trainers
are Fluid's: every server writes its part, and the last one assembles them.

Fluid's trainers don't meet, and don't report their own state. In synchronous training the parts are those of servers
that have made the same number of updates. In other modes a server writes its part once all trainers have done so many
steps: the part contains the gradients of these steps, and some later ones of trainers that are ahead.

The parts lie in a folder that all servers see, until a checkpoint has been assembled from them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PurePath
from threading import Thread
from typing import NamedTuple

from pstranspile.cluster.checkpoint.layout import Layout, VariableLayout
from pstranspile.cluster.checkpoint.layout import VariablePart as Held
from pstranspile.cluster.checkpoint.manifest import Manifest, Settings
from pstranspile.cluster.checkpoint.runs import (
    KEPT,
    RunProgress,
    SharedTarget,
    Source,
    forget_older,
    identity_of,
    require_own,
    require_program,
    require_storable,
    step_folder,
)
from pstranspile.cluster.checkpoint.state import Assignment, Scopes, assign, gather
from pstranspile.cluster.checkpoint.store import Progress, read_checkpoint, write_checkpoint
from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.net.parts import MachineState, part_of, read_part, write_part
from pstranspile.cluster.net.site import Site, SiteListener
from pstranspile.cluster.net.status import print_machine_message
from pstranspile.ir.diagnostics import DiagnosticError, error, shell_word, visible
from pstranspile.ir.model import Location, Role
from pstranspile.ir.patterns import Pattern
from pstranspile.runtime.files.outputs import folder_lock
from pstranspile.runtime.run.scope import own_copy


def of_servers(layout: Layout) -> Layout:
    """The part of a layout that servers hold."""
    served = {name: _on_servers(placed) for name, placed in layout.variables.items()}
    machines = tuple(name for name in layout.machines if name.startswith("pserver"))
    return replace(layout, machines=machines, variables={n: placed for n, placed in served.items() if placed.holders})


def _on_servers(placed: VariableLayout) -> VariableLayout:
    parts, others = (tuple(filter(_is_on_server, held)) for held in (placed.parts, placed.other_parts))
    if parts == placed.parts:
        return placed._replace(other_parts=others)
    return placed._replace(parts=(), other_parts=(*parts, *others), optional=True)


def _is_on_server(part: Held) -> bool:
    return part.machine.startswith("pserver")


def require_fits(layout: Layout, roles: Mapping[str, Role], folder: str) -> None:
    """Raises DiagnosticError if the programs of a folder are not those of the job that a layout is of."""
    for placed in layout.variables.values():
        for part in placed.holders:
            role = roles.get(part.machine)
            var = role.main.main_block.vars.get(part.name) if role is not None else None
            if role is None or var is None or var.shape != part.shape:
                what = f"no {part.machine}" if role is None else f"no {part.name} of dims {list(part.shape)} on it"
                message = f"the program and the job give a {part.machine} that is not here: there is {what}"
                raise DiagnosticError([error("checkpoint-model", message, Location(folder))])


def save_servers(layout: Layout, scopes: Scopes, folder: str | os.PathLike[str], at: Progress) -> Manifest:
    """Writes what the servers hold to a folder, which appears whole or not at all. Raises DiagnosticError.

    `layout` is that of the servers, `scopes` are the servers' scopes.
    """
    return write_checkpoint(folder, layout, gather(layout, scopes), "files", at)


def load_server(layout: Layout, scopes: Scopes, role: str, folder: str | os.PathLike[str]) -> Manifest:
    """Sets the variables of a server from a checkpoint (or the newest in a folder), saved from any number of servers.

    `scopes` are those of all servers; only the server's own is changed. Raises DiagnosticError.
    """
    with closing(Source(folder)) as source:
        manifest, state = read_checkpoint(source.place, None)
    require_program(manifest, layout.fingerprint, str(source.place))
    assigned = assign(layout, state, scopes)
    Assignment({role: assigned.values[role]}, ()).carry_out(scopes)
    return manifest


# A server saves files at the request of other machines below one folder, which the user who started it has chosen.
#
# A message names a path, which is resolved against the server's own working folder and must lie below the save folder.
# Every folder on the way is opened without following links, and the file is written in the folder that is open, so that
# a link made meanwhile leads nowhere.

VARIABLE = "PSTRANSPILE_SAVES"
"""The environment variable that gives scripts the folder."""

_GIVEN = "the folder that it was started with (--saves)"
"""The name of the folder in messages to others, which need not know its path."""

_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class PathRefused(Exception):
    """A path to which no file is written, for the reason in the message."""


class SaveFolder:
    """Gives paths of files below `folder` ("": there is none). Relative paths begin at `working`.

    `on_saved` is called with the path of each file that was written.
    """

    def __init__(self, folder: str, working: str = ".", on_saved: Callable[[str], object] = lambda path: None):
        self._on_saved = on_saved
        self._folder = os.path.abspath(folder) if folder else ""
        self._working = os.path.abspath(working)

    @contextmanager
    def place(self, path: str) -> Generator[str]:
        """The path at which the file is written while the context lasts; the folders on the way are made.

        Raises PathRefused, also in place of an error in the context if the file can't be written.
        """
        names = self._names_below(path)
        try:
            os.makedirs(self._folder, exist_ok=True)
            here = os.open(self._folder, _DIRECTORY)
        except OSError as problem:
            raise PathRefused(f"{_GIVEN} can't be opened: {problem.strerror}") from None
        try:
            for name in names[:-1]:
                here = _enter(here, name, path)
            _require_file(here, names[-1], path)
            own = f"/proc/self/fd/{here}"
            place = os.path.join(own if os.path.isdir(own) else _path_inside(self._folder, names[:-1], path), names[-1])
            try:
                yield place
            except DiagnosticError as problem:
                raise PathRefused(str(problem).replace(place, visible(path))) from None
        finally:
            os.close(here)
        self._on_saved(os.path.join(self._folder, *names))

    def _names_below(self, path: str) -> Sequence[str]:
        """The names of the folders below the given one, and of the file. Raises PathRefused."""
        shown = visible(path)
        if not self._folder:
            raise PathRefused(
                f"{shown}: it was started without a folder for that (--saves DIR; of scripts: {VARIABLE})"
            )
        if "\0" in path or ".." in PurePath(path).parts:
            raise PathRefused(f"{shown} is no path below {_GIVEN}")
        whole = os.path.normpath(os.path.join(self._working, path))
        for folder in (self._folder, os.path.realpath(self._folder)):
            if whole != folder and PurePath(whole).is_relative_to(folder) and not path.endswith("/"):
                return PurePath(whole).relative_to(folder).parts
        raise PathRefused(f"{shown} is no file below {_GIVEN}")


def _enter(here: int, name: str, path: str) -> int:
    """Opens the folder `name` of the open folder `here`, which is closed. Returns its handle. Raises PathRefused."""
    try:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=here)
        inner = os.open(name, _DIRECTORY | _NO_LINK, dir_fd=here)
    except OSError as problem:
        reason = "is a link, or no folder" if _is_there(here, name) else str(problem.strerror)
        raise PathRefused(f"{visible(path)}: {visible(name)} {reason}") from None
    os.close(here)
    return inner


def _is_there(here: int, name: str) -> bool:
    try:
        return not stat.S_ISDIR(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _require_file(here: int, name: str, path: str) -> None:
    """Raises PathRefused if something other than a file has that name."""
    try:
        found = os.stat(name, dir_fd=here, follow_symlinks=False)
    except OSError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise PathRefused(f"{visible(path)} is there already, and no file")


def _path_inside(folder: str, names: Sequence[str], path: str) -> str:
    """The path of the folders, on systems where an open folder has no path. Raises PathRefused if a link leads out of
    `folder`.
    """
    real = os.path.realpath(os.path.join(folder, *names))
    if not Path(real).is_relative_to(os.path.realpath(folder)):
        raise PathRefused(f"{visible(path)} leads out of {_GIVEN}")
    return real


_PART = Pattern(r"([^.]+)\.(end\.)?([0-9]+)\.part")


class CheckpointPlan(NamedTuple):
    """What to save: `layout` is that of the servers, `every` after how many steps (0: at the end), `target` the folder
    for checkpoints ("": none), `source` the one to begin with ("": from the start-up program). `settings` are those
    that decide the numbers of servers.
    """

    layout: Layout
    target: str = ""
    every: int = 0
    source: str = ""
    settings: Settings = {}


class ServerCheckpoints(SiteListener):
    """Writes the parts of a server, and the checkpoints assembled from those of all servers. Raises DiagnosticError."""

    def __init__(self, site: Site, server: Server, plan: CheckpointPlan):
        self._site, self._server, self._plan = site, server, plan
        self._initial_steps = 0
        """The number of steps in the checkpoint with which this run began."""
        self._saved_step = 0
        self._writing: Thread | None = None
        self._work = Path(plan.target, ".parts")
        self._target = SharedTarget(plan.target, self._work, server.name) if plan.target else None
        self._assembled_step = -1
        """The step of the last checkpoint that this server has assembled."""

    def begin(self, again: bool) -> None:
        """Loads the checkpoint to begin with, if there is one. On errors it raises DiagnosticError and unlocks the
        folder.

        A process that was started `again` continues from a saved state, with the parts written before.
        """
        try:
            self._begin(again)
        except BaseException:
            if self._target is not None:
                self._target.close()
            raise

    def _begin(self, again: bool) -> None:
        server = self._server
        if self._plan.target:
            self._require_target(again)
        for path in () if again or not self._plan.target else self._work.glob(f"{server.name}.*.part"):
            path.unlink(missing_ok=True)  # left by another run that did not complete a checkpoint with it
        if not self._plan.source:
            return
        scopes = {one.name: one.scope for one in self._site.cluster.servers}
        manifest = load_server(self._plan.layout, scopes, server.name, self._plan.source)
        self._initial_steps = self._saved_step = manifest.step
        server.go_on_from(manifest.steps.get(server.name, manifest.step))

    def _require_target(self, again: bool) -> None:
        """Raises DiagnosticError if the folder can't take checkpoints of this job."""
        folder = Path(self._plan.target)
        require_storable(self._plan.layout, folder)
        if again:
            return
        standing: RunProgress | None = None
        if self._plan.source:
            with closing(Source(self._plan.source)) as source:
                standing = source.standing
        require_own(folder, standing)

    def save_after_update(self) -> None:
        """Saves a part after an update, if one is due (synchronous training)."""
        if self._server.mode == 0:
            self._save_if_due(self._server.updates)

    def turns_done(self) -> None:
        """Saves a part if one is due, as a trainer may have begun its next step (other modes)."""
        if self._server.mode and self._plan.every:
            steps = [peer.last_step for peer in self._site.peers.values() if peer.index in self._server.live]
            self._save_if_due(self._initial_steps + max(min(steps, default=0), 0))

    def _save_if_due(self, step: int) -> None:
        every = self._plan.every
        if self._plan.target and every and step // every > self._saved_step // every:
            self._save(step // every * every)

    def end(self) -> None:
        """Saves the last part, after all trainers have left, and waits until it is written."""
        server = self._server
        if self._plan.target:
            steps = [peer.last_step for peer in self._site.peers.values() if peer.index >= 0]
            step = self._initial_steps + max(steps, default=-1) + 1 if server.mode else server.updates
            if server.mode or step > self._saved_step:
                self._save(step, "end.")
        self._wait()

    def finish(self) -> None:
        """Waits until the last part is written, and the checkpoint if this server assembles it. Nothing is written
        after that.

        Prints on stderr which checkpoint is the last.
        """
        self._wait()
        if self._assembled_step >= 0:
            place, target = step_folder(self._plan.target, self._assembled_step), self._plan.target
            given = f"--resume {shell_word(str(target))}"
            print_machine_message(
                self._server.name, f"{place} is the last checkpoint of all servers; {given} goes on from it"
            )
        if self._target is not None:
            self._target.close()

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.join()

    def _save(self, step: int, mark: str = "") -> None:
        """Copies the server's state, and writes it in a thread. Waits first if the part before is still being
        written.
        """
        self._wait()
        self._saved_step = step
        part = part_of(self._server)
        part = part._replace(values={name: own_copy(value) for name, value in part.values.items()})
        file = self._work / f"{self._server.name}.{mark}{step}.part"
        self._writing = Thread(target=self._write, args=(file, part))
        self._writing.start()

    def _write(self, file: Path, part: MachineState) -> None:
        try:
            write_part(file, self._server.name, part)
            with folder_lock(self._work):
                made = put_together(self._plan, self._work, self._site.cluster.seed)
            self._assembled_step = self._assembled_step if made is None else made
        except DiagnosticError as problem:
            text = f"its part of a checkpoint, or the checkpoint, is not kept: {problem}"
            print_machine_message(self._server.name, text)


def put_together(plan: CheckpointPlan, work: Path, seed: int | None) -> int | None:
    """Assembles a checkpoint from the latest parts that all servers have written; returns its step, or None if there
    are no such parts.

    Raises DiagnosticError.
    """
    parts_of_step: dict[tuple[bool, int], dict[str, Path]] = {}
    step_of: dict[Path, int] = {}
    for name in sorted(os.listdir(work)):
        match = _PART.fullmatch(name)
        if match:
            path, step = work / name, int(match[3])
            step_of[path] = step
            parts_of_step.setdefault((bool(match[2]), 0 if match[2] else step), {})[match[1]] = path
    whole = [key for key, files in parts_of_step.items() if set(plan.layout.machines) <= files.keys()]
    if not whole:
        return None
    files = parts_of_step[max(whole)]
    step = max(step_of[path] for path in files.values())
    parts = {role: read_part(path, role) for role, path in files.items()}
    _save(plan, parts, step, seed)
    for path, number in step_of.items():
        if number <= step:
            path.unlink(missing_ok=True)
    return step


def _save(plan: CheckpointPlan, parts: Mapping[str, MachineState], step: int, seed: int | None) -> None:
    layout = plan.layout
    steps = {**{f"trainer_{i}": step for i in range(layout.trainers)}, **{role: p.step for role, p in parts.items()}}
    scopes = {role: dict(part.values) for role, part in parts.items() if role in layout.machines}
    manifest = save_servers(
        layout, scopes, step_folder(plan.target, step), Progress(step, steps, seed, settings=plan.settings)
    )
    forget_older(plan.target, KEPT, identity_of(manifest))
