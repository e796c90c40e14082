"""The Plan as a person reads and edits it, and as `plan.json` has it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from math import prod
from typing import Any

from pstranspile.ir.model import MAIN, STARTUP, Module
from pstranspile.plan.plan import DistributedVar, Plan, PlannedParameter
from pstranspile.plan.rings import collective_json, collective_lines


def fingerprint(module: Module) -> str:
    """`sha256:` and the hash of the text of @main and @startup: the same for the same programs."""
    from pstranspile.ops.textual import one_line_each

    programs = {name: module.programs[name] for name in (MAIN, STARTUP) if name in module.programs}
    text = one_line_each(Module(type(module.programs)(programs)))
    return "sha256:" + sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def quoted(name: str) -> str:
    """A variable's name as the text has it: `%fc_0.w_0`, or `%"..."` for unusual ones."""
    plain = name and all(c.isascii() and (c.isalnum() or c in "_.@/") for c in name)
    return f"%{name}" if plain else "%" + json.dumps(name)


def plan_text(plan: Plan, source: str) -> str:
    """The plan as text; `source` is the fingerprint of the module it was made for.

    One line per slice, in parameter order; `pstranspile compile --plan` reads it back. Lines after `#` are for the
    reader: what must stay together, and what each server ends up with.
    """
    lines = [
        "plan 1",
        f"source {source}",
        f"job mode={plan.mode} trainers={plan.trainers} pservers={json.dumps(list(plan.pservers))}",
        "",
    ]
    for parameter in plan.parameters:
        lines += _parameter_lines(parameter)
    for group in plan.groups:
        lines.append(f"# together, uncut, on one server: {' '.join(quoted(name) for name in group.parameters)}")
    lines += collective_lines(plan.collective, plan.trainer_endpoints)
    lines.append("")
    for endpoint in plan.pservers:
        owned = plan.slices_on(endpoint)
        size = sum(prod(s.shape) * p.dtype.size for p, s in owned)
        lines.append(f"# {endpoint}: {len(owned)} slices, {size} bytes of parameters")
    return "\n".join(lines) + "\n"


def _parameter_lines(parameter: PlannedParameter) -> list[str]:
    lines: list[str] = []
    for s in parameter.slices:
        where = f"-> {quoted(s.name)} @ {json.dumps(s.endpoint)}"
        if parameter.is_cut:
            lines.append(f"slice {quoted(parameter.name)} rows {s.start}..{s.stop} {where}")
        else:
            lines.append(f"whole {quoted(parameter.name)} {where}")
    return lines


def plan_json(plan: Plan, source: str, distributed_vars: Iterable[DistributedVar]) -> dict[str, Any]:
    """The plan as `plan.json` holds it (version 1): the job, and every variable on every server.

    `offset` counts elements. In mode geo, `geo` is what the trainers' communicators get.
    `groups` are parameters that must stay together on one server. In modes without servers, `collective` is how the
    trainers at `trainer_endpoints` reach each other, and what they sum on which ring.
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
