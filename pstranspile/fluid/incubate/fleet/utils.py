"""Utilities for scripts of Fleet beside training: files of a hadoop cluster, barriers, metrics over all trainers."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pstranspile.fluid.executor import global_scope
from pstranspile.fluid.incubate.fleet.parameter_server import fleet
from pstranspile.fluid.log_helper import get_logger
from pstranspile.fluid.missing import names_of_fluid, unsupported_error
from pstranspile.fluid.running.failures import naming_wait

_RETRY_PAUSE = 3.0
"""Seconds before a failed command is repeated."""


class HDFSClient:
    """Runs `HADOOP_HOME/bin/hadoop fs`, with settings such as `fs.default.name`.

    Commands that change something raise OSError with hadoop's message, after up to `retry_times` repetitions.
    """

    def __init__(self, hadoop_home: str | None, configs: Mapping[str, str | None]):
        settings = [f"-D{name}={value}" for name, value in configs.items() if value is not None]
        self.pre_commands = [f"{hadoop_home}/bin/hadoop" if hadoop_home else "hadoop", "fs", *settings]

    def _run(self, *command: str, retry_times: int = 0) -> subprocess.CompletedProcess[str]:
        """Runs a command of hadoop; the status of the result says whether it succeeded. Raises OSError if hadoop can't
        be started.
        """
        for again in range(retry_times, -1, -1):
            done = subprocess.run([*self.pre_commands, *command], capture_output=True, text=True, check=False)
            if not done.returncode or not again:
                return done
            time.sleep(_RETRY_PAUSE)
        raise AssertionError("unreachable")

    def _do(self, *command: str, retry_times: int) -> str:
        """Runs a command and returns what it prints. Raises OSError if it fails."""
        done = self._run(*command, retry_times=retry_times)
        if done.returncode:
            raise OSError(f"hadoop fs {' '.join(command)} ends with status {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def is_exist(self, hdfs_path: str) -> bool:
        """Whether a path exists."""
        return not self._run("-test", "-e", hdfs_path).returncode

    def is_dir(self, hdfs_path: str) -> bool:
        """Whether a path is a folder."""
        return not self._run("-test", "-d", hdfs_path).returncode

    def is_file(self, hdfs_path: str) -> bool:
        """Whether a path is a file."""
        return self.is_exist(hdfs_path) and not self.is_dir(hdfs_path)

    def cat(self, hdfs_path: str) -> str:
        """The content of a file. Raises OSError."""
        return self._do("-cat", hdfs_path, retry_times=1).strip()

    def makedirs(self, hdfs_path: str) -> None:
        """Makes a folder, and its parent folders."""
        self._do("-mkdir", "-p", hdfs_path, retry_times=5)

    @staticmethod
    def make_local_dirs(local_path: str) -> None:
        """Makes a folder on this host, and its parent folders."""
        Path(local_path).mkdir(parents=True, exist_ok=True)

    def delete(self, hdfs_path: str) -> None:
        """Removes a file or folder, if it exists."""
        if self.is_exist(hdfs_path):
            self._do("-rm", "-r", hdfs_path, retry_times=5)

    def rename(self, hdfs_src_path: str, hdfs_dst_path: str, overwrite: bool = False) -> None:
        """Moves a file or folder to another path; with `overwrite` it replaces what is there."""
        if overwrite:
            self.delete(hdfs_dst_path)
        self._do("-mv", hdfs_src_path, hdfs_dst_path, retry_times=5)

    def ls(self, hdfs_path: str) -> list[str]:
        """The paths in a folder; none if it does not exist."""
        return self._list_paths("-ls", hdfs_path) if self.is_dir(hdfs_path) else []

    def lsr(self, hdfs_path: str, excludes: tuple[str, ...] | list[str] = ()) -> list[str]:
        """The files in a folder and in all folders below it, without those named in `excludes`; none if it does not
        exist.
        """
        found = self._list_paths("-lsr", hdfs_path, kind="-") if self.is_dir(hdfs_path) else []
        return [path for path in found if path.rpartition("/")[2] not in excludes]

    def _list_paths(self, *command: str, kind: str = "") -> list[str]:
        lines = (line.split(None, 7) for line in self._do(*command, retry_times=10).splitlines())
        return sorted(fields[7] for fields in lines if len(fields) == 8 and fields[0].startswith(kind))

    def upload(self, hdfs_path: str, local_path: str, overwrite: bool = False, retry_times: int = 5) -> None:
        """Copies a file or folder from this host to the cluster; with `overwrite` it replaces what is there."""
        if overwrite and self.is_file(hdfs_path):
            self.delete(hdfs_path)
        self._do("-put", *(["-f"] if overwrite else []), local_path, hdfs_path, retry_times=retry_times)

    def download(self, hdfs_path: str, local_path: str, overwrite: bool = False, retry_times: int = 5) -> None:
        """Copies a file or folder from the cluster to this host; with `overwrite` it replaces what is there."""
        self._do("-get", *(["-f"] if overwrite else []), hdfs_path, local_path, retry_times=retry_times)


PAUSE = 10.0
"""Seconds between two checks of the folder."""


def check_all_trainers_ready(ready_path: str, epoch: int) -> None:
    """Waits until every trainer has put a file for this epoch into the folder; a single trainer returns at once.

    `HADOOP_HOME`, `FS_NAME` and `FS_UGI` of the environment configure the client. Raises OSError.
    """
    count = fleet.worker_num()
    if count == 1:
        return
    mark = Path(f"ready.{epoch}.{fleet.worker_index()}.done")
    mark.write_text("")
    settings = {"fs.default.name": os.environ.get("FS_NAME"), "hadoop.job.ugi": os.environ.get("FS_UGI")}
    client = HDFSClient(os.environ.get("HADOOP_HOME"), settings)
    if not client.is_dir(ready_path):
        client.makedirs(ready_path)
    client.upload(ready_path, str(mark), overwrite=True)
    with naming_wait(lambda: f"it waits for {count} files ready.{epoch}.*, one of each trainer, in {ready_path}"):
        while sum(path.rpartition("/")[2].startswith(f"ready.{epoch}.") for path in client.ls(ready_path)) < count:
            time.sleep(PAUSE)


_LOGGER = get_logger(__name__, logging.INFO, fmt="%(asctime)s-%(levelname)s: %(message)s")


def _buckets(var: Any) -> Any:
    """The cumulative sums of the counts in a variable, from the last one to the first."""
    return np.array(var.get_tensor()).reshape(-1)[::-1].cumsum(dtype="float64")


class FleetUtil:
    """Utilities for scripts of Fleet beside training. Models of the mode `pslib` are refused where they are used."""

    def __init__(self, mode: str = "pslib"):
        if mode not in ("pslib", "transpiler"):
            raise ValueError(f"the mode is 'pslib' or 'transpiler', not {mode!r}")

    def __getattr__(self, name: str) -> Any:
        raise unsupported_error(
            f"FleetUtil.{name}", "it is of pslib, whose servers are not here; use fluid.io and fleet"
        )

    def rank0_print(self, s: Any) -> None:
        """Prints a value, in trainer 0 only."""
        if fleet.worker_index() == 0:
            print(s, flush=True)

    def rank0_info(self, s: Any) -> None:
        """Writes a message to the log, in trainer 0 only."""
        if fleet.worker_index() == 0:
            _LOGGER.info(s)

    def rank0_error(self, s: Any) -> None:
        """Writes an error to the log, in trainer 0 only."""
        if fleet.worker_index() == 0:
            _LOGGER.error(s)

    def set_zero(self, var_name: str, scope: Any = None, place: Any = None, param_type: str = "int64") -> None:
        """Fills a variable with zeros of the element type `param_type`."""
        tensor = (scope or global_scope()).var(var_name).get_tensor()
        tensor.set(np.zeros(np.array(tensor).shape, param_type), place)

    def get_global_auc(
        self, scope: Any = None, stat_pos: str = "_generated_var_2", stat_neg: str = "_generated_var_3"
    ) -> float | None:
        """The area under the curve from the counts of `layers.auc`; None where the scope has no such variables.

        Raises NotHere for several trainers, whose counts would have to be added up.
        """
        held = [(scope or global_scope()).find_var(name) for name in (stat_pos, stat_neg)]
        if any(var is None for var in held):
            self.rank0_print("not found auc bucket")
            return None
        if fleet.worker_num() > 1:
            raise unsupported_error("get_global_auc of several trainers", "fetch the buckets of each, and add them up")
        positive, negative = (_buckets(var) for var in held)
        total = positive[-1] * negative[-1]
        if not total:
            return 0.5
        steps = np.diff(negative, prepend=0.0)
        return float((steps * (positive + np.concatenate(([0.0], positive[:-1])))).sum() / 2 / total)

    def print_global_auc(
        self,
        scope: Any = None,
        stat_pos: str = "_generated_var_2",
        stat_neg: str = "_generated_var_3",
        print_prefix: str = "",
    ) -> None:
        """Prints the area under the curve, in trainer 0 only. Raises NotHere for several trainers."""
        self.rank0_print(f"{print_prefix} global auc = {self.get_global_auc(scope, stat_pos, stat_neg)}")

    def get_online_pass_interval(
        self, days: str, hours: str, split_interval: int | str, split_per_pass: int | str, is_data_hourly_placed: bool
    ) -> list[list[str]]:
        """The names of the intervals of a day that each pass trains on: intervals of `split_interval` minutes,
        `split_per_pass` of them a pass.

        `hours` is expanded by the shell, for example `{0..23}` or `1 2 3`. Intervals that do not fill a pass are left
        out.
        """
        shell = subprocess.run(["bash", "-c", f"echo -n {hours}"], capture_output=True, text=True, check=True)
        first, *_, last = [int(hour) for hour in shell.stdout.split()] * 2
        minutes, count = int(split_interval), int(split_per_pass)
        starts = [divmod(start, 60) for start in range(0, 24 * 60 // minutes * minutes, minutes)]
        names = [
            f"{hour:02d}" if is_data_hourly_placed else f"{hour:02d}{minute:02d}"
            for hour, minute in starts
            if first <= hour <= last
        ]
        return [names[start : start + count] for start in range(0, len(names) // count * count, count)]


__getattr__ = names_of_fluid(__name__, globals())
