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

    Letters that the result does not have are summed over; `...` stands for the dims that have no letter, of which those
    of size 1 are repeated. A letter that an operand has several times takes its diagonal; one that the result has
    several times puts values on its diagonal, with zeros beside it. Without `->` the result has the letters that occur
    once, in the order of the alphabet.
    Raises ValueError for an equation that is none, that does not go with the operands, or that takes a diagonal whose
    size is not known before the program runs.
    """
    terms, result = _parsed(equation.replace(" ", ""), list(operands))
    sizes = _sizes(equation, terms)
    terms = [_diagonal(term, sizes) for term in terms]
    kept = "".join(dict.fromkeys(result))
    made = _summed(terms[0], "".join([kept, *(term.letters for term in terms[1:])]))
    for number, right in enumerate(terms[1:], 2):
        later = "".join([kept, *(term.letters for term in terms[number:])])
        made = _product(made, _summed(right, later + made.letters), later, sizes)
    return _spread(made, result, sizes)


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
        dots = max(dots, front, key=len)
        terms.append(_Term(held, letters))
    if not arrow:
        every = "".join(term.letters for term in terms)
        result = dots + "".join(sorted(letter for letter in every if every.count(letter) == 1 and letter not in dots))
    elif dots and _DOTS not in result:
        raise ValueError(f"einsum: the result of {equation!r} does not have the dims without letters; end it with ...")
    result = result.replace(_DOTS, dots, 1)
    if not set(result) <= set("".join(term.letters for term in terms)):
        raise ValueError(f"einsum: the result of {equation!r} is none of letters of its operands")
    return _without_ones(terms, dots), result


def _without_ones(terms: Sequence[_Term], dots: str) -> list[_Term]:
    """The operands without those dims of size 1 that have no letter, and that another operand has in another size."""
    longer = {letter for held, letters in terms for letter, size in zip(letters, held.shape, strict=True) if size != 1}
    made: list[_Term] = []
    for held, letters in terms:
        gone = [
            place
            for place, letter in enumerate(letters)
            if letter in dots and letter in longer and held.shape[place] == 1
        ]
        left = "".join(letter for place, letter in enumerate(letters) if place not in gone)
        made.append(_Term(L.squeeze(held, gone), left) if gone else _Term(held, letters))
    return made


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


def _diagonal(term: _Term, sizes: dict[str, Any]) -> _Term:
    """The operand with every letter once: the diagonal of dims that have the same letter."""
    held, letters = term
    while repeated := _repeated(letters):
        places = [place for place, letter in enumerate(letters) if letter == repeated][:2]
        beside = [place for place in range(len(letters)) if place not in places]
        others, size = [letters[place] for place in beside], _known(repeated, sizes, letters)
        dims = [sizes[letter] for letter in others]
        flat = _reshaped(L.transpose(held, [*beside, *places]), [*dims, size * size])
        # In rows of one more element, the elements of the diagonal stand below one another.
        rows = _reshaped(L.pad(flat, [*[0, 0] * len(dims), 0, size]), [*dims, size, size + 1])
        last = len(dims) + 1
        held = L.squeeze(L.slice(rows, [last], [0], [1]), [last])
        letters = "".join([*others, repeated])
    return _Term(held, letters)


def _spread(term: _Term, result: str, sizes: dict[str, Any]) -> Any:
    """The values with the dims of the result: zeros where dims with the same letter differ in place."""
    held, letters = _ordered(term, "".join(dict.fromkeys(result))), "".join(dict.fromkeys(result))
    while len(letters) < len(result):
        repeated = next(letter for letter in letters if letters.count(letter) < result.count(letter))
        size = _known(repeated, sizes, result)
        place = letters.index(repeated)
        beside = [other for other in range(len(letters)) if other != place]
        letters = "".join([*(letters[other] for other in beside), repeated, repeated])
        dims = [sizes[letter] for letter in letters[:-2]]
        column = _reshaped(L.transpose(held, [*beside, place]), [*dims, size, 1])
        # `size` zeros behind each value put it one place further on in each row of `size`.
        flat = _reshaped(L.pad(column, [*[0, 0] * (len(dims) + 1), 0, size]), [*dims, size * (size + 1)])
        held = _reshaped(L.slice(flat, [len(dims)], [0], [size * size]), [*dims, size, size])
    return _ordered(_Term(held, letters), result)


def _repeated(letters: str) -> str:
    """The first letter that occurs several times, if one does."""
    return next((letter for letter in letters if letters.count(letter) > 1), "")


def _known(letter: str, sizes: dict[str, Any], letters: str) -> int:
    if not isinstance(sizes[letter], int):
        raise ValueError(f"einsum: the size of {letter} in {letters!r}, where it stands twice, must be known")
    return sizes[letter]


def _summed(term: _Term, kept: str) -> _Term:
    """Without the dims whose letters nothing else has."""
    gone = [place for place, letter in enumerate(term.letters) if letter not in kept]
    if not gone:
        return term
    left = "".join(letter for letter in term.letters if letter in kept)
    return _Term(L.reduce_sum(term.held, dim=gone), left)


def _ordered(term: _Term, letters: str) -> Any:
    """The operand with its dims in the order of these letters."""
    places: list[int] = []
    for letter in letters:
        places.append(next(n for n, other in enumerate(term.letters) if other == letter and n not in places))
    return term.held if places == sorted(places) else L.transpose(term.held, places)


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
    return _reshaped(term.held, [_size([sizes[letter] for letter in group]) for group in groups])


def _reshaped(held: Any, dims: Sequence[Any]) -> Any:
    """A variable with these dims, which are numbers and variables with numbers."""
    first = next((place for place, dim in enumerate(dims) if not isinstance(dim, int)), None)
    return L.reshape(held, [-1 if place == first else dim for place, dim in enumerate(dims)])


def _size(sizes: Sequence[Any]) -> Any:
    """The product of numbers and of variables with numbers."""
    number = prod(size for size in sizes if isinstance(size, int))
    made: Any = None
    for size in sizes:
        if not isinstance(size, int):
            made = size if made is None else L.elementwise_mul(made, size)
    return number if made is None else made if number == 1 else L.scale(made, float(number))
