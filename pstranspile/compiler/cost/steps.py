"""The work and the memory of a step of a program: its operations, the bytes that it touches, and its peak memory.

The types of values come from the shape rules of the ops, for a batch with a given number of rows. A value takes memory
from the op that makes it to the last op that reads it, as in the interpreter; parameters and other state are counted
apart. An op with a block, such as a loop, is counted as if the block ran once; the ops of a block that several ops run
are counted for each of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any, NamedTuple

from pstranspile.compiler.analysis.uses import sub_blocks
from pstranspile.compiler.cost.balance import ID
from pstranspile.ir.diagnostics import DiagnosticError, at_op, quantity
from pstranspile.ir.model import EMPTY, Op, Program, TensorType, Var
from pstranspile.ops import facts_of, schema_of
from pstranspile.ops.attributes import strings_attr
from pstranspile.ops.gradient import EMPTY_NAME
from pstranspile.ops.schema import Slicing
from pstranspile.ops.shapes import ShapeError, Types, infer_types
from pstranspile.ops.work import (
    Family,
    bytes_of,
    calls_of,
    family_with,
    memory_traffic,
    operations,
)

MOST_LEVELS = 10_000
"""The number of ops of a step from which on the memory of a block is told by its most alone."""

FORGOTTEN = 1 << 21
"""The bytes that are touched between two ops of a kind, after which the second one is as a first one: about those of a
core's own cache.
"""

SEQUENCE = 32
"""The length of the longest sequence of a batch, if no example tells it."""


class OpCost(NamedTuple):
    """An op of a step: its block and number, its type, its floating-point operations, and the bytes that it reads and
    writes, in all `runs` of its block. `family` is that of ops whose time grows as its time does. It works in so many
    `calls`: a recurrent op has some for each step of the longest sequence, and some more. `kind` names the ops whose
    rate it has, if a profile has one for them: its type, with " rows" if it works on single rows of a table, with
    " spread" if it works on each element of one input and spreads a smaller one over it, and with " channels" if that
    does not have the last dims of the other. `first` is 1 for the first op
    of its kind in a step, and for one since whose last one so much was touched that the processor's caches have
    forgotten it (`FORGOTTEN`): its code has to come from memory. So do the `far` bytes of inputs that no op has touched
    for as long.
    """

    block: int
    number: int
    type: str
    operations: float
    touched: float
    runs: int
    family: Family
    calls: int = 1
    kind: str = ""
    first: int = 0
    far: float = 0.0


class StepCost(NamedTuple):
    """The cost of a step of a program on one machine.

    `held` are the bytes of variables that outlive the step, `peak` the most bytes of the step's other values at one
    time. `loops` counts the ops whose blocks are counted as if these ops ran them once. `levels` are the bytes of these
    values during each op, in the order of the program; the ops of blocks stand in the place of the op that runs
    them, of many their most alone.
    """

    operations: float
    touched: float
    held: int
    peak: int
    ops: tuple[OpCost, ...]
    loops: int
    levels: tuple[int, ...] = ()


def step_cost(
    program: Program,
    rows: int,
    *,
    example: Mapping[str, Any] = EMPTY,
    sparse_rows: Mapping[str, int] = EMPTY,
    held_rows: Mapping[str, int] = EMPTY,
) -> StepCost:
    """The cost of a step of a program whose batch has so many rows.

    `example` are arrays of a batch, which give the dims of inputs beyond the first where the program leaves them open,
    the rows of each input for a row of the batch, and the length of sequences; without one these count as 1, 1 and
    `SEQUENCE`. `sparse_rows` are the numbers of rows of sparse values that come from other machines,
    `held_rows` those of tables that lie elsewhere, or whose rows exist once they are trained. Raises DiagnosticError at
    an op that can't work on a batch of so many rows.
    """
    step = _StepWalk(program, rows, example, sparse_rows)
    peak = step.block(0)
    held = sum(
        bytes_of(_with_rows(var.tensor, held_rows[name]) if name in held_rows else step.persistent_type(var))
        for name, var in program.main_block.vars.items()
        if var.persistable and var.name not in step.merged
    )
    ops = tuple(step.ops)
    return StepCost(
        sum(op.operations for op in ops),
        sum(op.touched for op in ops),
        held,
        peak,
        ops,
        step.loops,
        tuple(step.levels[0]),
    )


def _with_rows(tensor: TensorType | None, rows: int) -> TensorType | None:
    return tensor._replace(shape=(rows, *tensor.shape[1:])) if tensor is not None and tensor.shape else tensor


class _StepWalk:
    """A walk over the ops of a program in the order of a step: the types of all values, and the cost of each op."""

    def __init__(self, program: Program, rows: int, example: Mapping[str, Any], sparse_rows: Mapping[str, int]):
        self.program = program
        self.rows = rows
        self.example = example
        self.rows_of_example = max((dims[0] for each in example.values() if (dims := _dims(each))), default=0)
        lengths = [stop - start for each in example.values() for start, stop in pairwise(_offsets(each))]
        self.longest = max(lengths, default=SEQUENCE)
        """The length of the longest sequence."""
        share = rows / self.rows_of_example if self.rows_of_example else 1.0
        self.sequences: dict[str, tuple[int, ...]] = {
            name: tuple(round(share * (len(offsets) - 1)) for offsets in levels)
            for name, value in example.items()
            if (levels := getattr(value, "lod", None))
        }
        """The numbers of sequences of each value, the outermost level first."""
        self.ops: list[OpCost] = []
        self.touched = 0.0
        """The bytes that ops have touched."""
        self.ran: dict[str, float] = {}
        """The bytes that had been touched when an op of a kind ran last."""
        self.seen: dict[str, float] = {}
        """The bytes that had been touched after the last op that read or made a value."""
        self.loops = 0
        self.runs = _runs_of(program)
        self.peaks: dict[int, int] = {}
        """The most bytes that the values of a block take at one time, by the index of the block."""
        self.levels: dict[int, list[int]] = {}
        """The bytes that the values of a block take during each of its ops, by the index of the block."""
        self.readers: dict[int, Counter[str]] = {}
        self.known: dict[str, TensorType] = {}
        self.inputs = _inputs_of(program)
        serving = [op for op in program.main_block.ops if facts_of(op.type).communicates == "server"]
        self.received = frozenset(name for op in serving for name in op.input_names)
        """The gradients that a server receives, which it has until all its blocks have run."""
        texts = [text for op in serving for text in strings_attr(op, "grad_to_block_id")]
        self.merged = frozenset(text.rpartition(":")[0] for text in texts)
        """The gradients for which a server has a block. They do not outlive it, although they are declared so."""
        self.sparse: set[str] = set(sparse_rows)
        """The values that are sparse rows: their types have as many rows as there are ids."""
        for name, count in sparse_rows.items():
            var = program.main_block.vars.get(name)
            if var is not None and var.tensor is not None and var.tensor.shape:
                self.known[name] = var.tensor._replace(shape=(count, *var.tensor.shape[1:]))

    def declared_type(self, var: Var) -> TensorType | None:
        """The declared type of a variable, with numbers in place of open dims."""
        tensor = var.tensor
        if tensor is None or min(tensor.shape, default=0) >= 0:
            return tensor
        first, *later = (self.rows if dim < 0 else dim for dim in tensor.shape)
        if var.name in self.inputs:
            given = _dims(self.example.get(var.name))
            if given and self.rows_of_example and tensor.shape[0] < 0:
                first = round(self.rows * given[0] / self.rows_of_example)
            given = given if len(given) == len(tensor.shape) else (1,) * len(tensor.shape)
            later = [like if dim < 0 else dim for dim, like in zip(tensor.shape[1:], given[1:], strict=True)]
        return tensor._replace(shape=(first, *later))

    def persistent_type(self, var: Var) -> TensorType | None:
        """The type of a variable that outlives the step: sparse rows have as many as the step gives them."""
        return self.known[var.name] if var.name in self.sparse and var.name in self.known else self.declared_type(var)

    def type_of(self, name: str, block: int) -> TensorType | None:
        """The type of a value at this point of the step, None if it is not known."""
        if name in self.known:
            return self.known[name]
        var = self.program.find_var(name, block)
        return self.declared_type(var) if var is not None else None

    def block(self, index: int) -> int:
        """Adds the ops of a block the first time, and returns the most bytes that its values take at one time."""
        if index in self.peaks:
            return self.peaks[index]
        ops, runs = self.program.blocks[index].ops, self.runs[index]
        memory = _Memory()
        for number, op in enumerate(ops):
            inputs = {slot: tuple(self.type_of(name, index) for name in names) for slot, names in op.inputs.items()}
            inputs, outputs = self._op_types(op, inputs, index)
            inner = sub_blocks(op)
            if inner:
                self.loops += 1
                memory.at(number, max(map(self.block, inner), default=0))
            else:
                work, moved = operations(op, inputs, outputs), memory_traffic(op, inputs, outputs)
                sparse = any(name in self.sparse for name in op.input_names)
                family = family_with(op, inputs, outputs, sparse=sparse)
                calls = calls_of(op.type, min(self.longest, self.rows))
                kind = kind_of(op.type, family, inputs)
                first = int(self.touched - self.ran.get(kind, -2 * FORGOTTEN) > FORGOTTEN)
                self.touched += moved
                self.ran[kind] = self.touched
                far = min(sum(self._far(op, index)), moved) * runs
                self.seen.update(dict.fromkeys((*op.input_names, *op.output_names), self.touched))
                of_runs = work * runs, moved * runs, runs
                self.ops.append(OpCost(index, number, op.type, *of_runs, family, calls, kind, first, far))
            self._remember(memory, op, number, index)
        levels = memory.levels(len(ops))
        peak = self.peaks[index] = max(
            (level + memory.inside(number) for number, level in enumerate(levels)), default=0
        )
        every = self.levels[index] = []
        for level, op in zip(levels, ops, strict=True):
            blocks = [self.levels.get(block, []) for block in sub_blocks(op)]
            if len(every) + sum(map(len, blocks)) > MOST_LEVELS:  # many ops may run one block, and blocks others
                blocks = [[max(inner, default=0) for inner in blocks]]
            every += [level + more for inner in blocks for more in inner] or [level]
        return peak

    def _far(self, op: Op, block: int) -> Iterator[int]:
        """Yields the bytes of the inputs of an op that no op has touched lately."""
        dims_only = facts_of(op.type).dims_only.split()
        for slot, names in op.inputs.items():
            for name in dict.fromkeys(names if slot not in dims_only else ()):
                if name != EMPTY_NAME and self.touched - self.seen.get(name, -2 * FORGOTTEN) > FORGOTTEN:
                    yield self._bytes(name, block)

    def _remember(self, memory: _Memory, op: Op, number: int, block: int) -> None:
        """Notes which values an op reads and makes; what no op has made before has come with the batch or a message."""
        facts = facts_of(op.type)
        dims_only = facts.dims_only.split()
        for slot, names in op.inputs.items():
            for name in names:
                if name != EMPTY_NAME and not self._is_held(name, block) and not (block and name in self.received):
                    memory.read(name, number, self._bytes(name, block), dims_only=slot in dims_only)
        if facts.memory == "over" and op.inputs.get("X", ()) and (result := op.outputs.get("Out", ())):
            memory.over(op.inputs["X"][0], result[0])
        moves = facts.numbers == "in_order" and not sub_blocks(op)
        source = next(op.input_names, "") if moves else ""
        if self._readers(block)[source] > 1:  # others have the value while its copy is there
            source = ""
        for name in op.output_names:
            if name != EMPTY_NAME and not self._is_held(name, block):
                memory.make(name, number, self._bytes(name, block), source, new=facts.memory != "")

    def _readers(self, block: int) -> Counter[str]:
        """How many ops of a block read each value."""
        if block not in self.readers:
            self.readers[block] = Counter(name for op in self.program.blocks[block].ops for name in {*op.input_names})
        return self.readers[block]

    def _is_held(self, name: str, block: int) -> bool:
        var = self.program.find_var(name, block)
        return var is None or (var.persistable and name not in self.merged)

    def _bytes(self, name: str, block: int) -> int:
        tensor = self.type_of(name, block)
        ids = ID * tensor.shape[0] if name in self.sparse and tensor is not None and tensor.shape else 0
        return bytes_of(tensor) + ids

    def _op_types(self, op: Op, inputs: Types, block: int) -> tuple[Types, Types]:
        """The types of an op's inputs and outputs; the outputs' are kept for the ops that read them."""
        rows = next(
            (name for names in op.inputs.values() for name in names if name in self.sparse and name in self.known), None
        )
        inferred: Types = {}
        try:
            inferred = infer_types(op, lambda name: self.type_of(name, block))
        except ShapeError as problem:
            # Rules don't know sparse rows, of which there are fewer than a parameter has. What the ops of a block work
            # on is declared in it, with open dims that are not those of the batch.
            if rows is None and block == 0:
                message = f"a batch of {quantity(self.rows, 'row')} (batch_rows) does not fit: {problem.message}"
                raise DiagnosticError([at_op("type-mismatch", message, op)]) from None
        if rows is not None:
            inputs, inferred = self._of_sparse(op, inputs, inferred, self.known[rows])
        outputs = {slot: self._outputs(op, slot, inferred.get(slot, ()), block) for slot in op.outputs}
        if rows is not None and not _updates(op):
            self.sparse.update(name for name in op.output_names if name != EMPTY_NAME)
        return inputs, outputs

    def _outputs(
        self, op: Op, slot: str, given: tuple[TensorType | None, ...], block: int
    ) -> tuple[TensorType | None, ...]:
        """The types of the variables of an output slot: as inferred, or else as declared."""
        is_sparse = facts_of(op.type).sparse_gradient == slot and bool(op.attrs.get("is_sparse"))
        types: list[TensorType | None] = []
        for number, name in enumerate(op.outputs[slot]):
            tensor = given[number] if number < len(given) else None
            if tensor is None or min(tensor.shape, default=-1) < 0:
                var = self.program.find_var(name, block)
                if tensor is not None and tensor.shape[:1] == (-1,) and (longer := self._ended(op, tensor, block)):
                    counts = self.sequences.get(longer, ())[tensor.lod_level :]
                    tensor = tensor._replace(shape=(counts[0] if counts else self.rows, *tensor.shape[1:]))
                if tensor is None or min(tensor.shape, default=-1) < 0:
                    tensor = self.declared_type(var) if var is not None and name != EMPTY_NAME else None
            if is_sparse:
                tensor = self._of_lookups(op, tensor, block)
                self.sparse.add(name)
            types.append(tensor)
            if tensor is not None:
                self.known[name] = tensor
                self._keep_sequences(op, name, tensor)
        return tuple(types)

    def _ended(self, op: Op, tensor: TensorType, block: int) -> str:
        """The input whose sequences become one row each in a result of an op; empty if there is none."""
        inputs = ((name, self.type_of(name, block)) for name in op.input_names if name != EMPTY_NAME)
        return next((name for name, each in inputs if each is not None and each.lod_level > tensor.lod_level), "")

    def _keep_sequences(self, op: Op, name: str, tensor: TensorType) -> None:
        """Notes the sequences of a result: those of the first input that has as many levels, or more."""
        counts = (self.sequences.get(source, ()) for source in op.input_names)
        found = next((each for each in counts if len(each) >= tensor.lod_level), ())
        if tensor.lod_level and found:
            self.sequences[name] = found[: tensor.lod_level]

    def _of_lookups(self, op: Op, tensor: TensorType | None, block: int) -> TensorType | None:
        """The type of the sparse rows that the gradient of a lookup has: a row for each id."""
        if tensor is None or not tensor.shape:
            return tensor
        ids = [self.type_of(name, block) for name in op.inputs.get("Ids", ())]
        return tensor._replace(shape=(sum(prod(each.shape) for each in ids if each is not None), *tensor.shape[1:]))

    def _of_sparse(self, op: Op, inputs: Types, inferred: Types, rows: TensorType) -> tuple[Types, Types]:
        """The types of an op that reads sparse rows: of an update, those of the rows that it changes."""
        schema = schema_of(op.type)
        if schema is not None and schema.slicing:
            if "lazy_mode" in schema.attrs and not op.attrs.get("lazy_mode"):
                return inputs, inferred  # it changes all rows
            changed = {slot for slot, how in schema.slicing.items() if how is Slicing.FOLLOWS}
            return {slot: (rows,) if slot in changed else types for slot, types in inputs.items()}, {
                slot: (rows,) for slot in op.outputs if slot in changed
            }
        if op.type == "sum":
            counts = [self.known[name].shape[0] for name in op.inputs.get("X", ()) if name in self.known]
            return inputs, {"Out": (rows._replace(shape=(sum(counts), *rows.shape[1:])),)}
        return inputs, {slot: (rows,) * len(names) for slot, names in op.outputs.items()}


def kind_of(op_type: str, family: Family, inputs: Types) -> str:
    """The name of the ops that take as long as one with these inputs; see `OpCost`."""
    if family == "sparse_updates":
        return f"{op_type} rows"
    of_x, of_y = ([tensor for tensor in inputs.get(slot, ()) if tensor is not None] for slot in ("X", "Y"))
    if family != "elementwise" or "Y" not in inputs or len({prod(tensor.shape) for tensor in (*of_x, *of_y)}) < 2:
        return op_type
    within = of_x and of_y and of_x[0].shape[-len(of_y[0].shape) :] != of_y[0].shape and prod(of_y[0].shape) > 1
    return f"{op_type} {'channels' if within and len(of_x[0].shape) > 2 else 'spread'}"


def _dims(value: Any) -> tuple[int, ...]:
    """The dims of a value of a batch, with sequences or without; empty if it has none."""
    return getattr(value.data if hasattr(value, "lod") else value, "shape", ())


def _offsets(value: Any) -> Sequence[int]:
    """The offsets of the innermost sequences of a value; empty if it has none."""
    levels = getattr(value, "lod", None)
    return levels[-1] if levels else ()


def _runs_of(program: Program) -> dict[int, int]:
    """How often each block runs in a step if every op with blocks runs each of them once."""
    inner: dict[int, list[int]] = {}
    todo = [0]
    while todo:
        index = todo.pop()
        if index not in inner:
            inner[index] = [ref for op in program.blocks[index].ops for ref in sub_blocks(op)]
            todo += inner[index]
    waits = Counter(ref for refs in inner.values() for ref in refs)
    runs = {**dict.fromkeys(inner, 0), 0: 1}
    todo = [0]
    while todo:
        index = todo.pop()
        for ref in inner[index]:
            runs[ref] += runs[index]
            waits[ref] -= 1
            if not waits[ref]:  # all ops that run it have been counted
                todo.append(ref)
    return runs


def _inputs_of(program: Program) -> frozenset[str]:
    """The variables of the main block that no op makes: they come with a batch, or from another machine."""
    made = {name for block in program.blocks for op in block.ops for name in op.output_names}
    names = (name for op in program.main_block.ops for name in op.input_names)
    return frozenset(name for name in names if name not in made)


def _updates(op: Op) -> bool:
    schema = schema_of(op.type)
    return schema is not None and schema.is_optimizer


REUSED = 1 << 16
"""The least bytes of a value in whose memory a result is written."""


class _Memory:
    """When values take memory: from the op that makes them to the last one that reads them.

    A value that is another one with other dims takes none of its own, and keeps that one. So does the result of an op
    that goes over the elements of an input which nothing else reads.
    """

    def __init__(self):
        self._of: dict[str, str] = {}
        self._size: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._inner: dict[int, int] = {}
        self._readers: Counter[str] = Counter()
        """How many ops read the numbers of a value."""
        self._made: Counter[str] = Counter()
        """How many ops make a value; 2 and more if other values may refer to its memory."""
        self._over: dict[str, str] = {}
        """The inputs over which ops may write their results, by these."""

    def read(self, name: str, number: int, size: int, *, dims_only: bool = False) -> None:
        """Notes that an op reads a value, or its dims alone; one that no op has made is there from the start."""
        root = self._root(name)
        if root not in self._first:
            self._first[root], self._size[root] = 0, size
        self._readers[root] += not dims_only
        self._last[root] = number

    def make(self, name: str, number: int, size: int, source: str = "", *, new: bool = False) -> None:
        """Notes that an op makes a value; `source` is the value of which it is a view. `new`: nothing else refers to
        its memory.
        """
        if (source and source in self._first) or source in self._of:
            self._of[name] = self._root(source)
        root = self._root(name)
        self._made[root] += 1 if new else 2
        self._first.setdefault(root, number)
        self._size[root] = max(size, self._size.get(root, 0))
        self._last[root] = number

    def over(self, source: str, name: str) -> None:
        """Notes that an op may write its result into the memory of an input."""
        if source != name:
            self._over[name] = source

    def at(self, number: int, size: int) -> None:
        """Notes the memory that the blocks of an op take."""
        self._inner[number] = size

    def inside(self, number: int) -> int:
        """The memory that the blocks of an op take."""
        return self._inner.get(number, 0)

    def levels(self, count: int) -> list[int]:
        """The bytes during each of `count` ops, without those of their blocks."""
        last = dict(self._last)
        inside = {name: source for name in self._over if (source := self._memory_owner(name))}
        for name in reversed(inside):  # the last one of a chain first
            last[inside[name]] = max(last[inside[name]], last[name])
        change = [0] * (count + 1)
        for root, first in self._first.items():
            if root not in inside:
                change[first] += self._size[root]
                change[last[root] + 1] -= self._size[root]
        return [*accumulate(change[:count])]

    def _memory_owner(self, name: str) -> str:
        """The value in whose memory one is made, "" if it has its own."""
        source = self._root(self._over[name])
        alone = self._made[source] == self._made[name] == self._readers[source] == 1 and self._root(name) == name
        return source if alone and REUSED <= self._size[source] == self._size.get(name) else ""

    def _root(self, name: str) -> str:
        while name in self._of:
            name = self._of[name]
        return name
