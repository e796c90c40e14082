"""Fluid's client of a hadoop cluster's file system, by the commands of `hadoop fs`."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from pstranspile.fluid.missing import names_of_fluid

_PAUSE = 3.0
"""Seconds before a command is tried again."""


class HDFSClient:
    """Runs `HADOOP_HOME/bin/hadoop fs`, with settings such as `fs.default.name`.

    Commands that change something raise OSError with what hadoop says, after `retry_times` more tries.
    """

    def __init__(self, hadoop_home: str | None, configs: Mapping[str, str | None]):
        settings = [f"-D{name}={value}" for name, value in configs.items() if value is not None]
        self.pre_commands = [f"{hadoop_home}/bin/hadoop" if hadoop_home else "hadoop", "fs", *settings]

    def _run(self, *command: str, retry_times: int = 0) -> subprocess.CompletedProcess[str]:
        """A command of hadoop, which says by its status whether it was done. Raises OSError where it is not there."""
        for again in range(retry_times, -1, -1):
            done = subprocess.run([*self.pre_commands, *command], capture_output=True, text=True, check=False)
            if not done.returncode or not again:
                return done
            time.sleep(_PAUSE)
        raise AssertionError("unreachable")

    def _do(self, *command: str, retry_times: int) -> str:
        """What a command prints. Raises OSError if it fails."""
        done = self._run(*command, retry_times=retry_times)
        if done.returncode:
            raise OSError(f"hadoop fs {' '.join(command)} ends with status {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def is_exist(self, hdfs_path: str) -> bool:
        """Whether there is something at a path."""
        return not self._run("-test", "-e", hdfs_path).returncode

    def is_dir(self, hdfs_path: str) -> bool:
        """Whether a path is that of a folder."""
        return not self._run("-test", "-d", hdfs_path).returncode

    def is_file(self, hdfs_path: str) -> bool:
        """Whether a path is that of a file."""
        return self.is_exist(hdfs_path) and not self.is_dir(hdfs_path)

    def cat(self, hdfs_path: str) -> str:
        """What a file holds. Raises OSError."""
        return self._do("-cat", hdfs_path, retry_times=1).strip()

    def makedirs(self, hdfs_path: str) -> None:
        """Makes a folder, and those around it."""
        self._do("-mkdir", "-p", hdfs_path, retry_times=5)

    @staticmethod
    def make_local_dirs(local_path: str) -> None:
        """Makes a folder of this host, and those around it."""
        Path(local_path).mkdir(parents=True, exist_ok=True)

    def delete(self, hdfs_path: str) -> None:
        """Takes away what is at a path, if anything."""
        if self.is_exist(hdfs_path):
            self._do("-rm", "-r", hdfs_path, retry_times=5)

    def rename(self, hdfs_src_path: str, hdfs_dst_path: str, overwrite: bool = False) -> None:
        """Gives a file or folder another path; with `overwrite` in place of what is there."""
        if overwrite:
            self.delete(hdfs_dst_path)
        self._do("-mv", hdfs_src_path, hdfs_dst_path, retry_times=5)

    def ls(self, hdfs_path: str) -> list[str]:
        """The paths in a folder; none if it is not there."""
        return self._listed("-ls", hdfs_path) if self.is_dir(hdfs_path) else []

    def lsr(self, hdfs_path: str, excludes: tuple[str, ...] | list[str] = ()) -> list[str]:
        """The files in a folder and in those in it, but for some names; none if it is not there."""
        found = self._listed("-lsr", hdfs_path, kind="-") if self.is_dir(hdfs_path) else []
        return [path for path in found if path.rpartition("/")[2] not in excludes]

    def _listed(self, *command: str, kind: str = "") -> list[str]:
        lines = (line.split(None, 7) for line in self._do(*command, retry_times=10).splitlines())
        return sorted(fields[7] for fields in lines if len(fields) == 8 and fields[0].startswith(kind))

    def upload(self, hdfs_path: str, local_path: str, overwrite: bool = False, retry_times: int = 5) -> None:
        """Copies a file or folder from this host; with `overwrite` in place of what is there."""
        if overwrite and self.is_file(hdfs_path):
            self.delete(hdfs_path)
        self._do("-put", *(["-f"] if overwrite else []), local_path, hdfs_path, retry_times=retry_times)

    def download(self, hdfs_path: str, local_path: str, overwrite: bool = False, retry_times: int = 5) -> None:
        """Copies a file or folder to this host; with `overwrite` in place of what is there."""
        self._do("-get", *(["-f"] if overwrite else []), hdfs_path, local_path, retry_times=retry_times)


__getattr__ = names_of_fluid(__name__, globals())
