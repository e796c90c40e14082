"""The explanation of an op."""

from __future__ import annotations

from pstranspile.compiler.emit.rules import RULES
from pstranspile.compiler.explain.answers import OpAnswer, Source
from pstranspile.compiler.explain.attributes import notes_of
from pstranspile.compiler.explain.job import ExplainedJob, line_of
from pstranspile.compiler.explain.peers import peers_of
from pstranspile.ir.model import STARTUP, Origin


def explain_op(job: ExplainedJob, machine: str, op: str) -> OpAnswer:
    """Explains an op of a machine: `17`, `^2#0` or `@startup^0#3` (block 0 of @main if not given).

    Raises Unknown when there is no such machine or op.
    """
    place = job.place(job.machine(machine), op)
    compiled = job.op(place)
    origin = compiled.origin
    rule = RULES.get(origin.rule) if origin else None
    return OpAnswer(
        place,
        line_of(compiled),
        rule.name if rule else "",
        rule.reason if rule else why_kept(job, place.machine, place.program),
        source_of(job, origin),
        tuple(peers_of(job).of(place)),
        notes_of(compiled),
    )


def source_of(job: ExplainedJob, origin: Origin | None) -> Source | None:
    """The source op that an origin names, with its line."""
    if origin is None:
        return None
    place = origin.location
    script = str(place.script) if place and place.script else ""
    text = job.source_line(origin) if origin.rule and origin.op >= 0 else None
    return Source(str(origin), place.file if place else "", place.line if place else 0, text, script)


def why_kept(job: ExplainedJob, machine: str, program: str) -> str:
    """Why an op of the source is on a machine as it is."""
    if machine in job.servers.values():
        return "An initialiser of the source, of a variable that this server holds whole."
    if not job.servers:
        return "An op of the source; every trainer runs it, on its own part of the data."
    if program == STARTUP:
        return "An initialiser of the source, of a variable that the trainer has; the servers' value may follow."
    if job.plan["mode"] == "geo":
        return "An op of the source; in this mode trainers run all of them."
    return "An op of the source that needs nothing which moved to the servers, so it stays on the trainer."
