"""`pstranspile calibrate`: measures how fast this host computes and sends, for `plan --cost --profile`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pstranspile.ir.diagnostics import quantity
from pstranspile.tools.cli.common import make_parser, require_text, write_text
from pstranspile.tools.cli.progress import Lines, is_terminal
from pstranspile.tools.cli.written_files import say

DESCRIPTION = """\
Measures the seconds that ops, messages and lookups take on this host, in less than half a minute, and writes them as a
profile. `plan --cost --profile FILE` says from it how long a step of a job takes, and what bounds it. Seconds
are those of a processor, so that other programs on the host disturb little, but for how long machines wait for a
processor; it is told if other programs have used much of them."""


MOST_OF_OTHERS = 0.1
"""The share of the processors that other programs may use while a host is calibrated."""


def run(arguments: Sequence[str]) -> int:
    """Measures, and writes the profile."""
    parser = make_parser("calibrate", DESCRIPTION, ["-o host.json"])
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write the profile, - for stdout (default)")
    options = parser.parse_args(arguments)
    return _calibrate(options)


def _calibrate(options: argparse.Namespace) -> int:
    """Measures. Raises DiagnosticError."""
    require_text(options.output, [], "profile")
    from pstranspile.tools.cli.blas import use_threads

    use_threads(1)  # as the machines of a job have
    from pstranspile.cluster.net.calibrate import OtherPrograms, calibrate
    from pstranspile.compiler.cost.profile import profile_text

    lines = Lines(sys.stderr) if is_terminal(sys.stderr) else None
    others = OtherPrograms()
    try:
        profile = calibrate(tell=lambda line: lines.draw([line]) if lines is not None else None)
    finally:
        if lines is not None:
            lines.clear()
    what = f"the profile of a host of {quantity(profile.processors, 'processor')}"
    write_text(options.output, profile_text(profile), [], "profile", what)
    if others.share > MOST_OF_OTHERS:
        told = f"other programs used {others.share:.0%} of the processors meanwhile"
        say(f"{told}: the waits of machines are longer than on a quiet host; calibrate again when it is quiet")
    return 0
