"""A small part of the WMT 2014 data set: sentences in two languages."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from pstranspile.fluid.paddle.dataset.common import download

START, END, UNK = "<s>", "<e>", "<unk>"
UNK_IDX = 2
_AT = "http://paddlemodels.bj.bcebos.com/wmt/wmt14.tgz"
_LONGEST = 80
"""The greatest length of a sentence; pairs with a longer one are left out."""


def _lines(ending: str) -> Iterator[str]:
    """The lines of the files whose names end with `ending`."""
    with tarfile.open(download(_AT, "wmt14", "")) as archive:
        for member in archive:
            if member.name.endswith(ending):
                file = archive.extractfile(member)
                assert file is not None
                yield from (line.decode() for line in file)


def _words(side: str, size: int) -> dict[str, int]:
    return {line.strip(): number for number, line in enumerate(islice(_lines(f"{side}.dict"), size))}


def get_dict(dict_size: int, reverse: bool = True) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """The words of both languages by index, or with `reverse` False the indices by word."""
    both = _words("src", dict_size), _words("trg", dict_size)
    return tuple({n: w for w, n in words.items()} for words in both) if reverse else both  # pyright: ignore[reportReturnType]


def _numbers(words: Mapping[str, int], sentence: list[str]) -> list[int]:
    return [words.get(word, UNK_IDX) for word in sentence]


def _reader(part: str, dict_size: int) -> Callable[[], Iterator[Any]]:
    def samples() -> Iterator[Any]:
        source_words, target_words = get_dict(dict_size, reverse=False)
        for line in _lines(part):
            sides = line.strip().split("\t")
            if len(sides) != 2:
                continue
            source = _numbers(source_words, [START, *sides[0].split(), END])
            target = _numbers(target_words, sides[1].split())
            if len(source) <= _LONGEST and len(target) <= _LONGEST:
                yield source, [target_words[START], *target], [*target, target_words[END]]

    return samples


def train(dict_size: int) -> Callable[[], Iterator[Any]]:
    """A reader of the pairs for training: a sentence, its translation after a start mark, and the translation before an
    end mark.
    """
    return _reader("train/train", dict_size)


def test(dict_size: int) -> Callable[[], Iterator[Any]]:
    """A reader of the pairs for tests."""
    return _reader("test/test", dict_size)


def gen(dict_size: int) -> Callable[[], Iterator[Any]]:
    """A reader of the pairs for generation."""
    return _reader("gen/gen", dict_size)
