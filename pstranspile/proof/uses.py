"""What a program's ops imply for the dims, rows and sequences of its inputs: which must agree, and with what number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import count
from math import isqrt, lcm
from typing import NamedTuple, TypeAlias

from pstranspile.ir.attributes import BlockRef, Strings
from pstranspile.ir.model import Op, Program, TensorType, Var
from pstranspile.ir.types import OpRole, VarKind
from pstranspile.ops import facts_of
from pstranspile.ops.attributes import ints_attr
from pstranspile.ops.facts import Below, Within
from pstranspile.ops.shapes import ShapeError, infer_types
from pstranspile.runtime.kernels.programs.io import FEEDING

# Unknown dims as products of symbols, and the equations between them that a program implies.


class Term(NamedTuple):
    """A number times powers of symbols, as in `39 * rows` or `rows / 2`. Without symbols it is a plain number."""

    factor: Fraction
    powers: tuple[tuple[int, int], ...] = ()
    """Pairs of a symbol and its power, sorted by symbol. No power is 0."""

    def times(self, other: Term, power: int = 1) -> Term:
        """The product of this term and a power (1 or -1) of another one."""
        powers = dict(self.powers)
        for symbol, exponent in other.powers:
            powers[symbol] = powers.get(symbol, 0) + power * exponent
        kept = tuple(sorted((symbol, exponent) for symbol, exponent in powers.items() if exponent))
        return Term(self.factor * other.factor**power, kept)

    @property
    def number(self) -> int | None:
        """The value of a term without symbols; None if it has symbols."""
        return None if self.powers or self.factor.denominator != 1 else self.factor.numerator


def constant(number: int) -> Term:
    """The term of a known dim."""
    return Term(Fraction(number))


class Lod(NamedTuple):
    """The division of rows into sequences: the number of sequences, and the number of rows in all."""

    sequences: Term
    rows: Term
    key: int
    """Identifies the lengths: two LoDs with the same key have sequences of the same lengths, in the same order."""


Dims: TypeAlias = "tuple[Term, ...]"


SymbolicInt: TypeAlias = "tuple[Term | None, int]"
"""An integer in a variable: a dim plus a number. None stands for a dim of 0."""


class KnownValue(NamedTuple):
    """What is known of a variable: its dims, its LoD, and its elements, if these are dims."""

    dims: Dims
    lod: Lod | None = None
    numbers: tuple[SymbolicInt, ...] = ()


class Equations:
    """Equations between dims, solved for symbols. Equations that contradict earlier ones are ignored."""

    def __init__(self) -> None:
        self.known_terms: dict[int, Term] = {}
        self.lods: dict[int, int] = {}
        """The key of a LoD -> the key of a LoD that equals it."""
        self._count = 0

    def fresh(self) -> Term:
        """A new symbol."""
        self._count += 1
        return Term(Fraction(1), ((self._count, 1),))

    def fresh_lod(self, sequences: Term | None = None, rows: Term | None = None) -> Lod:
        """A new LoD, with new symbols for the numbers that are not given."""
        self._count += 1
        return Lod(sequences or self.fresh(), rows or self.fresh(), self._count)

    def resolve_term(self, term: Term) -> Term:
        """A term with every solved symbol replaced by its solution."""
        result = Term(term.factor)
        for symbol, power in term.powers:
            there = self.known_terms.get(symbol)
            value = Term(Fraction(1), ((symbol, 1),)) if there is None else self.resolve_term(there)
            if there is not None:
                self.known_terms[symbol] = value
            for _ in range(abs(power)):
                result = result.times(value, 1 if power > 0 else -1)
        return result

    def equate(self, a: Term, b: Term) -> None:
        """States that two dims are equal. It solves for one symbol, if possible one whose solution has no fractions."""
        ratio = self.resolve_term(a).times(self.resolve_term(b), -1)
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
            self.known_terms[symbol] = solved

    def key(self, lod: Lod) -> int:
        """The key that all LoDs known to equal this one share."""
        key = lod.key
        while key in self.lods:
            key = self.lods[key]
        return key

    def equate_lods(self, a: Lod | None, b: Lod | None) -> None:
        """States that two LoDs are equal."""
        if a is None or b is None:
            return
        self.equate(a.sequences, b.sequences)
        self.equate(a.rows, b.rows)
        one, other = self.key(a), self.key(b)
        if one != other:
            self.lods[max(one, other)] = min(one, other)


def evaluate_term(equations: Equations, term: Term, values: Mapping[int, int]) -> int | None:
    """The value of a term for given values of symbols; None if a symbol has no value or the result is no integer."""
    resolved = equations.resolve_term(term)
    if any(symbol not in values for symbol, _ in resolved.powers):
        return None
    result = resolved.factor
    for symbol, power in resolved.powers:
        result *= Fraction(values[symbol]) ** power
    return result.numerator if result.denominator == 1 else None


def divisors(equations: Equations, terms: Iterable[Term]) -> dict[int, int]:
    """The number of which each symbol must be a multiple, for all `terms` to be integers."""
    result: dict[int, int] = {}
    for term in terms:
        resolved = equations.resolve_term(term)
        if len(resolved.powers) == 1 and resolved.powers[0][1] == 1:
            symbol = resolved.powers[0][0]
            result[symbol] = lcm(result.get(symbol, 1), resolved.factor.denominator)
    return result


Made: TypeAlias = "Mapping[str, KnownValue] | None"
"""Facts about the outputs of an op by name. For outputs without facts, shape rules and declarations are used."""

Rule: TypeAlias = "Callable[[InputConstraints, Op], Made]"

ONE = constant(1)


def out_of(op: Op, known: KnownValue, slot: str = "Out") -> dict[str, KnownValue]:
    """The facts of a rule: those known of the output in a slot."""
    name = op.output(slot)
    return {} if name is None else {name: known}


def int_of(op: Op, name: str, default: int = 0) -> int:
    """The value of an integer attribute; `default` if the attribute is missing or of another type."""
    value = op.attrs.get(name)
    return int(value) if isinstance(value, int) else default


def chosen_dims(op: Op, domain: Below | Within, rank: int, depth: int) -> slice:
    """The dims of a tensor of `rank` that bound the integers of a slot.

    For indices into several dims, `depth` is the number of indices in one tuple.
    """
    if isinstance(domain, Within):
        return slice(0, depth)
    axis = int_of(op, domain.axis) if isinstance(domain.axis, str) else domain.axis
    if axis is None or not -rank <= axis < rank:
        return slice(0)
    return slice(axis % rank, axis % rank + 1)


class InputConstraints:
    """What the forward ops of a program imply for its inputs, in one pass.

    `inputs` are the variables that are fed, `rules` the rules by op type.
    """

    def __init__(self, program: Program, inputs: Iterable[Var], rules: Mapping[str, Rule]):
        self.program = program
        self.rules_of = rules
        self.equations = Equations()
        self.known_values: dict[str, KnownValue] = {}
        self.inputs: dict[str, KnownValue] = {}
        self.below: dict[str, list[tuple[str, Term]]] = {}
        """Variable -> the upper bounds of its integers, each with the type of the op that uses them as indices."""
        self.lengths: dict[str, list[tuple[Term, bool]]] = {}
        """Variable -> the dims that bound its integers as lengths, each with whether one length must equal the dim."""
        self.least: list[tuple[Term, int]] = []
        """Dims, each with its least size."""
        self.shorter: dict[tuple[Term, int], Term] = {}
        """The shortened dims, by original dim and number of elements cut off."""
        self._primes: dict[Term, int] = {}
        self.lods_by_length: dict[str, Lod] = {}
        self.padded: dict[int, tuple[Lod, Term]] = {}
        """Padded LoDs by key, each with the dim to which its sequences are padded."""
        self.roots: dict[str, str] = {}
        """Variable -> the variable from which its elements are copied unchanged, as by a cast or a reshape."""
        for var in inputs:
            self._input(var)
        self.run_block(0)
        whole: dict[tuple[Term, int], Term] = {}
        for (term, cut), short in self.shorter.items():  # equal when shortened: equal before, too
            self.equations.equate(whole.setdefault((self.equations.resolve_term(short), cut), term), term)

    def fresh(self) -> Term:
        """A new dim of which nothing is known."""
        return self.equations.fresh()

    def dims(self, shape: Iterable[int]) -> Dims:
        """Dims as declared: known numbers, and a new symbol for each open dim."""
        return tuple(constant(dim) if dim > 0 else self.fresh() for dim in shape)

    def longest(self, lod: Lod) -> Term:
        """The length of the longest sequence of a LoD."""
        return self.padded.setdefault(self.equations.key(lod), (lod, self.fresh()))[1]

    def shortened_dim(self, dim: Term, cut: int) -> Term:
        """The dim that remains when `cut` elements are cut off."""
        return self.shorter.setdefault((self.equations.resolve_term(dim), cut), self.fresh())

    def root(self, name: str) -> str:
        """The variable from which the elements of a variable were first copied unchanged."""
        while name in self.roots:
            name = self.roots[name]
        return name

    def _input(self, var: Var) -> None:
        if var.kind is not VarKind.LOD_TENSOR or var.tensor is None:
            return
        dims = self.dims(var.shape)
        lod = self.equations.fresh_lod(rows=dims[0]) if var.tensor.lod_level == 1 and dims else None
        self.inputs[var.name] = self.known_values[var.name] = KnownValue(dims, lod)

    def run_block(self, index: int) -> None:
        """Applies rules and shape rules to the forward ops of a block."""
        for op in self.program.blocks[index].ops:
            if (op.role is not None and op.role & (OpRole.BACKWARD | OpRole.OPTIMIZE)) or op.type in FEEDING:
                continue
            self._limit_indices(op)
            own_rows = facts_of(op.type).rows == "own"
            if op.type in self.rules_of:
                result = self._rule_facts(op)
            else:
                result = {}
                if not own_rows:
                    self.rows(op)
            if not own_rows:
                result = {**self._shape_rule_facts(op, index), **result}
            for name in dict.fromkeys(op.output_names):
                made = result.get(name) or self._declared_facts(name, index)
                if made is not None:
                    self.known_values[name] = made

    def _limit_indices(self, op: Op) -> None:
        """Bounds the integers in a slot by dims of another slot, where the op's domains say so."""
        for slot, domain in facts_of(op.type).domains.items():
            if not isinstance(domain, Below | Within) or (known := self.of(op.input(domain.of))) is None:
                continue
            for name in op.inputs.get(slot, ()):
                for dim in known.dims[chosen_dims(op, domain, len(known.dims), self._depth(name))]:
                    self.index(name, op, dim)

    def _depth(self, name: str) -> int:
        """The size of the last dim of a variable; 0 if it is not known."""
        known = self.of(name)
        return (self.equations.resolve_term(known.dims[-1]).number or 0) if known is not None and known.dims else 0

    def _rule_facts(self, op: Op) -> dict[str, KnownValue]:
        """The facts about outputs that the rule of an op returns."""
        try:
            return dict(self.rules_of[op.type](self, op) or {})
        except (IndexError, ZeroDivisionError):  # an attribute names a missing dim; the run will report it
            return {}

    # methods for rules

    def of(self, name: str | None) -> KnownValue | None:
        """The facts about a variable. Parameters and constants have their declared dims."""
        if not name:
            return None
        known = self.known_values.get(name)
        var = self.program.find_var(name) if known is None else None
        if var is not None and var.tensor is not None and var.shape and min(var.shape) > 0:
            return KnownValue(self.dims(var.shape))
        return known

    def equate_dims(self, a: Dims, b: Dims) -> None:
        """States that two lists of dims are equal, up to the end of the shorter one."""
        for one, other in zip(a, b, strict=False):
            self.equations.equate(one, other)

    def _input_facts(self, op: Op) -> Iterator[KnownValue]:
        """The facts about the inputs of an op that are not persistable."""
        for name in op.input_names:
            var, known = self.program.find_var(name), self.known_values.get(name)
            if known is not None and known.dims and not (var is not None and var.persistable):
                yield known

    def rows(self, op: Op) -> None:
        """States that an op works row by row: all inputs with an open first dim have the same number of rows."""
        first: KnownValue | None = None
        for known in self._input_facts(op):
            if first is not None and ONE not in (known.dims[0], first.dims[0]):
                self.equations.equate(first.dims[0], known.dims[0])
            first = first or known

    def _shape_rule_facts(self, op: Op, block: int) -> dict[str, KnownValue]:
        """The facts about outputs that the op's shape rule gives, with a prime number in the place of each open dim."""
        given = list(self._input_facts(op))
        like = next((known for known in given if known.lod), given[0] if given else None)
        terms = {self.equations.resolve_term(dim) for known in given for dim in known.dims}
        primes = {self._prime(term): term for term in terms if term.powers}

        def type_of(name: str) -> TensorType | None:
            var, known = self.program.find_var(name, block), self.known_values.get(name)
            if var is None or var.tensor is None or known is None:
                return var.tensor if var is not None else None
            dims = (self.equations.resolve_term(dim) for dim in known.dims)
            return var.tensor._replace(shape=tuple(self._prime(d) if d.number is None else d.number for d in dims))

        try:
            types = infer_types(op, type_of)
        except ShapeError:
            return {}
        result: dict[str, KnownValue] = {}
        same_numbers = facts_of(op.type).numbers in ("moved", "in_order")
        for slot, names in op.outputs.items():
            for name, made in zip(names, types.get(slot, ()), strict=False):
                if made is None or not made.shape:
                    continue
                dims = tuple(self._term_for_number(number, primes) for number in made.shape)
                lod = like.lod if like is not None and dims[0] == self.equations.resolve_term(like.dims[0]) else None
                result[name] = KnownValue(dims, lod, like.numbers if like is not None and same_numbers else ())
                if same_numbers and len(names) == 1 and name != op.input("X"):
                    self.roots[name] = op.input("X") or name
        return result

    def _prime(self, term: Term) -> int:
        """The large prime number that stands for a term."""
        if term not in self._primes:
            last = next(reversed(self._primes.values()), 1_000_003)
            self._primes[term] = next(n for n in count(last + 2, 2) if all(n % d for d in range(3, isqrt(n) + 1, 2)))
        return self._primes[term]

    def _term_for_number(self, number: int, primes: Mapping[int, Term]) -> Term:
        """The term for which a number stands; a new one if there is none."""
        result = constant(1)
        for prime, term in primes.items():
            while number > 0 and number % prime == 0:
                result, number = result.times(term), number // prime
        return result.times(constant(number)) if 0 < number < 1_000_000 else self.fresh()

    def _declared_facts(self, name: str, block: int) -> KnownValue | None:
        """The facts that the declaration of a variable gives."""
        var = self.program.find_var(name, block)
        return None if var is None or var.tensor is None or var.persistable else KnownValue(self.dims(var.shape))

    def lod_of(self, name: str | None) -> Lod | None:
        """The LoD of a variable. If none is known, a new one is stored for it."""
        known = self.of(name)
        if known is None or not known.dims or name is None:
            return None
        if known.lod is None:
            known = known._replace(lod=self.equations.fresh_lod(rows=known.dims[0]))
            self.known_values[name] = known
        return known.lod

    def lod_of_lengths(self, name: str) -> Lod:
        """The LoD whose sequence lengths are the elements of a variable."""
        root = self.root(name)
        if root not in self.lods_by_length:
            known = self.of(name)
            sequences = known.dims[0] if known is not None and known.dims else self.fresh()
            self.lods_by_length[root] = self.equations.fresh_lod(sequences)
        return self.lods_by_length[root]

    def index(self, name: str | None, op: Op, limit: Term) -> None:
        """States that the integers of a variable are indices below `limit`."""
        if name:
            self.below.setdefault(self.root(name), []).append((op.type, limit))

    def block_of(self, op: Op) -> int | None:
        """The sub-block that an op runs; None if it runs none."""
        result = next((int(value) for value in op.attrs.values() if type(value) is BlockRef), 0)
        return result if 0 < result < len(self.program.blocks) else None

    def strings(self, op: Op, name: str) -> tuple[str, ...]:
        """The value of an attribute that lists names; empty if it is missing."""
        value = op.attrs.get(name)
        return tuple(value) if isinstance(value, Strings) else ()

    def ints(self, op: Op, name: str) -> tuple[int, ...]:
        """The value of an attribute that lists integers; empty if it is missing."""
        return tuple(int(value) for value in ints_attr(op, name))

    def product(self, dims: Iterable[Term]) -> Term:
        """The product of dims."""
        result = Term(Fraction(1))
        for dim in dims:
            result = result.times(dim)
        return self.equations.resolve_term(result)


