"""Reviews of films as indices of words, and whether they are negative (0) or positive (1)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import chain
from typing import Any
from zipfile import ZipFile

from pstranspile.fluid.paddle.dataset.common import download

NUM_TRAINING_INSTANCES = 1600
NUM_TOTAL_INSTANCES = 2000
URL = "https://corpora.bj.bcebos.com/movie_reviews%2Fmovie_reviews.zip"


@cache
def _reviews() -> dict[str, list[list[str]]]:
    """The words of the negative and the positive reviews, in the order of their files."""
    found: dict[str, list[list[str]]] = {}
    with ZipFile(download(URL, "corpora", "", "movie_reviews.zip")) as archive:
        for kind in ("neg", "pos"):
            names = sorted(name for name in archive.namelist() if f"/{kind}/" in name and name.endswith(".txt"))
            texts = (archive.read(name).decode("utf-8", "replace") for name in names)
            found[kind] = [re.findall(r"\w+|[^\w\s]+", text) for text in texts]
    return found


def get_word_dict() -> list[tuple[str, int]]:
    """Every word with its index, the most frequent word first."""
    counts = Counter(word for reviews in _reviews().values() for words in reviews for word in words)
    return [(word, number) for number, (word, _) in enumerate(counts.most_common())]


def load_sentiment_data() -> list[tuple[list[int], int]]:
    """All reviews, negative and positive ones alternating."""
    ids, held = dict(get_word_dict()), _reviews()
    kinds = ([(words, kind) for words in held[name]] for kind, name in enumerate(("neg", "pos")))
    by_turns = chain.from_iterable(zip(*kinds, strict=False))
    return [([ids[word.lower()] for word in words], kind) for words, kind in by_turns]


def reader_creator(data: list[tuple[list[int], int]]) -> Iterator[Any]:
    """The samples, one by one."""
    yield from data


def train() -> Iterator[Any]:
    """The reviews for training."""
    return reader_creator(load_sentiment_data()[:NUM_TRAINING_INSTANCES])


def test() -> Iterator[Any]:
    """The reviews for tests."""
    return reader_creator(load_sentiment_data()[NUM_TRAINING_INSTANCES:])


def fetch() -> None:
    """Raises FileNotFoundError, which says what is missing, unless the file is there."""
    download(URL, "corpora", "", "movie_reviews.zip")
