"""Runs a compiled job on a simulated cluster with one call: `simulate(result, feeds, steps=8, fetch=["loss"])`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any, NamedTuple, Protocol

import numpy as np

from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.communicator import Settings
from pstranspile.cluster.machines.feeding import ClusterFeeds, Weighing
from pstranspile.cluster.machines.network import Schedule
from pstranspile.cluster.machines.scenario import Scenario
from pstranspile.cluster.machines.trainer import OnStep, Trainer
from pstranspile.ir.argument_checks import (
    MOST_STEPS,
    check_arguments,
    expect,
    expect_number,
    names_of,
    require_arguments,
    wrong_type,
)
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, quantity
from pstranspile.ir.model import Role
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.large.forms import parameter_arrays
from pstranspile.runtime.run.step_feeds import GivenTurns, step_arrays
from pstranspile.runtime.values import LoDTensor, SelectedRows


class Job(Protocol):
    """The result of a compile: the programs of every machine, and the placement of variables on servers."""

    @property
    def distributed_vars(self) -> Any:
        """The table of variables on servers: rows of `DistributedVar`."""
        ...

    def roles(self) -> Mapping[str, Role]:
        """The programs by role name."""
        ...


def results_of(trainer: Trainer) -> dict[str, list[Value]]:
    """The fetched values of a trainer by name, one per step; where several programs take turns, by `PROGRAM/NAME`."""
    role = trainer.role
    return {
        name if role.turns is None else f"{program}/{name}": [
            result.values[name] for result in trainer.results if result.program == program
        ]
        for program in role.names
        for name in role.fetches.get(program, ())
    }


class Simulated(NamedTuple):
    """The results of a run: `fetched[i][name]` holds what trainer i fetched, a value per step; `parameters` are whole,
    large tables as SelectedRows of the rows that exist.

    Where several programs take turns, the names are `PROGRAM/NAME`, with a value for every step of that program. A
    value is None where a trainer had no rows. `warnings` tell of shares that have different numbers of rows. `ran` is
    how the machines ran: "Simulated", "Launched" as processes, or "Launched on Ray".
    """

    fetched: tuple[dict[str, list[Value]], ...]
    parameters: dict[str, Any]
    cluster: Cluster
    warnings: tuple[Diagnostic, ...] = ()
    ran: str = "Simulated"

    def __repr__(self) -> str:
        """`<Simulated: 2 trainers, 2 steps; fetched loss; 3 parameters>`."""
        steps = max((len(trainer.results) for trainer in self.cluster.trainers), default=0)
        names = sorted({name for fetched in self.fetched for name in fetched})
        parts = [
            f"{quantity(len(self.cluster.trainers), 'trainer')}, {quantity(steps, 'step')}",
            *(["fetched " + ", ".join(names)] if names else []),
            quantity(len(self.parameters), "parameter"),
        ]
        return f"<{self.ran}: {'; '.join(parts)}>"

    def __str__(self) -> str:
        """A summary: what trainers fetched at the first and the last step, the dims of parameters, and warnings."""
        lines = [repr(self)[1:-1]]
        for index, fetched in enumerate(self.fetched):
            lines += [f"  trainer_{index} {name}: {_first_and_last(values)}" for name, values in fetched.items()]
        for name, value in self.parameters.items():
            lines.append(f"  {name}: {_summary(value)}")
        lines += [f"  warning: {warning.message}" for warning in self.warnings]
        return "\n".join(lines)

    def arrays(self) -> dict[str, Any]:
        """The results as `run --save` writes them: `trainer_<i>/step/<name>`, and `param/<name>`.

        Where several programs take turns, `trainer_<i>/<program>/step/<name>`. Raises DiagnosticError for what has no
        such form.
        """
        result: dict[str, Any] = {}
        for index, (trainer, fetched) in enumerate(zip(self.cluster.trainers, self.fetched, strict=True)):
            for key, values in fetched.items():
                program, name = ("", key) if trainer.role.turns is None else key.split("/", 1)
                prefix = f"trainer_{index}/{program}/" if program else f"trainer_{index}/"
                result.update((f"{prefix}{key}", array) for key, array in step_arrays(name, values).items())
        for name, value in self.parameters.items():
            result |= parameter_arrays(name, value)
        return result


def _first_and_last(values: Sequence[Value]) -> str:
    """The first and the last of a trainer's values: numbers if each is one element, else their dims."""
    if not values:
        return "no values"
    first, last = _summary(values[0]), _summary(values[-1])
    return first if first == last else f"{first} to {last}"


