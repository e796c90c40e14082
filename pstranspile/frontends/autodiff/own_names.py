"""Separate names for the values of variables that a model overwrites, so that each value has its own gradient.

If several ops write a variable, its gradients share one name. Here every value but the last gets a new name. A loop or
a branch changes a variable in place, so it gets a copy that nothing else reads. Its block reads the copy once, at its
start, and writes it once, at its end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from pstranspile.frontends.layers.draft import Draft
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op, Slots
from pstranspile.ir.roles import OpRole
from pstranspile.ops.gradients.versions import WITH_BLOCKS, Forward, inner_block, keeps_value

_TAKES = {"while": "X", "conditional_block": "Input"}


def give_own_names(draft: Draft) -> dict[str, str]:
    """Gives the values of overwritten variables separate names, in all blocks of a forward program.

    The result of the program is the same, and the last value of a variable keeps its name. Returns new name ->
    variable.
    """
    work = _Naming(draft)
    work.block(0, {}, frozenset(), ())
    return work.meant


class _Naming:
    """One pass over the blocks of a forward program."""

    def __init__(self, draft: Draft):
        self.draft = draft
        self.program = draft.main()
        self.meant: dict[str, str] = {}

    def block(
        self, number: int, outside: Mapping[str, str], valued: AbstractSet[str], changed: Collection[str]
    ) -> None:
        """Renames within a block.

        `outside` maps variables of other blocks to their current names, `valued` are those that have a value, and
        `changed` those that the block changes.
        """
        forward = Forward(self.program, number)
        names = _Names(
            {name: called for name, called in outside.items() if name not in forward.block.vars},
            set(valued),
            self._several(forward),
            frozenset(changed),
        )
        ops: list[Op] = []
        for name in [*changed, *names.left]:
            if _reads_initial(forward, name, name in valued):
                called = names.now.get(name, name)
                names.now[name] = self._new(number, name)
                names.valued.add(name)
                ops.append(self._copy(called, names.now[name], forward.ops[0]))
        for index, op in enumerate(forward.ops):
            if op.type in WITH_BLOCKS:
                ops += self._inner(forward, index, names)
                continue
            inputs = renamed(op.inputs, names.now)
            if not keeps_value(op):
                for name in forward.after[index]:
                    self._next(number, name, names)
            ops.append(op._replace(inputs=inputs, outputs=renamed(op.outputs, names.now)))
        ops += [self._copy(names.now[name], outside.get(name, name), forward.ops[-1]) for name in changed]
        self.draft.blocks[number].ops[:], self.draft.blocks[number].front[:] = ops, []

    def _several(self, forward: Forward) -> dict[str, int]:
        """The variables that the block writes more than once, with the number of writes."""
        return {
            name: writes
            for name, writes in forward.last.items()
            if name in forward.block.vars
            and self._followed(forward, name)
            and writes + _reads_initial(forward, name, False) > 1
        }

    def _followed(self, forward: Forward, name: str) -> bool:
        var = self.program.find_var(name, forward.number)
        return var is not None and not var.persistable and var.parameter is None and forward.is_float(name)

    def _inner(self, forward: Forward, index: int, names: _Names) -> list[Op]:
        """An op with a sub-block, preceded by copies of the variables it changes."""
        op, ops = forward.ops[index], list[Op]()
        slot = _TAKES.get(op.type, "")
        taken = dict.fromkeys(op.inputs.get(slot, ()))
        inner = Forward(self.program, inner_block(self.program, op))
        changed = [name for name in inner.last if name in forward.after[index] and self._followed(forward, name)]
        changed = [name for name in changed if slot and name not in inner.block.vars]
        valued = frozenset(names.valued)
        for name in changed:
            called = names.now.get(name, name)
            self._next(forward.number, name, names)
            if name in valued:
                taken[name] = None
                if called != names.now.get(name, name):
                    ops.append(self._copy(called, names.now[name], op))
        self.block(inner.number, names.now, valued, changed)
        inputs = FrozenMap({**op.inputs, slot: tuple(taken)}) if slot else op.inputs
        return [*ops, op._replace(inputs=renamed(inputs, names.now), outputs=renamed(op.outputs, names.now))]

    def _next(self, number: int, name: str, names: _Names) -> None:
        """The name of a variable's next value. The last value in the declaring block keeps the variable's name."""
        names.valued.add(name)
        if name in names.changed:
            names.now[name] = self._new(number, name)
        elif name in names.left:
            names.left[name] -= 1
            names.now[name] = self._new(number, name) if names.left[name] else name

    def _new(self, number: int, name: str) -> str:
        draft = self.draft
        var = draft.find(name, number)
        assert var is not None
        new = draft.names.mint(f"{name}@VALUE")
        draft.blocks[number].vars[new] = var._replace(name=new)
        self.meant[new] = name
        if name in draft.stop_gradient:
            draft.stop_gradient.add(new)
        return new

    def _copy(self, source: str, target: str, neighbour: Op) -> Op:
        with self.draft.roles(OpRole.FORWARD):
            return self.draft.make("assign", {"X": source}, {"Out": target})._replace(origin=neighbour.origin)


class _Names(NamedTuple):
    """The names of a block's variables: `now` the current ones, `left` the number of remaining writes.

    `valued` are the variables with a value, `changed` those of other blocks that the block changes.
    """

    now: dict[str, str]
    valued: set[str]
    left: dict[str, int]
    changed: frozenset[str]


def _reads_initial(forward: Forward, name: str, valued: bool) -> bool:
    """Whether an op reads the value that a variable has when the block starts."""
    for op, after in zip(forward.ops, forward.after, strict=True):
        if name in op.input_names:
            return True
        if name in after:
            return valued and op.type in _TAKES
    return False


def renamed(slots: Slots, names: Mapping[str, str]) -> Slots:
    """The slots with variables replaced by their new names in `names`."""
    return FrozenMap({slot: tuple(names.get(name, name) for name in old_names) for slot, old_names in slots.items()})
