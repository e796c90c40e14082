"""What to say of a cluster that can't go on."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.cluster.machines.network import Waiting
from pstranspile.ir.diagnostics import DiagnosticError, Note, at_op, error


def stuck(waiting: Sequence[Waiting], now: int, causes: Sequence[str] = ()) -> DiagnosticError:
    """The error for machines that all wait, with the op of each, what it waits for, and the absent machines.

    `causes`: what is known to have gone wrong.
    """
    notes = [Note(cause) for cause in causes]
    notes += [Note(sentence(w), w.op.origin.location if w.op and w.op.origin else None) for w in waiting]
    message = f"no machine can go on (at tick {now}): {len(waiting)} wait, and nothing is under way"
    first = next((w.op for w in waiting if w.op is not None), None)
    if first is None:
        return DiagnosticError([error("cluster-stuck", message, notes=notes)])
    return DiagnosticError([at_op("cluster-stuck", message, first, notes=notes)])


def sentence(waiting: Waiting) -> str:
    """A sentence for a waiting machine: its op, what it waits for, and the absent machines."""
    place = f" at {waiting.op.type}" if waiting.op else ""
    text = f"{waiting.machine} waits{place} for {waiting.what}"
    if waiting.missing:
        text += f"; not come: {listed(waiting.missing)}"
    return text


def listed(names: Sequence[str], most: int = 12) -> str:
    """Names for a message; of many, the first ones and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
