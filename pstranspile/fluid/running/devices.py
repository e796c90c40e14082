"""The fetched values of a program that runs as if on several devices, each of which has a value of its own.

One device computes the step, with the rows of all. The values that forward ops write are computed a second time for the
rows of each device, before the step; all other values are the same on every device.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from pstranspile.fluid.graph.program import TRAINING
from pstranspile.fluid.graph.pruning import blocks_of, deep, without_roles
from pstranspile.fluid.lod_tensor import to_core
from pstranspile.fluid.missing import unsupported_error
from pstranspile.fluid.running.unchecked_feeds import Cache, declared_as_fed
from pstranspile.fluid.running.watchers import watchers
from pstranspile.frontends.autodiff.backward import LOSS_GRADIENT
from pstranspile.ir.attributes import float32
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import FrozenMap, Op, Program, Var
from pstranspile.ir.types import OpRole
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.gradient import SUFFIX
from pstranspile.runtime.run import run
from pstranspile.runtime.run.batch import concat_shares, rows_of, select_rows
from pstranspile.runtime.run.feeds import written_names
from pstranspile.runtime.run.frame import Slices
from pstranspile.runtime.run.scope import Scope, own_copy
from pstranspile.runtime.values import LoDTensor, SelectedRows

_MOST_PROGRAMS = 16
"""The number of programs whose forward part is kept."""


class RunFeed(NamedTuple):
    """The feed of a run, by name or variable."""

    values: dict[Any, Any]
    rows: dict[Any, list[int]]
    """For each value that was given device by device, how many rows each device has."""
    parts: Sequence[Mapping[Any, Any]] = ()
    """The feed of each device, if the feeds can't be joined into one; `values` is then the feed of the first device."""


def shares(values: Mapping[str, Any], rows: Mapping[str, Sequence[int]], devices: int) -> list[dict[str, Any]]:
    """The feed of each device. A value that was not given device by device is split evenly; the last devices may get
    fewer rows.

    There are fewer devices where the rows do not suffice. A value with one row is fed to every device.
    """
    counts = {name: list(rows.get(name, ())) or _even(rows_of(value), devices) for name, value in values.items()}
    used = max(map(len, counts.values()), default=devices)
    return [
        {name: _share(value, counts[name], device) for name, value in values.items() if device < used}
        for device in range(used)
    ]


