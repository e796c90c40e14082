"""The data of a report about a compiled job."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from math import prod
from typing import Any, NamedTuple

import pstranspile
from pstranspile.cluster.net.metrics import Pace
from pstranspile.compiler.cost.events import TimedActivity
from pstranspile.compiler.cost.jobs import PlanCost, Sweep
from pstranspile.compiler.cost.seconds import JobSeconds, format_seconds, seconds_lines
from pstranspile.compiler.emit.rules import RULES
from pstranspile.compiler.explain.answers import OpPosition, notes_of
from pstranspile.compiler.explain.job import ExplainedJob, shorten_line
from pstranspile.compiler.explain.peers import peers_of
from pstranspile.compiler.explain.placement import PARAMETERS, rows_held, rows_of, why_cut, why_there
from pstranspile.compiler.explain.questions import why_kept
from pstranspile.ir.attributes import BlockRef, BlockRefs
from pstranspile.ir.model import MAIN, Block, Module, Op, Origin, Program, Var, collector_paused
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.text.printer import Lines
from pstranspile.ir.types import VarKind
from pstranspile.ops.textual import LANGUAGE

# Texts that occur many times in a page, written once.


class Texts:
    """A table of distinct texts, numbered in the order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of a text, which is added if it is new."""
        return self._numbers.setdefault(text, len(self._numbers))

    def all_texts(self) -> list[str]:
        """All texts, by number."""
        return list(self._numbers)


# The programs of the source and of every machine, for a page.
#
# Ops of a machine are numbered through all its programs and blocks, in order. An op's text, variables and notes are
# written once for all machines that have the same op.

MOST_PEERS = 30
"""The most peers of an op on a page; beyond that the page shows that there are more."""

Programs = Mapping[str, Program]


class _NumberedOps(NamedTuple):
    """The ops of a machine, and the number of the first op of each block."""

    ops: list[tuple[OpPosition, Op]]
    first_numbers: dict[tuple[str, int], int]

    def of(self, place: OpPosition) -> int:
        return self.first_numbers[place.program, place.block] + place.number


def _number_ops(machine: str, programs: Programs) -> _NumberedOps:
    ops: list[tuple[OpPosition, Op]] = []
    first: dict[tuple[str, int], int] = {}
    for name, program in programs.items():
        for index, block in enumerate(program.blocks):
            first[name, index] = len(ops)
            ops += ((OpPosition(machine, name, index, number), op) for number, op in enumerate(block.ops))
    return _NumberedOps(ops, first)


class _Writer:
    """The tables of texts and of distinct ops that all machines share."""

    def __init__(self) -> None:
        self.texts = Texts()
        self.ops: list[list[Any]] = []
        self._op_numbers: dict[Op, int] = {}

    def numbers(self, ops: Iterable[Op]) -> list[int]:
        """The numbers of ops; those that differ in their origin's rule may have other notes."""
        known, fresh, result = self._op_numbers, list[Op](), list[int]()
        for op in ops:
            number = known.setdefault(op, len(known))
            if number == len(self.ops) + len(fresh):
                fresh.append(op)
            result.append(number)
        for op, line in zip(fresh, _lines(fresh), strict=True):
            self.ops.append(self._written(op, line))
        return result

    def _written(self, op: Op, line: str) -> list[Any]:
        number = self.texts.number
        notes = [[number(n.name), number(n.value), number(n.meaning)] for n in notes_of(op)]
        ins, outs = ([number(name) for name in dict.fromkeys(names)] for names in (op.input_names, op.output_names))
        return [number(line), ins, outs, int(op.role or 0), *([notes] if notes else [])]


def _lines(ops: Sequence[Op]) -> list[str]:
    """The result of `line_of` for each op; printing them together is faster."""
    bare = tuple([op._replace(origin=None) for op in ops])
    printer, result = Lines(LANGUAGE), list[str]()
    while len(result) < len(bare):
        result += printer.ops(bare, len(result), "")[0]
    return list(map(shorten_line, result))