# What op types that work on sequences imply for rows and their sequences (see `uses`).


def _sequence_pool(uses: InputConstraints, op: Op) -> Made:
    x, lod = uses.of(op.input("X")), uses.lod_of(op.input("X"))
    if x is None or lod is None:
        return None
    return out_of(op, x._replace(dims=(lod.sequences, *x.dims[1:]), lod=None))


def _sequence_expand(uses: InputConstraints, op: Op) -> Made:
    x, y = uses.of(op.input("X")), uses.lod_of(op.input("Y"))
    if x is None or y is None:
        return None
    if x.lod is not None and op.type == "sequence_expand":
        uses.equations.equate(x.lod.sequences, y.sequences)
        return out_of(op, x._replace(dims=(uses.fresh(), *x.dims[1:]), lod=None))
    uses.equations.equate(x.dims[0], y.sequences)
    return out_of(op, x._replace(dims=(y.rows, *x.dims[1:]), lod=y))


def _sequence_concat(uses: InputConstraints, op: Op) -> Made:
    names = op.inputs.get("X", ())
    lods = [lod for name in names if (lod := uses.lod_of(name)) is not None]
    x = uses.of(op.input("X"))
    if x is None or not lods:
        return None
    for other in lods[1:]:
        uses.equations.equate(lods[0].sequences, other.sequences)
    keys = "concat", *(uses.equations.key(lod) for lod in lods)
    made = uses.lods_by_length.setdefault(repr(keys), uses.equations.fresh_lod(lods[0].sequences))
    return out_of(op, x._replace(dims=(made.rows, *x.dims[1:]), lod=made))


