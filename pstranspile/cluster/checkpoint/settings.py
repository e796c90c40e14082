"""The settings of a run that decide its numbers beside the program, the seed and the data: recorded in checkpoints.

A run that goes on has the same ones. They are named and written as the options of the command line are: `arithmetic`,
`shares`, `program` (which of several programs each step runs), `no-dropout`, `schedule` (the seed of the order of
events in a simulated cluster), and for rows of files `columns` and `names`. The value of an option that was not given
is its default, or empty where it has none.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import Any, TypeAlias

from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error
from pstranspile.ir.model import Location
from pstranspile.runtime.arithmetic.choice import arithmetic_name

Settings: TypeAlias = Mapping[str, str]
"""Values by the name of an option, without its dashes."""

GIVEN = "given"
"""The value of an option that takes none, where it is given."""


def of_cluster(cluster: Any) -> dict[str, str]:
    """The settings of a simulated cluster, in the arithmetic of this context."""
    result = {"arithmetic": arithmetic_name(), "shares": str(cluster.weighing)}
    given = [trainer.role.turns for trainer in cluster.trainers]
    texts = {"" if one is None else one.text for one in given}
    if len(texts) == 1 and (texts != {""} or given[0] is None):  # functions that name programs can't be compared
        result["program"] = turns(texts.pop())
    return result


def turns(text: str | None) -> str:
    """The value of the setting `program`, in one spelling."""
    return ",".join(item.strip().removeprefix("@") for item in (text or "").split(","))


def require_settings(had: Settings, now: Settings, place: str | os.PathLike[str]) -> None:
    """Raises DiagnosticError for every setting that a checkpoint records with another value than a run has that goes
    on from it. What only one of the two names is not compared: earlier versions recorded none.
    """
    findings: list[Diagnostic] = []
    for name, value in now.items():
        before = had.get(name, value)
        if before != value:
            message = f"it was run {_shown(name, before)}, and is to go on {_shown(name, value)}: {_mend(name, before)}"
            findings.append(error("checkpoint-model", message, Location(str(place))))
    if findings:
        raise DiagnosticError(findings)


def _shown(name: str, value: str) -> str:
    return f"with {_written(name, value)}" if value else f"without --{name}"


def _written(name: str, value: str) -> str:
    """An option as it is typed."""
    if value == GIVEN:
        return f"--{name}"
    if name == "columns":
        return " ".join(f"--columns {quoted(part)}" for part in value.split(" "))
    return f"--{name} {quoted(value)}"


def quoted(text: str) -> str:
    """A value as it can be typed in a shell."""
    return shlex.quote(text)


def _mend(name: str, before: str) -> str:
    return f"give {_written(name, before)}" if before else f"leave out --{name}"