def programs_data(job: ExplainedJob, source: Module | None) -> dict[str, Any]:
    """Texts, ops, and the machines; the first machine is the source, with its layers and places in files."""
    writer = _Writer()
    programs = source.programs if source else _reconstruct_source(job)
    sources = _number_ops("", programs)
    numbered = {name: _number_ops(name, programs) for name, programs in job.machines.items()}
    rules = list(RULES)
    whole = [_machine(writer, "source", _layout(sources, programs), sources)]
    whole[0]["lines"] = [_line(op) for _, op in sources.ops]
    whole[0] |= _python_lines(op for _, op in sources.ops)
    layers = Texts()
    whole[0]["layer"] = [layers.number(layer) for layer in _layers(op for _, op in sources.ops)]
    for name, own in numbered.items():
        entry = _machine(writer, name, _layout(own, job.machines[name]), own)
        entry["rule"] = [rules.index(op.origin.rule) if op.origin and op.origin.rule else -1 for _, op in own.ops]
        entry["source"] = [_source(op.origin, sources) for _, op in own.ops]
        entry["peers"] = dict(_peers(job, writer.texts, numbered, name))
        entry["kept"] = {program: why_kept(job, name, program) for program in job.machines[name]}
        whole.append(entry)
    file = next((op.origin.location.file for _, op in sources.ops if op.origin and op.origin.location), "")
    return {
        "file": file,
        "rules": [[rule.name, rule.reason] for rule in RULES.values()],
        "layers": layers.all_texts(),
        "machines": whole,
        "ops": writer.ops,
        "texts": writer.texts.all_texts(),
    }


def _machine(writer: _Writer, name: str, layout: list[Any], own: _NumberedOps) -> dict[str, Any]:
    return {"name": name, "programs": layout, "op": writer.numbers(op for _, op in own.ops)}


def _layout(own: _NumberedOps, programs: Programs) -> list[Any]:
    """Each program: its name, and per block its first op, its count of ops, and the op around it (-1: none)."""
    result: list[Any] = []
    for name, program in programs.items():
        owners: dict[int, int] = {}
        for index, block in enumerate(program.blocks):
            for number, op in enumerate(block.ops):
                for label in _labels(op):
                    owners.setdefault(label, own.first_numbers[name, index] + number)
        blocks = enumerate(program.blocks)
        result.append([name, [[own.first_numbers[name, n], len(block.ops), owners.get(n, -1)] for n, block in blocks]])
    return result


def _labels(op: Op) -> Iterator[int]:
    for value in op.attrs.values():
        if isinstance(value, BlockRefs):
            yield from map(int, value)
        elif isinstance(value, BlockRef):
            yield int(value)


def _line(op: Op) -> int:
    place = op.origin.location if op.origin else None
    return place.line if place else 0


_PYTHON = ".py"
"""The suffix of source files whose lines are shown beside the ops that were traced from them."""


def _python_lines(ops: Iterable[Op]) -> dict[str, Any]:
    """The lines of Python that ops were traced from: each once, as file, number and text, and which one each op has.

    Nothing for ops that come from no file of Python.
    """
    places: dict[tuple[str, int], int] = {}
    at: list[int] = []
    for op in ops:
        place = op.origin.location if op.origin else None
        found = place is not None and place.file.endswith(_PYTHON) and place.line > 0
        at.append(places.setdefault((place.file, place.line), len(places)) if found and place is not None else -1)
    if not places:
        return {}
    code = [[file, line, linecache.getline(file, line).strip()] for file, line in places]
    return {"code": code, "code_of": at}


def _source(origin: Origin | None, sources: _NumberedOps) -> int:
    """The number of the source op that an op comes from, -1 if it is none."""
    if origin is None or origin.op < 0:
        return -1
    first = sources.first_numbers.get((origin.program, origin.block))
    return -1 if first is None else first + origin.op


def _peers(
    job: ExplainedJob, texts: Texts, numbered: Mapping[str, _NumberedOps], machine: str
) -> Iterator[tuple[str, list[int]]]:
    """The peers of each op that has any: the relation, the machine (0 is the source) and the op of each; -1 last:
    more.
    """
    peers = peers_of(job)
    places = {name: number for number, name in enumerate(numbered, 1)}
    for number, (place, _) in enumerate(numbered[machine].ops):
        shown = dict.fromkeys(islice(peers.places(place), MOST_PEERS + 1))
        flat: list[int] = []
        for relation, there in list(shown)[:MOST_PEERS]:
            flat += (texts.number(relation), places[there.machine], numbered[there.machine].of(there))
        if flat:
            yield str(number), flat if len(shown) <= MOST_PEERS else [*flat, -1]


