"""The numbers that the inputs of a program may hold, as implied by the ops that read them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np

from pstranspile.ir.argument_checks import expect_program
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Op, Program, Var
from pstranspile.ir.types import OpRole, VarKind
from pstranspile.ops import facts_of
from pstranspile.ops.attributes import ints_attr
from pstranspile.ops.facts import AmongThose, Below, Numbers, Within
from pstranspile.proof.uses import RULES, InputConstraints, Lod, Term, chosen_dims, divisors, evaluate_term
from pstranspile.runtime.run.feeds import declared_type
from pstranspile.runtime.run.seeds import without_unmade_terms
from pstranspile.runtime.run.step_feeds import LENGTHS, arrays_of
from pstranspile.runtime.values import NUMPY_TYPES, LoDTensor

# Data for checking a program, made from its declarations and its ops.

LARGEST = 1 << 27
"""The most numbers that are made for one input: half a gigabyte of f32."""

LONGEST = 5
"""The number of rows of the longest sequence that is made, unless the program requires another."""

LONGEST_NESTED = 3
"""For sequences of sequences: the most inner sequences in an outer one, and the most rows in an inner one."""


def make_feeds(main: Program, steps: int, batch: int, seed: int = 0, shares: int = 1) -> dict[str, Any]:
    """Arrays for every input of a program, in the form of a feed file (`run.step_arrays`), by name.

    Inputs have the rows, dims and sequences by which they fit together, and the numbers that the ops which read them
    take. `shares` is among how many machines a batch will be divided: what indexes rows of the batch stays within a
    share, and each has its longest sequences. The same arguments give the same data. Raises DiagnosticError
    (`check-no-data`) for inputs of other kinds.
    """
    expect_program(main, "make_feeds")
    random = np.random.Generator(np.random.Philox(key=seed % (1 << 128)))
    inputs = inputs_of(main)
    maker = _Maker(without_unmade_terms(main), inputs, steps, batch, shares)
    feeds: dict[str, Any] = {}
    for var in inputs:
        feeds.update(maker.input(var, random))
    return feeds


def feeds_like(
    example: Mapping[str, Any], main: Program, steps: int, batch: int, seed: int = 0, shares: int = 1, parts: int = 1
) -> dict[str, Any]:
    """Arrays like those of an example batch, in the form of a feed file, for as many steps of `batch` rows.

    There is at least a row for each of `shares` machines. Numbers have the mean and the spread of the example's and
    lie between its smallest and its largest one; whole numbers are drawn from those of the example. Where a tensor
    of numbers holds whole ones in every row, such as ids and labels beside other features, or a NaN or an infinite
    one in a row, they are drawn from those of the example at that place. From a place on that is drawn for each
    row, these are padding: the number that the program compares them with (or a label to ignore), else their smallest;
    some rows begin with it, too, and where the example has rows of nothing else, so have these. Flags are set more
    often in some rows than in others. So rows differ in lengths and masks, as those of real data do.
    In the last step the unusual rows come last, so that shares differ more than those of shuffled rows: a quantile of
    each of two shares may otherwise leave out the same rows as one of all.
    Where a share is dealt to `parts` micro-batches, none of them has nothing but padding, ignored labels or zeros of a
    mask if the example has other numbers: means of nothing are NaN, and hide what else differs.
    Inputs without a dim of rows are given as they are. The same arguments give the same data.
    """
    random = np.random.Generator(np.random.Philox(key=seed % (1 << 128)))
    rows, marks = max(batch, shares), _marks_of(main)
    arrays_by_name = {
        name: [array_like(np.asarray(value), rows, random, marks.get(name)) for _ in range(steps)]
        for name, value in example.items()
    }
    if steps > 1 and shares > 1:
        order = np.argsort(_unusual({name: arrays[-1] for name, arrays in arrays_by_name.items()}, rows), kind="stable")
        for arrays in arrays_by_name.values():
            arrays[-1] = arrays[-1][order] if arrays[-1].ndim else arrays[-1]
    for name, arrays in arrays_by_name.items() if parts > 1 else ():
        for array in arrays:
            _fill_parts(array, np.asarray(example[name]), marks.get(name), shares, parts)
    return {name: np.stack(arrays) for name, arrays in arrays_by_name.items()}


def _fill_parts(made: Any, given: Any, mark: int | None, shares: int, parts: int) -> None:
    """Replaces the first row of every micro-batch of a share that holds nothing, such as zeros of a mask, by the row
    of the example that holds most.
    """
    if not given.ndim or not given.size or not given.shape[0]:
        return
    empty = [UNUSUAL] if mark is None else [UNUSUAL, mark]
    if given.dtype.kind == "b" or np.isin(given, (0, 1)).all():
        empty.append(0)
    elif given.dtype.kind not in "iu":
        return
    held = (~np.isin(given, empty)).reshape(len(given), -1).sum(1)
    if not held.any():
        return
    for share in np.array_split(np.arange(len(made)), shares):
        for rows in np.array_split(share, parts):
            if len(rows) and np.isin(made[rows], empty).all():
                made[rows[0]] = given[int(held.argmax())]


def _unusual(batch: Mapping[str, Any], rows: int) -> Any:
    """How far from the mean the numbers of each row of a batch are, in standard deviations."""
    result = np.zeros(rows)
    for array in batch.values():
        if array.ndim and array.size:
            numbers = array.reshape(rows, -1).astype("float64")
            numbers[~np.isfinite(numbers)] = 0.0
            result += (abs(numbers - numbers.mean(0)) / (numbers.std(0) + 1e-12)).mean(1)
    return result


def array_like(given: Any, rows: int, random: np.random.Generator, mark: int | None = None) -> Any:
    """An array of `rows` rows, like a given array. `mark` is the integer that stands for padding or an ignored
    label.
    """
    if not given.ndim:
        return given
    shape = (rows, *given.shape[1:])
    if given.dtype.kind == "f":
        return _numbers_like(given, shape, random)
    filled = random.uniform(0.2, 1.0, rows)
    if given.dtype.kind == "b":
        return random.random(shape) < filled.reshape(rows, *[1] * (given.ndim - 1))
    numbers = np.unique(given)
    usual = numbers[numbers != mark]
    array = random.choice(usual if len(usual) else numbers, shape)
    if given.ndim > 1:
        width = given.shape[1]
        padding = numbers[0] if mark is None else mark
        length = np.maximum((filled * width).astype(int), 1)
        if len(given) > 1 and (given == padding).reshape(len(given), -1).all(1).any():  # rows that hold nothing
            length[random.random(rows) < 0.3] = 0
        array[np.arange(width)[None, :] >= length[:, None]] = padding
        if mark is not None:  # also at the beginning of rows that continue after it
            array[(length > 1) & (random.random(rows) < 0.3), 0] = mark
    elif mark is not None:
        array[random.random(rows) < 0.3] = mark
    return array.astype(given.dtype)


def _numbers_like(given: Any, shape: tuple[int, ...], random: np.random.Generator) -> Any:
    """Floating-point numbers like those of a given array, in another number of rows.

    What is no number, such as a NaN for a value that is missing, stands for as large a part of a place's rows.
    """
    if not given.size:
        return np.zeros(shape, given.dtype)
    if not (known := np.isfinite(given)).all():
        usual = _numbers_like(np.where(known, given, given[known][0] if known.any() else 0), shape, random)
        odd = np.take_along_axis(given, random.integers(0, len(given), shape), 0)
        return np.where(np.isfinite(odd), usual, odd).astype(given.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        spread, middle = float(given.std()), float(given.mean())
    least, most = float(given.min()), float(given.max())
    if not np.isfinite([spread, middle, most - least]).all():  # numbers so large that they have no spread
        return np.take_along_axis(given, random.integers(0, len(given), shape), 0)
    made = random.normal(middle, spread or 1.0, shape)
    if not spread:  # an example of zeros, for instance, says nothing of its kind
        return made.astype(given.dtype)
    made = np.where((made < least) | (made > most), random.uniform(least, most, shape), made)
    drawn = np.take_along_axis(given, random.integers(0, len(given), shape), 0)
    return np.where((given == np.floor(given)).all(0), drawn, made).astype(given.dtype)


_COMPARING = frozenset({"equal", "not_equal", "greater_than", "less_than", "greater_equal", "less_equal"})
"""Ops that compare numbers."""

UNUSUAL = -100
"""The label that PyTorch's losses ignore by default. Data rarely contain it."""


