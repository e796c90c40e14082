"""`pstranspile run` without a cluster: a module on one machine, step by step."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pstranspile.cluster.checkpoint.api import load_checkpoint, save_checkpoint
from pstranspile.cluster.checkpoint.layout import layout_of
from pstranspile.cluster.checkpoint.runs import ALONE, Source, Target
from pstranspile.cluster.net.status import displayed_value
from pstranspile.compiler.plan.plan import fingerprint
from pstranspile.ir.model import MAIN
from pstranspile.runtime.large.forms import parameter_arrays
from pstranspile.runtime.run.batch import rows_of
from pstranspile.runtime.run.feeds import FedInputs
from pstranspile.runtime.run.prepared import run
from pstranspile.runtime.run.scope import Scope
from pstranspile.runtime.run.step_feeds import (
    Feeds,
    ProgramFeeds,
    RowFeeds,
    RowSource,
    Turns,
    looking_up,
    refuse_turns,
    step_arrays,
    step_programs,
    union_of,
)
from pstranspile.runtime.run.watchers import Profile, Trace
from pstranspile.tools.cli.common import begun_with, deciding
from pstranspile.tools.cli.feed import read_feed
from pstranspile.tools.cli.live_views import LiveSingle
from pstranspile.tools.cli.progress import Progress
from pstranspile.tools.cli.report import report
from pstranspile.tools.cli.streams import is_unread
from pstranspile.tools.cli.turns import requested_fetches, requested_turns
from pstranspile.tools.cli.written_files import PENDING

if TYPE_CHECKING:
    from pstranspile.ir.model import Module, Program
    from pstranspile.runtime.run.watchers import Curve


class ModuleRun:
    """A run of a module: its scope, its feeds, and its watchers."""

    def __init__(self, module: Module, options: argparse.Namespace):

        self.module = module
        self.options = options
        self.turns: Turns | None = requested_turns(options, module)
        self.programs: dict[str, Program] = step_programs(module)
        self.program: Program = union_of(self.programs.values()) if self.turns else module.main
        self.scope: Scope = Scope()
        self.resume_source: Source | None = Source(options.resume) if options.resume else None
        """The checkpoint that the run goes on from."""
        manifest = None if self.resume_source is None else self.resume_source.manifest
        self.settings: dict[str, str] = deciding(options, cluster=False)
        """Those that decide the numbers, which checkpoints record."""
        if self.resume_source is not None:
            self.resume_source.require_settings(self.settings)
            self.resume_source.require_program(fingerprint(module))
        feed_source = read_feed(options, self.programs if self.turns else {MAIN: module.main}, module)
        self.source: RowSource | None = feed_source if isinstance(feed_source, RowSource) else None
        self.feeds: Feeds | ProgramFeeds | RowFeeds
        if isinstance(feed_source, RowSource):
            refuse_turns(self.turns)
            if manifest is not None and manifest.dealing is not None:
                feed_source = feed_source.continued(manifest.dealing, manifest.step, 1)
            self.source = feed_source
            self.feeds = RowFeeds(self.program, looking_up(feed_source))
        else:
            arrays: Mapping[str, Any] = feed_source or {}
            self.feeds = ProgramFeeds(self.programs, self.turns, arrays) if self.turns else Feeds(self.program, arrays)
        self.first_step = 0
        self.did: dict[str, list[int]] = {}
        """The steps, numbered from 1, in which each value was fetched."""
        if self.resume_source is not None:
            self.resume_source.require_seed(options.seed)
            options.seed = self.resume_source.manifest.seed
        self.count: int = options.steps or self.feeds.steps or 1
        self.feeds.require(self.count)
        if self.resume_source is not None:
            self.resume_source.require_steps(self.count, known=bool(options.steps or self.feeds.steps))
            report(self.resume_source.resume_findings(self.count, ALONE, rows=self.source is not None))
        self.fetches: dict[str, tuple[str, ...]] = requested_fetches(options, module, self.turns)
        self.checkpoint_target: Target | None = None
        """The folder in which checkpoints are saved."""
        if options.checkpoint:
            standing = None if self.resume_source is None else self.resume_source.standing
            self.checkpoint_target = Target(options.checkpoint, layout_of(module), standing)
        self.profile: Profile | None = Profile() if options.profile else None
        trace = [Trace(sys.stderr)] if options.trace is not None else []
        self.watchers: list[Any] = [*trace, *([self.profile] if self.profile else [])]

    def _run(self, program: Program, feed: Mapping[str, Any], fetch: Sequence[str], step: int = 0) -> dict[str, Any]:
        options = self.options
        return run(
            program,
            feed,
            fetch,
            self.scope,
            seed=options.seed,
            step=step,
            check_nan=options.check_nan,
            watchers=self.watchers,
        )

    def start(self) -> None:
        """Runs the startup program, then sets what `--init` gives, or what the checkpoint holds."""

        resumed, start = bool(self.options.resume), self.module.start
        values = begun_with(self.options.init, self.program, self.module.startup, start=start, resumed=resumed)
        if self.module.startup is not None:
            self._run(self.module.startup, {}, ())
        for name, value in values.items():
            self.scope[name] = value
        if self.resume_source is not None:
            self.first_step = load_checkpoint(self.scope, self.module, self.resume_source.place).step
            self.resume_source.close()

    def close(self) -> None:
        """Lets other runs save where this one has saved, and have the checkpoint removed that it has gone on from."""
        for held in (self.resume_source, self.checkpoint_target):
            if held is not None:
                held.close()

    def _checkpoint(self, step: int) -> None:
        """Saves after a step, if it was asked for."""
        every = self.options.checkpoint_every or self.count
        if self.checkpoint_target is not None and (step == self.count or step % every == 0):
            place, seed = self.checkpoint_target.place(step), self.options.seed
            dealing = None if self.source is None else self.source.dealing(1)
            self.checkpoint_target.record_checkpoint(
                save_checkpoint(
                    self.scope,
                    self.module,
                    place,
                    step=step,
                    seed=seed,
                    dealing=dealing,
                    settings=self.settings,
                )
            )

    def _progress(self) -> Progress | LiveSingle:
        """What shows how far the run is."""
        if self.options.live:
            return LiveSingle(self.count)
        return Progress(self.count, first=self.first_step, live=self.options.trace is None)

    def steps(self) -> dict[str, list[Any]]:
        """Runs all steps, and gives the fetched values of each; with turns, by `PROGRAM/NAME`.

        A step without rows trains nothing; its values are None.
        """
        values: dict[str, list[Any]] = {
            self._key(owner, name): [] for owner, names in self.fetches.items() for name in names
        }
        progress = self._progress()
        checked = {owner: FedInputs(self.programs[owner]) for owner in self.fetches}
        try:
            for number in range(self.first_step, self.count):
                owner = self.turns.program(number) if self.turns else MAIN
                fed, fetched = self.feeds.step(number), self.fetches[owner]
                checked[owner].require(fed, f"step {number + 1} of {self.options.feed}")
                none = self.source is not None and not any(map(rows_of, fed.values()))  # all its rows were bad
                made = dict.fromkeys(fetched) if none else self._run(self.programs[owner], fed, fetched, number)
                result = {self._key(owner, name): value for name, value in made.items()}
                for key, value in result.items():
                    values[key].append(value)
                    if value is not None:
                        self.did.setdefault(key, []).append(number + 1)
                progress.step(number + 1, {"": {name: displayed_value(value) for name, value in result.items()}})
                self._checkpoint(number + 1)
                if self.options.trace is not None and is_unread(sys.stderr) and not PENDING.files:
                    raise BrokenPipeError  # the trace was all that the run is for
        finally:
            progress.end()
        report(self.source.warnings() if self.source is not None else ())
        return values

    def curves(self, values: Mapping[str, Sequence[Any]]) -> dict[str, Curve]:
        """What `--plot` draws: the steps, numbered from 1, and the values of each name."""
        return {
            key: (self.did.get(key, []), [value for value in result if value is not None])
            for key, result in values.items()
        }

    def _key(self, owner: str, name: str) -> str:
        return f"{owner}/{name}" if self.turns else name

    def arrays(self, values: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """What `--save` writes: the fetched values of all steps, and every parameter."""
        arrays: dict[str, Any] = {}
        for owner, names in self.fetches.items():
            for name in names:
                made = step_arrays(name, values[self._key(owner, name)])
                arrays |= {self._key(owner, key): array for key, array in made.items()}
        for var in self.program.parameters():
            if var.name in self.scope:
                arrays |= parameter_arrays(var.name, self.scope[var.name])
        return arrays