def _sequence_reshape(uses: InputConstraints, op: Op) -> Made:
    x, lod, width = uses.of(op.input("X")), uses.lod_of(op.input("X")), int_of(op, "new_dim", 1)
    if x is None or lod is None:
        return None
    rows = uses.product(x.dims).times(constant(width), -1)
    return out_of(op, x._replace(dims=(rows, constant(width)), lod=uses.equations.fresh_lod(lod.sequences, rows)))


def _sequence_pad(uses: InputConstraints, op: Op) -> Made:
    x, lod = uses.of(op.input("X")), uses.lod_of(op.input("X"))
    if x is None or lod is None:
        return None
    longest = int_of(op, "padded_length", -1)
    steps = constant(longest) if longest > 0 else uses.longest(lod)
    result = out_of(op, x._replace(dims=(lod.sequences, steps, *x.dims[1:]), lod=None))
    if name := op.output("Length"):
        result[name] = x._replace(dims=(lod.sequences,), lod=None)
        uses.lods_by_length[name] = lod
    return result


def _sequence_unpad(uses: InputConstraints, op: Op) -> Made:
    x, length = uses.of(op.input("X")), op.input("Length")
    if x is None or length is None:
        return None
    lod = uses.lod_of_lengths(length)
    uses.equations.equate(x.dims[0], lod.sequences)
    uses.lengths.setdefault(uses.root(length), []).append((x.dims[1], False))
    return out_of(op, x._replace(dims=(lod.rows, *(x.dims[2:] or (ONE,))), lod=lod))