def _marks_of(main: Program) -> dict[str, int]:
    """The integer with which a program compares each input; inputs that are not compared are left out."""
    origin = {var.name: var.name for var in inputs_of(main)}
    constants: dict[str, int] = {}
    result: dict[str, int] = {}
    for op in main.main_block.ops:
        if (
            facts_of(op.type).numbers in ("moved", "in_order")
            and (name := op.input("X") or op.input("Input")) in origin
        ):
            origin.update(dict.fromkeys(op.output_names, origin[name]))
        value = op.attrs.get("value", 0.0)
        if op.type == "fill_constant" and isinstance(value, int | float) and float(value).is_integer():
            constants.update(dict.fromkeys(op.output_names, int(value)))
        if op.type in _COMPARING:
            for name, other in ((op.input("X"), op.input("Y")), (op.input("Y"), op.input("X"))):
                if name in origin and other in constants and constants[other] != UNUSUAL:
                    result.setdefault(origin[name], constants[other])
    return result


def inputs_of(main: Program) -> list[Var]:
    """The variables that a program reads before it makes them, in the order in which it reads them first.

    What a `read` op gives is among them: a run is fed what readers would give. Raises DiagnosticError for other ops
    that read a reader.
    """
    main = without_unmade_terms(main)
    inner = {name for block in main.blocks[1:] for op in block.ops for name in op.output_names}
    variables = main.main_block.vars
    written_names = set[str]()
    result: dict[str, Var] = {}
    for op in main.main_block.ops:
        if facts_of(op.type).reader:
            given = [variables[name] for name in op.output_names if name in variables]
            result.update((var.name, var) for var in given if var.kind is not VarKind.READER)
            written_names.update(op.output_names)
            continue
        for name in op.input_names:
            var = variables.get(name)
            if var is None or var.persistable or name in written_names or name in inner:
                if var is not None and var.kind is VarKind.READER:
                    message = f"{op.type} reads %{name}, which is a reader; a check needs inputs that are fed"
                    raise DiagnosticError([error("check-no-data", message, var.location, focus=f"%{name}")])
                continue
            result.setdefault(name, var)
        written_names.update(op.output_names)
    return list(result.values())


