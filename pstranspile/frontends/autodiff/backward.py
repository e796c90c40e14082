"""Backward ops for a loss: the chain rule over the ops of a program, as Fluid's `append_backward` and `gradients`."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import NamedTuple

from pstranspile.frontends.layers.draft import Draft, gradient_block
from pstranspile.ir.attributes import BlockRef, Longs
from pstranspile.ir.diagnostics import (
    Diagnostic,
    DiagnosticError,
    Severity,
    at_op,
    did_you_mean,
    error,
    file_of,
    name_list,
    raise_errors,
)
from pstranspile.ir.model import EMPTY, FrozenMap, Op, Origin, Program, Slots, TensorType, Var
from pstranspile.ir.text.literals import var_text
from pstranspile.ir.types import DType, OpRole, VarKind
from pstranspile.ops import facts_of, with_defaults
from pstranspile.ops.gradient import (
    EMPTY_NAME,
    SUFFIX,
    GradientBlock,
    WantedGradients,
    bare_op,
    gradient_name,
    gradient_rule,
    variable_of_gradient,
)
from pstranspile.ops.gradients.audit import wrong_gradients
from pstranspile.ops.gradients.needs import with_loop_terms
from pstranspile.ops.gradients.versions import (
    FLOATS,
    WITH_BLOCKS,
    Forward,
    can_be_followed,
    inner_block,
    keeps_value,
    with_old_values,
)
from pstranspile.ops.shapes import ShapeError, Types, infer_types

# Declarations of gradients: their kind and type.


_ARRAYS = ("write_to_array", "lod_tensor_to_array")
_SAME_KIND: Mapping[tuple[str, str], str] = {
    ("while_grad", "X@GRAD"): "X",
    ("conditional_block_grad", "Input@GRAD"): "Input",
    ("tensor_array_to_tensor_grad", "X@GRAD"): "X",
    ("scale", "Out"): "X",
    ("assign", "Out"): "X",
}
"""Outputs whose variables have the kind of an input's variables: (op type, output slot) -> input slot."""


def declare_gradients(draft: Draft, block: int, start: int, variable_of: Mapping[str, str]) -> dict[str, str]:
    """Declares the outputs of a block's ops from `start` on, sub-blocks first, and drops idle ops.

    An op is idle if it writes nothing, or if none of the gradients that it reads exist. Returns variable -> gradient
    for each variable in `variable_of`'s values that now has a gradient.
    """
    gradients: dict[str, str] = {}
    carried = _carried_through(draft, block)
    ops = draft.blocks[block].ops
    kept_ops: list[Op] = []
    for op in ops[start:]:
        sub_block = op.attrs.get("sub_block")
        if isinstance(sub_block, BlockRef):
            gradients |= declare_gradients(draft, int(sub_block), 0, variable_of)
        if _idle(draft, block, op, carried):
            continue
        kept_ops.append(op)
        if op.type == "sum":
            _declare_dropped_terms(draft, block, op)
        for name in _declare_outputs(draft, block, op):
            if name in variable_of:
                gradients[variable_of[name]] = name
    ops[start:] = kept_ops
    return gradients


def _carried_through(draft: Draft, block: int) -> set[str]:
    """The variables that the op which runs a block both reads and writes: a loop passes them from step to step."""
    if block == 0:
        return set()
    for other in draft.blocks:
        for op in other.all_ops():
            if op.attrs.get("sub_block") == block and isinstance(op.attrs["sub_block"], BlockRef):
                return set(op.input_names) & set(op.output_names)
    return set()


def _idle(draft: Draft, block: int, op: Op, carried: set[str]) -> bool:
    if all(name == EMPTY_NAME for name in op.output_names):
        return True
    gradients = [name for name in op.input_names if SUFFIX in name]
    # This op, in the steps of a recurrent op, reads a gradient that the executor sets and no block declares.
    if not gradients or op.type == "rnn_memory_helper_grad":
        return False
    return all(name not in carried and draft.find(name, block) is None for name in gradients)


def _declare_dropped_terms(draft: Draft, block: int, op: Op) -> None:
    """Declares, without a type, the terms that only an idle op would have written, as Fluid does. They add nothing to
    the sum.
    """
    for name in op.inputs["X"]:
        if draft.find(name, block) is None:
            draft.declare(Var(name), block)


def _declare_outputs(draft: Draft, block: int, op: Op) -> list[str]:
    with draft.enter_block(block):
        new = [name for name in op.output_names if name != EMPTY_NAME and draft.find(name) is None]
        over = [name for name in op.output_names if op.type == "reshape2_grad" and name in op.input_names]
        if not new and not over:
            return []
        inferred = _infer_gradient_types(draft, op)
        types = {
            name: held
            for slot, names in op.outputs.items()
            for name, held in zip(names, inferred.get(slot, ()), strict=False)
        }
        for slot, names in op.outputs.items():
            for at, name in enumerate(names):
                if name in new:
                    draft.declare(_gradient_var(draft, op, slot, at, name, types.get(name)))
    for name in over:
        _redeclare(draft, block, name, types.get(name))
    return new


def _infer_gradient_types(draft: Draft, op: Op) -> Types:
    """The types of a gradient op's outputs. Gradients that Fluid declares f32 fit variables of other floats."""

    def of_one_float(name: str) -> TensorType | None:
        type_ = draft.type_for_shape_rules(name)
        return type_._replace(dtype=DType.FP32) if type_ is not None and type_.dtype in FLOATS else type_

    for type_of in (draft.type_for_shape_rules, of_one_float):
        with suppress(ShapeError):
            return infer_types(op, type_of)
    return {}


def _redeclare(draft: Draft, block: int, name: str, result_type: TensorType | None) -> None:
    """Declares a gradient that an op writes in place with the dims of the op's result, as Fluid does."""
    known = draft.blocks[block].vars.get(name)
    if known is not None and known.tensor is not None and result_type is not None:
        draft.declare(known._replace(tensor=known.tensor._replace(shape=result_type.shape)), block)


