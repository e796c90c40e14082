"""The Penn treebank: n-grams, or sentences, as indices of words."""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pstranspile.fluid.paddle.dataset.common import download

_AT = "https://dataset.bj.bcebos.com/imikolov%2Fsimple-examples.tgz"
_FILE = "./simple-examples/data/ptb.{}.txt"


class DataType:
    """The kinds of samples: n-grams, or whole sentences."""

    NGRAM = 1
    SEQ = 2


def _archive() -> str:
    return download(_AT, "imikolov", "")


def _lines(part: str) -> Iterator[str]:
    with tarfile.open(_archive()) as archive:
        file = archive.extractfile(_FILE.format(part))
        assert file is not None
        yield from (line.decode() for line in file)


def word_count(lines: Iterator[str], word_freq: Counter[str] | None = None) -> Counter[str]:
    """The number of occurrences of each word in some lines, with `<s>` and `<e>` for the ends of lines."""
    counts = Counter[str]() if word_freq is None else word_freq
    for line in lines:
        counts.update([*line.strip().split(), "<s>", "<e>"])
    return counts


def build_dict(min_word_freq: int = 50) -> dict[str, int]:
    """The index of every word that occurs more than `min_word_freq` times: the most frequent word
    first, `<unk>` last.
    """
    counts = word_count(_lines("valid"), word_count(_lines("train")))
    counts.pop("<unk>", None)
    kept = sorted(((w, n) for w, n in counts.items() if n > min_word_freq), key=lambda pair: (-pair[1], pair[0]))
    numbers = {word: number for number, (word, _) in enumerate(kept)}
    return {**numbers, "<unk>": len(numbers)}


def _reader(part: str, word_idx: Mapping[str, int], n: int, data_type: int) -> Callable[[], Iterator[Any]]:
    unknown = word_idx["<unk>"]

    def samples() -> Iterator[Any]:
        for line in _lines(part):
            words = line.strip().split()
            if data_type == DataType.NGRAM:
                if n < 0:
                    raise ValueError(f"n-grams need a positive n, not {n}")
                numbers = [word_idx.get(word, unknown) for word in ["<s>", *words, "<e>"]]
                for end in range(n, len(numbers) + 1):
                    yield tuple(numbers[end - n : end])
            else:
                numbers = [word_idx.get(word, unknown) for word in words]
                source, target = [word_idx["<s>"], *numbers], [*numbers, word_idx["<e>"]]
                if n <= 0 or len(source) <= n:
                    yield source, target

    return samples


def train(word_idx: Mapping[str, int], n: int, data_type: int = DataType.NGRAM) -> Callable[[], Iterator[Any]]:
    """A reader of the samples for training."""
    return _reader("train", word_idx, n, data_type)


def test(word_idx: Mapping[str, int], n: int, data_type: int = DataType.NGRAM) -> Callable[[], Iterator[Any]]:
    """A reader of the samples for tests."""
    return _reader("valid", word_idx, n, data_type)


def fetch() -> None:
    """Raises FileNotFoundError, with the names of missing files, unless all files are there."""
    _archive()
