"""Pictures of a cluster that `run` and `launch` make: a trace, a message-sequence chart, the traffic."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.tools.cli.written_files import telling

if TYPE_CHECKING:
    from pstranspile.cluster.machines.cluster import Cluster
    from pstranspile.cluster.machines.recorder import Recorder

CHARTS = (".svg", ".txt")

SHOWN = "start-1"
"""The steps that a chart shows if nothing else is asked for."""


def add_pictures(parser: argparse.ArgumentParser) -> None:
    """`--chart`, `--chart-steps` and `--traffic`."""
    group = parser.add_argument_group("seeing a cluster at work")
    group.add_argument("--chart", metavar="FILE.svg|txt", help="draw who tells whom what, in the order of events")
    group.add_argument(
        "--chart-steps",
        metavar="A[-B]",
        help="the steps that the chart shows, counted from 1; `start` is the start-up, `end` is when trainers leave "
        f"(default: {SHOWN})",
    )
    group.add_argument(
        "--traffic", action="store_true", help="print messages, bytes and staleness by server and variable, on stderr"
    )


def check_pictures(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the command if a file name or a range of steps is not one."""
    if options.chart and Path(options.chart).suffix.lower() not in CHARTS:
        parser.error(f"--chart {options.chart}: the name must end in {' or '.join(CHARTS)}")
    if options.chart_steps and not options.chart:
        parser.error("--chart-steps needs --chart, which says where to")
    options.chart_steps = SHOWN if options.chart_steps is None else options.chart_steps
    if _steps(options.chart_steps) is None:
        parser.error(f"--chart-steps {options.chart_steps}: a step, or two with - between them, such as 2 or start-3")


def require_chart_steps(options: argparse.Namespace, first: int, steps: int) -> None:
    """Raises DiagnosticError for a chart of steps that a run does not do: it does those after `first`, to `steps`."""
    from pstranspile.cluster.machines.message import END

    shown = _steps(options.chart_steps)
    if options.chart and shown is not None and (steps <= shown[0] != END or -1 < shown[1] < first):
        message = f"--chart-steps {options.chart_steps}: the run does steps {first + 1} to {steps}"
        raise DiagnosticError([error("run-cluster", message)])


def wants_pictures(options: argparse.Namespace) -> bool:
    """Whether messages must be recorded while the cluster runs."""
    return bool(options.trace or options.chart or options.traffic)


def _steps(text: str) -> tuple[int, int] | None:
    """The first and the last step, counted from 0, -1 for the start-up, END for the end."""
    from pstranspile.cluster.machines.message import END

    match = re.fullmatch(r"(start|end|[1-9][0-9]{0,8})(?:-(end|[1-9][0-9]{0,8}))?", text)
    if match is None:
        return None
    named = {"start": -1, "end": END}
    first, last = (named[word] if word in named else int(word) - 1 for word in (match[1], match[2] or match[1]))
    return (first, last) if first <= last else None


def show_pictures(
    recorder: Recorder,
    cluster: Cluster,
    options: argparse.Namespace,
    make_trace: Callable[[Recorder], str] | None = None,
) -> None:
    """Writes what was asked for. `make_trace` makes the text of a trace, unless it is of a virtual clock.

    Raises DiagnosticError when a file can't be written.
    """
    from pstranspile.cluster.machines.chart import chart_svg, chart_text
    from pstranspile.cluster.machines.recorder import trace_json, traffic_of, traffic_table
    from pstranspile.runtime.files.outputs import write_output

    if options.trace:
        with telling(options.trace, "every message, for Perfetto"):
            write_output(options.trace, (make_trace or trace_json)(recorder).encode())
    if options.chart:
        steps = _steps(options.chart_steps)
        assert steps is not None
        draw = chart_svg if chart_kind(options.chart) == "svg" else chart_text
        with telling(options.chart, "a chart of the messages"):
            write_output(options.chart, draw(recorder, *steps).encode())
    if options.traffic:
        servers = tuple(server.name for server in cluster.servers)
        print(traffic_table(traffic_of(recorder, servers)), end="", file=sys.stderr)


def chart_kind(path: str | None) -> str:
    """The kind of file that `--chart` writes, as `require_writable` knows it."""
    return "svg" if (path or "").lower().endswith(".svg") else "chart"