def _gradient_var(draft: Draft, op: Op, slot: str, at: int, name: str, inferred: TensorType | None) -> Var:
    kind = _kind(draft, op, slot, at)
    forward = draft.find(variable_of_gradient(name))
    if forward is not None and forward.tensor is not None:
        lod = 0 if kind is VarKind.SELECTED_ROWS else _lod_level(draft, op, inferred)
        return Var(name, kind, forward.tensor._replace(lod_level=lod))
    shape = inferred.shape if inferred else ()
    return Var(name, kind, TensorType(DType.FP32, shape))


def _lod_level(draft: Draft, op: Op, inferred: TensorType | None) -> int:
    lod = facts_of(op.type).result_lod
    if lod == "of_gradient":
        inferred = draft.type_of(op.inputs["Out@GRAD"][0])
    elif op.type == "sum":
        inferred = draft.type_of(op.inputs["X"][0])
    elif lod == "none" or (op.type == "linear_chain_crf_grad" and op.inputs.get("Length")):
        return 0
    return inferred.lod_level if inferred else 0


def _kind(draft: Draft, op: Op, slot: str, at: int) -> VarKind:
    if facts_of(op.type).sparse_gradient == slot:
        return VarKind.SELECTED_ROWS if op.attrs.get("is_sparse") is True else VarKind.LOD_TENSOR
    if op.type in _ARRAYS:
        return VarKind.LOD_TENSOR_ARRAY
    like = _SAME_KIND.get((op.type, slot))
    if like is not None:
        source = draft.find(op.inputs[like][at])
        return source.kind if source else VarKind.LOD_TENSOR
    if op.type == "sum":
        return sum_kind(result.kind for result in map(draft.find, op.inputs["X"]) if result)
    return VarKind.LOD_TENSOR


def sum_kind(kinds: Iterable[VarKind]) -> VarKind:
    """The kind of a sum: an array if one part is, sparse rows only if all parts are."""
    distinct = set(kinds)
    if VarKind.LOD_TENSOR_ARRAY in distinct:
        return VarKind.LOD_TENSOR_ARRAY
    return VarKind.SELECTED_ROWS if distinct == {VarKind.SELECTED_ROWS} else VarKind.LOD_TENSOR


# The ops that lead to a loss, and the variables without gradients.


def ops_to(
    ops: Sequence[Op], targets: Collection[str], stopped: AbstractSet[str], *, differentiable: bool = True
) -> list[Op]:
    """The (differentiable) ops on paths to the targets, in order. Paths end at variables in `stopped`."""
    needed = set(targets)
    path: list[Op] = []
    for op in reversed(ops):
        if needed.isdisjoint(op.output_names) or (differentiable and gradient_rule(op.type) is None):
            continue
        path.append(op)
        needed.update(name for name in op.input_names if name not in stopped)
    path.reverse()
    return path


def ops_from(path: Iterable[Op], inputs: Iterable[str]) -> list[Op]:
    """The ops of a path that the inputs lead to."""
    reached, kept = set(inputs), list[Op]()
    for op in path:
        if not reached.isdisjoint(op.input_names):
            reached.update(op.output_names)
            kept.append(op)
    return kept


def unread_outputs(
    path: Iterable[Op],
    targets: Collection[str],
    stopped: AbstractSet[str],
    marked: AbstractSet[str],
) -> set[str]:
    """Outputs of the path's ops that nothing on it reads, so that they have no gradient. Ops with sub-blocks are
    excluded.
    """
    read = set(targets)
    names: set[str] = set()
    for op in reversed(list(path)):
        if not isinstance(op.attrs.get("sub_block"), BlockRef):
            inputs = set(op.input_names)
            names.update(
                name for name in op.output_names if name not in read and name not in inputs and name not in marked
            )
        read.update(name for name in op.input_names if name not in stopped)
    return names


def stopped_by_default(program: Program) -> set[str]:
    """Variables of a program that Fluid's layers would have marked as having no gradient.

    A ProgramDesc does not record the marks. They are variables that no op writes and that are not parameters (feeds,
    counters), constants, indices, booleans, and persistable variables that are not parameters. A variable that starts
    as a constant and is overwritten by another op does have a gradient.
    """
    written: set[str] = set()
    constant: set[str] = set()
    for block in program.blocks:
        for op in block.ops:
            (constant if facts_of(op.type).constant else written).update(op.output_names)
    names: set[str] = set()
    for index, block in enumerate(program.blocks):
        for var in block.vars.values():
            if var.parameter is not None or SUFFIX in var.name:
                continue
            untouched = index == 0 and var.name not in written
            fixed = var.name in constant and not (var.name in written and var.dtype in FLOATS)
            if untouched or var.persistable or var.dtype is DType.BOOL or fixed:
                names.add(var.name)
    return names


def missing_gradient_findings(draft: Draft, loss: str, parameters: AbstractSet[str]) -> tuple[Diagnostic, ...]:
    """Findings on ops without a gradient that are on every path from a parameter to the loss."""
    ops = draft.blocks[0].ops
    through: dict[str, Op] = {}
    reaches: set[str] = {loss}
    for op in reversed(ops):
        if op.role is None or not reaches.intersection(op.output_names):
            continue
        if op.role & (OpRole.BACKWARD | OpRole.OPTIMIZE | OpRole.LR_SCHED):
            continue
        stop = op if gradient_rule(op.type) is None else None
        for name in op.output_names:
            stop = stop or through.get(name)
        for name in op.input_names:
            reaches.add(name)
            if stop is not None:
                through.setdefault(name, stop)
    findings: list[Diagnostic] = []
    for param in sorted(parameters):
        stop = through.get(param)
        if stop is not None:
            message = f"has no gradient, and parameter %{param} reaches the loss %{loss} only through it"
            findings.append(at_op("not-differentiable", message, stop, severity=Severity.ERROR))
    return tuple(findings)


