"""Python's cyclic garbage collector, held back while many values are made that all stay."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Generator[None]:
    """Pauses the collector for the block, and restores it as it was, also after an exception.

    Program values hold no cycles; walking over all of them again and again costs more than making them. At the end
    everything is counted among the old objects, so that the collector does not start by walking over what was made.
    (Freezing and thawing does that in no time. It is left out where the caller keeps objects frozen.)
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            if gc.get_freeze_count() == 0:
                gc.freeze()
                gc.unfreeze()
            gc.enable()
