"""Fluid's `contrib.utils`: copies folders of a hadoop cluster's file system, several files at a time."""

from __future__ import annotations

import os
from itertools import repeat
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from pstranspile.fluid.dataloader import Workers
from pstranspile.fluid.incubate.fleet import utils as hdfs
from pstranspile.fluid.missing import names_of_fluid


class HDFSClient(hdfs.HDFSClient):
    """Fleet's client, with the signatures that older scripts call."""

    def download(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, hdfs_path: str, local_path: str, overwrite: bool = False, unzip: bool = False
    ) -> None:
        """Copies a file or folder to this host; with `unzip` also extracts the file, which is an archive."""
        super().download(hdfs_path, local_path, overwrite)
        if unzip:
            here = Path(local_path)
            held = here / Path(hdfs_path).name if here.is_dir() else here
            with ZipFile(held) as archive:
                archive.extractall(held.parent)

    def lsr(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, hdfs_path: str, only_file: bool = True, sort: bool = True
    ) -> list[str]:
        """The files in a folder and in all folders below it; without `only_file` these folders too."""
        found = self._list_paths("-lsr", hdfs_path, kind="-" if only_file else "")
        return sorted(found) if sort else found


def _beside(path: str, folder: str, other: str) -> str:
    """The folder below `other` that corresponds to the folder of `path` below `folder`."""
    return os.path.normpath(os.path.join(other, os.path.relpath(os.path.dirname(path), folder)))


def multi_download(
    client: HDFSClient, hdfs_path: str, local_path: str, trainer_id: int, trainers: int, multi_processes: int = 5
) -> list[str]:
    """Copies every `trainers`-th file of a folder to this host, beginning with number `trainer_id`; returns the local
    paths.
    """
    client.make_local_dirs(local_path)
    mine = client.lsr(hdfs_path)[trainer_id::trainers]
    folders = [_beside(path, hdfs_path, local_path) for path in mine]
    for folder in dict.fromkeys(folders):
        client.make_local_dirs(folder)
    with Workers[Any](max(multi_processes, 1)) as pool:
        list(pool.map(client.download, mine, folders))
    return [os.path.join(folder, os.path.basename(path)) for path, folder in zip(mine, folders, strict=True)]


def multi_upload(
    client: HDFSClient,
    hdfs_path: str,
    local_path: str,
    multi_processes: int = 5,
    overwrite: bool = False,
    sync: bool = True,
) -> None:
    """Copies the files in a folder, and in all folders below it, to the cluster."""
    files = [os.path.join(folder, name) for folder, _, names in os.walk(local_path) for name in names]
    folders = [_beside(path, local_path, hdfs_path) for path in files]
    for folder in dict.fromkeys(folders):
        client.makedirs(folder)
    with Workers[Any](max(multi_processes, 1)) as pool:
        list(pool.map(client.upload, folders, files, repeat(overwrite)))


__getattr__ = names_of_fluid(__name__, globals())