# Separate names for the values of variables that a model overwrites, so that each value has its own gradient.
#
# If several ops write a variable, its gradients share one name. Here every value but the last gets a new name. A loop
# or a branch changes a variable in place, so it gets a copy that nothing else reads. Its block reads the copy once, at
# its start, and writes it once, at its end.

_TAKES = {"while": "X", "conditional_block": "Input"}


def give_own_names(draft: Draft) -> dict[str, str]:
    """Gives each value of an overwritten variable a separate name, in all blocks of a forward program.

    The result of the program is the same, and the last value of a variable keeps its name. Returns new name ->
    variable.
    """
    work = _Naming(draft)
    work.block(0, {}, frozenset(), ())
    return work.original_names


class _Naming:
    """One pass over the blocks of a forward program."""

    def __init__(self, draft: Draft):
        self.draft = draft
        self.program = draft.main()
        self.original_names: dict[str, str] = {}

    def block(
        self, number: int, outside: Mapping[str, str], valued: AbstractSet[str], changed: Collection[str]
    ) -> None:
        """Renames the variables in a block whose values need names of their own.

        `outside` maps variables of other blocks to their current names, `valued` are those that have a value when the
        block starts, and `changed` those that the block changes.
        """
        forward = Forward(self.program, number)
        names = _CurrentNames(
            {name: called for name, called in outside.items() if name not in forward.block.vars},
            set(valued),
            self._several(forward),
            frozenset(changed),
        )
        ops: list[Op] = []
        for name in [*changed, *names.remaining_writes]:
            if _reads_initial(forward, name, name in valued):
                called = names.current_names.get(name, name)
                names.current_names[name] = self._new(number, name)
                names.valued_names.add(name)
                ops.append(self._copy(called, names.current_names[name], forward.ops[0]))
        for index, op in enumerate(forward.ops):
            if op.type in WITH_BLOCKS:
                ops += self._inner(forward, index, names)
                continue
            inputs = rename_variables(op.inputs, names.current_names)
            if not keeps_value(op):
                for name in forward.written_versions[index]:
                    self._next(number, name, names)
            ops.append(op._replace(inputs=inputs, outputs=rename_variables(op.outputs, names.current_names)))
        ops += [self._copy(names.current_names[name], outside.get(name, name), forward.ops[-1]) for name in changed]
        self.draft.blocks[number].ops[:], self.draft.blocks[number].front[:] = ops, []

    def _several(self, forward: Forward) -> dict[str, int]:
        """The variables with more than one value in the block (a value from before the block counts if an op reads it),
        with the number of writes.
        """
        return {
            name: writes
            for name, writes in forward.last_versions.items()
            if name in forward.block.vars
            and self._is_versioned(forward, name)
            and writes + _reads_initial(forward, name, False) > 1
        }

    def _is_versioned(self, forward: Forward, name: str) -> bool:
        var = self.program.find_var(name, forward.number)
        return var is not None and not var.persistable and var.parameter is None and forward.is_float(name)

    def _inner(self, forward: Forward, index: int, names: _CurrentNames) -> list[Op]:
        """An op with a sub-block, preceded by copies of the variables it changes."""
        op, ops = forward.ops[index], list[Op]()
        slot = _TAKES.get(op.type, "")
        taken = dict.fromkeys(op.inputs.get(slot, ()))
        inner = Forward(self.program, inner_block(self.program, op))
        changed = [
            name
            for name in inner.last_versions
            if name in forward.written_versions[index] and self._is_versioned(forward, name)
        ]
        changed = [name for name in changed if slot and name not in inner.block.vars]
        valued = frozenset(names.valued_names)
        for name in changed:
            called = names.current_names.get(name, name)
            self._next(forward.number, name, names)
            if name in valued:
                taken[name] = None
                if called != names.current_names.get(name, name):
                    ops.append(self._copy(called, names.current_names[name], op))
        self.block(inner.number, names.current_names, valued, changed)
        inputs = FrozenMap({**op.inputs, slot: tuple(taken)}) if slot else op.inputs
        return [
            *ops,
            op._replace(
                inputs=rename_variables(inputs, names.current_names),
                outputs=rename_variables(op.outputs, names.current_names),
            ),
        ]

    def _next(self, number: int, name: str, names: _CurrentNames) -> None:
        """The name of a variable's next value. The last value in the declaring block keeps the variable's own name."""
        names.valued_names.add(name)
        if name in names.changed_names:
            names.current_names[name] = self._new(number, name)
        elif name in names.remaining_writes:
            names.remaining_writes[name] -= 1
            names.current_names[name] = self._new(number, name) if names.remaining_writes[name] else name

    def _new(self, number: int, name: str) -> str:
        draft = self.draft
        var = draft.find(name, number)
        assert var is not None
        new = draft.names.mint(f"{name}@VALUE")
        draft.blocks[number].vars[new] = var._replace(name=new)
        self.original_names[new] = name
        if name in draft.stop_gradient:
            draft.stop_gradient.add(new)
        return new

    def _copy(self, source: str, target: str, neighbour: Op) -> Op:
        with self.draft.roles(OpRole.FORWARD):
            return self.draft.make("assign", {"X": source}, {"Out": target})._replace(origin=neighbour.origin)


class _CurrentNames(NamedTuple):
    """The names of a block's variables: `current_names`, and the number of `remaining_writes` of each.

    `valued_names` are the variables that have a value, `changed_names` those of other blocks that the block changes.
    """

    current_names: dict[str, str]
    valued_names: set[str]
    remaining_writes: dict[str, int]
    changed_names: frozenset[str]


def _reads_initial(forward: Forward, name: str, valued: bool) -> bool:
    """Whether an op reads the value that a variable has when the block starts."""
    for op, after in zip(forward.ops, forward.written_versions, strict=True):
        if name in op.input_names:
            return True
        if name in after:
            return valued and op.type in _TAKES
    return False


