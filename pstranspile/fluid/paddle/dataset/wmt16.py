"""The WMT 2016 data set (task 1, tokenized): sentences in English and German."""

from __future__ import annotations

import os
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pstranspile.fluid.paddle.dataset import common

TOTAL_EN_WORDS = 11250
"""The greatest size of the English dictionary."""

TOTAL_DE_WORDS = 19220
"""The greatest size of the German dictionary."""
START_MARK, END_MARK, UNK_MARK = "<s>", "<e>", "<unk>"
_AT = "http://paddlemodels.bj.bcebos.com/wmt/wmt16.tar.gz"
_COLUMNS = {"en": 0, "de": 1}


def _archive() -> str:
    return common.download(_AT, "wmt16", "", "wmt16.tar.gz")


def _pairs(part: str) -> Iterator[list[str]]:
    """The pairs of sentences in both languages."""
    with tarfile.open(_archive()) as archive:
        file = archive.extractfile(f"wmt16/{part}")
        assert file is not None
        for line in file:
            sides = line.decode().strip().split("\t")
            if len(sides) == 2:
                yield sides


@cache
def _words_by_frequency(path: str, changed: int, column: int) -> list[str]:
    """The words of one language in the pairs for training, the most frequent first."""
    return [
        word for word, _ in Counter(word for pair in _pairs("train") for word in pair[column].split()).most_common()
    ]


def _words(lang: str, size: int) -> list[str]:
    """The words of a language, in the order of their indices: those of a dictionary file beside the archive, otherwise
    the most frequent ones.
    """
    written = Path(common.DATA_HOME, "wmt16", f"{lang}_{size}.dict")
    if written.exists():
        lines = written.read_text("utf-8").splitlines()
        if len(lines) == size:
            return [line.strip() for line in lines]
    path = _archive()
    counted = _words_by_frequency(path, os.stat(path).st_mtime_ns, _COLUMNS[lang])
    return [START_MARK, END_MARK, UNK_MARK, *counted][: max(size, 3)]


def _limit_dict_size(lang: str, size: int) -> int:
    return min(size, TOTAL_EN_WORDS if lang == "en" else TOTAL_DE_WORDS)


def _require_language(lang: str) -> None:
    if lang not in _COLUMNS:
        raise ValueError(f"the languages are en (English) and de (German), not {lang!r}")


def get_dict(lang: str, dict_size: int, reverse: bool = False) -> dict[Any, Any]:
    """The indices of a language's words, or with `reverse` the words by index. Raises ValueError for an unknown
    language.
    """
    _require_language(lang)
    words = _words(lang, _limit_dict_size(lang, dict_size))
    return dict(enumerate(words)) if reverse else {word: number for number, word in enumerate(words)}


def _reader(part: str, src_dict_size: int, trg_dict_size: int, src_lang: str) -> Callable[[], Iterator[Any]]:
    _require_language(src_lang)
    trg_lang = "de" if src_lang == "en" else "en"

    def samples() -> Iterator[Any]:
        source_words, target_words = get_dict(src_lang, src_dict_size), get_dict(trg_lang, trg_dict_size)
        start, end, unknown = (source_words[mark] for mark in (START_MARK, END_MARK, UNK_MARK))
        for pair in _pairs(part):
            source = [source_words.get(word, unknown) for word in pair[_COLUMNS[src_lang]].split()]
            target = [target_words.get(word, unknown) for word in pair[_COLUMNS[trg_lang]].split()]
            yield [start, *source, end], [start, *target], [*target, end]

    return samples


def train(src_dict_size: int, trg_dict_size: int, src_lang: str = "en") -> Callable[[], Iterator[Any]]:
    """A reader of the pairs for training: a sentence, its translation after a start mark, and the translation before an
    end mark.

    Raises ValueError for languages other than en and de.
    """
    return _reader("train", src_dict_size, trg_dict_size, src_lang)


def test(src_dict_size: int, trg_dict_size: int, src_lang: str = "en") -> Callable[[], Iterator[Any]]:
    """A reader of the pairs for tests."""
    return _reader("test", src_dict_size, trg_dict_size, src_lang)


def validation(src_dict_size: int, trg_dict_size: int, src_lang: str = "en") -> Callable[[], Iterator[Any]]:
    """A reader of the pairs for validation."""
    return _reader("val", src_dict_size, trg_dict_size, src_lang)


def fetch() -> None:
    """Raises FileNotFoundError, which says where to put the archive, if it is missing."""
    _archive()
