"""One training program's share of a plan that several programs are compiled for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pstranspile.compiler.analysis.facts import Facts
from pstranspile.compiler.plan.names import CONTROL, NameMint, slice_name, trainer_suffix
from pstranspile.compiler.plan.plan import Plan, PlannedParameter, SharedCounter


def share_of(plan: Plan, facts: Facts, counters: Sequence[SharedCounter]) -> Plan:
    """The plan with just what one program updates, under the names that this program's gradients have.

    The whole plan if that is what the program updates.
    """
    own = {update.parameter: update.gradient for update in facts.updates}
    if len(own) == len(plan.parameters) and all(own[p.name] == p.gradient for p in plan.parameters):
        return replace(plan, groups=facts.groups, counters=tuple(counters))
    mint = NameMint(facts.program.main_block.vars)
    suffixes = [trainer_suffix(i) for i in range(plan.trainers)] if plan.per_trainer else []
    kept = [i for i, parameter in enumerate(plan.parameters) if parameter.name in own]
    place = {index: number for number, index in enumerate(kept)}
    return replace(
        plan,
        parameters=tuple(_with_gradient(plan.parameters[i], own, mint, suffixes) for i in kept),
        send_order=tuple(place[i] for i in plan.send_order if i in place),
        groups=facts.groups,
        counters=tuple(counters),
        table=plan.table if facts.lookup_table is not None else None,
    )


def _with_gradient(
    parameter: PlannedParameter, own: dict[str, str], mint: NameMint, suffixes: Sequence[str]
) -> PlannedParameter:
    """The parameter as a program sees it whose gradient for it has a name of its own."""
    gradient = own[parameter.name]
    if gradient == parameter.gradient:
        return parameter
    slices = [
        s._replace(
            gradient=mint.mint_family(slice_name(gradient, s.number), suffixes) if parameter.is_cut else gradient
        )
        for s in parameter.slices
    ]
    return parameter._replace(gradient=gradient, slices=tuple(slices), send_control=mint.mint(CONTROL + parameter.name))