def rename_variables(slots: Slots, names: Mapping[str, str]) -> Slots:
    """The slots with variables replaced by their new names in `names`."""
    return FrozenMap({slot: tuple(names.get(name, name) for name in old_names) for slot, old_names in slots.items()})


# Second gradients: a search for gradient ops without a gradient.


class NoSecondGradient(DiagnosticError, NotImplementedError):
    """Raised if a gradient op without a gradient is on the path."""


def require_second(
    ops: Iterable[Op], sources: AbstractSet[str], targets: Iterable[str], stopped: AbstractSet[str]
) -> None:
    """Raises NoSecondGradient if a path from the sources to the targets passes a gradient op without a gradient.

    No path passes the variables in `stopped`.
    """
    reached, crossed = set(sources) - stopped, list[tuple[Op, bool]]()
    for op in ops:
        differentiable = gradient_rule(op.type) is not None
        stops = not differentiable and op.role == OpRole.BACKWARD and op.type.endswith("_grad")
        if not (stops or differentiable):
            continue
        if reached.isdisjoint(_counting(op) if stops else op.input_names):
            continue
        reached.update(name for name in op.output_names if name not in stopped)
        crossed.append((op, stops))
    needed, findings = set(targets), list[Diagnostic]()
    for op, stops in reversed(crossed):
        if needed.isdisjoint(op.output_names):
            continue
        if stops:
            written = ", ".join(f"%{name}" for name in op.output_names if name in needed)
            message = f"the gradient of {op.type} is not part of this version, so that of {written} would count as zero"
            findings.append(at_op("not-differentiable", message, op))
        else:
            needed.update(op.input_names)
    if findings:
        raise NoSecondGradient(findings)


def _counting(op: Op) -> list[str]:
    """The inputs of a gradient op on whose values its results depend."""
    return [name for name in op.input_names if SUFFIX in name] if facts_of(op.type).linear else list(op.input_names)


# Gradients of variables that are used more than once: partial gradients, renamed, and their sums.


def sum_partial_gradients(ops: Sequence[Op], block: int) -> list[Op]:
    """Makes every gradient written once: partial gradients get names of their own and a `sum` op.

    A variable that k ops write becomes `x@GRAD@RENAME@block<block>@0` to k-1. The `sum` stands before the first op that
    reads the complete gradient, or at the end, as in Fluid.
    """
    return _FanOut(ops, block).run()


class _FanOut:
    """One walk over the gradient ops; linear in their number."""

    def __init__(self, ops: Sequence[Op], block: int):
        self.ops = list(ops)
        self.block = block
        self.parts: dict[str, list[str]] = {}
        self.renamed: dict[str, int] = {}
        self.mentions: dict[str, list[int]] = {}
        self.sums: list[tuple[Op, int]] = []
        self.sum_of: dict[str, int] = {}

    def run(self) -> list[Op]:
        for index in range(len(self.ops)):
            for name in _names(self.ops[index].inputs):
                if SUFFIX in name:
                    self._read(name, index)
            self._write(index)
        for name, parts in self.parts.items():
            if len(parts) > 1:
                self._sum(name, parts, len(self.ops))
        return _insert_ops(self.ops, self.sums)

    def _read(self, name: str, index: int) -> None:
        parts = self.parts.setdefault(name, [])
        if len(parts) > 1:
            self._sum(name, parts, index)
            self.parts[name] = [name]
        if parts:  # else it is another gradient of this name, passed into the block
            self.mentions.setdefault(name, []).append(index)

    def _sum(self, name: str, parts: list[str], before: int) -> None:
        self.sum_of[name] = len(self.sums)
        origin = next((op.origin for op in reversed(self.ops[:before]) if op.origin), None) if before else None
        made = bare_op("sum", {"X": tuple(parts)}, {"Out": (name,)}, {"use_mkldnn": False, "op_device": ""})
        self.sums.append((made._replace(origin=origin), before))

    def _write(self, index: int) -> None:
        op = self.ops[index]
        read = set(_names(op.inputs))
        outputs = {slot: list(names) for slot, names in sorted(op.outputs.items())}
        places = [(slot, at) for slot, names in outputs.items() for at in range(len(names))]
        changed = False
        for place, (slot, at) in enumerate(places):
            name = outputs[slot][at]
            if SUFFIX not in name or name == EMPTY_NAME or name in read:
                continue
            parts = self.parts.setdefault(name, [])
            if not parts:
                parts.append(name)
                self.mentions.setdefault(name, []).append(index)
                continue
            if len(parts) == 1:
                first = self._partial(name)
                parts[0] = first
                self._rename_before(name, first, index)
                for earlier_slot, earlier_at in places[:place]:
                    if outputs[earlier_slot][earlier_at] == name:
                        outputs[earlier_slot][earlier_at] = first
            outputs[slot][at] = self._partial(name)
            parts.append(outputs[slot][at])
            changed = True
        if changed:
            self.ops[index] = op._replace(outputs=FrozenMap({slot: tuple(outputs[slot]) for slot in op.outputs}))

    def _partial(self, name: str) -> str:
        number = self.renamed.get(name, 0)
        self.renamed[name] = number + 1
        return f"{name}@RENAME@block{self.block}@{number}"

    def _rename_before(self, name: str, new: str, index: int) -> None:
        for at in self.mentions.pop(name, ()):
            if at < index:
                op = self.ops[at]
                self.ops[at] = op._replace(
                    inputs=_rename_variable(op.inputs, name, new), outputs=_rename_variable(op.outputs, name, new)
                )
        number = self.sum_of.pop(name, None)
        if number is not None:
            op, before = self.sums[number]
            self.sums[number] = (op._replace(outputs=_rename_variable(op.outputs, name, new)), before)


def _names(slots: Slots) -> Iterable[str]:
    """All names, slot by slot in alphabetical order, as in Fluid's op descriptions."""
    return (name for _, names in sorted(slots.items()) for name in names)