def _sequence_mask(uses: InputConstraints, op: Op) -> Made:
    x, most = uses.of(op.input("X")), uses.of(op.input("MaxLenTensor"))
    if x is None:
        return None
    fixed = int_of(op, "maxlen", -1)
    held = most.numbers[0] if most is not None and most.numbers else (None, 1)
    steps = held[0] if held[0] is not None and not held[1] else constant(fixed) if fixed > 0 else uses.fresh()
    reached = most is None and fixed <= 0
    uses.lengths.setdefault(uses.root(op.input("X") or ""), []).append((steps, reached))
    return out_of(op, x._replace(dims=(*x.dims, steps)), "Y")


def _by_rank_table(uses: InputConstraints, op: Op) -> Made:
    """A tensor assembled from the steps of a loop has the rows and sequences of the source of its rank table."""
    table = uses.known_values.get(op.input("RankTable") or "")
    name = op.output("Out") or ""
    var = uses.program.find_var(name)
    if table is None or table.lod is None or var is None or not var.shape:
        return None
    return out_of(op, table._replace(dims=(table.lod.rows, *uses.dims(var.shape[1:]))))


def _rank_table(uses: InputConstraints, op: Op) -> Made:
    x = uses.of(op.input("X"))
    uses.lod_of(op.input("X"))
    return out_of(op, x) if x is not None else None


