"""All that a report shows of a compiled job."""

from __future__ import annotations

from typing import Any

import pstranspile
from pstranspile.compiler.explain.job import ExplainedJob
from pstranspile.ir.collector import collector_paused
from pstranspile.ir.model import Module
from pstranspile.tools.report.cluster import machines_data, pairs_data, parameters_data
from pstranspile.tools.report.programs import programs_data


def report_data(
    job: ExplainedJob,
    title: str,
    source: Module | None = None,
    run: dict[str, Any] | None = None,
    check: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The data of a report (version 1). `source` is the program that was compiled, where it is known."""
    with collector_paused():
        return {
            "form": 1,
            "made_by": f"pstranspile {pstranspile.__version__}",
            "title": title,
            "mode": job.plan["mode"],
            "trainers": job.plan["trainers"],
            "servers": list(job.plan["pservers"]),
            "cluster": machines_data(job),
            "pairs": pairs_data(job),
            "parameters": parameters_data(job),
            "programs": programs_data(job, source),
            "run": run,
            "check": check,
        }