def _rename_variable(slots: Slots, old: str, new: str) -> Slots:
    return FrozenMap({slot: tuple(new if name == old else name for name in names) for slot, names in slots.items()})


def _insert_ops(ops: list[Op], more: list[tuple[Op, int]]) -> list[Op]:
    """`ops` with each op of `more` inserted before the op of its index, in their order."""
    before: dict[int, list[Op]] = {}
    for op, index in more:
        before.setdefault(index, []).append(op)
    made: list[Op] = []
    for index, op in enumerate(ops):
        made += before.get(index, ())
        made.append(op)
    return made + before.get(len(ops), [])


# Removal of unneeded gradient ops, and zeros for missing gradients.


def without_unwanted(ops: Iterable[Op], unwanted: set[str]) -> list[Op]:
    """The ops without those that only compute unwanted gradients, or compute them only from unwanted ones.

    `unwanted` grows by the gradients of the latter. If a remaining op reads an unwanted gradient, a `fill_zeros_like`
    before it gives zeros.
    """
    kept = [op for op in ops if not _removable(op, unwanted)]
    wanted_ops: list[Op] = []
    for op in kept:
        for _, names in sorted(op.inputs.items()):
            for name in names:
                if SUFFIX in name and name in unwanted:
                    like = {"X": (variable_of_gradient(name),)}
                    zeros = bare_op("fill_zeros_like", like, {"Out": (name,)}, {"op_device": ""})
                    wanted_ops.append(zeros._replace(origin=op.origin))
        wanted_ops.append(op)
    return wanted_ops


def _removable(op: Op, unwanted: set[str]) -> bool:
    written = list(op.output_names)
    if all(name in unwanted for name in written):
        return True
    read = [name for name in op.input_names if SUFFIX in name]
    if read and all(name in unwanted for name in read):
        unwanted.update(written)
        return True
    return False


def without_unconnected(ops: Sequence[Op], forward: Iterable[Op], known: Iterable[str] = ()) -> list[Op]:
    """The ops without chains that start from gradients that no op writes.

    A chain starts at an op that reads only variables that neither forward ops nor earlier ops write. It is removed if
    all later ops that read its results read nothing else. If all ops would be removed, all stay.
    """
    seen = {name for op in forward for names in (op.input_names, op.output_names) for name in names}
    seen.update(known)
    starts: list[int] = []
    made: set[str] = set()
    for index, op in enumerate(ops):
        read = set(op.input_names)
        if not any(name in seen or name in made for name in read):
            starts.append(index)
        made.update(op.output_names)
    if not starts:
        return list(ops)
    uses, gone = _VersionUses(ops), set[int]()
    for start in starts:
        gone |= _chain(start, uses)
    if len(gone) == len(ops):
        return list(ops)
    return [op for index, op in enumerate(ops) if index not in gone]


_Version = tuple[str, int]


class _VersionUses:
    """The readers and writers of each version of a variable; every write makes a new version."""

    def __init__(self, ops: Sequence[Op]):
        version: dict[str, int] = {}
        self.readers: dict[_Version, list[int]] = {}
        self.read_versions: list[set[_Version]] = []
        self.written_versions: list[set[_Version]] = []
        for index, op in enumerate(ops):
            read = {(name, version.get(name, 0)) for name in op.input_names}
            for value in read:
                self.readers.setdefault(value, []).append(index)
            written: set[_Version] = set()
            for name in op.output_names:
                version[name] = version.get(name, 0) + 1
                written.add((name, version[name]))
            self.read_versions.append(read)
            self.written_versions.append(written)


def _chain(start: int, uses: _VersionUses) -> set[int]:
    """The indices of the ops that depend only on op `start`; empty if one of them also reads something else."""
    ready = set(uses.read_versions[start])
    result, waiting = {start}, deque([start])
    while waiting:
        index = waiting.popleft()
        if not uses.read_versions[index] or not uses.read_versions[index] <= ready:
            return set()
        for value in uses.written_versions[index]:
            for reader in uses.readers.get(value, ()):
                if reader not in result:
                    result.add(reader)
                    waiting.append(reader)
        ready |= uses.written_versions[index]
    return result


LOSS_GRADIENT = OpRole.BACKWARD | OpRole.LOSS
"""The role of the op that starts the backward part."""


class ParamGrad(NamedTuple):
    """The names of a parameter and of its gradient; `grad` is None if the parameter has none in block 0."""

    param: str
    grad: str | None


def append_backward(
    draft: Draft,
    loss: str,
    parameters: Iterable[str] | None = None,
    no_grad: Iterable[str] = (),
    *,
    placed: bool = True,
) -> tuple[ParamGrad, ...]:
    """Appends the ops that compute the gradients of `loss`, declares the gradients, and pairs them with parameters.

    `loss` is a variable with one element of the current block (block 0, or a branch that trains) or of an enclosing
    one. `parameters` defaults to all trainable ones in order of declaration; the result follows their order. Variables
    in `no_grad` or in `draft.stop_gradient` get no gradient, nor do parameters that are not trainable. Every gradient
    op gets the attribute `op_device` of its op; if not `placed`, only one that has the attributes of its op. Raises
    DiagnosticError when the loss can't be differentiated.
    """
    earlier = backward_parts(draft)
    flush(draft)
    before, stopped = draft.copy(), list(no_grad)
    if earlier:
        trained = {var.name for var in draft.parameters() if var.parameter and var.parameter.trainable}
        ops = [op for number in reversed(_blocks_around(draft)) for op in draft.blocks[number].ops]
        require_second(ops, trained, [loss], draft.stop_gradient.union(stopped))
    result = _append(draft, loss, parameters, stopped, earlier, placed=placed)
    findings = _wrong(draft, stopped)
    if not findings:
        return result
    draft.restore(before)
    if not earlier:
        meant = give_own_names(draft)
        stopped += [name for name, variable in meant.items() if variable in stopped]
        result = _append(draft, loss, parameters, stopped, earlier, own_names=True, placed=placed)
        findings = _wrong(draft, stopped)
    raise_errors(findings)
    return result


