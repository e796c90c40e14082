"""LETOR's MQ2007: queries, documents with 46 features each, and the relevance of each document to its query (0, 1 or
2).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from pstranspile.fluid.paddle.dataset import common

_AT = "http://www.bigdatalab.ac.cn/benchmark/upload/download_source/7b6dbbe2-842c-11e4-a536-bcaec51b9163_MQ2007.rar"
_FOLD = os.path.join("MQ2007", "MQ2007", "Fold1")
_WORDS = 48


class Query:
    """A document for a query: its relevance, its features, and a remark."""

    def __init__(
        self,
        query_id: int = -1,
        relevance_score: int = -1,
        feature_vector: list[float] | None = None,
        description: str = "",
    ):
        self.query_id, self.relevance_score, self.description = query_id, relevance_score, description
        self.feature_vector = feature_vector if feature_vector is not None else []

    def __str__(self) -> str:
        return f"{self.relevance_score} {self.query_id} {' '.join(map(str, self.feature_vector))}"

    def _parse_(self, text: str) -> Query | None:
        """Sets the attributes from a line of a file, `2 qid:10 1:0.03 ... # remark`, and returns the document; None for
        a line with another number of words.
        """
        line, _, remark = text.partition("#")
        words = line.split()
        if len(words) != _WORDS:
            sys.stdout.write(f"expect {_WORDS} space split parts, get {len(words)}")
            return None
        self.relevance_score, self.query_id = int(words[0]), int(words[1].partition(":")[2])
        self.feature_vector += [float(word.partition(":")[2]) for word in words[2:]]
        self.description = remark.strip()
        return self


class QueryList:
    """The documents for one query. Raises ValueError for documents of several queries."""

    def __init__(self, querylist: list[Query] | None = None):
        self.querylist = querylist if querylist is not None else []
        if len({query.query_id for query in self.querylist}) > 1:
            raise ValueError("query in list must be same query_id")

    @property
    def query_id(self) -> int:
        """The number of the query, -1 if there are no documents."""
        return self.querylist[0].query_id if self.querylist else -1

    def __iter__(self) -> Iterator[Query]:
        return iter(self.querylist)

    def __len__(self) -> int:
        return len(self.querylist)

    def __getitem__(self, i: int) -> Query:
        return self.querylist[i]


def _sorted_by_relevance(querylist: Iterable[Query]) -> list[Query]:
    return sorted(querylist, key=lambda query: query.relevance_score, reverse=True)


def gen_plain_txt(querylist: Sequence[Query]) -> Iterator[Any]:
    """The query's number, the relevance and the features of each document, the most relevant first."""
    for query in _sorted_by_relevance(querylist):
        yield query.query_id, query.relevance_score, np.array(query.feature_vector)


def gen_point(querylist: Sequence[Query]) -> Iterator[Any]:
    """The relevance and the features of each document, the most relevant first."""
    for query in _sorted_by_relevance(querylist):
        yield query.relevance_score, np.array(query.feature_vector)


def gen_pair(querylist: Sequence[Query], partial_order: str = "full") -> Iterator[Any]:
    """For every two documents with different relevance: 1, and their features, the more relevant first."""
    ranked = _sorted_by_relevance(querylist)
    for at, left in enumerate(ranked):
        for right in ranked[at + 1 :]:
            if left.relevance_score > right.relevance_score:
                yield np.array([1]), np.array(left.feature_vector), np.array(right.feature_vector)


def gen_list(querylist: Sequence[Query]) -> Iterator[Any]:
    """The relevances and the features of all documents, the most relevant first."""
    ranked = _sorted_by_relevance(querylist)
    yield np.array([[query.relevance_score] for query in ranked]), np.array([query.feature_vector for query in ranked])


def query_filter(querylists: Iterable[QueryList]) -> list[QueryList]:
    """The queries with a document whose relevance is above 0."""
    return [queries for queries in querylists if sum(query.relevance_score for query in queries)]


def load_from_text(filepath: str, shuffle: bool = False, fill_missing: int = -1) -> list[QueryList]:
    """The queries in a file below the folder of data sets.

    Raises FileNotFoundError, which says what is missing, unless the archive was extracted there.
    """
    path = os.path.join(common.DATA_HOME, "MQ2007", filepath)
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path} is not there: extract what {_AT} gives at {common.DATA_HOME}/MQ2007")
    with open(path, encoding="utf-8") as file:
        found = [query for query in (Query()._parse_(line) for line in file) if query is not None]  # pyright: ignore[reportPrivateUsage]
    return [QueryList(list(group)) for _, group in groupby(found, lambda query: query.query_id)]


_FORMATS = {"plain_txt": gen_plain_txt, "pointwise": gen_point, "pairwise": gen_pair, "listwise": gen_list}


def __reader__(filepath: str, format: str = "pairwise", shuffle: bool = False, fill_missing: int = -1) -> Iterator[Any]:
    for queries in query_filter(load_from_text(filepath, shuffle, fill_missing)):
        samples = _FORMATS[format](queries.querylist)
        if format == "pairwise":
            yield from samples
        else:
            yield next(samples)


train = partial(__reader__, filepath=os.path.join(_FOLD, "train.txt"))
test = partial(__reader__, filepath=os.path.join(_FOLD, "test.txt"))


def fetch() -> str:
    """The path of the archive. Raises FileNotFoundError, which says where to put it, if it is missing."""
    return common.download(_AT, "MQ2007", "")
