"""The answers of `explain` as values, as text for the user, and as plain values for JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from pstranspile.ir.attributes import AttrValue, BlockRef, BlockRefs
from pstranspile.ir.diagnostics import cluster_of
from pstranspile.ir.model import EMPTY, Op, Program
from pstranspile.ops import schema_of

# The meaning of the attributes of emitted ops.

_WHO = "the number of the trainer that says it"
_RING = "the ring of trainers it works on; rings take turns"
_THREADS = "threads of this pool of the server; Fluid's default"

MEANINGS: dict[tuple[str, str], str] = {
    ("send", "epmap"): "the server that each value goes to, in the order of X (or of send_varnames)",
    ("send", "sections"): "the rows of each part into which the communicator cuts the gradient",
    ("send", "send_varnames"): "the name under which each part travels",
    ("send", "merge_add"): "the communicator adds up what waits to be sent, it does not average it",
    ("send", "use_send_handler"): "false: the server is told of a count, it gets no gradient",
    ("send", "trainer_id"): _WHO,
    ("recv", "epmap"): "the server that each value comes from, in the order of Out (or of recv_varnames)",
    ("recv", "recv_varnames"): "the slices that the communicator fetches and joins",
    ("recv", "trainer_id"): _WHO,
    ("recv", "do_not_run"): "true: the communicator fetches by itself, the op only describes what",
    ("send_barrier", "endpoints"): "the servers that are told: all of them, also those that own nothing",
    ("send_barrier", "trainer_id"): _WHO,
    ("send_barrier", "half_async"): "true: it waits for the trainer's own communicator and tells no server",
    ("fetch_barrier", "endpoints"): "the servers that are told: all of them, also those that own nothing",
    ("fetch_barrier", "trainer_id"): _WHO,
    ("split_byref", "sections"): "the rows of each part: those of the parameter's slices",
    ("split_selected_rows", "height_sections"): "the rows of each part: those of the parameter's slices",
    ("concat", "axis"): "slices are whole rows, so they are joined along dim 0",
    ("distributed_lookup_table", "table_names"): "the slices of the table, in the order of rows",
    ("distributed_lookup_table", "height_sections"): "the rows of each slice, by which ids find their server",
    ("distributed_lookup_table", "endpoints"): "the server of each slice",
    ("distributed_lookup_table", "padding_idx"): "the id whose row is all zero, -1 for none",
    ("distributed_lookup_table", "lookup_table_version"): "the type of the lookups that it replaces",
    ("distributed_lookup_table", "trainer_id"): _WHO,
    ("prefetch", "epmap"): "the server that each list of ids goes to: id modulo servers",
    ("listen_and_serv", "endpoint"): "where this server listens",
    ("listen_and_serv", "pserver_id"): "its number in the job's list of servers",
    ("listen_and_serv", "Fanin"): "how many trainers must have come to a barrier: all of the job",
    ("listen_and_serv", "optimize_blocks"): "the blocks it runs: the learning rate first, then one per slice or group",
    ("listen_and_serv", "lr_decay_block_id"): "the block with the learning-rate schedule, -1 for none",
    ("listen_and_serv", "grad_to_block_id"): "which block a gradient is meant for",
    ("listen_and_serv", "sparse_grad_to_param"): "sparse gradients, and what they update",
    ("listen_and_serv", "distributed_mode"): "the server's loop: 0 waits for all trainers, 1 and 2 don't wait (2: "
    "half-asynchronous), 3 is geo",
    ("listen_and_serv", "dc_asgd"): "whether gradients are compensated for their delay",
    ("listen_and_serv", "prefetch_var_name_to_block_id"): "which block answers a list of ids",
    ("listen_and_serv", "checkpint_block_id"): "the block that saves the table; Fluid spells it so",
    ("listen_and_serv", "rpc_get_thread_num"): _THREADS,
    ("listen_and_serv", "rpc_send_thread_num"): _THREADS,
    ("listen_and_serv", "rpc_prefetch_thread_num"): _THREADS,
    ("lookup_sparse_table", "padding_idx"): "the id whose row is all zero, -1 for none",
    ("scale", "scale"): "one divided by the number of trainers",
    ("fake_init", "shape"): "the dims of the whole table",
    ("gen_nccl_id", "trainers"): "all trainers, in the order of their ranks",
    ("gen_nccl_id", "trainer_id"): "the rank of this trainer",
    ("gen_nccl_id", "nccl_comm_num"): "how many communicators are made; sums take turns over them",
    ("gen_nccl_id", "use_hierarchical_allreduce"): "whether sums are made within groups first",
    ("gen_nccl_id", "hierarchical_allreduce_inter_nranks"): "the trainers of a group",
    ("c_gen_nccl_id", "rank"): "the rank of this trainer",
    ("c_gen_nccl_id", "endpoint"): "where this trainer is reached",
    ("c_gen_nccl_id", "other_endpoints"): "where the others are reached, in the order of their ranks",
    ("c_comm_init", "nranks"): "how many trainers the ring has",
    ("c_comm_init", "rank"): "the rank of this trainer",
    ("c_comm_init", "ring_id"): "the ring that is joined",
    ("c_broadcast", "ring_id"): _RING,
    ("c_broadcast", "root"): "the rank whose value all take",
    ("c_allreduce_sum", "ring_id"): _RING,
    ("c_sync_comm_stream", "ring_id"): "the ring that is waited for",
}
"""The meanings of attributes of ops that rules make, by op type and attribute."""

BY_RULE: dict[tuple[str, str], str] = {
    ("initialise-slice", "shape"): "the dims of the slice instead of the whole variable",
    ("initialise-slice", "seek"): "where the slice begins in the file, in elements",
    ("tell-rows", "send_varnames"): "the tables that the ids are of, in the order of X",
    ("tell-step", "send_varnames"): "a name, without which the op does nothing",
    ("begin-exchange", "send_varnames"): "the name by which Fluid's communicator knows that it is time",
    ("look-up-locally", "remote_prefetch"): "false: the trainer has the whole table",
    ("start-step-counter", "value"): "1 for a trainer's own count, minus the number of trainers for the shared one",
}
"""The meanings of attributes of source ops that a rule changes, by rule and attribute."""


def notes_of(op: Op) -> tuple[ExplainedAttribute, ...]:
    """The attributes of an op that a rule made, with their meanings, in order of their names."""
    rule = rule_of(op)
    if not rule:
        return ()
    notes: list[ExplainedAttribute] = []
    schema = schema_of(op.type)
    defaults = schema.defaults if schema else EMPTY
    for name in sorted(op.attrs):
        meaning = BY_RULE.get((rule, name)) or MEANINGS.get((op.type, name))
        if meaning is not None:
            value = op.attrs[name]
            notes.append(
                ExplainedAttribute(name, value_text(value), meaning, name in defaults and defaults[name] == value)
            )
    if op.role_vars:
        pairs = ", ".join(f"%{name}" for name in op.role_vars)
        notes.append(
            ExplainedAttribute("op_role_var", f"({pairs})", "the parameter and the gradient that the op is about")
        )
    return tuple(notes)


def value_text(value: AttrValue) -> str:
    """An attribute's value as text for the user."""
    if isinstance(value, BlockRefs):
        return f"[{', '.join(f'^{int(block)}' for block in value)}]"
    if isinstance(value, BlockRef):
        return f"^{int(value)}"
    return json.dumps(list(value) if isinstance(value, tuple) else value)


