"""`pstranspile passes`: the passes of the compiler, in order."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.tools.cli.common import make_parser

DESCRIPTION = """\
Lists the passes of the compiler, in the order they run in (some only in some modes), after those that other
installed packages offer through the entry point group pstranspile.passes."""


def run(arguments: Sequence[str]) -> int:
    """Prints name and purpose of every pass."""
    parser = make_parser("passes", DESCRIPTION, [""])
    parser.parse_args(arguments)
    from pstranspile.compiler.pipeline import PASSES, installed_passes

    others = [
        (name, f"from {point.value}; runs first, with --pass {name}") for name, point in installed_passes().items()
    ]
    rows = [*others, *((step.name, step.doc) for step in PASSES)]
    width = max(len(name) for name, _ in rows)
    for name, doc in rows:
        print(f"{name:<{width}}  {doc}")
    return 0
