"""Checkpoints of a run of processes, at its supervisor: assembled from the machines' parts, and split into parts
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pstranspile.cluster.checkpoint.api import resume, save_cluster
from pstranspile.cluster.checkpoint.manifest import Settings
from pstranspile.cluster.checkpoint.runs import Source, Target
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.simulate import cluster_of
from pstranspile.cluster.net.parts import fill, gather, part_file, part_of, read_part, write_part
from pstranspile.compiler.compile import Compiled
from pstranspile.runtime.run.step_feeds import Dealing, RowSource


class Checkpoints:
    """The checkpoints that a run of `job` saves in `target`, and the one in `source` that it begins from.

    `work` is a folder for the parts, `settings` are those that decide the run's numbers (None: what is known of the
    cluster). Raises DiagnosticError.
    """

    def __init__(
        self,
        job: Compiled,
        source: Source | None,
        target: Target | None,
        every: int | None,
        work: Path,
        settings: Settings | None = None,
    ):
        self.job, self.settings = job, settings
        self.source, self.target, self.every, self.work = source, target, every, work
        self.first_step, self.seed = 0, None
        self.dealing: Dealing | None = None
        """A record of how rows of data are dealt, if any are."""
        self._saved_roles: dict[int, set[str]] = {}
        self._newest_step = -1
        """The step of the checkpoint that was written last."""
        self._begin_from(source)

    def _begin_from(self, source: Source | None) -> None:
        self.source = source
        if source is not None:
            self.first_step, self.seed, self.dealing = source.step, source.manifest.seed, source.manifest.dealing

    def deal(self, source: RowSource, trainers: int) -> RowSource:
        """The remaining rows, dealt to `trainers` trainers. Raises DiagnosticError if the checkpoint is of other
        rows.
        """
        result = source if self.dealing is None else source.continued(self.dealing, self.first_step, trainers)
        self.dealing = result.dealing(trainers)
        return result

    def begin(self, seed: int | None) -> dict[str, Path]:
        """Splits the checkpoint; returns the file of every machine's part. Raises DiagnosticError."""
        assert self.source is not None
        cluster = cluster_of(self.job, seed=seed)
        resume(cluster, self.job, self.source.place, settings=self.settings)
        files: dict[str, Path] = {}
        for machine in (*cluster.servers, *cluster.trainers):
            files[machine.name] = self.work / f"{machine.name}.begin"
            write_part(files[machine.name], machine.name, part_of(machine))
        return files

    def go_back(self) -> None:
        """Makes the run start again from the checkpoint that it has written last, or as it started before."""
        self._saved_roles.clear()
        if self._newest_step >= 0 and self.target is not None:
            self.close()
            self._begin_from(Source(self.target.place(self._newest_step)))

    def close(self) -> None:
        """Unlocks the checkpoint from which the run began, so that it may be removed as outdated."""
        if self.source is not None:
            self.source.close()

    def part_saved(self, seed: int | None, role: str, step: int) -> bool:
        """Records that a machine has written its part of a step. With the last part the checkpoint is written; returns
        whether it was.

        Raises DiagnosticError.
        """
        cluster = cluster_of(self.job, seed=seed)
        there = self._saved_roles.setdefault(step, set())
        there.add(role)
        if len(there) < len(cluster.servers) + len(cluster.trainers):
            return False
        for machine in (*cluster.servers, *cluster.trainers):
            file = part_file(self.work, machine.name, step)
            fill(machine, read_part(file, machine.name))
        self._save(cluster, step)
        for earlier in [known for known in self._saved_roles if known <= step]:
            for name in self._saved_roles.pop(earlier):
                part_file(self.work, name, earlier).unlink(missing_ok=True)
        return True

    def end(self, seed: int | None, results: Mapping[str, str], steps: int) -> bool:
        """Writes the checkpoint of the final states of the processes; returns whether it did.

        It does not if the last checkpoint is of this step, or if the run began with this step. Raises DiagnosticError.
        """
        if steps in (self._newest_step, self.first_step):
            return False
        self._save(gather(cluster_of(self.job, seed=seed), results).cluster, steps)
        return True

    def _save(self, cluster: Cluster, step: int) -> None:
        assert self.target is not None
        self._newest_step = step
        for trainer in cluster.trainers:
            trainer.go_on_from(step)
        place = self.target.place(step)
        manifest = save_cluster(cluster, self.job, place, dealing=self.dealing, settings=self.settings)
        self.close()
        self.target.record_checkpoint(manifest)
