"""`pstranspile passes`: the passes of the compiler, in order."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.cli.common import make_parser


def run(arguments: Sequence[str]) -> int:
    """Prints name and purpose of every pass."""
    parser = make_parser("passes", "Lists the passes of the compiler, in the order they run in.", [""])
    parser.parse_args(arguments)
    from pstranspile.passes import PASSES

    width = max(len(p.name) for p in PASSES)
    for step in PASSES:
        print(f"{step.name:<{width}}  {step.doc}")
    return 0
