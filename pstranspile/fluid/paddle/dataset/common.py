"""Fluid's `paddle.dataset.common`: the folders with the files of data sets. Nothing is downloaded."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Iterator
from glob import glob
from typing import Any

DATA_HOME = os.path.expanduser("~/.cache/paddle/dataset")
"""The folder with a folder for each data set."""


def md5file(fname: str) -> str:
    """The MD5 checksum of a file, in hexadecimal."""
    with open(fname, "rb") as file:
        return hashlib.md5(file.read()).hexdigest()


def download(url: str, module_name: str, md5sum: str, save_name: str | None = None) -> str:
    """The path of a file of a data set. Raises FileNotFoundError, which says where to put the file, if
    it is missing.
    """
    path = os.path.join(DATA_HOME, module_name, save_name or url.split("/")[-1])
    if not os.path.exists(path):
        raise FileNotFoundError(f"the data set {module_name} is not there: put what {url} gives at {path}")
    return path


def must_mkdirs(path: str) -> None:
    """Makes a folder, if it does not exist."""
    os.makedirs(path, exist_ok=True)


def split(
    reader: Callable[[], Any], line_count: int, suffix: str = "%05d.pickle", dumper: Callable[..., Any] = pickle.dump
) -> None:
    """Writes a reader's samples to files of `line_count` samples each."""
    samples: list[Any] = []
    number = 0
    for sample in reader():
        samples.append(sample)
        if len(samples) == line_count:
            _dump(samples, suffix % number, dumper)
            samples, number = [], number + 1
    if samples:
        _dump(samples, suffix % number, dumper)


def _dump(samples: list[Any], path: str, dumper: Callable[..., Any]) -> None:
    with open(path, "wb") as file:
        dumper(samples, file)


def cluster_files_reader(
    files_pattern: str, trainer_count: int, trainer_id: int, loader: Callable[..., Any] = pickle.load
) -> Callable[[], Iterator[Any]]:
    """A reader of the samples in every `trainer_count`-th of the files, beginning with number `trainer_id`."""

    def samples() -> Iterator[Any]:
        for path in sorted(glob(files_pattern))[trainer_id::trainer_count]:
            with open(path, "rb") as file:
                yield from loader(file)

    return samples