class _Maker:
    """Makes inputs that fit each other and the program."""

    def __init__(self, main: Program, inputs: list[Var], steps: int, batch: int, shares: int):
        self.limits = Limits(main)
        self.uses = InputConstraints(main, inputs, RULES)
        self.steps = steps
        self.shares = shares
        self.batch = batch
        equations = self.uses.equations
        self.multiples = divisors(equations, (dim for known in self.uses.known_values.values() for dim in known.dims))
        self.values: dict[int, int] = {}
        """The values of symbols: numbers of rows of the batch, or of other dims of inputs."""
        known_inputs = self.uses.inputs.values()
        flat = [
            known
            for var in inputs
            if (known := self.uses.inputs.get(var.name)) and not (var.tensor is not None and var.tensor.lod_level > 1)
        ]
        self._set((known.lod.sequences if known.lod else known.dims[0] for known in flat if known.dims), batch)
        self.rows = frozenset(self.values)
        for (whole, cut), short in self.uses.shorter.items():
            if any(
                equations.resolve_term(dim) == equations.resolve_term(short)
                for known in known_inputs
                for dim in known.dims[1:]
            ):
                self._set((whole,), LONGEST)
                self._set((short,), (self.number(whole) or cut) - cut)
        self._set((dim for known in known_inputs for dim in known.dims[1:]), LONGEST)
        for dim, least in self.uses.least:  # in every share
            term = equations.resolve_term(dim)
            symbols = [symbol for symbol, _ in term.powers if symbol in self.values]
            if len(symbols) == 1 and (self.number(dim) or least) < least * shares:
                self.values[symbols[0]] *= math.ceil(least * shares / (self.number(dim) or least))
        padded = {equations.resolve_term(lod.rows): self.number(dim) for lod, dim in self.uses.padded.values()}
        self.longest = {rows: number for rows, number in padded.items() if number}
        """Rows of sequences -> the length that the longest sequence must have at least."""

    def _set(self, terms: Any, value: int) -> None:
        """Sets the symbols of terms that have no value: to `value`, or to a multiple of it where `value` can't be
        divided.
        """
        for term in terms:
            for symbol, _ in self.uses.equations.resolve_term(term).powers:
                multiple = self.multiples.get(symbol, 1)
                fits = value % (multiple * (self.shares if value % self.shares == 0 else 1)) == 0
                self.values.setdefault(symbol, value if fits else value * multiple)

    def number(self, term: Term) -> int | None:
        """The value of a dim; None if it depends on a number of rows that is not set."""
        return evaluate_term(self.uses.equations, term, self.values)

    def input(self, var: Var, random: Any) -> dict[str, Any]:
        """The arrays of an input by name. Raises DiagnosticError if no data can be made for it."""
        tensor, known = var.tensor, self.uses.inputs.get(var.name)
        if known is None or tensor is None:
            raise self._no_data_error(var, f"no data can be made for %{var.name}, declared {declared_type(var)}")
        numbers = [self.number(dim) for dim in known.dims]
        inner = tuple(number for number in numbers[1:] if number is not None)
        kind = np.dtype(NUMPY_TYPES[tensor.dtype])
        if tensor.lod_level > 1 and len(inner) == len(numbers) - 1:
            shapes = [self._nested_shape(var, step, inner) for step in range(self.steps)]
            self._require_bounded_size(var, sum(math.prod(shape) for shape, _ in shapes))
            drawn = [LoDTensor(self._draw_input(var.name, kind, shape, random), lod) for shape, lod in shapes]
            return arrays_of(var.name, drawn)
        if len(inner) < len(numbers) - 1 or (known.lod is None and None in numbers[:1]):
            raise self._no_data_error(
                var, f"it can't be told how many rows %{var.name}, declared {declared_type(var)}, has"
            )
        if known.lod is None:
            shape = (self.steps, *(number or 0 for number in numbers[:1]), *inner)
            self._require_bounded_size(var, math.prod(shape))
            return {var.name: self._draw_input(var.name, kind, shape, random)}
        lengths = self._lengths(var, known.lod)
        self._require_bounded_size(var, int(lengths.sum()) * math.prod(inner))
        rows = self._draw_input(var.name, kind, (int(lengths.sum()), *inner), random)
        rows = self.limits.keep_sequences_nonempty(var.name, rows, np.cumsum(lengths) - lengths.ravel())
        return {var.name: rows, var.name + LENGTHS: lengths.astype("int64")}

    def _nested_shape(self, var: Var, step: int, inner: tuple[int, ...]) -> tuple[tuple[int, ...], list[list[int]]]:
        """The shape of one step's data for sequences of sequences, and their LoD."""
        assert var.tensor is not None
        lod: list[list[int]] = []
        count = self.batch
        for level in range(var.tensor.lod_level):
            lod.append([0, *np.cumsum(1 + (np.arange(count) + step + level) % LONGEST_NESTED).tolist()])
            count = lod[-1][-1]
        return (count, *inner), lod

    def _lengths(self, var: Var, lod: Lod) -> Any:
        """The lengths of the sequences of an input, of shape [steps, sequences]."""
        sequences, rows = self.number(lod.sequences), self.number(lod.rows)
        if not sequences or (rows is not None and rows < sequences):
            raise self._no_data_error(
                var, f"it can't be told how many sequences %{var.name}, declared {declared_type(var)}, has"
            )
        if rows is not None:
            even = np.full(sequences, rows // sequences)
            even[: rows % sequences] += 1
            return np.tile(even, (self.steps, 1))
        term = self.uses.equations.resolve_term(lod.rows)
        factor = math.prod([1, *(self.multiples.get(symbol, 1) for symbol, _ in term.powers)]) * term.factor
        longest = self.longest.get(term)
        turns = np.arange(self.steps * sequences).reshape(self.steps, sequences) + np.arange(self.steps)[:, None]
        lengths = (1 + turns % (longest or LONGEST)) * math.ceil(factor)
        if longest:  # every share has a sequence of that length
            lengths[:, :: max(sequences // self.shares, 1)] = longest
        return lengths

    def _draw_input(self, name: str, kind: Any, shape: tuple[int, ...], random: Any) -> Any:
        """Draws numbers for an input: lengths of sequences, indices of rows, or what its readers accept otherwise."""
        lengths = [(self.number(dim), reached) for dim, reached in self.uses.lengths.get(name, ())]
        most = min((number for number, _ in lengths if number), default=0)
        if most:
            result = random.integers(1, most + 1, shape).astype(kind)
            if any(reached for _, reached in lengths):
                result[:, :: max(shape[1] // self.shares, 1)] = most
            return result
        below: int | None = None
        for _, dim in self.uses.below.get(name, ()):
            limit = self.number(dim)
            if limit:
                of_batch = any(symbol in self.rows for symbol, _ in self.uses.equations.resolve_term(dim).powers)
                limit = max(limit // self.shares, 1) if of_batch else limit
                below = limit if below is None else min(below, limit)
        return self.limits.draw(name, kind, shape, random, below)

    def _require_bounded_size(self, var: Var, count: int) -> None:
        if count > LARGEST:
            raise self._no_data_error(var, f"%{var.name}, declared {declared_type(var)}, takes more data than is made")

    def _no_data_error(self, var: Var, why: str) -> DiagnosticError:
        return DiagnosticError(
            [error("check-no-data", f"{why}; give it with --feed", var.location, focus=f"%{var.name}")]
        )


HUGE = 1000.0
"""The least `scale` that marks its input as a mask. Such an input gets 0 and 1 only."""

_SAME: Collection[Numbers] = ("moved", "in_order")
"""The `numbers` facts of ops whose outputs hold the elements of their inputs. Readers of the outputs bound the
inputs.
"""

_GROWING: Collection[Numbers] = (*_SAME, "combined")
"""The `numbers` facts of ops whose outputs are large or positive if their inputs are."""


class Limits:
    """The numbers that each input may hold, as implied by the ops that read it."""

    def __init__(self, main: Program):
        self.main = main
        self.readers: dict[str, list[Op]] = {}
        for block in main.blocks:
            for op in block.ops:
                for name in op.input_names:
                    self.readers.setdefault(name, []).append(op)

    def draw(self, name: str, kind: Any, shape: tuple[int, ...], random: Any, below: int | None = None) -> Any:
        """Draws numbers of the element type `kind` for an input.

        Integers lie below `below` and below the bounds of the ops that read them.
        """
        if kind.kind in "iu":
            stated = {facts_of(op.type).domains.get(slot) for op, slot, _ in self._reads(name, _SAME)}
            result = [*self._counts(name), *([] if below is None else [below]), *([1] if "zero" in stated else [])]
            first = 1 if self._blank_first(name) or "positive" in stated else 0
            return random.integers(min(first, min(result, default=2) - 1), min(result, default=2), shape).astype(kind)
        read = list(self._reads(name, _SAME))
        if kind.kind == "b" or any(facts_of(op.type).domains.get(slot) == "binary" for op, slot, _ in read):
            return random.integers(0, 2, shape).astype(kind)
        if any(slot == "Label" and op.attrs.get("soft_label") for op, slot, _ in read):
            classes = random.integers(0, shape[-1], shape[:-1])
            return np.eye(shape[-1], dtype=kind)[classes]
        summed = list(self._reads(name, _GROWING))
        if any(op.type == "scale" and abs(_float(op, "scale")) >= HUGE for op, _, _ in summed):
            return (random.random(shape) < 0.75).astype(kind)
        if any(facts_of(op.type).domains.get(slot) == "positive" for op, slot, _ in summed):
            return random.uniform(0.5, 1.5, shape).astype(kind)
        return random.uniform(-1.0, 1.0, shape).astype(kind)

    def keep_sequences_nonempty(self, name: str, rows: Any, firsts: Any) -> Any:
        """Replaces the first integer of each sequence where necessary, so that `sequence_erase` leaves no sequence
        empty.

        `firsts` are the indices in `rows` at which sequences begin.
        """
        read = self._reads(name, _SAME)
        erased = {token for op, _, _ in read if op.type == "sequence_erase" for token in ints_attr(op, "tokens")}
        left = next(number for number in count() if number not in erased)
        if erased and left < min(self._counts(name), default=left + 1):
            rows[firsts] = np.where(np.isin(rows[firsts], list(erased)), left, rows[firsts])
        return rows

    def _reads(self, name: str, through: Collection[Numbers]) -> Iterator[tuple[Op, str, str]]:
        """The forward ops that read an input's elements, directly or through ops whose `numbers` fact is in `through`.

        Each comes with the slot and the name under which it reads them.
        """
        waiting, seen = [name], {name}
        while waiting:
            here = waiting.pop()
            for op in self.readers.get(here, ()):
                if op.role is not None and op.role & (OpRole.BACKWARD | OpRole.OPTIMIZE):
                    continue
                yield from ((op, slot, here) for slot, names in op.inputs.items() if here in names)
                if facts_of(op.type).numbers in through:
                    waiting += [out for out in op.output_names if out not in seen]
                    seen.update(op.output_names)

    def _counts(self, name: str) -> list[int]:
        """The upper bounds of the integers of an input; the bounds themselves are excluded."""
        bounds = (_bound(op, here, self.main) for op, _, here in self._reads(name, _SAME))
        return [bound for bound in bounds if bound is not None]

    def _blank_first(self, name: str) -> bool:
        """Whether an input is the labels of a `warpctc` op whose blank is 0."""
        read = self._reads(name, _SAME)
        return any(op.type == "warpctc" and slot == "Label" and not op.attrs.get("blank") for op, slot, _ in read)


def _float(op: Op, name: str) -> float:
    value = op.attrs.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _bound(op: Op, name: str, main: Program) -> int | None:
    for slot, names in op.inputs.items():
        if name not in names:
            continue
        limit = facts_of(op.type).domains.get(slot)
        if isinstance(limit, AmongThose):
            return len(op.inputs.get(limit.of) or op.outputs.get(limit.of, ()))
        if isinstance(limit, Below) and limit.axis is None:
            count = op.attrs.get(limit.of)
            if isinstance(count, int):
                return count
        elif isinstance(limit, Below | Within):
            var, own = main.find_var(op.input(limit.of) or ""), main.find_var(name)
            depth = own.shape[-1] if own is not None and own.shape else 0
            shape = var.shape if var is not None else ()
            dim = min((dim for dim in shape[chosen_dims(op, limit, len(shape), depth)] if dim > 0), default=0)
            if dim > 0:
                return dim - 1 if op.type == "warpctc" and op.attrs.get("blank") == dim - 1 else dim
    return None