def _reconstruct_source(job: ExplainedJob) -> dict[str, Program]:
    """The source as far as it follows from the machines' ops: every op that one comes from, by its place.

    An op that a rule changed has the text that it had. Places from which no op comes are filled with an op `?`.
    """
    ops: dict[tuple[str, int], dict[int, Op]] = {}
    for machine in job.machines:
        for place in job.places(machine):
            op = job.op(place)
            if op.origin is not None and op.origin.op >= 0:
                known = ops.setdefault((op.origin.program, op.origin.block), {})
                if op.origin.op not in known or not op.origin.rule:
                    known[op.origin.op] = op
    programs: dict[str, list[Block]] = {}
    for (name, index), known in sorted(ops.items()):
        blocks = programs.setdefault(name, [])
        blocks += [Block()] * (index + 1 - len(blocks))
        blocks[index] = Block(ops=tuple(known.get(n, Op("?")) for n in range(max(known) + 1)))
    return {name: Program(tuple(blocks)) for name, blocks in programs.items()}


_LAYER = Pattern(r"(?:grad/)*(.+?)(?:\.(?:[wb]|tmp)_\d+)?(?:@.*)?", re.DOTALL)


def _layers(ops: Iterator[Op]) -> Iterator[str]:
    """The layer of each op: what the variable is named after that it makes, or the parameter that it updates."""
    layer = ""
    for op in ops:
        name = op.input("Param") or next(iter(op.role_vars or ()), None) or next(iter(op.output_names), "")
        match = _LAYER.fullmatch(name)
        layer = match[1] if match else layer
        yield layer


# What each machine of a job holds, and what machines exchange in a step, for a page.


def machines_data(job: ExplainedJob) -> list[dict[str, Any]]:
    """The machines: name, kind, endpoint, and what each keeps from step to step, in bytes.

    `parameters` and `state` count bytes of declared dims, `rows` the rows of parameters and their slices. Parts of
    tables that trainers only look up are not counted for them.
    """
    endpoints = {machine: endpoint for endpoint, machine in job.servers.items()}
    looked_up = {row["origin"] for row in job.plan["distributed_vars"] if row["vtype"] == "RemotePrefetch"}
    placed: dict[str, set[str]] = {}
    for row in job.plan["distributed_vars"]:
        if row["vtype"] in PARAMETERS:
            placed.setdefault(row["endpoint"], set()).add(row["slice"])
    table = job.plan.get("distributed_lookup_table")
    result: list[dict[str, Any]] = []
    for name, programs in job.machines.items():
        own = placed.get(endpoints.get(name, ""), set())
        persistable_vars = (
            [v for v in programs[MAIN].main_block.vars.values() if v.persistable] if MAIN in programs else []
        )
        if name not in endpoints:
            persistable_vars = [v for v in persistable_vars if v.name not in looked_up and v.name != table]
        parameters = [
            v for v in persistable_vars if v.name in own or (name not in endpoints and v.parameter is not None)
        ]
        if name in endpoints:
            parameters += [v for v in persistable_vars if v.name == table]
        names = {v.name for v in parameters}
        result.append(
            {
                "name": name,
                "kind": "server" if name in endpoints else "trainer",
                "endpoint": endpoints.get(name, ""),
                "parameters": sum(map(size_of, parameters)),
                "state": sum(size_of(v) for v in persistable_vars if v.name not in names),
                "rows": sum(v.shape[0] for v in parameters if v.shape and v.shape[0] > 0),
                "slices": len(parameters),
            }
        )
    return result


def size_of(var: Var | None) -> int:
    """The bytes of a variable's declared dims; 0 where they are not known before it runs."""
    if var is None or var.tensor is None or var.kind is VarKind.SELECTED_ROWS or min(var.shape, default=0) < 0:
        return 0
    return prod(var.shape) * var.tensor.dtype.size


def pairs_data(job: ExplainedJob) -> list[list[Any]]:
    """The messages of each pair of machines in a step, from the programs.

    Rows: sender, receiver, messages, bytes of declared dims, and messages whose bytes depend on the data.
    """
    totals: dict[tuple[str, str], list[int]] = {}
    for source, target, size in _messages(job):
        total = totals.setdefault((source, target), [0, 0, 0])
        total[0] += 1
        total[1] += max(size, 0)
        total[2] += size < 0
    order = {name: number for number, name in enumerate(job.machines)}
    return [[*pair, *totals[pair]] for pair in sorted(totals, key=lambda pair: (order[pair[0]], order[pair[1]]))]


def _messages(job: ExplainedJob) -> Iterator[tuple[str, str, int]]:
    """Every message of a step: source, target, and its bytes (-1: they depend on the data)."""
    messages, servers = job.messages, job.servers
    for (endpoint, name), places in messages.sends.items():
        for place in places:
            if place.program == MAIN and endpoint in servers:
                yield place.machine, servers[endpoint], _size(job, place.machine, servers[endpoint], name)
    for table, asking in ((messages.fetches, True), (messages.lookups, False)):
        for (endpoint, name), places in table.items():
            for place in places:
                if place.program == MAIN and endpoint in servers:
                    yield place.machine, servers[endpoint], 0 if asking else -1
                    size = _size(job, place.machine, servers[endpoint], name) if asking else -1
                    yield servers[endpoint], place.machine, size
    for endpoint, places in messages.barriers.items():
        for place in places:
            if place.program == MAIN and endpoint in servers:
                yield place.machine, servers[endpoint], 0


