"""The Plan: the place and the name of every variable. It is a frozen value, also printed as text to edit, and as JSON.

How a parameter is cut into slices follows from its dims and the number of servers (`cut_rows`), as in Fluid; `make.py`
decides what is cut, and which server gets each slice.

For trainers without servers it has the way they communicate, and the variables that they sum (`Collective`).
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from math import prod
from typing import Any, NamedTuple

from pstranspile.compiler.analysis.updates import UpdateGroup
from pstranspile.ir.argument_checks import check_arguments, expect
from pstranspile.ir.diagnostics import quantity
from pstranspile.ir.model import EMPTY, MAIN, STARTUP, FrozenMap, Module, Origin, TensorType
from pstranspile.ir.model import DistributedVar as DistributedVar
from pstranspile.ir.types import DType


class SummedVariable(NamedTuple):
    """A variable that all trainers sum over one ring, and its parameter: it is the parameter's gradient, or its new
    value.
    """

    parameter: str
    variable: str
    ring: int


class Collective(NamedTuple):
    """The communication of trainers without servers: Fluid's settings, and the sums on each ring, in order."""

    nccl_comm_num: int = 1
    use_hierarchical_allreduce: bool = False
    hierarchical_allreduce_inter_nranks: int = 0
    summed: tuple[SummedVariable, ...] = ()

    @property
    def averaged_parameters(self) -> tuple[str, ...]:
        """The parameters whose own values trainers average, instead of their gradients."""
        return tuple(summed.parameter for summed in self.summed if summed.variable == summed.parameter)


def collective_json(collective: Collective | None, endpoints: Sequence[str]) -> dict[str, Any]:
    """The part of `plan.json` about trainers without servers: their endpoints, their settings and their sums. {} with
    servers.
    """
    if collective is None:
        return {}
    settings = {**collective._asdict(), "summed": [summed._asdict() for summed in collective.summed]}
    return {"trainer_endpoints": list(endpoints), "collective": settings}


def collective_lines(collective: Collective | None, endpoints: Sequence[str]) -> list[str]:
    """Lines of a plan that inform the reader: the trainers, and what they sum on which ring, in the order of the sums.

    None of them can be edited: the job states the trainers, and the program the sums.
    """
    if collective is None:
        return []
    from pstranspile.ir.text.literals import name

    lines = [f"# trainer {number}: {endpoint}" for number, endpoint in enumerate(endpoints)]
    for ring in range(collective.nccl_comm_num):
        names = [f"%{name(summed.variable)}" for summed in reversed(collective.summed) if summed.ring == ring]
        lines += [f"# ring {ring} sums {' '.join(names)}"] if names else []
    return lines


# How a variable is cut into slices of whole rows.


class RowRange(NamedTuple):
    """One slice of a variable along dim 0: rows `start` to `stop` (elements, for a rank-1 variable)."""

    start: int
    stop: int