# Positions of ops in a compiled job.


class OpPosition(NamedTuple):
    """The position of an op: machine, program, block, and index within the block."""

    machine: str
    program: str
    block: int
    number: int

    def __str__(self) -> str:
        """`trainer_0 @main^0#17`."""
        return f"{self.machine} @{self.program}^{self.block}#{self.number}"


def rule_of(op: Op) -> str:
    """The rule that made an op; empty for an op of the source."""
    return op.origin.rule if op.origin else ""


def ops_of(machine: str, programs: Mapping[str, Program]) -> Iterator[tuple[OpPosition, Op]]:
    """Every op of a machine with its place, program by program."""
    for name, program in programs.items():
        for index, block in enumerate(program.blocks):
            for number, op in enumerate(block.ops):
                yield OpPosition(machine, name, index, number), op


class Source(NamedTuple):
    """The source op behind an op: its name (`@main^0#17`), file and line (0: none), and text, where known.

    `script` is the line of the Python script that made it (`train.py:20`), empty where the program does not state it.
    """

    op: str
    file: str
    line: int
    text: str | None
    script: str = ""


class Link(NamedTuple):
    """A related op, or an op that reads or writes a variable: its relation, its place, and its text."""

    relation: str
    place: OpPosition
    text: str


class ExplainedAttribute(NamedTuple):
    """An attribute of an op: its value as the text has it, its meaning, and whether it is the op's default."""

    name: str
    value: str
    meaning: str
    is_default: bool = False


class OpAnswer(NamedTuple):
    """The origin of an op. `rule` is empty for an op of the source itself; `reason` explains its place."""

    place: OpPosition
    text: str
    rule: str
    reason: str
    source: Source | None
    links: tuple[Link, ...]
    attributes: tuple[ExplainedAttribute, ...]


