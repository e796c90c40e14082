"""The peers of an op: related ops on other machines and on its own, such as the receiver of a send."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache

from pstranspile.compiler.emit.rules import (
    ADD_CHANGE,
    BEGIN_EXCHANGE,
    COMPENSATE,
    FILL_BACKUP,
    MERGE,
    REPORT_ROWS,
    REPORT_STEP,
    SCHEDULE,
    UPDATE,
)
from pstranspile.compiler.explain.answers import Link, OpPosition, rule_of
from pstranspile.compiler.explain.job import (
    BARRIERS,
    ExplainedJob,
    Key,
    blocks_named,
    fetched_by,
    line_of,
    looked_up_by,
    sent_by,
)
from pstranspile.compiler.explain.placement import rows_of
from pstranspile.ir.model import MAIN, STARTUP, Op, Origin
from pstranspile.ops import facts_of
from pstranspile.ops.attributes import strings_attr

Peer = tuple[str, OpPosition]
"""The relation of the other op, and its place."""

_Numbered = tuple[int, OpPosition]
"""The number of an op among those of all trainers, and its place."""


def _cuts(op_type: str) -> bool:
    return facts_of(op_type).cuts


class Peers:
    """Finds the peers of the ops of one job."""

    def __init__(self, job: ExplainedJob):
        self.job = job
        self.messages = job.messages
        self._servers = frozenset(job.servers.values())
        self._finders: dict[str, Callable[[OpPosition, Op], Iterator[Peer]]] = {
            "send": self._send,
            "recv": self._recv,
            "concat": self._concat,
            **dict.fromkeys(BARRIERS, self._barrier),
            "prefetch": self._lookup,
            "merge_ids": self._merge_ids,
            "fake_init": self._fake,
            "gen_nccl_id": self._collective,
            "listen_and_serv": self._serve,
        }
        self._positions_by_use: dict[tuple[str, str, bool], dict[tuple[str, str], list[OpPosition]]] = {}
        self._name_counts: dict[tuple[OpPosition, str], Mapping[str, int]] = {}
        self._similar_ops: dict[tuple[object, ...], list[OpPosition]] = {}
        for machine in job.servers.values():
            for place in job.places(machine):
                origin = job.op(place).origin
                if origin is not None and origin.op >= 0:
                    self._similar_ops.setdefault((origin[:3], origin.rule, place.program), []).append(place)

    def of(self, place: OpPosition) -> list[Link]:
        """The peers of the op at a place, each once."""
        peers = dict.fromkeys(self.places(place))
        return [Link(relation, there, line_of(self.job.op(there))) for relation, there in peers]

    def places(self, place: OpPosition) -> Iterator[Peer]:
        """Yields the peers of the op at a place without their texts; a peer may occur twice."""
        op = self.job.op(place)
        find = self._finder(op.type)
        if find is not None:
            yield from find(place, op)
        yield from self._on_server(place, op) if place.machine in self._servers else self._local(place, op)

    def _finder(self, op_type: str) -> Callable[[OpPosition, Op], Iterator[Peer]] | None:
        if op_type.startswith("c_"):
            return self._collective
        facts = facts_of(op_type)
        return self._split if facts.cuts else self._lookup if facts.looks_up else self._finders.get(op_type)

    def _users(
        self, place: OpPosition, names: Iterable[str], types: Collection[str] | Callable[[str], bool], *, read: bool
    ) -> list[OpPosition]:
        """The ops of a machine that read, or write, one of these names, and whose types are in `types` or satisfy
        it.
        """
        wanted = types if callable(types) else types.__contains__
        places: dict[OpPosition, None] = {}
        for name in names:
            sorts = self._sorted_uses(place.machine, name, read)
            alike = [found for (program, kind), found in sorts.items() if program == place.program and wanted(kind)]
            found = [there for group in alike for there in group]
            places.update((there, None) for there in sorted(found) if there != place)
        return list(places)

    def _sorted_uses(self, machine: str, name: str, read: bool) -> Mapping[tuple[str, str], Sequence[OpPosition]]:
        """The ops that read or write a variable, by program and type, as many ops may use a variable, but only few
        types are peers.
        """
        key = (machine, name, read)
        if key not in self._positions_by_use:
            uses = self.job.uses[machine]
            sorts = self._positions_by_use[key] = {}
            for used in uses.read(name) if read else uses.written(name):
                there = OpPosition(machine, *used)
                sorts.setdefault((used.program, self.job.op(there).type), []).append(there)
        return self._positions_by_use[key]

    def _readers(
        self, place: OpPosition, names: Iterable[str], types: Collection[str] | Callable[[str], bool]
    ) -> list[OpPosition]:
        return self._users(place, names, types, read=True)

    def _writers(
        self, place: OpPosition, names: Iterable[str], types: Collection[str] | Callable[[str], bool]
    ) -> list[OpPosition]:
        return self._users(place, names, types, read=False)

    # Trainers.

    def _send(self, place: OpPosition, op: Op) -> Iterator[Peer]:
        rule = rule_of(op)
        if rule in (REPORT_ROWS, REPORT_STEP):
            yield from (("then its communicator sends changes for", there) for there in self._change_adding_ops)
        elif rule == BEGIN_EXCHANGE:
            for there in self.job.places(place.machine):
                if there.program == STARTUP and self.job.op(there).type == "recv":
                    yield "the communicator keeps what is fetched by", there
        for split in self._writers(place, op.inputs.get("X", ()), _cuts):
            yield "sends what is cut by", split
        for key in sent_by(op):
            yield from self._receiving_peers(key)

    def _receiving_peers(self, key: Key) -> Iterator[Peer]:
        """Yields the server's op that receives a variable, the block that uses it, and the updates in that block."""
        endpoint, name = key
        serving = self.messages.serving.get(endpoint)
        if serving is None:
            return
        yield f"%{name} is received by", serving
        block = self._blocks(serving, "grad_to_block_id").get(name)
        used = [u for u in self.job.uses[serving.machine].read(name) if u.program == MAIN and u.block > 0]
        if used:
            yield "which runs the block that uses it,", OpPosition(serving.machine, *used[0])
            block = used[0].block
        if block is not None:
            yield from (("and updates by it,", there) for there in self._updates(serving.machine, block))

    def _blocks(self, serving: OpPosition, attribute: str) -> Mapping[str, int]:
        """The blocks that a server runs, by variable. The result is stored, as it is requested for each of its
        variables.
        """
        key = (serving, attribute)
        if key not in self._name_counts:
            self._name_counts[key] = blocks_named(self.job.op(serving), attribute)
        return self._name_counts[key]

    def _updates(self, machine: str, block: int) -> Iterator[OpPosition]:
        """The ops of a server's block that write a parameter."""
        for number, op in enumerate(self.job.machines[machine][MAIN].blocks[block].ops):
            if op.input("Param") is not None or (op.type == "sum" and op.output("Out") in op.inputs.get("X", ())):
                yield OpPosition(machine, MAIN, block, number)

    def _recv(self, place: OpPosition, op: Op) -> Iterator[Peer]:
        startup = place.program == STARTUP
        for endpoint, name in fetched_by(op):
            machine = self.job.servers.get(endpoint)
            if machine is None:
                continue
            written = [u for u in self.job.uses[machine].written(name) if (u.program == STARTUP) == startup]
            if written:
                relation = "initialised by" if startup else "updated by"
                yield f"%{name} is {relation}", OpPosition(machine, *written[-1])
        for join in self._readers(place, op.outputs.get("Out", ()), ("concat",)):
            yield "what it fetches is joined by", join

    def _split(self, place: OpPosition, op: Op) -> Iterator[Peer]:
        for use in self._readers(place, op.outputs["Out"], ("send", "prefetch", "merge_ids")):
            there = self.job.op(use)
            yield "the parts go to", use
            if there.type == "send" and there.role_vars:
                for join in self._writers(place, [there.role_vars[0]], ("concat",)):
                    yield "the parameter, cut alike, is joined again by", join

    def _concat(self, place: OpPosition, op: Op) -> Iterator[Peer]:
        for fetch in self._writers(place, op.inputs["X"], ("recv",)):
            yield "joins what is fetched by", fetch
        for send in self.messages.about.get((place.machine, op.outputs["Out"][0]), ()):
            for split in self._writers(send, self.job.op(send).inputs.get("X", ()), _cuts):
                yield "the gradient is cut alike by", split

    def _barrier(self, place: OpPosition, op: Op) -> Iterator[Peer]:
        for endpoint in strings_attr(op, "endpoints"):
            serving = self.messages.serving.get(endpoint)
            if serving is not None:
                yield f"counted, with Fanin {self.job.op(serving).attrs.get('Fanin')}, by", serving
            for there in self.messages.barriers.get(endpoint, ()):
                if there != place and there.program == place.program and self.job.op(there).type == op.type:
                    yield "waits together with", there

    def _lookup(self, place: OpPosition, op: Op) -> Iterator[Peer]:
        for endpoint, name in looked_up_by(op):
            serving = self.messages.serving.get(endpoint)
            if serving is None:
                continue
            if op.type == "prefetch":
                block = self._blocks(serving, "prefetch_var_name_to_block_id").get(name)
                if block is not None:
                    yield f"%{name} is answered by", OpPosition(serving.machine, MAIN, block, 0)
            else:
                yield f"rows of %{name} are served by", serving
                written = [u for u in self.job.uses[serving.machine].written(name) if u.program == MAIN]
                yield from (("which updates them by", OpPosition(serving.machine, *used)) for used in written[-1:])
        for name in op.inputs.get("W", ()):
            for send in self.messages.about.get((place.machine, name), ()):
                yield "the gradient of the rows is sent by", send
        if op.type == "prefetch":
            for split in self._writers(place, op.inputs["X"], _cuts):
                yield "asks for the ids that are dealt out by", split
            for merge in self._readers(place, op.outputs["Out"], ("merge_ids",)):
                yield "the rows are put in order by", merge

    def _merge_ids(self, place: OpPosition, op: Op) -> Iterator[Peer]:
        for fetch in self._writers(place, op.inputs["X"], ("prefetch",)):
            yield "puts in order what is fetched by", fetch

    def _fake(self, place: OpPosition, op: Op) -> Iterator[Peer]:
        name = op.outputs["Out"][0]
        for row in rows_of(self.job, name):
            machine = self.job.servers.get(row["endpoint"])
            for used in self.job.uses[machine].written(row["slice"]) if machine else ():
                if used.program == STARTUP and machine:
                    yield f"%{row['slice']} is initialised by", OpPosition(machine, *used)

    def _collective(self, place: OpPosition, op: Op) -> Iterator[Peer]:
        for machine in self.job.trainers:
            program = self.job.machines[machine].get(place.program)
            ops = program.blocks[place.block].ops if program else ()
            if machine != place.machine and place.number < len(ops) and ops[place.number].type == op.type:
                yield "meets", place._replace(machine=machine)

    def _local(self, place: OpPosition, op: Op) -> Iterator[Peer]:
        """Yields the communication ops of a trainer that use the result of one of its own ops."""
        if op.origin is not None and self.job.plan["mode"] == "geo":
            for there in self._similar_ops.get((op.origin[:3], ADD_CHANGE, MAIN), ()):
                yield "what it changes is added on the server by", there
        if op.origin is not None and not op.origin.rule and place.program != STARTUP:
            for use in self._readers(place, op.output_names, lambda kind: kind == "send" or _cuts(kind)):
                names = [f"%{n}" for n in op.output_names if n in set(self.job.op(use).input_names)]
                if place.number < use.number:
                    yield f"{', '.join(names)} goes to", use

    # Servers.

    def _serve(self, place: OpPosition, op: Op) -> Iterator[Peer]:
        here = str(op.attrs.get("endpoint"))
        for relation, messages in (
            ("is sent to it by", self.messages.sends),
            ("is fetched from it by", self.messages.fetches),
            ("is looked up on it by", self.messages.lookups),
        ):
            for (endpoint, name), places in messages.items():
                if endpoint == here:
                    yield from ((f"%{name} {relation}", there) for there in places)
        for there in self.messages.barriers.get(here, ()):
            yield "a barrier reaches it from", there

    def _on_server(self, place: OpPosition, op: Op) -> Iterator[Peer]:
        if op.type == "listen_and_serv":
            return
        endpoint = next(e for e, machine in self.job.servers.items() if machine == place.machine)
        startup = place.program == STARTUP
        for name in op.input_names:
            yield from ((f"%{name} is sent by", there) for there in self.messages.sends.get((endpoint, name), ()))
            if op.type == "lookup_sparse_table":
                yield from (
                    (f"%{name} is asked by", there) for there in self.messages.lookups.get((endpoint, name), ())
                )
        for name in op.output_names:
            for there in self.messages.fetches.get((endpoint, name), ()):
                if (there.program == STARTUP) == startup:
                    yield f"%{name} is fetched by", there
            if not startup and op.type != "lookup_sparse_table":
                yield from (
                    (f"rows of %{name} are looked up by", t) for t in self.messages.lookups.get((endpoint, name), ())
                )
        rule = rule_of(op)
        if rule == MERGE:
            yield from (("the mean goes into", there) for there in self._updates(place.machine, place.block))
        if rule in (COMPENSATE, FILL_BACKUP):
            yield from self._backups(place, op)
        if rule == ADD_CHANGE and op.origin is not None:
            yield from self._change_peers(op.origin)
        yield from self._counterparts(place, op, rule)

    def _change_peers(self, origin: Origin) -> Iterator[Peer]:
        """Yields the trainers' ops that make the change which a server adds, and the ops after which it is sent."""
        made, reports = self._on_trainers
        changed = made.get(origin[:3], ()) if origin.op >= 0 else ()
        found = [(number, "adds what is changed by", place) for number, place in changed]
        others = {number for number, _ in changed}
        relation = "the communicator sends the change after"
        found += [(number, relation, place) for number, place in reports if number not in others]
        yield from ((relation, place) for _, relation, place in sorted(found))

    @cached_property
    def _on_trainers(self) -> tuple[dict[tuple[object, ...], list[_Numbered]], list[_Numbered]]:
        """The ops of trainers in order: by the source op from which they were made, and those that start the sending of
        changes.
        """
        ops_by_origin: dict[tuple[object, ...], list[_Numbered]] = {}
        reports: list[_Numbered] = []
        places = (place for machine in self.job.trainers for place in self.job.places(machine))
        for number, place in enumerate(places):
            op = self.job.op(place)
            if op.origin is not None:
                ops_by_origin.setdefault(op.origin[:3], []).append((number, place))
                if op.origin.rule in (REPORT_ROWS, REPORT_STEP) and op.type == "send":
                    reports.append((number, place))
        return ops_by_origin, reports

    @cached_property
    def _change_adding_ops(self) -> list[OpPosition]:
        """The ops of servers that add changes."""
        return [p for places in self._similar_ops.values() for p in places if rule_of(self.job.op(p)) == ADD_CHANGE]

    def _counterparts(self, place: OpPosition, op: Op, rule: str) -> Iterator[Peer]:
        """The ops of other servers that were made from the same source op by the same rule."""
        if op.origin is not None and op.origin.op >= 0 and rule not in (COMPENSATE, FILL_BACKUP, MERGE):
            relation = "works on another part:" if rule else "another server holds it too:"
            relation = "every server does the same:" if rule == SCHEDULE else relation
            for there in self._similar_ops.get((op.origin[:3], rule, place.program), ()):
                if there != place and (rule != UPDATE or there.machine != place.machine):
                    yield relation, there

    def _backups(self, place: OpPosition, op: Op) -> Iterator[Peer]:
        uses = self.job.uses[place.machine]
        if op.type == "ref_by_trainer_id":
            for name in op.inputs["X"]:
                for used in uses.written(name):
                    yield f"%{name} is filled first by", OpPosition(place.machine, *used)
        elif place.program == STARTUP:
            for name in op.output_names:
                for used in uses.read(name):
                    yield f"%{name} is compared with in", OpPosition(place.machine, *used)


@lru_cache(maxsize=1)
def peers_of(job: ExplainedJob) -> Peers:
    """The peers of a job's ops; stored for the last job in use."""
    return Peers(job)
