"""Running a program, the easy way: `run(program, feed=..., fetch=[...], scope=scope)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pstranspile.ir.expect import expect, expect_program, names_of
from pstranspile.ir.model import Program
from pstranspile.runtime.run.frame import Execution, Slices, Watcher, interpret
from pstranspile.runtime.run.prepared import Prepared
from pstranspile.runtime.run.scope import Scope
from pstranspile.runtime.run.watchers import NotFinite

_MOST_PROGRAMS = 16
"""Programs a scope remembers its preparations of; beyond it, the one used longest ago is forgotten."""


class _Known:
    """What a scope knows of a program that has run in it."""

    def __init__(self, execution: Execution):
        self.execution = execution
        self.prepared: dict[tuple[tuple[str, ...], tuple[str, ...]], Prepared | None] = {}


def run(
    program: Program,
    feed: Mapping[str, Any] | None = None,
    fetch: Sequence[str] = (),
    scope: Scope | None = None,
    *,
    seed: int | None = None,
    slices: Slices | None = None,
    stream: int = 0,
    step: int | None = None,
    folder: str | Path = ".",
    check_nan: bool = False,
    watchers: Sequence[Watcher] = (),
) -> dict[str, Any]:
    """Runs block 0 of a program once and gives the fetched values by name: arrays, LoDTensors or SelectedRows.

    Persistable variables live in `scope` (default: a new one, gone after the run). `seed` takes the place of the
    program's `random_seed`; if both are 0 and an op has no seed of its own, its random numbers differ from run to run.
    `slices` maps variables that are slices to (name of the whole, first element), so that their initialisers draw that
    part of the whole. Random numbers go by `step`, the number of the run (default: how many runs of the program in this
    scope there were before). `stream` tells apart machines that run the same program. They draw the same numbers, but
    for rows of the batch: these go by the rows' places in the whole batch, which a `Batch` has. Fed with anything else,
    each machine has numbers of its own. Files that ops name lie in `folder`. `check_nan` stops at the first op that
    makes NaN or infinity; `watchers` are called after every op. Raises DiagnosticError.

    A program that is run again in the same scope with the same feeds and fetches is prepared, and then runs faster.
    """
    if program.__class__ is not Program:
        expect_program(program, "run")
    scope = Scope() if scope is None else scope
    if scope.__class__ is not Scope:
        expect(scope, Scope, "run")
    if feed is not None and feed.__class__ is not dict:
        expect(feed, Mapping, "run", "a mapping of what is fed, by name")
    known = _known(scope, program, (seed, stream, str(folder)))
    execution = known.execution
    execution.adapt(slices or {}, (*watchers, NotFinite()) if check_nan else tuple(watchers), step)
    names = tuple(feed or ()), names_of(fetch, "run")
    if execution.watchers or names not in known.prepared:
        known.prepared.setdefault(names, None)
        return interpret(execution, feed, names[1])
    prepared = known.prepared[names]
    if prepared is None:
        prepared = known.prepared[names] = Prepared(execution, *names)
    return prepared.step(feed)


def latest_of(
    scope: Scope, program: Program, feeds: tuple[str, ...], fetches: tuple[str, ...]
) -> tuple[Execution, Prepared] | None:
    """What `run` would step with these feeds and fetches and no other options, with its execution.

    None unless the latest program that ran in the scope was this one, and is prepared. So to step it is to `run` it.
    """
    key, known = next(reversed(scope.prepared.items()), (None, None))
    if key != (id(program), (None, 0, ".")) or not isinstance(known, _Known):
        return None
    prepared = known.prepared.get((feeds, fetches))
    return None if prepared is None else (known.execution, prepared)


def _known(scope: Scope, program: Program, options: tuple[object, ...]) -> _Known:
    key = (id(program), options)
    result = scope.prepared.pop(key, None)
    if not isinstance(result, _Known):  # keeps the program alive, so that its id stays its own
        seed, stream, folder = options
        assert isinstance(stream, int)
        execution = Execution(
            program, scope, seed=seed if isinstance(seed, int) else None, stream=stream, folder=str(folder)
        )
        result = _Known(execution)
    scope.prepared[key] = result
    while len(scope.prepared) > _MOST_PROGRAMS:
        del scope.prepared[next(iter(scope.prepared))]
    return result
