"""Fluid's file systems for checkpoints: the local one."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from typing import Any

from pstranspile.fluid.missing import refused


class FS(ABC):
    """A file system in which checkpoints are kept."""

    @abstractmethod
    def list_dirs(self, fs_path: str) -> list[str]:
        """The folders in a folder, by name; none if it is not there."""

    @abstractmethod
    def ls_dir(self, fs_path: str) -> Any:
        """What is in a folder."""

    @abstractmethod
    def stat(self, fs_path: str) -> bool:
        """Whether there is something at a path."""

    @abstractmethod
    def mkdir(self, fs_path: str) -> None:
        """Makes a folder, and those around it."""

    @abstractmethod
    def mv(self, fs_src_path: str, fs_dst_path: str) -> None:
        """Gives a file or folder another path."""

    @abstractmethod
    def rmr(self, fs_path: str) -> None:
        """Takes away a folder and what is in it."""

    @abstractmethod
    def rm(self, fs_path: str) -> None:
        """Takes away a file."""

    @abstractmethod
    def delete(self, fs_path: str) -> None:
        """Takes away what is at a path, if anything."""

    @abstractmethod
    def need_upload_download(self) -> bool:
        """Whether files go there from, and come back to, this host."""

    def upload(self, local_path: str, fs_path: str) -> None:
        """Copies from this host."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it uploads")

    def download(self, fs_path: str, local_path: str) -> None:
        """Copies to this host."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it downloads")


class LocalFS(FS):
    """The file system of this host."""

    def list_dirs(self, fs_path: str) -> list[str]:
        """The folders in a folder, by name; none if it is not there."""
        if not self.stat(fs_path):
            return []
        return [name for name in self.ls_dir(fs_path) if os.path.isdir(os.path.join(fs_path, name))]

    def ls_dir(self, fs_path: str) -> list[str]:
        """What is in a folder, by name."""
        return sorted(os.listdir(fs_path))

    def stat(self, fs_path: str) -> bool:
        """Whether there is something at a path."""
        return os.path.exists(fs_path)

    def mkdir(self, fs_path: str) -> None:
        """Makes a folder, and those around it."""
        os.makedirs(fs_path, exist_ok=True)

    def mv(self, fs_src_path: str, fs_dst_path: str) -> None:
        """Gives a file or folder another path."""
        os.rename(fs_src_path, fs_dst_path)

    def rmr(self, fs_path: str) -> None:
        """Takes away a folder and what is in it."""
        shutil.rmtree(fs_path)

    def rm(self, fs_path: str) -> None:
        """Takes away a file."""
        os.remove(fs_path)

    def delete(self, fs_path: str) -> None:
        """Takes away what is at a path, if anything."""
        if os.path.isdir(fs_path):
            self.rmr(fs_path)
        elif self.stat(fs_path):
            self.rm(fs_path)

    def need_upload_download(self) -> bool:
        """False."""
        return False


class BDFS:
    """Fluid's file system of a hadoop cluster, which is refused."""

    def __init__(self, *_: Any, **__: Any):
        raise refused("fs_wrapper.BDFS", "mount the cluster's file system, and give a LocalFS its path")