class HeldPart(NamedTuple):
    """A part of a variable on a server: rows `start` to `stop` (elements at rank 1), of `shape`, from element `offset`.

    `why` is the reason why this server has it.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    offset: int
    endpoint: str
    machine: str
    vtype: str
    why: str


class VariableAnswer(NamedTuple):
    """A variable: its declaration, its places, and its users.

    `about` are sentences; `whole` is the source variable that `parts` are parts of, `why_cut` the formula with its
    numbers.
    """

    name: str
    about: tuple[str, ...]
    whole: str
    parts: tuple[HeldPart, ...]
    why_cut: str
    declared: tuple[tuple[str, str], ...]
    uses: tuple[Link, ...]


class ListedOp(NamedTuple):
    """An op in a list: its place, its rule (empty: the source's own), its source line, and its text."""

    place: OpPosition
    rule: str
    source: Source | None
    text: str


class Overview(NamedTuple):
    """The numbers of ops of a job by machine and rule: (machine, what it is, ((program, rule, count), ...)).

    `listed` has the ops of one machine that rules made, if one was asked for.
    """

    mode: str
    trainers: int
    pservers: tuple[str, ...]
    machines: tuple[tuple[str, str, tuple[tuple[str, str, int], ...]], ...]
    listed: tuple[ListedOp, ...] = ()


class LineAnswer(NamedTuple):
    """The ops that come from a line of a file, machine by machine. Their relation is the rule that made them, empty for
    ops of the source.
    """

    file: str
    line: int
    ops: tuple[Link, ...]


Answer: TypeAlias = OpAnswer | VariableAnswer | LineAnswer | Overview


SHOWN = 8
"""Lines of one kind that are shown before the rest is only counted (`--all` shows all)."""


def answer_text(answer: Answer, *, full: bool = False) -> str:
    """An answer as text; long lists are cut off, unless `full` is set."""
    if isinstance(answer, OpAnswer):
        lines = _op(answer, full)
    elif isinstance(answer, VariableAnswer):
        lines = _variable(answer, full)
    elif isinstance(answer, LineAnswer):
        lines = _line(answer, full)
    else:
        lines = _overview(answer)
    return "\n".join(lines) + "\n"


def _op(answer: OpAnswer, full: bool) -> Iterator[str]:
    yield f"{answer.place}"
    yield f"    {answer.text}"
    yield ""
    yield f"rule {answer.rule}" if answer.rule else "the source's own op"
    yield f"    {answer.reason}"
    if answer.source is not None:
        yield ""
        yield f"{'made for' if answer.rule else 'it is'} {_source(answer.source)}"
        if answer.source.text:
            yield f"    {answer.source.text}"
    if answer.links:
        yield ""
        yield "pairs with"
        yield from _limit_rows(_links(answer.links), full)
    notes = [note for note in answer.attributes if full or not note.is_default]
    if notes:
        yield ""
        yield "attributes"
        for note in notes:
            yield f"    {note.name} = {_short(note.value)}"
            yield f"        {note.meaning}"


def _source(source: Source) -> str:
    place = f"{source.file}:{source.line}" if source.line else source.file
    place += f", made at {source.script}" if source.script else ""
    what = source.op if "#" in source.op else f"{source.op}, the program as a whole"
    return f"{what}, {place}" if place else what


def _links(links: Sequence[Link]) -> Iterator[list[str]]:
    """Yields the two lines of each link; the same op on several machines once."""
    for (relation, text), places in _group_across_machines((link.relation, link.text, link.place) for link in links):
        yield [f"    {_USED.get(relation, relation)} {_places(places)}", f"        {text}"]


_USED = {"writes": "written by", "reads": "read by"}
"""The effects of ops on a variable, with the variable as subject."""


def _group_across_machines(
    rows: Iterable[tuple[str, str, OpPosition]],
) -> Iterable[tuple[tuple[str, str], list[OpPosition]]]:
    """Groups rows that differ only in the machine."""
    result: dict[tuple[Any, ...], tuple[tuple[str, str], list[OpPosition]]] = {}
    for relation, text, place in rows:
        key = (relation, place.program, place.block, place.number, place.machine.partition("_")[0])
        result.setdefault(key, ((relation, text), []))[1].append(place)
    return result.values()


def _places(places: Sequence[OpPosition]) -> str:
    first = places[0]
    if len(places) == 1:
        return str(first)
    machines = [place.machine for place in places]
    shown = ", ".join(machines[:3]) + (f" and {len(machines) - 3} more" if len(machines) > 3 else "")
    return f"{shown} @{first.program}^{first.block}#{first.number}"


def _limit_rows(rows: Iterable[list[str]], full: bool) -> Iterator[str]:
    all_rows = list(rows)
    shown = all_rows if full or len(all_rows) <= SHOWN + 1 else all_rows[:SHOWN]
    for lines in shown:
        yield from lines
    if len(shown) < len(all_rows):
        yield f"    and {len(all_rows) - len(shown)} more (--all shows them)"


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."


def _variable(answer: VariableAnswer, full: bool) -> Iterator[str]:
    yield f"%{answer.name}"
    for sentence in answer.about:
        yield f"    {sentence}"
    if answer.parts:
        yield ""
        yield f"lies as {answer.whole}, in parts" if len(answer.parts) > 1 and answer.whole else "lies"
        yield from _limit_rows(([*_part(part)] for part in answer.parts), full)
    if answer.why_cut:
        yield ""
        yield "cut so because"
        yield f"    {answer.why_cut}"
    if answer.declared:
        yield ""
        yield "declared"
        rows = ((text, text, _place_named(place)) for place, text in answer.declared)
        yield from _limit_rows(([f"    {_where(at)}  {text}"] for (text, _), at in _group_across_machines(rows)), full)
    if answer.uses:
        yield ""
        yield "used"
        yield from _limit_rows(_links(answer.uses), full)


def _line(answer: LineAnswer, full: bool) -> Iterator[str]:
    yield f"{answer.file}:{answer.line}"
    by_rule: dict[str, list[Link]] = {}
    for op in answer.ops:
        by_rule.setdefault(op.relation, []).append(op)
    for rule, ops in by_rule.items():
        yield ""
        yield rule or "of the source"
        rows = [
            [f"    {_places(at)}", f"        {text}"]
            for (_, text), at in _group_across_machines((rule, o.text, o.place) for o in ops)
        ]
        yield from _limit_rows(rows, full)


def _place_named(text: str) -> OpPosition:
    """`trainer_0 @main^0`, as a place without an op."""
    machine, _, rest = text.partition(" @")
    program, _, block = rest.rpartition("^")
    return OpPosition(machine, program, int(block), 0)


def _where(places: Sequence[OpPosition]) -> str:
    return _places(places).rpartition("#")[0]


def _part(part: HeldPart) -> Iterator[str]:
    machine = f" ({part.machine})" if part.machine else ""
    yield (
        f"    %{part.name}: rows {part.start} to {part.stop}, {list(part.shape)}, from element {part.offset} on, "
        f"at {part.endpoint}{machine}"
    )
    yield f"        {part.why}"


def _overview(answer: Overview) -> Iterator[str]:
    yield f"mode {answer.mode}, {cluster_of(answer.trainers, len(answer.pservers))}"
    groups: dict[tuple[Any, ...], list[str]] = {}
    for machine, what, counts in answer.machines:
        groups.setdefault((what, counts), []).append(machine)
    for (what, counts), machines in groups.items():
        shown = ", ".join(machines[:4]) + (f" and {len(machines) - 4} more" if len(machines) > 4 else "")
        yield ""
        yield f"{shown}: {what}{'s' if len(machines) > 1 else ''}"
        width = max(len(str(count)) for _, _, count in counts)
        for program, rule, count in counts:
            yield f"    @{program}  {count:>{width}}  {rule or 'of the source'}"
    if answer.listed:
        yield ""
        yield "ops that rules made"
        for place, rule, source, text in answer.listed:
            made_for = f" for {_source(source)}" if source else ""
            yield f"    @{place.program}^{place.block}#{place.number}  {rule}{made_for}"
            yield f"        {text}"


def answer_json(answer: Answer) -> dict[str, Any]:
    """An answer as objects, lists, strings and numbers: the fields of the values, by name."""
    plain = cast("dict[str, Any]", _plain(answer))
    kind = {OpAnswer: "op", VariableAnswer: "variable", LineAnswer: "line", Overview: "overview"}[type(answer)]
    if isinstance(answer, Overview):
        plain["machines"] = [
            {
                "machine": machine,
                "what": what,
                "ops": [{"program": p, "rule": rule, "count": count} for p, rule, count in counts],
            }
            for machine, what, counts in answer.machines
        ]
    elif isinstance(answer, VariableAnswer):
        plain["declared"] = [{"where": where, "text": text} for where, text in answer.declared]
    return {"kind": kind, **plain}


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        fields = getattr(items, "_fields", None)
        if fields is not None:
            return {name: _plain(item) for name, item in zip(cast("tuple[str, ...]", fields), items, strict=True)}
        return [_plain(item) for item in items]
    return value
