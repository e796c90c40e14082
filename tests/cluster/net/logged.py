"""`pstranspile start` that also writes down, for the books of a run, what trainers send and what servers apply.

logged.py LOG ARGUMENTS...   a line of JSON for each gradient, send barrier and update, written at once
"""

from __future__ import annotations

import json
import os
import sys
import time

from books import keep_books

from pstranspile.cluster.net.status import StatusPipe
from pstranspile.tools.cli import main

PACE = float(os.environ["PSTRANSPILE_PACE"])
"""Seconds from step to step: so that a process that is started again finds the others still at work."""

LOG = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def write(*fields: object) -> None:
    os.write(LOG, json.dumps([os.getpid(), *fields]).encode() + b"\n")


def telling(pipe: StatusPipe, **fields: object) -> None:
    tell(pipe, **fields)
    if "values" in fields:
        time.sleep(PACE)


tell, StatusPipe.__call__ = StatusPipe.__call__, telling
keep_books(write)
sys.exit(main(sys.argv[2:]))
