"""The seed of random numbers that all machines of a job share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pstranspile.ir.model import EMPTY
from pstranspile.ops import facts_of
from pstranspile.runtime.run.frame import DRAWN, DRAWN_FOR_NONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from pstranspile.ir.model import Program, Role


def shared_seed(roles: Mapping[str, Role], given: int | None, draw: Callable[[], int]) -> int | None:
    """The seed with which every machine of a job runs its programs; None if the programs' own seeds do.

    It is the given one. Without it, and in place of a given 0, `draw` gives up to 63 random bits if there are programs
    without a seed. They hold only for ops that have no seed of their own, so that a cluster draws for all others what
    one machine draws.
    """
    if given == 0:
        return DRAWN_FOR_NONE | draw()
    if given is not None or not _has_unseeded(roles.values()):
        return given
    return DRAWN | draw()


def _has_unseeded(roles: Iterable[Role]) -> bool:
    """Whether a program without a seed may draw random numbers. Start-up programs are taken to draw."""
    startups = [role.startup for role in roles]
    if not any(startup.random_seed for startup in startups):
        return True
    others: list[Program] = []
    for role in roles:
        more: Mapping[str, Program] = getattr(role, "others", EMPTY)  # roles of other origin may have none
        others += (role.main, *more.values())
    return any(not program.random_seed and _draws(program) for program in (*startups, *others))


def _draws(program: Program) -> bool:
    return any(facts_of(op.type).draws for block in program.blocks for op in block.ops)