def _even(rows: int, devices: int) -> list[int]:
    most = -(-rows // devices)
    return [min(most, rows - start) for start in range(0, rows, max(most, 1))]


def _share(value: Any, counts: Sequence[int], device: int) -> Any:
    if device < len(counts) > 1:
        start = sum(counts[:device])
        value = select_rows(value, range(start, start + counts[device]))[0]
    return LoDTensor(np.array(value.data), value.lod) if isinstance(value, LoDTensor) else np.array(value)


def require_for_all(fed: RunFeed, devices: int, variables: Mapping[str, Var]) -> None:
    """Raises DiagnosticError where a value fed to a program that trains has no rows for some of the devices.

    A variable that is kept from run to run, such as a learning rate, may have one row, which all devices share.
    """
    for key, value in fed.values.items():
        name: str = getattr(key, "name", key)
        counts = fed.rows.get(key) or _even(rows_of(to_core(value)), devices)
        var = variables.get(name)
        if len(counts) != devices and not (var is not None and var.persistable and sum(counts) == 1):
            message = f"{name} is fed for {len(counts)} of {devices} devices; a program that trains needs rows for each"
            raise DiagnosticError([error("run-feed-mismatch", message)])


class _Forward:
    """The forward part of a program, and one scope for each device that has run it."""

    def __init__(self, program: Program):
        self.whole_program = program  # keeps the program alive, so that its id stays its own
        self.program = without_roles(program, TRAINING)
        self.written_names = frozenset(written_names(self.program))
        written = ((name, program.find_var(name)) for name in self.written_names)
        self.persistable_names = [name for name, var in written if var is not None and var.persistable]
        self._scopes: list[Scope] = []

    def scope_of(self, device: int, scope: Scope) -> Scope:
        """The scope of a device, a child of the run's scope. It is the same in every run, so that the program is
        prepared once.
        """
        if self._scopes and self._scopes[0].parent is not scope:
            self._scopes = []
        while device >= len(self._scopes):
            self._scopes.append(scope.child())
        return self._scopes[device]


class Devices:
    """The devices of an executor, and the forward parts of the programs that it has run."""

    def __init__(self) -> None:
        self._forward: dict[int, _Forward] = {}

    def _forward_of(self, program: Program) -> _Forward:
        known = self._forward.get(id(program))
        if known is None:
            if len(self._forward) >= _MOST_PROGRAMS:
                del self._forward[next(iter(self._forward))]
            known = self._forward[id(program)] = _Forward(program)
        return known

    def values(
        self, program: Program, names: Collection[str], fed: Sequence[Mapping[str, Any]], scope: Scope, slices: Slices
    ) -> dict[str, list[Any]]:
        """For each fetched variable that forward ops write, the value that each device computes from its rows."""
        forward = self._forward_of(program)
        written_names = [
            name for name in names if name in forward.written_names and name not in forward.persistable_names
        ]
        result: dict[str, list[Any]] = {name: [] for name in written_names}
        for device, share in enumerate(fed if written_names else ()):
            there = forward.scope_of(device, scope)
            for name in forward.persistable_names:
                there.values_here.pop(name, None)
                if (value := scope.get(name)) is not None:
                    there[name] = value
            for name, value in run(forward.program, share, written_names, there, slices=slices).items():
                result[name].append(value)
        return result


def values_by_device(value: Any, var: Var | None, parts: Sequence[Mapping[str, Any]]) -> list[Any]:
    """A value of the step as each device has it: its own rows if the value's rows are those of the batch, else the
    whole value.
    """
    known: list[list[int]] = [[rows_of(part[name]) for part in parts] for name in parts[0]]
    counts = max(known, key=sum) if known else [0]
    of_batch = var is not None and var.shape[:1] == (-1,) and isinstance(value, np.ndarray | LoDTensor)
    if not of_batch or rows_of(value) != sum(counts):
        return [value] * len(parts)
    return [_share(value, counts, device) for device in range(len(parts))]


def merge_device_values(values: Sequence[Any]) -> Any:
    """The values of several devices joined into one, with their rows one after the other; lists of tensors item by
    item.
    """
    if isinstance(values[0], list):
        return [merge_device_values(items) for items in zip(*values, strict=True)]
    if not isinstance(values[0], np.ndarray | LoDTensor):
        return values[0]
    return concat_shares([{"": value} for value in values], {""})[""]


# Programs whose devices each need a run of their own: a branch, a loop or a fixed dim depends on the rows of one
# device, or the loss of all rows is not the mean of the devices' losses.
#
# The ops are split into parts. Parts of forward and backward ops run on every device, with its rows of the feed and its
# own copy of the variables that they change; parts that update run once, with the sum of each gradient over the
# devices. Each device's loss is divided by the number of devices.

_ONCE = OpRole.OPTIMIZE | OpRole.LR_SCHED
_MOST_REPLICAS = 16
"""The number of programs whose parts are kept."""


def _runs_once(op: Op) -> bool:
    return bool((op.role or OpRole.FORWARD) & _ONCE)


def has_own_control(program: Program) -> bool:
    """Whether the values of a device depend on ops with blocks, or on ops that broadcast its rows along another dim."""
    declared = program.main_block.vars
    return any(not _runs_once(op) and (blocks_of(op) or _shifts_rows(op, declared)) for op in program.main_block.ops)


def adds_up_rows(program: Program) -> bool:
    """Whether a minimised loss depends on the rows of the batch by more than means over them, for example by a sum."""
    main = program.main_block
    makers = {name: op for op in reversed(main.ops) for name in op.output_names}  # the first op that writes a variable
    firsts = (op.output("Out") for op in main.ops if op.role == LOSS_GRADIENT and not any(op.inputs.values()))
    todo = [name.removesuffix(SUFFIX) for name in firsts if name is not None]
    seen = set(todo)
    while todo:
        op = makers.get(todo.pop())
        if op is None:
            continue
        for name in op.input_names:
            var = main.vars.get(name)
            if var is not None and var.shape[:1] == (-1,):
                if op.type not in ("mean", "reduce_mean"):
                    return True
            elif name not in seen:
                seen.add(name)
                todo.append(name)
    return False


def _shifts_rows(op: Op, declared: Mapping[str, Var]) -> bool:
    """Whether an elementwise op broadcasts rows of the batch along another dim than the first."""
    if not op.type.startswith("elementwise_") or "axis" not in op.attrs:
        return False
    x, y = (declared.get(op.input(slot) or "") for slot in ("X", "Y"))
    if x is None or y is None or x.shape[:1] != (-1,) or y.shape[:1] != (-1,):
        return False
    axis = int_attr(op, "axis")
    return (axis if axis >= 0 else len(x.shape) - len(y.shape)) > 0


def _updates_inside(program: Program, op: Op) -> bool:
    """Whether blocks of an op update parameters."""
    inner = (each for index in blocks_of(op) if 0 <= index < len(program.blocks) for each in program.blocks[index].ops)
    return any((each.role or OpRole.FORWARD) & OpRole.OPTIMIZE or _updates_inside(program, each) for each in inner)


class _DevicePart(NamedTuple):
    program: Program
    once: bool
    reads: frozenset[str]
    gives: tuple[str, ...]
    """The variables written by the part that later parts read, or that are fetched."""
    changes: frozenset[str]
    """The variables written by the part that are kept from run to run."""


class _Group(NamedTuple):
    ops: list[Op]
    once: bool
    reads: frozenset[str]
    writes: frozenset[str]


def _groups(program: Program) -> list[_Group]:
    """The ops grouped by whether they run once, in order. A group that runs once moves in front of the group before it
    if neither depends on the other.
    """
    found: list[_Group] = []
    for once, ops in groupby(program.main_block.ops, _runs_once):
        listed = [*ops]
        both = [deep(program, op) for op in listed]
        made = _Group(listed, once, frozenset().union(*(r for r, _ in both)), frozenset().union(*(w for _, w in both)))
        before = found[-1] if found else None
        if before is not None and before.once == once:
            found[-1] = _merge_groups(before, made)
        elif once and before is not None and not _meet(before, made):
            found.insert(-1, made)
        else:
            found.append(made)
    return found


def _meet(first: _Group, second: _Group) -> bool:
    return bool(first.writes & (second.reads | second.writes) or first.reads & second.writes)


def _merge_groups(first: _Group, second: _Group) -> _Group:
    return _Group(first.ops + second.ops, first.once, first.reads | second.reads, first.writes | second.writes)


def _parts(program: Program, names: Collection[str], devices: int) -> list[_DevicePart]:
    """The parts of a program, in order."""
    kept = {var.name for block in program.blocks for var in block.vars.values() if var.persistable}
    later, found = set(names), list[_DevicePart]()
    for ops, once, reads, writes in reversed(_groups(program)):
        main = program.main_block._replace(ops=tuple(_scale_loss_gradient(op, devices) for op in ops))
        whole = program._replace(blocks=(main, *program.blocks[1:]))
        found.append(_DevicePart(whole, once, reads, tuple(sorted(writes & later)), writes & kept))
        later |= reads
    return found[::-1]


def _scale_loss_gradient(op: Op, devices: int) -> Op:
    """The op, unless it begins the gradients: then a copy that divides the gradient of the loss by the number of
    devices.
    """
    value = op.attrs.get("value")
    if op.role != OpRole.BACKWARD | OpRole.LOSS or not isinstance(value, float):
        return op
    return op._replace(attrs=FrozenMap({**op.attrs, "value": float32(value / devices)}))


def _sum(values: Sequence[Any]) -> Any:
    """The sum of a gradient over the devices, whose values may be arrays, LoDTensors or SelectedRows."""
    if isinstance(values[0], SelectedRows):
        rows = np.concatenate([value.rows for value in values])
        return SelectedRows(rows, np.concatenate([value.value for value in values]), values[0].height)
    if isinstance(values[0], LoDTensor):
        return LoDTensor(sum(value.data for value in values), values[0].lod)
    return sum(values[1:], values[0])


class Replicas:
    """The devices of an executor, with a scope for each device of a program."""

    def __init__(self) -> None:
        self._parts_by_run: dict[object, tuple[Program, Scope, list[_DevicePart], list[Scope]]] = {}
        self._as_fed: Cache = {}

    def _of(
        self, program: Program, names: Sequence[str], scope: Scope, devices: int
    ) -> tuple[list[_DevicePart], list[Scope]]:
        key = id(program), tuple(names), id(scope), devices
        known = self._parts_by_run.get(key)
        if known is None:
            if any(_updates_inside(program, op) for op in program.main_block.ops if not _runs_once(op)):
                raise unsupported_error("minimize in a branch, on several devices", "give the program one device")
            if len(self._parts_by_run) >= _MOST_REPLICAS:
                del self._parts_by_run[next(iter(self._parts_by_run))]
            scopes = [scope.child() for _ in range(devices)]
            known = self._parts_by_run[key] = program, scope, _parts(program, names, devices), scopes
        return known[2], known[3]

    def run(
        self, program: Program, names: Sequence[str], fed: Sequence[Mapping[str, Any]], scope: Scope, slices: Slices
    ) -> dict[str, list[Any]]:
        """Runs a program once on every device, fed with its share, and returns the values that each device has of the
        fetched variables.

        Raises DiagnosticError. Persistable variables that forward ops change keep the values of the first device.
        """
        parts, scopes = self._of(program, names, scope, len(fed))
        gradients = frozenset(grad for op in program.main_block.ops for _, grad in op.role_pairs)
        changed = frozenset(name for part in parts if not part.once for name in part.changes)
        for there in scopes:
            there.values_here.clear()
            there.update({name: value for name in sorted(changed) if (value := scope.get(name)) is not None})
        looking = watchers()
        for part in parts:
            if part.once:
                self._run_once(part, scopes, scope, gradients, slices)
                continue
            for device, (there, share) in enumerate(zip(scopes, fed, strict=True)):
                taken = {name: value for name, value in share.items() if name in part.reads or name in part.gives}
                played = declared_as_fed(part.program, taken, self._as_fed)
                made = run(played, taken, part.gives, there, slices=slices, stream=device, watchers=looking)
                there.values_here.update(made)
        for name in sorted(changed):
            if name in scopes[0].values_here:
                scope.put(name, scopes[0].values_here[name])
        return {
            name: [_value_on_device(name, there, share) for there, share in zip(scopes, fed, strict=True)]
            for name in names
        }

    def _run_once(
        self, part: _DevicePart, scopes: Sequence[Scope], scope: Scope, gradients: frozenset[str], slices: Slices
    ) -> None:
        """Runs a part that updates, with the sums of the devices' gradients, and gives the results to all devices."""
        there = scopes[0]
        for name in sorted(part.reads & gradients):
            values = [each.values_here[name] for each in scopes if name in each.values_here]
            if values:
                total = _sum(values)
                for each in scopes:
                    each.values_here[name] = total
        made = run(part.program, {}, part.gives, there, slices=slices, watchers=watchers())
        for name in sorted(part.changes):
            if name in there.values_here:
                scope.put(name, there.values_here.pop(name))
        for each in scopes:
            each.values_here.update({name: value for name, value in made.items() if name not in part.changes})


def _value_on_device(name: str, scope: Scope, share: Mapping[str, Any]) -> Any:
    value = scope.get(name)
    return own_copy(share.get(name) if value is None else value)
