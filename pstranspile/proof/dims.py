"""Dims that are not known yet, as products of symbols, and the equations between them that a program implies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import lcm
from typing import NamedTuple, TypeAlias


class Term(NamedTuple):
    """A number times powers of symbols: `39 * rows`, `rows / 2`, or a plain number without symbols."""

    factor: Fraction
    powers: tuple[tuple[int, int], ...] = ()
    """(Symbol, power), by symbol; no power is 0."""

    def times(self, other: Term, power: int = 1) -> Term:
        """The product with a power (1 or -1) of another term."""
        powers = dict(self.powers)
        for symbol, exponent in other.powers:
            powers[symbol] = powers.get(symbol, 0) + power * exponent
        kept = tuple(sorted((symbol, exponent) for symbol, exponent in powers.items() if exponent))
        return Term(self.factor * other.factor**power, kept)

    @property
    def number(self) -> int | None:
        """The number that it is, None if symbols are in it."""
        return None if self.powers or self.factor.denominator != 1 else self.factor.numerator


def constant(number: int) -> Term:
    """A dim that is known."""
    return Term(Fraction(number))


class Lod(NamedTuple):
    """How rows make up sequences: how many sequences there are, and how many rows in all."""

    sequences: Term
    rows: Term
    key: int
    """Told apart by this: of the same key, sequences are as long, one by one."""


Dims: TypeAlias = "tuple[Term, ...]"


SymbolicInt: TypeAlias = "tuple[Term | None, int]"
"""A number that a variable holds: a dim (None: 0) and what is added to it."""


class Known(NamedTuple):
    """What is known of a variable: its dims, how its rows make up sequences, and its numbers, if they are dims."""

    dims: Dims
    lod: Lod | None = None
    numbers: tuple[SymbolicInt, ...] = ()


class Equations:
    """Symbols, and what they are known to be. What contradicts what is known is left out."""

    def __init__(self) -> None:
        self.known: dict[int, Term] = {}
        self.lods: dict[int, int] = {}
        """The key of a LoD -> that of one which it is known to equal."""
        self._count = 0

    def fresh(self) -> Term:
        """A new symbol."""
        self._count += 1
        return Term(Fraction(1), ((self._count, 1),))

    def fresh_lod(self, sequences: Term | None = None, rows: Term | None = None) -> Lod:
        """A LoD of which nothing else is known."""
        self._count += 1
        return Lod(sequences or self.fresh(), rows or self.fresh(), self._count)

    def resolved(self, term: Term) -> Term:
        """A term with all that is known put in."""
        result = Term(term.factor)
        for symbol, power in term.powers:
            there = self.known.get(symbol)
            value = Term(Fraction(1), ((symbol, 1),)) if there is None else self.resolved(there)
            if there is not None:
                self.known[symbol] = value
            for _ in range(abs(power)):
                result = result.times(value, 1 if power > 0 else -1)
        return result

    def equate(self, a: Term, b: Term) -> None:
        """Two dims are the same. One symbol is solved for, so that the others are whole multiples if possible."""
        ratio = self.resolved(a).times(self.resolved(b), -1)
        if not ratio.factor:
            return
        solutions: list[tuple[bool, int, int, Term]] = []
        for symbol, power in ratio.powers:
            if abs(power) == 1:
                rest = ratio.times(Term(Fraction(1), ((symbol, power),)), -1)
                solved = rest if power < 0 else Term(Fraction(1)).times(rest, -1)
                whole = solved.factor.denominator == 1 and all(p > 0 for _, p in solved.powers)
                solutions.append((not whole, -symbol, symbol, solved))
        if solutions:
            _, _, symbol, solved = min(solutions, key=lambda item: item[:2])
            self.known[symbol] = solved

    def key(self, lod: Lod) -> int:
        """What distinguishes a LoD from those that are not known to equal it."""
        key = lod.key
        while key in self.lods:
            key = self.lods[key]
        return key

    def equate_lods(self, a: Lod | None, b: Lod | None) -> None:
        """Two LoDs are the same."""
        if a is None or b is None:
            return
        self.equate(a.sequences, b.sequences)
        self.equate(a.rows, b.rows)
        one, other = self.key(a), self.key(b)
        if one != other:
            self.lods[max(one, other)] = min(one, other)


def evaluated(equations: Equations, term: Term, values: Mapping[int, int]) -> int | None:
    """The number that a term is with numbers for symbols; None where a symbol has none, or it is no whole number."""
    resolved = equations.resolved(term)
    if any(symbol not in values for symbol, _ in resolved.powers):
        return None
    result = resolved.factor
    for symbol, power in resolved.powers:
        result *= Fraction(values[symbol]) ** power
    return result.numerator if result.denominator == 1 else None


def divisors(equations: Equations, terms: Iterable[Term]) -> dict[int, int]:
    """What the number of a symbol must be a multiple of, as terms are whole parts of it."""
    result: dict[int, int] = {}
    for term in terms:
        resolved = equations.resolved(term)
        if len(resolved.powers) == 1 and resolved.powers[0][1] == 1:
            symbol = resolved.powers[0][0]
            result[symbol] = lcm(result.get(symbol, 1), resolved.factor.denominator)
    return result
