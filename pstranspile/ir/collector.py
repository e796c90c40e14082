"""Pauses Python's cyclic garbage collector while many values are created that all stay alive."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Generator[None]:
    """Pauses the collector for the context, and restores its state, also after an exception.

    Program values hold no cycles, and scanning them repeatedly costs more than creating them. Values created in the
    context belong to the collector's youngest generation afterwards, so a process that runs for weeks still has its old
    objects scanned as often as any other process.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
