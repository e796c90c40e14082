"""Einsum as products of matrices: dims that both have are contracted or belong to the batch, the others are spread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pstranspile.frontends.onnx.graph import Refused
from pstranspile.frontends.onnx.reading import Reading, attribute, onnx_reader
from pstranspile.frontends.onnx.reshaping import reshape, sizes_of, transpose, with_x_shape
from pstranspile.frontends.onnx.sizes import is_code


class _Term(NamedTuple):
    """A value and a letter for each of its dims."""

    value: str
    letters: str


@onnx_reader("Einsum")
def _einsum(node: Any, reading: Reading) -> None:
    terms, wanted = _parsed(attribute(node, "equation"), list(node.input), reading)
    while len(terms) > 1:
        first, second, *others = terms
        later = {*wanted, *(letter for term in others for letter in term.letters)}
        kept = [letter for letter in dict.fromkeys(first.letters + second.letters) if letter in later]
        terms = [_product(first, second, "".join(kept), reading), *others]
    (term,) = terms
    term = _summed(term, [letter for letter in term.letters if letter not in wanted], reading)
    if not wanted:
        reading.scalars.add(node.output[0])
    reading.alias(node.output[0], _ordered(term, wanted, reading).value)


def _parsed(equation: str, values: list[str], reading: Reading) -> tuple[list[_Term], str]:
    """The terms of an equation, and the letters of its result; an ellipsis is written as capital Greek letters."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    spread = 0
    terms: list[_Term] = []
    for letters, value in zip(left.split(","), values, strict=True):
        rank = len(reading.dims(value))
        more = rank - len(letters.replace("...", ""))
        spread = max(spread, more if "..." in letters else 0)
        letters = letters.replace("...", _ELLIPSIS[len(_ELLIPSIS) - more :] if more > 0 else "")
        if len({*letters}) != len(letters) or len(letters) != rank:
            raise Refused(f"its equation {equation} takes a diagonal, or does not fit its inputs")
        terms.append(_Term(value, letters))
    if arrow:
        return terms, right.replace("...", _ELLIPSIS[len(_ELLIPSIS) - spread :] if spread else "")
    every = "".join(term.letters for term in terms)
    once = sorted(letter for letter in {*every} if every.count(letter) == 1 and letter not in _ELLIPSIS)
    return terms, (_ELLIPSIS[len(_ELLIPSIS) - spread :] if spread else "") + "".join(once)


_ELLIPSIS = "ΑΒΓΔΕΖΗΘ"


def _summed(term: _Term, gone: Sequence[str], reading: Reading) -> _Term:
    if not gone:
        return term
    made, dims = reading.temp(term.value), [term.letters.index(letter) for letter in gone]
    whole = len(gone) == len(term.letters)
    if whole:
        reading.scalars.add(made)
    reading.op("reduce_sum", {"X": term.value}, {"Out": made}, dim=dims, keep_dim=False, reduce_all=whole)
    return _Term(made, "".join(letter for letter in term.letters if letter not in gone))


def _ordered(term: _Term, letters: str, reading: Reading) -> _Term:
    if term.letters == letters:
        return term
    order = [term.letters.index(letter) for letter in letters]
    transpose(term.value, made := reading.temp(term.value), order, reading)
    return _Term(made, letters)


def _product(first: _Term, second: _Term, wanted: str, reading: Reading) -> _Term:
    """The product of two terms, summed over the letters that are not wanted."""
    first, second = (
        _summed(term, [letter for letter in term.letters if letter not in wanted + other.letters], reading)
        for term, other in ((first, second), (second, first))
    )
    shared = [letter for letter in first.letters if letter in second.letters]
    sizes = dict(zip(second.letters, sizes_of(second.value, reading), strict=True))
    own = dict(zip(first.letters, sizes_of(first.value, reading), strict=True))
    for letter in shared:
        if own[letter] != sizes[letter] and not is_code(own[letter]) and not is_code(sizes[letter]):
            raise Refused(f"a dim of it has {own[letter]} elements in one input and {sizes[letter]} in another")
    summed = [letter for letter in shared if letter not in wanted]
    if not summed:
        return _spread(first, second, wanted, reading)
    batch = "".join(letter for letter in shared if letter in wanted)
    rows = "".join(letter for letter in first.letters if letter not in shared)
    columns = "".join(letter for letter in second.letters if letter not in shared)
    inner = "".join(summed)
    left = _matrices(_ordered(first, batch + rows + inner, reading), len(batch), len(rows), reading)
    right = _matrices(_ordered(second, batch + inner + columns, reading), len(batch), len(inner), reading)
    product = reading.made("matmul", left, X=left, Y=right)
    sizes |= own
    made = _Term(reading.temp(product), batch + rows + columns)
    if len(rows) == len(columns) == 1:
        made = made._replace(value=product)
    else:
        reshape(product, made.value, [sizes[letter] for letter in made.letters], reading)
        if not made.letters:
            reading.scalars.add(made.value)
    return made


def _matrices(term: _Term, batch: int, rows: int, reading: Reading) -> str:
    """A value as matrices: `batch` dims, `rows` dims as one, the rest as one."""
    sizes = sizes_of(term.value, reading)
    parts = [sizes[batch : batch + rows], sizes[batch + rows :]]
    if [len(part) for part in parts] == [1, 1]:
        return term.value
    dims = sizes[:batch]
    for part in parts:
        size = 1
        for dim in part:
            size = reading.sizes.combined("Mul", size, dim) if is_code(size) or is_code(dim) else size * dim
        dims.append(size)
    reshape(term.value, made := reading.temp(term.value), dims, reading)
    return made


def _spread(first: _Term, second: _Term, wanted: str, reading: Reading) -> _Term:
    """The product element by element, each term with a dim of size 1 where only the other has one."""
    values: list[str] = []
    for term in (first, second):
        value = _ordered(term, "".join(letter for letter in wanted if letter in term.letters), reading).value
        axes = [at for at, letter in enumerate(wanted) if letter not in term.letters]
        if axes and term.letters:
            with_x_shape("unsqueeze2", value, made := reading.temp(value), reading, axes=axes)
            value = made
        values.append(value)
    return _Term(reading.made("elementwise_mul", first.value, X=values[0], Y=values[1]), wanted)
