"""One case of a fuzzer: a command or a call that may be refused, but neither fails nor takes long."""

from __future__ import annotations

import contextlib
import io
import resource
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.tools.cli import main
from tests.hostile.counts import first

LONGEST = 5.0
"""Seconds that a case may take."""

MOST_MEMORY = 600 << 10
"""KiB by which the process may grow while all cases run: a single one that takes what a file claims takes more."""


def command(*arguments: str) -> str:
    """Runs a command, and says with which status it ended."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([*arguments, "--traceback"])
    told = err.getvalue()
    assert status in (0, 1, 2), told
    assert "Traceback" not in told, told
    assert "internal error" not in told, told
    assert status == 0 or told or out.getvalue(), "it is refused without a word"
    return f"status {status}"


def call(action: Callable[..., Any], *arguments: Any, allowed: tuple[type[Exception], ...] = ()) -> str:
    """Makes a call, and says how it ended: `allowed` are the exceptions it documents beside DiagnosticError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            action(*arguments)
    except (DiagnosticError, *allowed) as problem:
        return "refused" if str(problem) else "refused without a word"
    return "taken"


def campaign(case: Callable[[int], str], count: int) -> Counter[str]:
    """Runs `count` cases from `first()` on; gives how they ended. The one at fault is named, with what it was."""
    ends: Counter[str] = Counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(first(), first() + count):
        start = time.process_time()
        try:
            ends[case(number)] += 1
        except Exception as problem:
            raise AssertionError(f"case {number}: {type(problem).__name__}: {problem}") from problem
        took = time.process_time() - start
        assert took < LONGEST, f"case {number} took {took:.1f} s"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < MOST_MEMORY, f"{count} cases took {grown >> 10} MiB"
    print(f"\n{count} cases: {dict(sorted(ends.items()))}, {grown >> 10} MiB more")
    return ends
