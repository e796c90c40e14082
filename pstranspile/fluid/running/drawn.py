"""Whose random numbers the variables of a program draw, where a script builds more than one program.

Random numbers go by the names of variables, and the counters behind names go on from program to program. So that two
programs that are built alike begin alike, a variable draws what it would draw if its program were the first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pstranspile.fluid.graph.program import Program
from pstranspile.ir.model import Program as FrozenProgram

_COUNTED = re.compile(r"(.*?)_(\d+)(?=\.|\Z)", re.DOTALL)
"""A name that a counter has made, or that begins with one: `fc_5.w_0` is the sixth `fc`."""


def drawn_as(program: Program, frozen: FrozenProgram) -> Mapping[str, tuple[str, int]]:
    """The variables that draw another one's numbers: name -> (that one's name, 0).

    Those whose counter stood at a number when the program was made draw as if it had stood at 0, unless the program
    also has names with numbers below.
    """
    if not program.counted:
        return {}
    found: dict[str, list[tuple[str, int, str]]] = {}
    for block in frozen.blocks:
        for name in block.vars:
            match = _COUNTED.match(name)
            if match and match[1] in program.counted:
                found.setdefault(match[1], []).append((name, int(match[2]), name[match.end() :]))
    result: dict[str, tuple[str, int]] = {}
    for key, names in found.items():
        first = program.counted[key]
        if min(number for _, number, _ in names) >= first:
            result.update((name, (f"{key}_{number - first}{rest}", 0)) for name, number, rest in names)
    return result
