"""The MovieLens data set of people's ratings of films."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from pstranspile.fluid.paddle.dataset.common import download
from pstranspile.ir.patterns import Pattern

age_table = [1, 18, 25, 35, 45, 50, 56]
_AT = "https://dataset.bj.bcebos.com/movielens%2Fml-1m.zip"
_TITLE = Pattern(r"(.*)\(\d+\)\Z")


@dataclass(frozen=True)
class MovieInfo:
    """A film: its number, its genres, and its title without the year."""

    index: int
    categories: tuple[str, ...]
    title: str

    def value(self) -> list[Any]:
        """The film as numbers: its own, those of its genres, and those of the words of its title."""
        kinds, words = movie_categories(), get_movie_title_dict()
        return [self.index, [kinds[kind] for kind in self.categories], [words[w.lower()] for w in self.title.split()]]


@dataclass(frozen=True)
class UserInfo:
    """A person: number, sex, index of the age in `age_table`, number of the job."""

    index: int
    is_male: bool
    age: int
    job_id: int

    def value(self) -> list[int]:
        """The person as numbers; the sex is 0 for men and 1 for women."""
        return [self.index, 0 if self.is_male else 1, self.age, self.job_id]


def _rows(part: str) -> Iterator[list[str]]:
    with zipfile.ZipFile(download(_AT, "movielens", "")) as archive, archive.open(f"ml-1m/{part}.dat") as lines:
        for line in lines:
            yield line.decode("latin").strip().split("::")


@cache
def movie_info() -> dict[int, MovieInfo]:
    """The films by number. Raises ValueError for a title without a year."""
    made: dict[int, MovieInfo] = {}
    for number, titled, kinds in _rows("movies"):
        match = _TITLE.match(titled)
        if match is None:
            raise ValueError(f"the film {titled!r} has no year in brackets")
        made[int(number)] = MovieInfo(int(number), tuple(kinds.split("|")), match[1])
    return made


@cache
def user_info() -> dict[int, UserInfo]:
    """The people, by number."""
    rows = _rows("users")
    return {int(n): UserInfo(int(n), sex == "M", age_table.index(int(age)), int(job)) for n, sex, age, job, _ in rows}


def _word_numbers(words: Iterable[str]) -> dict[str, int]:
    return {word: number for number, word in enumerate(sorted(set(words)))}


@cache
def movie_categories() -> dict[str, int]:
    """The genres of films, numbered."""
    return _word_numbers(kind for film in movie_info().values() for kind in film.categories)


@cache
def get_movie_title_dict() -> dict[str, int]:
    """The words of all titles in lower case, numbered."""
    return _word_numbers(word.lower() for film in movie_info().values() for word in film.title.split())


def max_movie_id() -> int:
    """The largest number of a film."""
    return max(movie_info())


def max_user_id() -> int:
    """The largest number of a person."""
    return max(user_info())


def max_job_id() -> int:
    """The largest number of a job."""
    return max(user.job_id for user in user_info().values())


def _reader(is_test: bool, rand_seed: int = 0, test_ratio: float = 0.1) -> Callable[[], Iterator[Any]]:
    def samples() -> Iterator[Any]:
        films, people = movie_info(), user_info()
        draw = np.random.RandomState(rand_seed)
        for person, film, rating, _ in _rows("ratings"):
            if (draw.random_sample() < test_ratio) == is_test:
                yield [*people[int(person)].value(), *films[int(film)].value(), [float(rating) * 2 - 5.0]]

    return samples


def train() -> Callable[[], Iterator[Any]]:
    """A reader of the ratings for training: a person, a film, and the rating from -3 to 5."""
    return _reader(False)


def test() -> Callable[[], Iterator[Any]]:
    """A reader of the ratings for tests."""
    return _reader(True)