def _size(job: ExplainedJob, trainer: str, server: str, name: str) -> int:
    for machine in (trainer, server):
        var = job.machines[machine][MAIN].main_block.vars.get(name)
        if var is not None and var.tensor is not None:
            known = var.kind is not VarKind.SELECTED_ROWS and min(var.shape, default=0) >= 0
            return size_of(var) if known else -1
    return -1


def parameters_data(job: ExplainedJob) -> list[dict[str, Any]]:
    """The parameters on servers: shape, bytes, why cut so, and of each slice the server, rows, bytes, and why there.

    Servers are numbered as in the plan.
    """
    servers: Mapping[str, int] = {endpoint: number for number, endpoint in enumerate(job.plan["pservers"])}
    names = dict.fromkeys(row["origin"] for row in job.plan["distributed_vars"] if row["vtype"] in PARAMETERS)
    result: list[dict[str, Any]] = []
    for name in names:
        rows = rows_of(job, name)
        machine = job.servers.get(rows[0]["endpoint"])
        var = job.machines[machine][MAIN].main_block.vars.get(rows[0]["slice"]) if machine else None
        width = var.tensor.dtype.size if var is not None and var.tensor is not None else 4
        slices: list[list[Any]] = []
        for row in rows:
            size = prod(row["slice_shape"]) * width
            slices.append([servers[row["endpoint"]], *rows_held(row), size, row["slice"], why_there(job, row)])
        result.append(
            {
                "name": name,
                "shape": rows[0]["origin_shape"],
                "dtype": var.tensor.dtype.text if var is not None and var.tensor is not None else "",
                "bytes": sum(entry[3] for entry in slices),
                "table": rows[0]["vtype"] == "RemotePrefetch",
                "why": why_cut(job, name),
                "slices": slices,
            }
        )
    return result


# A step in time: what machines do, and the messages between them.


def step_data(found: JobSeconds) -> dict[str, Any]:
    """A time line: machines from top to bottom, what each does (neighbouring ops as one), the frames between them, the
    critical path, and what machines wait for. Times are seconds from the begin of the step.
    """
    names = dict.fromkeys(each.machine for each in (*found.spans, *found.path))
    names.update(dict.fromkeys(name for each in found.arrows for name in (each.source, each.target)))
    order = sorted(names, key=lambda name: (not name.startswith("trainer"), _number_of(name)))
    at = {name: number for number, name in enumerate(order)}
    ends = [
        0.0,
        *(each.start + each.seconds for each in found.path),
        *(each.start + each.seconds for each in found.spans),
    ]
    return {
        "verdict": [found.verdict, *seconds_lines(found)],
        "machines": order,
        "seconds": max(ends),
        "spans": [[at[each.machine], *_span_fields(each)] for each in _merge_neighbours(found.spans)],
        "path": [[at[each.machine], *_span_fields(each)] for each in _merge_neighbours(found.path)],
        "arrows": [
            [at[each.source], at[each.target], each.what, *map(_round_seconds, (each.left, each.there))]
            for each in found.arrows[:MOST_ARROWS]
        ],
        "left_out": max(0, len(found.arrows) - MOST_ARROWS),
        "waits": [
            [each.machine, each.cause, _round_seconds(each.seconds), format_seconds(each.seconds)]
            for each in found.waits
        ],
    }


class CostPrediction(NamedTuple):
    """What a page shows of the cost of a job, which has seconds: with it other numbers of machines (`sweep`), and what
    a run has measured (`pace`).
    """

    cost: PlanCost
    sweep: Sweep | None = None
    pace: Pace | None = None


def predicted_data(found: CostPrediction) -> dict[str, Any] | None:
    """What is predicted of a step; None without seconds."""
    if found.cost.seconds is None:
        return None
    return {
        **step_data(found.cost.seconds),
        "memory": memory_data(found.cost)[:MOST_CHARTS],
        "memory_left_out": max(len(found.cost.machines) - MOST_CHARTS, 0),
        "sweep": sweep_data(found.sweep) if found.sweep is not None else [],
        "measured": measured_data(found.cost.seconds, found.pace) if found.pace is not None else [],
    }


