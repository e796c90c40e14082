"""Thousands of edits of valid modules: verified, compiled in modes of all kinds, run; nothing but diagnostics results.

`PSTRANSPILE_EDITS=50000 pytest -s tests/structure` draws as many as that,
from the seed PSTRANSPILE_FIRST on.
"""

from __future__ import annotations

import gc
import os
import random
import resource
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.hostile.counts import first
from tests.structure.edits import edited
from tests.structure.sources import SOURCES
from tests.structure.trial import JOBS, limited, survives

COUNT = int(os.environ.get("PSTRANSPILE_EDITS", "320"))
PARTS = 4
FLAT = 200 << 20
"""Bytes that a process may keep in all, however many modules it has seen."""

RESIDENT = Path("/proc/self/statm")
"""Where Linux tells the pages of a process; the second number is that of those in memory."""


def memory() -> int:
    """The memory that this process keeps, in bytes.

    An edit may declare a feed of a million rows, whose steps rightly take hundreds of megabytes while they run. Where
    the system does not tell what a process has now, it is the most it ever had.
    """
    gc.collect()
    if RESIDENT.exists():
        return int(RESIDENT.read_text().split()[1]) * resource.getpagesize()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_edited_is_sound(name: str):
    with limited(60):
        assert survives(SOURCES[name](), random.Random(0), len(JOBS)) == "ran"


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_but_diagnostics(part: int):
    names = sorted(SOURCES)
    ends: Counter[str] = Counter()
    before = memory()
    for seed in range(first() + part, first() + COUNT, PARTS):
        rng = random.Random(seed)
        name = rng.choice(names)
        module, done = edited(SOURCES[name](), rng)
        try:
            with limited():
                ends[survives(module, rng)] += 1
        except BaseException as problem:
            problem.add_note(f"seed {seed}: {name}, {', '.join(done)}")
            raise
    kept = memory() - before
    print(f"\npart {part}: {dict(ends)}, {kept >> 20} MB kept")
    assert {"ran", "stopped", "unsound"} <= ends.keys()
    assert kept < FLAT