def _summary(value: Any) -> str:
    """A value in a few words: its number if it is a single element, else its element type and dims."""
    if value is None:
        return "nothing"
    if isinstance(value, SelectedRows):
        rows = quantity(len(value.rows), "row")
        return f"{rows} of height {value.height}, {value.value.dtype}{list(value.value.shape[1:])} each"
    data = np.asarray(value.data if isinstance(value, LoDTensor) else value)
    if data.size == 1 and data.dtype.kind in "bifu":
        return f"{data.reshape(-1)[0]:.6g}"
    return f"{data.dtype}{list(data.shape)}"


def cluster_of(result: Job | Mapping[str, Role], **options: Any) -> Cluster:
    """The machines of a compiled job, or of programs by role name; `options` are those of `Cluster`.

    They start with the values that come with the job's source, and those of the option `init`.
    """
    if isinstance(result, Mapping):
        return Cluster(result, **options)
    if start := getattr(getattr(result, "source", None), "start", None):
        options["init"] = {**start, **(options.get("init") or {})}
    options.setdefault("distributed_vars", list(result.distributed_vars))
    geo = getattr(getattr(result, "plan", None), "geo", None)
    if geo is not None:
        options.setdefault("settings", Settings(push_every=geo.need_push_nums))
    return Cluster(result.roles(), **options)


_NOT_NAMED = ("options", "roles")
"""Parameters of `simulate` and `Cluster` that can't be passed to `simulate`."""


@check_arguments
def simulate(
    result: Job | Mapping[str, Role],
    feeds: ClusterFeeds | None = None,
    steps: int | None = None,
    fetch: Sequence[str] = (),
    *,
    init: Mapping[str, Any] | None = None,
    schedule: Schedule = None,
    seed: int | None = None,
    on_step: Callable[[Trainer, int], object] | None = None,
    run: Callable[[Cluster, int], object] | None = None,
    faults: Scenario | None = None,
    programs: GivenTurns | None = None,
    shares: Weighing = "equal",
    **options: Any,
) -> Simulated:
    """Runs a job on a cluster in this process, from the start-up programs to the end of the servers.

    `result` is a compile's, or a mapping of role names to programs. `feeds` are arrays by input with a leading step
    axis (ragged ones as in a feed file), or a mapping per step, divided over the trainers; a function of trainer and
    step, or rows (`Data`). `steps`: how many (default: as many as are fed, or 1); a trainer that runs out of data
    before leaves. `fetch` names variables to keep of every step, `init` gives whole variables to start from. `schedule`
    is the order of events, by a seed or a scheduler (default: machines in turn), `seed` takes the place of the
    programs' random seeds. `on_step` is called after every step of a trainer. `run` takes the place of
    `Cluster.run_to`: it may also save, or begin where another run was saved. `faults` is a scenario of faults
    (`parse_scenario`, `random_scenario`). `programs` says which program each step runs, where a job has several
    (`main*5,generator`, or a function of trainer and step). `shares` says whether the trainers' shares of a batch count
    the same, as Fluid has it, or "weighted" by their rows; a function of trainer and step is then called for all
    trainers. Raises DiagnosticError.
    """
    if options:
        known = [name for taken in (simulate, Cluster) for name in signature(taken).parameters]
        require_arguments("simulate", options, [name for name in dict.fromkeys(known) if name not in _NOT_NAMED])
    if not isinstance(result, Mapping) and not hasattr(result, "roles"):
        raise wrong_type("simulate", "what a compile gives, or programs by role name", result, "Compiled")
    if steps is not None:
        expect_number(steps, "simulate", "a number of steps", MOST_STEPS, least=1)
    if init is not None:
        expect(init, Mapping, "simulate", "a mapping of initial values, by name")
    options.update(
        fetch=names_of(fetch, "simulate"),
        init=init,
        schedule=schedule,
        seed=seed,
        faults=faults,
        programs=programs,
        shares=shares,
    )
    cluster = cluster_of(result, **options)
    cluster.feed(feeds)
    if on_step is not None:
        for trainer in cluster.trainers:
            trainer.listen(OnStep(on_step))
    try:
        (run or Cluster.run_to)(cluster, steps or cluster.steps or 1)
    except DiagnosticError as problem:
        if cluster.shares is None or not all(one.code == "data-row" for one in problem.diagnostics):
            raise
        raise DiagnosticError([*problem.diagnostics, *cluster.shares.other_bad_rows()]) from problem.__cause__
    cluster.finish()
    fetched = tuple(results_of(trainer) for trainer in cluster.trainers)
    warnings = cluster.shares.warnings() if cluster.shares else []
    if cluster.source is not None:
        warnings += cluster.source.warnings()
    return Simulated(fetched, cluster.parameters(), cluster, tuple(warnings))
