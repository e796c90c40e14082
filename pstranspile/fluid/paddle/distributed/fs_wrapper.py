"""Fluid's file systems for checkpoints, of which the local one is supported."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from typing import Any

from pstranspile.fluid.missing import unsupported_error


class FS(ABC):
    """The base class of file systems for checkpoints."""

    @abstractmethod
    def list_dirs(self, fs_path: str) -> list[str]:
        """The names of the folders in a folder; none if it does not exist."""

    @abstractmethod
    def ls_dir(self, fs_path: str) -> Any:
        """The contents of a folder."""

    @abstractmethod
    def stat(self, fs_path: str) -> bool:
        """Whether a path exists."""

    @abstractmethod
    def mkdir(self, fs_path: str) -> None:
        """Makes a folder, and its parent folders."""

    @abstractmethod
    def mv(self, fs_src_path: str, fs_dst_path: str) -> None:
        """Moves a file or folder to another path."""

    @abstractmethod
    def rmr(self, fs_path: str) -> None:
        """Removes a folder and its contents."""

    @abstractmethod
    def rm(self, fs_path: str) -> None:
        """Removes a file."""

    @abstractmethod
    def delete(self, fs_path: str) -> None:
        """Removes a file or folder, if it exists."""

    @abstractmethod
    def need_upload_download(self) -> bool:
        """Whether files must be copied between this host and the file system."""

    def upload(self, local_path: str, fs_path: str) -> None:
        """Copies a file from this host to the file system."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it uploads")

    def download(self, fs_path: str, local_path: str) -> None:
        """Copies a file from the file system to this host."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it downloads")


class LocalFS(FS):
    """The file system of this host."""

    def list_dirs(self, fs_path: str) -> list[str]:
        """The names of the folders in a folder; none if it does not exist."""
        if not self.stat(fs_path):
            return []
        return [name for name in self.ls_dir(fs_path) if os.path.isdir(os.path.join(fs_path, name))]

    def ls_dir(self, fs_path: str) -> list[str]:
        """The names in a folder, sorted."""
        return sorted(os.listdir(fs_path))

    def stat(self, fs_path: str) -> bool:
        """Whether a path exists."""
        return os.path.exists(fs_path)

    def mkdir(self, fs_path: str) -> None:
        """Makes a folder, and its parent folders."""
        os.makedirs(fs_path, exist_ok=True)

    def mv(self, fs_src_path: str, fs_dst_path: str) -> None:
        """Moves a file or folder to another path."""
        os.rename(fs_src_path, fs_dst_path)

    def rmr(self, fs_path: str) -> None:
        """Removes a folder and its contents."""
        shutil.rmtree(fs_path)

    def rm(self, fs_path: str) -> None:
        """Removes a file."""
        os.remove(fs_path)

    def delete(self, fs_path: str) -> None:
        """Removes a file or folder, if it exists."""
        if os.path.isdir(fs_path):
            self.rmr(fs_path)
        elif self.stat(fs_path):
            self.rm(fs_path)

    def need_upload_download(self) -> bool:
        """False, because this is the file system of this host."""
        return False


class BDFS:
    """Fluid's file system of a hadoop cluster; making one raises NotHere."""

    def __init__(self, *_: Any, **__: Any):
        raise unsupported_error("fs_wrapper.BDFS", "mount the cluster's file system, and give a LocalFS its path")