def _to_array(uses: InputConstraints, op: Op) -> Made:
    table = uses.known_values.get(op.input("RankTable") or "")
    if table is not None:
        uses.equations.equate_lods(uses.lod_of(op.input("X")), table.lod)
    return None


def _reorder_by_rank(uses: InputConstraints, op: Op) -> Made:
    x, table = uses.of(op.input("X")), uses.known_values.get(op.input("RankTable") or "")
    if x is not None and table is not None and table.lod is not None:
        uses.equations.equate(x.lod.sequences if x.lod else x.dims[0], table.lod.sequences)
    return None if x is None else out_of(op, x)


def _recurrent(uses: InputConstraints, op: Op) -> Made:
    block = uses.block_of(op)
    if block is None:
        return None
    steps = None
    for name in op.inputs.get("inputs", ()):
        known = uses.of(name)
        if known is not None and known.dims:
            steps = steps or known.dims[0]
            uses.equations.equate(steps, known.dims[0])
            uses.known_values[name] = known._replace(dims=known.dims[1:], lod=None)
    states = dict(zip(uses.strings(op, "ex_states"), op.inputs.get("initial_states", ()), strict=False))
    for name, start in states.items():
        if (known := uses.of(start)) is not None:
            uses.known_values[name] = known
    outside = {name: known for name in op.inputs.get("inputs", ()) if (known := uses.of(name)) is not None}
    uses.run_block(block)
    for name, known in outside.items():
        uses.known_values[name] = known._replace(dims=(steps or uses.fresh(), *known.dims))
    result: dict[str, KnownValue] = {}
    for name in op.outputs.get("outputs", ()):
        if (known := uses.of(name)) is not None:
            result[name] = known._replace(dims=(steps or uses.fresh(), *known.dims))
    return result


def _same_sequence_counts(first: str, second: str) -> Rule:
    """The rule that two ragged inputs have the same number of sequences."""

    def rule(uses: InputConstraints, op: Op) -> Made:
        a, b = uses.lod_of(op.input(first)), uses.lod_of(op.input(second))
        if a is not None and b is not None:
            uses.equations.equate(a.sequences, b.sequences)
        return None

    return rule


