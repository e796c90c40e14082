"""What the examples share: run the startup program, then steps of the main one, and print how the loss falls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pstranspile as ps

Feed = Callable[[int], dict[str, Any]]
"""From the number of a step to what is fed in it."""


def train(module: ps.Module, loss: str, feed: Feed, steps: int, *, show: int = 10) -> list[float]:
    """The loss of every step; `show` of them are printed."""
    scope = ps.Scope()
    startup = module.startup
    assert startup is not None
    ps.run(startup, scope=scope)
    losses: list[float] = []
    for step in range(steps):
        out = ps.run(module.main, feed=feed(step), fetch=[loss], scope=scope)
        losses.append(float(out[loss].reshape(-1)[0]))
        if step % max(steps // show, 1) == 0 or step == steps - 1:
            print(f"step {step:4d}  loss {losses[-1]:.4f}", flush=True)
    return losses


def main(file: str, build: Callable[[], tuple[ps.Module, str]], feed: Feed, steps: int) -> None:
    """Trains the model; with `--write`, writes the text of the module beside the file instead."""
    module, loss = build()
    if sys.argv[1:] == ["--write"]:
        Path(file).with_suffix(".ir").write_text(ps.dumps(module), encoding="utf-8")
    else:
        train(module, loss, feed, steps)