def backward_parts(draft: Draft) -> int:
    """The number of backward passes in the current block and the enclosing ones."""
    seen = {*_blocks_around(draft), trained_block(draft) or 0}
    of_losses = sum(1 for number in seen for op in draft.blocks[number].all_ops() if op.role == LOSS_GRADIENT)
    return of_losses + draft.gradient_calls


def _wrong(draft: Draft, no_grad: Iterable[str]) -> list[Diagnostic]:
    """Findings on gradients that belong to other values than they should."""
    frozen = {var.name for var in draft.parameters() if var.parameter and not var.parameter.trainable}
    stopped = frozen.union(no_grad, draft.stop_gradient)
    main = draft.main()
    if not can_be_followed(main):  # a program that the draft did not build; the verifier reports on it
        return []
    return wrong_gradients(with_old_values(with_loop_terms(main)), stopped.__contains__)


def _append(
    draft: Draft,
    loss: str,
    parameters: Iterable[str] | None,
    no_grad: Iterable[str],
    earlier: int,
    *,
    own_names: bool = False,
    placed: bool = True,
) -> tuple[ParamGrad, ...]:
    """Appends the gradient ops. `own_names` is true if overwritten values have names of their own."""
    around, producer = _blocks_around(draft), _mark_loss(draft, loss)
    unwanted = unwanted_gradients(draft, floats=own_names)
    unwanted[0].update(map(gradient_name, no_grad))
    backward = Backward(draft, unwanted, earlier, own_names, placed)
    into = trained_block(draft)
    if into is None:
        with draft.enter_block(draft.block.parent):
            into = draft.new_block(forward_block=around[0])
    with draft.enter_block(into) as block:
        start = len(block.ops)
        block.ops.append(_loss_gradient(draft, loss, producer))
        targets, reached = {loss}, {gradient_name(loss)} if earlier else None
        for number in around:
            path = _path(draft, number, targets, unwanted[number])
            backward.append(number, path, reached, into=into)
            targets.update(name for op in path for name in op.input_names)
        if len(around) > 1:  # the gradients of variables that several of the blocks read
            whole = sum_partial_gradients(block.ops[start:], into)
            block.ops[start:] = [op if op.role else op._replace(role=OpRole.BACKWARD) for op in whole]
        mint_again(draft, start, backward)
        grads = declare_gradients(draft, into, start, backward.variable_of)
        return _pair_gradients(draft, grads, parameters)


def _path(draft: Draft, number: int, targets: set[str], unwanted: set[str]) -> list[Op]:
    """The ops of a block on paths to the targets. Adds to `unwanted` the gradients of the outputs that no op of the
    paths reads.
    """
    names = {variable_of_gradient(name) for name in unwanted}
    path = ops_to(draft.blocks[number].ops, targets, names)
    names |= unread_outputs(path, targets, names, draft.stop_gradient)
    unwanted |= {gradient_name(name) for name in names}
    return path


def trained_block(draft: Draft) -> int | None:
    """The block for gradients and updates of a loss in the current block: block 0 itself, or the one that belongs to a
    branch; None if the branch has none yet.
    """
    return gradient_block(draft.blocks, draft.current) if draft.current else 0


def _blocks_around(draft: Draft) -> list[int]:
    """The current block and its enclosing blocks, innermost first."""
    result = [draft.current]
    while result[-1] > 0:
        result.append(draft.blocks[result[-1]].parent)
    return result


def flush(draft: Draft) -> None:
    """Moves the ops put in front into the ordinary list, so that indices are positions."""
    block = draft.blocks[0]
    block.ops[:0] = list(reversed(block.front))
    block.front.clear()


def _mark_loss(draft: Draft, loss: str) -> Op:
    """Marks the op that writes the loss, and returns it."""
    var = draft.find(loss)
    blocks = [draft.blocks[number] for number in _blocks_around(draft)]
    for ops in (block.ops for block in blocks):
        for index in range(len(ops) - 1, -1, -1):
            if loss in ops[index].output_names:
                if var is not None and var.shape not in ((1,), ()):
                    raise DiagnosticError([_not_scalar(ops[index], loss, var.shape)])
                ops[index] = ops[index]._replace(role=OpRole.FORWARD | OpRole.LOSS)
                return ops[index]
    written = sorted({name for block in blocks for op in block.ops for name in op.output_names})
    hint = did_you_mean(loss, written, var_text)
    if not hint and written:
        hint = f"; they write {name_list(map(var_text, written))}"
    place = file_of(op for block in blocks for op in block.ops)
    raise DiagnosticError(
        [error("loss-unknown", f"no op of block {draft.current} writes the loss %{loss}{hint}", place)]
    )


def _not_scalar(op: Op, loss: str, shape: tuple[int, ...]) -> Diagnostic:
    dims = ", ".join(map(str, shape))
    message = f"the loss %{loss} has the dims [{dims}], it must have one element: take its mean"
    return at_op("loss-shape", message, op, focus=f"%{loss}")


def unwanted_gradients(draft: Draft, *, floats: bool) -> dict[int, set[str]]:
    """For each block the unwanted gradients of the variables it declares.

    With `floats`, only those of floating-point variables are wanted. (Fluid makes some for indices, which nothing
    reads.)
    """
    names: dict[int, set[str]] = {}
    of_steps = {op.attrs["sub_block"]: op for block in draft.blocks for op in block.ops if op.type == "recurrent"}
    for index, block in enumerate(draft.blocks):
        stopped = draft.stop_gradient & block.vars.keys()
        if index in of_steps:  # a mark on all steps' outputs is not for the single step's
            stopped -= {*of_steps[index].outputs["outputs"]}
        names[index] = {gradient_name(name) for name in stopped}
        whole = (var.name for var in block.vars.values() if floats and var.dtype not in FLOATS)
        names[index] |= {gradient_name(name) for name in whole}
    frozen = (var.name for var in draft.blocks[0].vars.values() if var.parameter and not var.parameter.trainable)
    names[0] |= {gradient_name(name) for name in frozen}
    return names