def _alike_sequences(first: str, second: str) -> Rule:
    """The rule that two ragged inputs have sequences of the same lengths."""

    def rule(uses: InputConstraints, op: Op) -> Made:
        uses.equations.equate_lods(uses.lod_of(op.input(first)), uses.lod_of(op.input(second)))
        return None

    return rule


def _sequence_scatter(uses: InputConstraints, op: Op) -> Made:
    """Ids and Updates have sequences of the same lengths, one sequence for each row of X."""
    x, ids = uses.of(op.input("X")), uses.lod_of(op.input("Ids"))
    uses.equations.equate_lods(ids, uses.lod_of(op.input("Updates")))
    if x is not None and ids is not None:
        uses.equations.equate(x.dims[0], ids.sequences)
    return None if x is None else out_of(op, x._replace(lod=None))


def _scatter(uses: InputConstraints, op: Op) -> Made:
    """Updates has a row for each element of Ids; its other dims are those of X."""
    x, ids, updates = (uses.of(op.input(slot)) for slot in ("X", "Ids", "Updates"))
    if x is None:
        return None
    if ids is not None and updates is not None:
        uses.equate_dims(updates.dims, (ids.dims[0], *x.dims[1:]))
    return out_of(op, x._replace(lod=None))


def _first_states(uses: InputConstraints, op: Op) -> Made:
    """The initial states of a recurrence over sequences have a row for each sequence."""
    lod = uses.lod_of(op.input("Input"))
    for slot in ("H0", "C0"):
        start = uses.of(op.input(slot))
        if start is not None and lod is not None:
            uses.equations.equate(start.dims[0], lod.sequences)
    return None


def _images_to_sequences(uses: InputConstraints, op: Op) -> Made:
    x, var = uses.of(op.input("X")), uses.program.find_var(op.output("Out") or "")
    if x is None or var is None:
        return None
    lod = uses.equations.fresh_lod(x.dims[0])
    return out_of(op, x._replace(dims=(lod.rows, *uses.dims(var.shape[1:])), lod=lod))


SEQUENCE_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("sequence_expand", "sequence_expand_as"), _sequence_expand),
    **dict.fromkeys(("gru", "lstm", "lstmp"), _first_states),
    "sequence_pool": _sequence_pool,
    "sequence_concat": _sequence_concat,
    "sequence_reshape": _sequence_reshape,
    "sequence_pad": _sequence_pad,
    "sequence_unpad": _sequence_unpad,
    "sequence_mask": _sequence_mask,
    "array_to_lod_tensor": _by_rank_table,
    "lod_rank_table": _rank_table,
    "lod_tensor_to_array": _to_array,
    "reorder_lod_tensor_by_rank": _reorder_by_rank,
    "recurrent": _recurrent,
    "sequence_scatter": _sequence_scatter,
    "im2sequence": _images_to_sequences,
    "warpctc": _same_sequence_counts("Logits", "Label"),
    "edit_distance": _same_sequence_counts("Hyps", "Refs"),
    "linear_chain_crf": _alike_sequences("Emission", "Label"),
    "crf_decoding": _alike_sequences("Emission", "Label"),
}
"""Op type -> its rule."""


# What single op types imply for dims (see `uses`).


def _elementwise(uses: InputConstraints, op: Op) -> Made:
    x, y = uses.of(op.input("X")), uses.of(op.input("Y"))
    if x is None or y is None:
        return None if x is None else out_of(op, x._replace(numbers=()))
    if len(y.dims) > len(x.dims):
        x, y = y, x
    axis = int_of(op, "axis", -1)
    inner = y.dims
    while len(inner) > 1 and inner[-1] == ONE and axis >= 0:
        inner = inner[:-1]
    start = axis if 0 <= axis <= len(x.dims) - len(inner) else len(x.dims) - len(y.dims)
    dims = list(x.dims)
    for place, dim in enumerate(inner if start == axis else y.dims, start):
        there = uses.equations.resolve_term(dims[place])
        dim = uses.equations.resolve_term(dim)
        if there == ONE:
            dims[place] = dim
        elif dim != ONE:
            uses.equations.equate(there, dim)
    lod = x.lod or y.lod
    if x.lod and y.lod and start == 0:
        uses.equations.equate(x.lod.rows, y.lod.rows)
    return out_of(op, x._replace(dims=tuple(dims), lod=lod, numbers=()))


def _same_dims(uses: InputConstraints, op: Op) -> Made:
    """All inputs have the same dims (`sum`, `stack`)."""
    given = [known for name in op.inputs.get("X", ()) if (known := uses.of(name)) is not None]
    for other in given[1:]:
        uses.equate_dims(given[0].dims, other.dims)
    return None


