"""Python's cyclic garbage collector, held back while many values are made that all stay."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Generator[None]:
    """Pauses the collector for the block, and restores it as it was, also after an exception.

    Program values hold no cycles; walking over all of them again and again costs more than making them. What was made
    is young to the collector when it goes on, and so is what was given up: a process that does this for weeks has its
    old objects looked at as often as any other.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