def _loss_gradient(draft: Draft, loss: str, producer: Op) -> Op:
    var = draft.find(loss)
    attrs = {
        "shape": Longs((1,)),
        "value": 1.0,
        "dtype": var.dtype.value if var and var.dtype else 5,
        "force_cpu": False,
        "op_device": producer.attrs.get("op_device", ""),
    }
    origin = _gradient_origin(producer.origin)
    outputs = FrozenMap({"Out": (gradient_name(loss),)})
    return Op("fill_constant", EMPTY, outputs, FrozenMap(attrs), LOSS_GRADIENT, None, False, origin)


def _gradient_origin(origin: Origin | None) -> Origin | None:
    return Origin(*origin[:-1], "gradient") if origin else None


class Backward:
    """Appends the gradient ops of one call, block by block."""

    def __init__(self, draft: Draft, unwanted: dict[int, set[str]], earlier: int, own_names: bool, placed: bool = True):
        self.draft = draft
        self.placed = placed
        self.own_names = own_names
        self.unwanted = unwanted
        self.earlier = earlier
        self.variable_of: dict[str, str] = {}
        self.renamed: dict[str, str] = {}

    def append(
        self, block: int, path: Sequence[Op], reached: set[str] | None, into: int = 0, given: Iterable[str] = ()
    ) -> None:
        """Appends the gradient ops of `path`, ops of `block`, to the block `into`.

        `reached` holds the gradients through which the loss is reached, and grows; None treats every op as leading to
        it. `given` are the gradients that a sub-block starts with.
        """
        ops: list[Op] = []
        for forward in reversed(path):
            made = self._of(forward, block)
            if reached is None:
                ops += made
            else:
                ops += _leading_back(made, reached)
            self._note(forward, made, block)
        ops = sum_partial_gradients(ops, block)
        ops = without_unwanted(ops, self.unwanted.setdefault(block, set()))
        ops = without_unconnected(ops, path, reached or given)
        self.draft.blocks[into].ops += [op._replace(role=OpRole.BACKWARD) for op in ops]

    def _of(self, forward: Op, block: int) -> tuple[Op, ...]:
        rule = gradient_rule(forward.type)
        if rule is None:
            return ()
        sub_block = forward.attrs.get("sub_block")
        inner = self._sub_block(forward, int(sub_block)) if isinstance(sub_block, BlockRef) else None
        whole = with_defaults(forward)
        made = rule(whole, WantedGradients(self.unwanted.setdefault(block, set()), inner))
        device, origin = forward.attrs.get("op_device"), _gradient_origin(forward.origin)
        kept: list[Op] = []
        for op in made:
            attrs = op.attrs if device is None or not self.placed else FrozenMap({**op.attrs, "op_device": device})
            if not self.placed:  # attributes that an op has lost are not given to its gradient op either
                lost = whole.attrs.keys() - forward.attrs.keys()
                attrs = FrozenMap({name: value for name, value in attrs.items() if name not in lost})
            kept.append(self._rename_repeated_gradients(forward, op._replace(attrs=attrs, origin=origin), block))
        return tuple(kept)

    def _sub_block(self, forward: Op, block: int) -> GradientBlock:
        draft = self.draft
        index = draft.new_block(forward_block=block)
        parent = draft.blocks[index].parent
        with draft.enter_block(index):
            given = map(gradient_name, forward.output_names) if self.own_names else ()
            self.append(block, _inner_path(draft, forward, block), None, into=index, given=given)
            if self.own_names:
                draft.blocks[index].ops += _zero_gradient_ops(draft, index, forward)

        def sees(name: str) -> bool:
            return draft.find(name, block) is not None or draft.find(name, parent) is not None

        return GradientBlock(index, tuple(draft.blocks[index].ops), sees)

    def _rename_repeated_gradients(self, forward: Op, op: Op, block: int) -> Op:
        """Renames the gradients of a second backward pass that already exist from the first one, as Fluid does."""
        if not self.earlier:
            return op
        declared = self.draft.blocks[block].vars.keys() | self.draft.block.vars.keys()
        if forward.role != OpRole.BACKWARD:
            op = op._replace(inputs=rename_variables(op.inputs, self.renamed))
        again = {name for name in op.output_names if SUFFIX in name and name in declared}
        mapped = {name: "grad/" * (self.earlier + 1) + name for name in again}
        self.renamed.update(mapped)
        return op._replace(outputs=rename_variables(op.outputs, mapped))

    def _note(self, forward: Op, gradient_ops: Iterable[Op], _block: int) -> None:
        """Records the variable that each of these gradients belongs to."""
        inputs = {gradient_name(name): name for name in forward.input_names}
        for op in gradient_ops:
            for name in op.output_names:
                plain = name.rpartition("grad/")[2]
                if plain in inputs:
                    self.variable_of[name] = inputs[plain]


def _leading_back(ops: Iterable[Op], reached: set[str]) -> list[Op]:
    kept_ops: list[Op] = []
    for op in ops:
        read = [name for name in op.input_names if SUFFIX in name]
        if any(name in reached for name in read):
            kept_ops.append(op)
            reached.update(op.output_names)
        elif not read:
            break
    return kept_ops


def _inner_path(draft: Draft, forward: Op, block: int) -> list[Op]:
    """The ops of a sub-block to differentiate: all, or for a conditional block those that lead to its outputs."""
    ops = draft.blocks[block].ops
    if forward.type != "conditional_block":
        return ops
    handed_out = set(forward.output_names)
    assigns = [op for op in ops if op.type == "assign" and handed_out.intersection(op.output_names)]
    wanted = {name for op in assigns for name in op.input_names if name in draft.blocks[block].vars}
    path = ops_to(ops, wanted, set())
    return path + [op for op in assigns if not any(op is result for result in path)]