def memory_data(cost: PlanCost) -> list[dict[str, Any]]:
    """The bytes of each machine over the ops of a step: those that it holds between steps, those of messages on their
    way, and those of all other values during each op; of neighbouring ops the most, where there are many.
    """
    result: list[dict[str, Any]] = []
    work = cost.work
    for machine, step in zip(cost.machines, work.steps if work is not None else (), strict=True):
        count = len(step.levels)
        ends = [count * at // min(count, MOST_POINTS) for at in range(min(count, MOST_POINTS) + 1)]
        levels = [max(step.levels[first:last]) for first, last in pairwise(ends)]
        fields = {"held": machine.held, "moving": machine.peak - step.peak, "levels": levels, "ops": count}
        result.append({"machine": machine.machine, **fields})
    return result


MOST_POINTS = 400
"""The most points of a chart of memory."""

MOST_CHARTS = 24
"""The most machines whose memory is drawn."""


def sweep_data(found: Sweep) -> list[dict[str, Any]]:
    """The rows of a sweep with a profile: numbers of machines, and what they cost."""
    return [
        {
            "trainers": row.trainers,
            "servers": row.pservers,
            "step": _round_seconds(row.seconds.step),
            "rows": _round_seconds(row.seconds.rows_per_second),
            "price": _round_seconds(row.seconds.machine_seconds),
            "peak": max(row.trainer_held + row.trainer_peak, row.server_held + row.server_peak),
            "bottleneck": f"{row.seconds.machine or 'host'}, {row.seconds.part}",
            "knee": row.is_knee,
        }
        for row in found.rows
        if row.seconds is not None
    ]


def measured_data(found: JobSeconds, pace: Pace) -> list[tuple[str, str, float, float]]:
    """What was predicted and measured of a step, and of each machine's processor in it: machine ("" for the step),
    what, and both in seconds. Machines that are alike have the mean of those that were measured.
    """
    result = [("", "step", _round_seconds(found.step), _round_seconds(pace.step))]
    for each in found.machines:
        kind = each.machine.partition("_")[0]
        alike = [seconds for role, seconds in pace.processor.items() if role.partition("_")[0] == kind]
        of = alike if kind == "trainer" else [pace.processor[each.machine]] if each.machine in pace.processor else []
        if of:
            numbers = _round_seconds(each.processor), _round_seconds(sum(of) / len(of))
            result.append((each.machine, "processor", *numbers))
    return result


MOST_ARROWS = 600
"""The most messages on a time line."""


def _number_of(name: str) -> int:
    digits = name.partition("_")[2].partition(" ")[0].partition(",")[0]
    return int(digits) if digits.isdigit() else -1


def _round_seconds(seconds: float) -> float:
    """Seconds, rounded to the digits that a picture shows."""
    return float(f"{seconds:.6g}")


def _span_fields(span: TimedActivity) -> tuple[str, str, float, float, str]:
    return span.what, span.about, _round_seconds(span.start), _round_seconds(span.seconds), format_seconds(span.seconds)


def _merge_neighbours(spans: Iterable[TimedActivity]) -> Iterator[TimedActivity]:
    """Yields the spans, those of neighbouring ops of a machine as one."""
    last: TimedActivity | None = None
    count = 0
    for span in spans:
        if (
            last is not None
            and (span.machine, span.what, last.what) == (last.machine, "ops", "ops")
            and span.start <= last.start + last.seconds + 1e-11
        ):
            count += 1
            last = last._replace(about=f"{count} groups of ops", seconds=span.start + span.seconds - last.start)
            continue
        if last is not None:
            yield last
        last, count = span, 1
    if last is not None:
        yield last


def report_data(
    job: ExplainedJob,
    title: str,
    source: Module | None = None,
    run: dict[str, Any] | None = None,
    check: dict[str, Any] | None = None,
    predicted: CostPrediction | None = None,
) -> dict[str, Any]:
    """The data of a report (version 1). `source` is the program that was compiled, where it is known; `predicted` has
    what a step costs, if that is to be shown.
    """
    with collector_paused():
        return {
            "form": 1,
            "made_by": f"pstranspile {pstranspile.__version__}",
            "title": title,
            "mode": job.plan["mode"],
            "trainers": job.plan["trainers"],
            "servers": list(job.plan["pservers"]),
            "cluster": machines_data(job),
            "pairs": pairs_data(job),
            "parameters": parameters_data(job),
            "programs": programs_data(job, source),
            "run": run,
            "check": check,
            "step": predicted_data(predicted) if predicted is not None else None,
        }
