"""`paddle.einsum`: sums of products that letters for dims describe, made of transposes, reshapes and `matmul`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from string import ascii_letters
from typing import Any, NamedTuple

from pstranspile.fluid import layers
from pstranspile.fluid.paddle import figures

L: Any = layers
_DOTS = "..."


class _Term(NamedTuple):
    """A variable and the letters of its dims."""

    held: Any
    letters: str


def einsum(equation: str, *operands: Any) -> Any:
    """The sums that an equation such as `bij,bjk->bik` describes.

    Letters that the result does not have are summed over; `...` stands for the dims that have no letter. Without `->`
    the result has the letters that occur once, in the order of the alphabet. Raises ValueError for an equation that is
    none, does not go with the operands, or names a dim of an operand twice.
    """
    terms, result = _parsed(equation.replace(" ", ""), list(operands))
    sizes = _sizes(equation, terms)
    made = _summed(terms[0], "".join([result, *(term.letters for term in terms[1:])]))
    for number, right in enumerate(terms[1:], 2):
        later = "".join([result, *(term.letters for term in terms[number:])])
        made = _product(made, _summed(right, later + made.letters), later, sizes)
    return _ordered(made, result)


def _parsed(equation: str, operands: list[Any]) -> tuple[list[_Term], str]:
    given, arrow, result = equation.partition("->")
    texts = given.split(",")
    if len(texts) != len(operands):
        raise ValueError(f"einsum: {equation!r} describes {len(texts)} operands, not {len(operands)}")
    unnamed = [letter for letter in reversed(ascii_letters) if letter not in equation]
    terms: list[_Term] = []
    dots = ""
    for text, held in zip(texts, operands, strict=True):
        rank = len(held.shape) - len(text.replace(_DOTS, ""))
        front = "".join(unnamed[:rank][::-1])
        letters = text.replace(_DOTS, front, 1)
        if rank < 0 or (rank and _DOTS not in text) or not (letters.isalpha() and letters.isascii()):
            raise ValueError(f"einsum: {text!r} does not describe {held.name}, which has {len(held.shape)} dims")
        if len(set(letters)) < len(letters):
            raise ValueError(f"einsum: {text!r} names a dim of {held.name} twice; take its diagonal with gather_nd")
        dots = max(dots, front, key=len)
        terms.append(_Term(held, letters))
    if not arrow:
        every = "".join(term.letters for term in terms)
        result = dots + "".join(sorted(letter for letter in every if every.count(letter) == 1 and letter not in dots))
    result = result.replace(_DOTS, dots, 1)
    strange = sorted(set(result) - set("".join(term.letters for term in terms)))
    if strange or len(set(result)) < len(result):
        raise ValueError(f"einsum: the result of {equation!r} is none of letters of its operands, each once")
    return terms, result


def _sizes(equation: str, terms: Sequence[_Term]) -> dict[str, Any]:
    """The size of the dim of each letter: a number, or a variable with it where no operand knows it beforehand."""
    known: dict[str, int] = {}
    for held, letters in terms:
        for letter, size in zip(letters, held.shape, strict=True):
            if size > 0 and known.setdefault(letter, size) != size:
                raise ValueError(f"einsum: {letter} of {equation!r} has the sizes {known[letter]} and {size}")
    sizes: dict[str, Any] = {**known}
    for held, letters in terms:
        for place, letter in enumerate(letters):
            if letter not in sizes:
                sizes[letter] = L.slice(figures.shape(held), [0], [place], [place + 1])
    return sizes


def _summed(term: _Term, kept: str) -> _Term:
    """Without the dims whose letters nothing else has."""
    gone = [place for place, letter in enumerate(term.letters) if letter not in kept]
    if not gone:
        return term
    left = "".join(letter for letter in term.letters if letter in kept)
    return _Term(L.reduce_sum(term.held, dim=gone), left)


def _ordered(term: _Term, letters: str) -> Any:
    order = [term.letters.index(letter) for letter in letters]
    return term.held if order == sorted(order) else L.transpose(term.held, order)


def _product(left: _Term, right: _Term, later: str, sizes: dict[str, Any]) -> _Term:
    """The products of two, summed over the letters that both have and nothing later does."""
    both = [letter for letter in left.letters if letter in right.letters]
    rows, inner = [letter for letter in both if letter in later], [letter for letter in both if letter not in later]
    own = [[letter for letter in term.letters if letter not in both] for term in (left, right)]
    x = _flat(_Term(_ordered(left, "".join([*rows, *own[0], *inner])), ""), [rows, own[0], inner], sizes)
    y = _flat(_Term(_ordered(right, "".join([*rows, *inner, *own[1]])), ""), [rows, inner, own[1]], sizes)
    letters = [*rows, *own[0], *own[1]]
    made = L.matmul(x, y)
    if letters:
        return _Term(_flat(_Term(made, ""), [[letter] for letter in letters], sizes), "".join(letters))
    return _Term(L.reshape(made, [1]), "")


def _flat(term: _Term, groups: Sequence[Sequence[str]], sizes: dict[str, Any]) -> Any:
    """The operand with one dim for each group of letters."""
    dims = [_size([sizes[letter] for letter in group]) for group in groups]
    open_ones = [place for place, dim in enumerate(dims) if not isinstance(dim, int)]
    if open_ones:
        dims[open_ones[0]] = -1
    return L.reshape(term.held, dims)


def _size(sizes: Sequence[Any]) -> Any:
    """The product of numbers and of variables with numbers."""
    number = prod(size for size in sizes if isinstance(size, int))
    made: Any = None
    for size in sizes:
        if not isinstance(size, int):
            made = size if made is None else L.elementwise_mul(made, size)
    return number if made is None else made if number == 1 else L.scale(made, float(number))