def _zero_gradient_ops(draft: Draft, block: int, forward: Op) -> list[Op]:
    """Ops that set to zero the gradients of variables that a sub-block overwrites without reading them."""
    written = {name for op in draft.blocks[block].ops for name in op.output_names}
    zero_ops: list[Op] = []
    for name in forward.output_names:
        gradient, var = gradient_name(name), draft.find(name, block)
        if var is None or var.kind is not VarKind.LOD_TENSOR or var.dtype not in FLOATS or name in draft.stop_gradient:
            continue
        if name in [*forward.input_names] and gradient not in written:
            like = gradient if forward.type == "while" else name  # the gradient block of a loop reads it
            zeros = bare_op("fill_zeros_like", {"X": (like,)}, {"Out": (gradient,)})
            zero_ops.append(zeros._replace(role=OpRole.BACKWARD, origin=_gradient_origin(forward.origin)))
    return zero_ops


def mint_again(draft: Draft, start: int, backward: Backward) -> None:
    """Renames gradients that the current block already declares (to `x@GRAD_0`), and updates the ops that read them."""
    block = draft.block
    mapped: dict[str, str] = {}
    for index in range(start, len(block.ops)):
        op = block.ops[index]
        op = op._replace(inputs=rename_variables(op.inputs, mapped))
        outputs: dict[str, str] = {}
        for name in op.output_names:
            if SUFFIX in name and name in block.vars:
                outputs[name] = draft.names.mint(name)
        mapped.update(outputs)
        block.ops[index] = op._replace(outputs=rename_variables(op.outputs, outputs))
    for name, new in mapped.items():
        if name in backward.variable_of:
            backward.variable_of[new] = backward.variable_of.pop(name)


def _pair_gradients(draft: Draft, grads: dict[str, str], parameters: Iterable[str] | None) -> tuple[ParamGrad, ...]:
    """Pairs of parameters and gradients. The op that completes a gradient gets the pair as role variables."""
    block = draft.block
    if parameters is None:
        infos = ((var.name, var.parameter) for var in draft.blocks[0].vars.values())
        parameters = [name for name, info in infos if info and info.trainable]
    pairs = tuple(ParamGrad(param, grads[param]) for param in parameters if param in grads)
    last = {name: index for index, op in enumerate(block.ops) for name in op.output_names}
    clipped: list[ParamGrad] = []
    for param, grad in pairs:
        if grad is None or grad not in block.vars:
            clipped.append(ParamGrad(param, None))
            continue
        op = block.ops[last[grad]]
        block.ops[last[grad]] = op._replace(role_vars=(param, grad, *(op.role_vars or ())))
        clipped.append(ParamGrad(param, grad))
    return tuple(clipped)


# Gradients of some variables with respect to others (Fluid's `gradients`).


def append_gradients(
    draft: Draft,
    targets: Sequence[str],
    inputs: Sequence[str],
    given: Sequence[str | None],
    no_grad: Iterable[str] = (),
) -> tuple[str | None, ...]:
    """Appends the ops that compute the gradients of the sum of the targets with respect to the inputs, to block 0.

    `given` are the gradients of the targets, None for ones. Variables in `no_grad` or in `draft.stop_gradient` get no
    gradient. Returns for each input the name of its gradient, None if no path leads to it. Raises NoSecondGradient if a
    gradient op without a gradient is on the path.
    """
    earlier = backward_parts(draft)
    require_second(draft.blocks[0].all_ops(), set(inputs), targets, draft.stop_gradient.union(no_grad))
    draft.gradient_calls += 1
    flush(draft)
    block = draft.blocks[0]
    unwanted = unwanted_gradients(draft, floats=False)
    unwanted[0] |= {gradient_name(name) for name in no_grad}
    names = {variable_of_gradient(name) for name in unwanted[0]}
    path = ops_from(ops_to(block.ops, set(targets), names), inputs)
    unwanted[0] |= {gradient_name(name) for name in names - set(inputs)}
    start = len(block.ops)
    with draft.roles(OpRole.BACKWARD):
        for target, gradient in zip(targets, given, strict=True):
            if gradient is None:
                _ones(draft, target)
    started = {gradient_name(target) for target in targets}
    made = Backward(draft, unwanted, earlier, own_names=False)
    made.append(0, path, set(started))
    renames = {gradient_name(target): name for target, name in zip(targets, given, strict=True) if name is not None}
    block.ops[start:] = [op._replace(inputs=rename_variables(op.inputs, renames)) for op in block.ops[start:]]
    mint_again(draft, start, made)
    grads = declare_gradients(draft, 0, start, made.variable_of)
    return tuple(grads.get(name) for name in inputs)


def _ones(draft: Draft, target: str) -> None:
    """The gradient of a target with respect to itself."""
    var = draft.blocks[0].vars[target]
    dims = f"{target}_shape"
    untyped = TensorType(DType.BOOL, ())  # BOOL is what Fluid leaves if no element type is given
    draft.declare(
        var._replace(name=dims, tensor=untyped, persistable=False, parameter=None, need_check_feed=False),
        0,
    )
    device = {"op_device": ""}
    attrs = {**device, "shape": Longs(var.shape), "value": 1.0, "dtype": var.dtype.value if var.dtype else 5}
    made = (
        bare_op("shape", {"Input": (target,)}, {"Out": (dims,)}, device),
        bare_op("fill_constant", {"ShapeTensor": (dims,)}, {"Out": (gradient_name(target),)}, attrs),
    )
    for op in made:
        draft.block.ops.append(op._replace(role=OpRole.BACKWARD, origin=draft.origin))
        draft.type_outputs(op)
