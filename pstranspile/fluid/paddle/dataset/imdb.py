"""The IMDB data set: reviews of films as indices of words, and whether they are positive (0) or negative (1)."""

from __future__ import annotations

import re
import string
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pstranspile.fluid.paddle.dataset.common import download

_AT = "https://dataset.bj.bcebos.com/imdb%2FaclImdb_v1.tar.gz"
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def tokenize(pattern: re.Pattern[str]) -> Iterator[list[str]]:
    """The words of every file in the archive whose name matches the pattern."""
    with tarfile.open(download(_AT, "imdb", "")) as archive:
        for member in archive:
            if pattern.match(member.name):
                file = archive.extractfile(member)
                assert file is not None
                yield file.read().decode("latin-1").rstrip("\n\r").translate(_PUNCTUATION).lower().split()


def build_dict(pattern: re.Pattern[str], cutoff: int) -> dict[str, int]:
    """The index of every word that occurs more than `cutoff` times: the most frequent word first, `<unk>` last."""
    counts = Counter(word for words in tokenize(pattern) for word in words)
    kept = sorted(((w, n) for w, n in counts.items() if n > cutoff), key=lambda pair: (-pair[1], pair[0]))
    numbers = {word: number for number, (word, _) in enumerate(kept)}
    return {**numbers, "<unk>": len(numbers)}


def word_dict() -> dict[str, int]:
    """The indices of the words that occur more than 150 times."""
    return build_dict(re.compile(r"aclImdb/((train)|(test))/((pos)|(neg))/.*\.txt$"), 150)


def _reader(part: str, word_idx: Mapping[Any, int]) -> Callable[[], Iterator[Any]]:
    unknown = word_idx["<unk>"] if "<unk>" in word_idx else word_idx[b"<unk>"]
    held: list[Any] = []
    for label, kind in enumerate(("pos", "neg")):
        for words in tokenize(re.compile(rf"aclImdb/{part}/{kind}/.*\.txt$")):
            held.append(([word_idx.get(word, unknown) for word in words], label))
    return lambda: iter(held)


def train(word_idx: Mapping[Any, int]) -> Callable[[], Iterator[Any]]:
    """A reader of the reviews for training."""
    return _reader("train", word_idx)


def test(word_idx: Mapping[Any, int]) -> Callable[[], Iterator[Any]]:
    """A reader of the reviews for tests."""
    return _reader("test", word_idx)


def fetch() -> None:
    """Raises FileNotFoundError, with the names of missing files, unless all files are there."""
    download(_AT, "imdb", "")
