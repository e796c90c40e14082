"""The ops of a job by machine and rule."""

from __future__ import annotations

from pstranspile.compiler.explain.answers import Listed, Overview
from pstranspile.compiler.explain.job import ExplainedJob, line_of
from pstranspile.compiler.explain.op import source_of
from pstranspile.compiler.explain.place import rule_of


def explain_job(job: ExplainedJob) -> Overview:
    """How many ops of each machine come from the source, and how many each rule made."""
    machines: list[tuple[str, str, tuple[tuple[str, str, int], ...]]] = []
    endpoints = {machine: endpoint for endpoint, machine in job.servers.items()}
    for machine in job.machines:
        counts: dict[tuple[str, str], int] = {}
        for place in job.places(machine):
            key = (place.program, rule_of(job.op(place)))
            counts[key] = counts.get(key, 0) + 1
        what = f"server at {endpoints[machine]}" if machine in endpoints else "trainer"
        machines.append((machine, what, tuple((*key, count) for key, count in counts.items())))
    plan = job.plan
    return Overview(plan["mode"], plan["trainers"], tuple(plan["pservers"]), tuple(machines))


def explain_role(job: ExplainedJob, machine: str) -> Overview:
    """The counts of one machine, and its ops that rules made, one by one. Raises Unknown."""
    name = job.machine(machine)
    listed = [
        Listed(place, rule_of(op), source_of(job, op.origin), line_of(op))
        for place in job.places(name)
        if rule_of(op := job.op(place))
    ]
    overview = explain_job(job)
    return overview._replace(machines=tuple(m for m in overview.machines if m[0] == name), listed=tuple(listed))