def _concat(uses: InputConstraints, op: Op) -> Made:
    given = [known for name in op.inputs.get("X", ()) if (known := uses.of(name)) is not None]
    for other in given[1:]:
        for place, (a, b) in enumerate(zip(given[0].dims, other.dims, strict=False)):
            if place != int_of(op, "axis") % len(given[0].dims):
                uses.equations.equate(a, b)
    return None


def _mul(uses: InputConstraints, op: Op) -> Made:
    x, y = uses.of(op.input("X")), uses.of(op.input("Y"))
    if x is None or y is None:
        return None
    rows, cols = int_of(op, "x_num_col_dims", 1), int_of(op, "y_num_col_dims", 1)
    uses.equations.equate(uses.product(x.dims[rows:]), uses.product(y.dims[:cols]))
    return out_of(op, x._replace(dims=(*x.dims[:rows], *y.dims[cols:])))


def _matmul(uses: InputConstraints, op: Op) -> Made:
    x, y = uses.of(op.input("X")), uses.of(op.input("Y"))
    if x is None or y is None or min(len(x.dims), len(y.dims)) < 2:
        return None
    a, b = list(x.dims), list(y.dims)
    if op.attrs.get("transpose_X", op.attrs.get("trans_x")):
        a[-2:] = a[:-3:-1]
    if op.attrs.get("transpose_Y", op.attrs.get("trans_y")):
        b[-2:] = b[:-3:-1]
    uses.equations.equate(a[-1], b[-2])
    if len(a) == len(b):
        uses.equate_dims(tuple(a[:-2]), tuple(b[:-2]))
    longer = a if len(a) >= len(b) else b
    return out_of(op, x._replace(dims=(*longer[:-2], a[-2], b[-1]), lod=x.lod if len(a) == 2 else None, numbers=()))


def _reshape(uses: InputConstraints, op: Op) -> Made:
    x, wanted = uses.of(op.input("X")), uses.ints(op, "shape")
    if x is None or not wanted:
        return None
    if op.input("Shape") or op.inputs.get("ShapeTensor"):
        return None
    dims = [
        x.dims[place] if dim == 0 and place < len(x.dims) else constant(dim) if dim > 0 else None
        for place, dim in enumerate(wanted)
    ]
    total, given = uses.product(x.dims), uses.product(dim for dim in dims if dim is not None)
    rest = total.times(given, -1) if given.factor else uses.fresh()
    if None not in dims:
        uses.equations.equate(total, given)
    done = tuple(rest if dim is None else dim for dim in dims)
    lod = x.lod if uses.equations.resolve_term(done[0]) == uses.equations.resolve_term(x.dims[0]) else None
    return out_of(op, x._replace(dims=done, lod=lod))


def _slice(uses: InputConstraints, op: Op) -> Made:
    x, axes = uses.of(op.input("Input")), uses.ints(op, "axes")
    if x is None:
        return None
    starts, ends = (_limits(uses, op, which, [x.dims[axis] for axis in axes]) for which in ("Start", "End"))
    dims, numbers = list(x.dims), x.numbers
    for axis, start, end in zip(axes, starts, ends, strict=True):
        dims[axis] = _sliced_dim(uses, dims[axis], start, end)
        numbers = numbers[start:end] if axis == 0 and start is not None else ()
    dropped = set(uses.ints(op, "decrease_axis"))
    kept = tuple(dim for i, dim in enumerate(dims) if i not in dropped) or (ONE,)
    return out_of(op, x._replace(dims=kept, lod=None if 0 in axes else x.lod, numbers=numbers))


_END = 1 << 20
"""An index past the end of every open dim."""


def _limits(uses: InputConstraints, op: Op, which: str, dims: Sequence[Term]) -> list[int | None]:
    """The starts or ends (`which`) of a slice, one for each of `dims`; None where the number is not known.

    Negative numbers count from the end.
    """
    names = op.inputs.get(f"{which}sTensorList", ())
    if op.input(f"{which}sTensor"):
        return [None] * len(dims)
    if len(names) != len(dims):
        given = uses.ints(op, f"{which.lower()}s")
        return [*given] if len(given) == len(dims) else [None] * len(dims)
    result: list[int | None] = []
    for name, dim in zip(names, dims, strict=True):
        term, more = next(iter(known.numbers if (known := uses.of(name)) is not None else ()), None) or (None, -_END)
        if term is not None:  # a bound that is another dim: the two are meant to be equal
            uses.equations.equate(term, dim)
        same = term is not None and uses.equations.resolve_term(term) == uses.equations.resolve_term(dim)
        result.append((more if more > -_END else None) if term is None else (more or _END) if same else None)
    return result


