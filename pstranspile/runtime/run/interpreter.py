"""The straightforward interpreter: a program op by op. It defines what the prepared form must give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pstranspile.runtime.run.feeds import changed_names, check_feeds, fetched
from pstranspile.runtime.run.frame import Execution, Frame
from pstranspile.runtime.run.scope import own_copy


def interpret(execution: Execution, feed: Mapping[str, Any] | None = None, fetch: Sequence[str] = ()) -> dict[str, Any]:
    """Runs block 0 of a program once, op by op, and gives the fetched values by name.

    Raises DiagnosticError: something fed, read or fetched is not there or doesn't fit, or an op can't be run.
    """
    program = execution.program
    execution.begin(feed)
    execution.blocks = None
    frame = Frame(execution)
    changed = changed_names(program)
    for name, value in check_feeds(program, feed or {}).items():
        if program.main_block.vars[name].persistable:
            execution.scope.put(name, own_copy(value))
        else:
            frame.local[name] = own_copy(value) if name in changed else value
    with np.errstate(all="ignore"):  # as the ops of Fluid; `check_nan` looks for what comes out
        frame.execute()
    execution.step += 1
    return {name: fetched(program, name, frame.find(name)) for name in fetch}