def cut_rows(shape: tuple[int, ...], servers: int, min_block_size: int) -> tuple[RowRange, ...]:
    """The slices of a variable of this shape over `servers` servers, in order.

    Fluid's formula: parts = min(servers, max(1, numel

    min_block_size)); a slice has ceil(numel / parts) elements, from rank 2 on rounded up to whole rows; then as many
    slices as that takes, the last one shorter. Rounding can make them fewer than the servers. A variable without
    elements is one slice.
    """
    numel = prod(shape)
    rows = shape[0] if shape else 1
    if numel == 0:
        return (RowRange(0, rows),)
    parts = min(servers, max(1, numel // min_block_size))
    size = -(-numel // parts)
    width = prod(shape[1:])
    height = -(-size // width)
    return tuple(RowRange(start, min(start + height, rows)) for start in range(0, rows, height))


# Every generated name is made here once; afterwards it is looked up, never parsed.

CONTROL = "__control_var@"
"""Prefix of variables that only carry an order between ops; Fluid's send skips them by this prefix."""


class NameMint:
    """Generates names that the program does not use yet; the same requests give the same names.

    `declared` are further names that are taken; they are not copied.
    """

    def __init__(self, taken: Iterable[str], declared: Container[str] = ()):
        self._used_names = set(taken)
        self._declared_names = declared

    def mint(self, wanted: str) -> str:
        """`wanted`, with underscores added if the program (or an earlier request) has it already."""
        while wanted in self._used_names or wanted in self._declared_names:
            wanted += "_"
        self._used_names.add(wanted)
        return wanted

    def mint_family(self, wanted: str, suffixes: Iterable[str]) -> str:
        """A name such that neither it nor any of its suffixed forms is taken; all of them are taken afterwards."""
        suffixes = ("", *suffixes)
        while any(self._is_taken(wanted + suffix) for suffix in suffixes):
            wanted += "_"
        self._used_names.update(wanted + suffix for suffix in suffixes)
        return wanted

    def extend(self, name: str, suffixes: Sequence[str]) -> str:
        """`name`, which the program has, if none of its suffixed forms is taken, else a new name; all forms are taken
        afterwards.
        """
        forms = [name + suffix for suffix in suffixes]
        if any(map(self._is_taken, forms)):
            return self.mint_family(name, suffixes)
        self._used_names.update(forms)
        return name

    def _is_taken(self, name: str) -> bool:
        return name in self._used_names or name in self._declared_names


def slice_name(variable: str, index: int) -> str:
    """The name of slice `index` of a variable: `fc_0.w_0.block1`."""
    return f"{variable}.block{index}"


def trainer_suffix(trainer: int) -> str:
    """The suffix of the name of a gradient that a trainer sends: `.trainer_0`."""
    return f".trainer_{trainer}"


class Slice(NamedTuple):
    """Rows `start` to `stop` of a parameter (elements, at rank 1), the server that owns them, and their names.

    `gradient` is the merged gradient's name on the server; a trainer's own is minted by `Plan.sent_name`.
    """

    number: int
    start: int
    stop: int
    shape: tuple[int, ...]
    offset: int
    name: str
    gradient: str
    endpoint: str


class PlannedParameter(NamedTuple):
    """A distributed parameter: its slices in order, and the gradient variable that the trainers compute.

    `sparse`: the gradient is SelectedRows. `prefetched`: trainers look its rows up on the servers and never have all of
    it.
    """

    name: str
    gradient: str
    dtype: DType
    shape: tuple[int, ...]
    lod_level: int
    slices: tuple[Slice, ...]
    send_control: str
    sparse: bool = False
    prefetched: bool = False

    @property
    def is_cut(self) -> bool:
        """Whether there is more than one slice."""
        return len(self.slices) > 1


class PlannedTable(NamedTuple):
    """The distributed lookup table: row i is on server i modulo the number of servers.

    `rows_per_server` is the number of rows for which a server has room, `learning_rate` the variable that its update
    reads. `ids_sent` and `rows_got` are the variables, one per server, that carry the ids of a trainer's lookups there
    and the rows back, of types `ids` and `rows`. `updated_by` and `looked_up_by` are the source ops that update it and
    look it up first.
    """

    name: str
    gradient: str
    sent_gradient: str
    tensor: TensorType
    rows_per_server: int
    learning_rate: str
    ids_sent: tuple[str, ...]
    rows_got: tuple[str, ...]
    ids: TensorType
    rows: TensorType
    path: str
    send_control: str
    updated_by: Origin | None = None
    looked_up_by: Origin | None = None

    def sent_name(self, trainer: int | None, server: int) -> str:
        """The name under which a gradient is sent to a server; `trainer` None: all trainers use the same name."""
        who = "" if trainer is None else f".trainer_{trainer}"
        return f"{self.sent_gradient}{who}.pserver_{server}"


class SharedCounter(NamedTuple):
    """A step counter kept by every trainer: the shared name, each trainer's own, and its send's control variable.

    `origin` is the source op that increments the counter.
    """

    name: str
    trainer_counters: tuple[str, ...]
    control: str
    origin: Origin | None = None


class GeoPlan(NamedTuple):
    """The settings of mode geo: trainers exchange with the servers after `need_push_nums` steps each (Fluid's
    `geo_sgd_need_push_nums`).

    `step` and `begin` are the control variables of the sends that tell a communicator that a step is over and that the
    parameters are complete; `token` is the input of the former where no table is sparse. `row_names`: variables with
    numbers of rows, some of them -1 -> the name of the same numbers without these.
    """

    need_push_nums: int
    step: str
    begin: str
    token: str
    row_names: FrozenMap[str, str] = EMPTY


@check_arguments
@dataclass(frozen=True)
class Plan:
    """All choices of one job for one program.

    `parameters` are in parameter order (of the first optimize op that names each); `send_order` holds indices into it,
    in the order in which gradients were assigned to the servers. With `per_trainer` every trainer sends under a name of
    its own. With `runtime_split` the trainers' communicators cut gradients and join parameters, instead of ops. With
    `communicator_barrier` a trainer waits for its communicator in every step. With `dc_asgd` servers compensate
    gradients for their delay. `made_for` is the module whose variables are placed.
    """

    mode: str
    pservers: tuple[str, ...]
    trainers: int
    parameters: tuple[PlannedParameter, ...]
    send_order: tuple[int, ...]
    groups: tuple[UpdateGroup, ...]
    per_trainer: bool
    barrier_control: str
    startup_control: str
    counters: tuple[SharedCounter, ...] = ()
    table: PlannedTable | None = None
    runtime_split: bool = False
    communicator_barrier: bool = False
    trainer_endpoints: tuple[str, ...] = ()
    collective: Collective | None = None
    dc_asgd: bool = False
    geo: GeoPlan | None = None
    made_for: Module | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        """`<Plan sync, 2 trainers, 2 pservers: 7 parameters in 9 slices>`."""
        slices = sum(len(parameter.slices) for parameter in self.parameters)
        placed = f"{quantity(len(self.parameters), 'parameter')} in {quantity(slices, 'slice')}"
        placed += ", a lookup table" if self.table else ""
        machines = f"{quantity(self.trainers, 'trainer')}, {quantity(len(self.pservers), 'pserver')}"
        return f"<Plan {self.mode}, {machines}: {placed}>"

    def __str__(self) -> str:
        """The plan as `pstranspile plan` shows it; `parse_plan` reads it back."""
        return plan_text(self).rstrip("\n")

    @cached_property
    def source(self) -> str:
        """The fingerprint of the module for which the plan was made; empty for a plan without one."""
        return fingerprint(self.made_for) if self.made_for is not None else ""

    @property
    def distributed_lookup_table(self) -> str | None:
        """The name of the distributed lookup table, if there is one."""
        return self.table.name if self.table else None

    @property
    def send_controls(self) -> list[str]:
        """The control variables of all sends of gradients, in the order in which gradients were assigned."""
        controls = [self.parameters[i].send_control for i in self.send_order]
        return [*controls, self.table.send_control] if self.table else controls

    @cached_property
    def by_name(self) -> dict[str, PlannedParameter]:
        """The distributed parameters by name."""
        return {parameter.name: parameter for parameter in self.parameters}

    def sent_name(self, slice_: Slice, trainer: int) -> str:
        """The name under which a trainer sends its gradient of a slice."""
        if slice_.__class__ is not Slice:
            expect(slice_, Slice, "sent_name")
        if not self.per_trainer:
            return slice_.gradient
        names = self._sent_names.setdefault(trainer, {})
        name = names.get(slice_.gradient)
        if name is None:
            name = names[slice_.gradient] = f"{slice_.gradient}.trainer_{trainer}"
        return name

    @cached_property
    def _sent_names(self) -> dict[int, dict[str, str]]:
        """The names generated so far, by trainer and gradient: one string each, however many programs use it."""
        return {}

    @check_arguments
    def slices_on(self, endpoint: str) -> list[tuple[PlannedParameter, Slice]]:
        """The slices of a server, in the order in which they were assigned."""
        return [
            (self.parameters[i], s)
            for i in self.send_order
            for s in self.parameters[i].slices
            if s.endpoint == endpoint
        ]

    @check_arguments
    def load_of(self, endpoint: str) -> str:
        """The load of a server in words: `3 slices, 40,080 bytes of parameters`."""
        owned = self.slices_on(endpoint)
        size = sum(prod(part.shape) * parameter.dtype.size for parameter, part in owned)
        return f"{quantity(len(owned), 'slice')}, {quantity(size, 'byte')} of parameters"


def slice_shape(shape: tuple[int, ...], start: int, stop: int) -> tuple[int, ...]:
    """The shape of rows `start` to `stop` of a variable."""
    return (stop - start, *shape[1:]) if shape else shape


def row_width(shape: tuple[int, ...]) -> int:
    """Elements per row."""
    return prod(shape[1:])


def fingerprint(module: Module) -> str:
    """`sha256:` and the hash of the text of @main and @startup: the same for the same programs."""
    from pstranspile.ops.textual import one_line_each

    programs = {name: module.programs[name] for name in (MAIN, STARTUP) if name in module.programs}
    text = one_line_each(Module(type(module.programs)(programs)))
    return "sha256:" + sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def quote_name(name: str) -> str:
    """A variable's name in the spelling of the text: `%fc_0.w_0`, or `%"..."` for unusual ones."""
    plain = name and all(c.isascii() and (c.isalnum() or c in "_.@/") for c in name)
    return f"%{name}" if plain else "%" + json.dumps(name)


def plan_text(plan: Plan) -> str:
    """The plan as text: one line per slice, in parameter order; `parse_plan` reads it back.

    Lines after `#` inform the reader: about groups that must stay together, and the load of each server. The line
    `source` names the module that the plan was made for.
    """
    lines = [
        "plan 1",
        *([f"source {plan.source}"] if plan.source else []),
        f"job mode={plan.mode} trainers={plan.trainers} pservers={json.dumps(list(plan.pservers))}",
        "",
    ]
    for parameter in plan.parameters:
        lines += _parameter_lines(parameter)
    for group in plan.groups:
        lines.append(f"# together, uncut, on one server: {' '.join(quote_name(name) for name in group.parameters)}")
    lines += collective_lines(plan.collective, plan.trainer_endpoints)
    lines.append("")
    for endpoint in plan.pservers:
        lines.append(f"# {endpoint}: {plan.load_of(endpoint)}")
    return "\n".join(lines) + "\n"


def _parameter_lines(parameter: PlannedParameter) -> list[str]:
    lines: list[str] = []
    for s in parameter.slices:
        where = f"-> {quote_name(s.name)} @ {json.dumps(s.endpoint)}"
        if parameter.is_cut:
            lines.append(f"slice {quote_name(parameter.name)} rows {s.start}..{s.stop} {where}")
        else:
            lines.append(f"whole {quote_name(parameter.name)} {where}")
    return lines


def plan_json(plan: Plan, source: str, distributed_vars: Iterable[DistributedVar]) -> dict[str, Any]:
    """The plan as `plan.json` holds it (version 1): the job, and every variable on every server.

    `offset` counts elements. In mode geo, `geo` has the settings of the trainers' communicators. `groups` are
    parameters that must stay together on one server. In modes without servers, `collective` has the settings of the
    communication between the trainers at `trainer_endpoints`, and their sums on each ring.
    """
    geo = plan.geo
    return {
        "version": 1,
        "source": source,
        "mode": plan.mode,
        "pservers": list(plan.pservers),
        "trainers": plan.trainers,
        "distributed_lookup_table": plan.distributed_lookup_table,
        "distributed_vars": [
            {**v._asdict(), "origin_shape": list(v.origin_shape), "slice_shape": list(v.slice_shape)}
            for v in distributed_vars
        ],
        "groups": [list(group.parameters) for group in plan.groups],
        **({"geo": {"need_push_nums": geo.need_push_nums, "vars_info": vars_info(plan.parameters)}} if geo else {}),
        **collective_json(plan.collective, plan.trainer_endpoints),
    }


def vars_info(parameters: Sequence[PlannedParameter]) -> dict[str, dict[str, list[str]]]:
    """Per parameter the entries of Fluid's communicator, as `_get_vars_info` gives them: all values are texts.

    `var_names`: its slices; `sections`: the rows of each; `epmap`: the server of each; `is_sparse`: "True" or "False".
    """
    return {
        parameter.name: {
            "var_names": [s.name for s in parameter.slices],
            "sections": [str(s.stop - s.start) for s in parameter.slices],
            "epmap": [s.endpoint for s in parameter.slices],
            "is_sparse": [str(parameter.sparse)],
        }
        for parameter in parameters
    }