def _sliced_dim(uses: InputConstraints, dim: Term, start: int | None, end: int | None) -> Term:
    """The size of a dim after slicing."""
    size = uses.equations.resolve_term(dim).number
    if start is None or end is None:
        return uses.fresh()
    if size is not None:
        return constant(max(len(range(size)[start:end]), 1))
    if 0 <= start < end < _END:
        uses.least.append((dim, end))
        return constant(end - start)
    cut = (start if start >= 0 else _END) + (0 if end >= _END else -end if end < 0 else _END)
    return dim if not cut else uses.shortened_dim(dim, cut) if cut < _END else uses.fresh()


def _scale(uses: InputConstraints, op: Op) -> Made:
    x, bias = uses.of(op.input("X")), op.attrs.get("bias")
    uses.rows(op)
    if x is None or not x.numbers or op.attrs.get("scale") != 1 or not isinstance(bias, int | float):
        return None
    return out_of(op, x._replace(numbers=tuple((term, more + int(bias)) for term, more in x.numbers)))


def _constant(uses: InputConstraints, op: Op) -> Made:
    value, shape = op.attrs.get("value"), uses.ints(op, "shape")
    if shape != (1,) or not isinstance(value, int | float) or op.input("ShapeTensor") or abs(value) >= _END:
        return None
    return out_of(op, KnownValue((ONE,), None, ((None, int(value)),)))


def _shape(uses: InputConstraints, op: Op) -> Made:
    x = uses.of(op.input("Input"))
    return (
        None
        if x is None
        else out_of(op, x._replace(dims=(constant(len(x.dims)),), lod=None, numbers=tuple((dim, 0) for dim in x.dims)))
    )


def _gather(uses: InputConstraints, op: Op) -> Made:
    x, index = uses.of(op.input("X")), uses.of(op.input("Index"))
    if x is None or index is None:
        return None
    return out_of(op, x._replace(dims=(index.dims[0], *x.dims[1:]), lod=None))


def _tdm_sampler(uses: InputConstraints, op: Op) -> Made:
    """No facts: `Travel` and `Layer` describe a tree, and their rows are not those of the batch."""
    return None


def _gather_nd(uses: InputConstraints, op: Op) -> Made:
    x, index = uses.of(op.input("X")), uses.of(op.input("Index"))
    depth = uses.equations.resolve_term(index.dims[-1]).number if index is not None and index.dims else None
    if x is None or index is None or depth is None:
        return None
    return out_of(op, x._replace(dims=(*index.dims[:-1], *x.dims[depth:]), lod=None))


def _same_leading_dims(uses: InputConstraints, op: Op) -> Made:
    """Predictions and labels have the same dims except the last."""
    given = [known for name in op.input_names if (known := uses.known_values.get(name)) is not None]
    for other in given[1:]:
        if len(other.dims) > 2:
            uses.equate_dims(given[0].dims[:-1], other.dims[:-1])
    uses.rows(op)
    return None


def _batch_size_like(uses: InputConstraints, op: Op) -> Made:
    like, wanted = uses.of(op.input("Input")), list(uses.ints(op, "shape"))
    if like is None or not wanted:
        return None
    there, here = int_of(op, "input_dim_idx"), int_of(op, "output_dim_idx")
    rows: Term = like.lod.sequences if like.lod is not None and there == 0 else like.dims[there]
    dims = tuple(rows if i == here else constant(d) if d >= 0 else uses.fresh() for i, d in enumerate(wanted))
    return out_of(op, like._replace(dims=dims, lod=None, numbers=()))


_ELEMENTWISE = (
    *("elementwise_add", "elementwise_sub", "elementwise_mul", "elementwise_div", "elementwise_max"),
    *("elementwise_min", "elementwise_pow", "elementwise_mod", "elementwise_floordiv", "less_than", "less_equal"),
    *("greater_than", "greater_equal", "equal", "not_equal", "logical_and", "logical_or", "logical_xor"),
)

RULES: Mapping[str, Rule] = {
    **SEQUENCE_RULES,
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(("reshape", "reshape2"), _reshape),
    **dict.fromkeys(("fill_constant_batch_size_like", "uniform_random_batch_size_like"), _batch_size_like),
    "sum": _same_dims,
    "concat": _concat,
    "stack": _same_dims,
    "mul": _mul,
    "matmul": _matmul,
    "matmul_v2": _matmul,
    "slice": _slice,
    "scale": _scale,
    "fill_constant": _constant,
    "shape": _shape,
    "gather": _gather,
    "scatter": _scatter,
    "gather_nd": _gather_nd,
    "tdm_sampler": _tdm_sampler,
    "softmax_with_cross_entropy": _same_leading_dims,
    "cross_entropy": _same_leading_dims,
    "cross_entropy2": _same_leading_dims,
}
"""Op type -> its rule. An op without a rule works row by row, unless its facts say that it has rows of its own."""
