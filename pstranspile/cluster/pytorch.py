"""A PyTorch model that was traced, trained by the machines of a job: processes on this host, or actors of Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from pstranspile.cluster.checkpoint.inference import whole_values
from pstranspile.cluster.data.loader import DatasetBatches, Loader, LoaderRows
from pstranspile.cluster.data.source import Data
from pstranspile.cluster.machines.simulate import Simulated
from pstranspile.cluster.net.launch import OnReport, require_no_machine
from pstranspile.cluster.net.launch import launch as launch_processes
from pstranspile.compiler.compile import Compiled, compile
from pstranspile.compiler.job.file import load_job
from pstranspile.frontends.loading import of_python
from pstranspile.frontends.torch.training import Training
from pstranspile.ir.argument_checks import check_arguments, expect_number, wrong_type
from pstranspile.runtime.kernels.programs.modules import HERE, no_source
from pstranspile.runtime.run.files import read_arrays
from pstranspile.runtime.run.step_feeds import RowSource
from pstranspile.runtime.values import SelectedRows, array_of

if TYPE_CHECKING:
    from pstranspile.cluster.ray.session import Session

Machines: TypeAlias = "int | str | Sequence[str] | tuple[int, int]"
"""How many machines, or their addresses; on Ray also the fewest and the most."""

Fed: TypeAlias = "Loader | RowSource | Mapping[str, Any] | Iterable[Any] | str | os.PathLike[str]"
"""What trainers are fed: see `launch`."""


@check_arguments
def launch(
    training: Training,
    loader: Fed,
    *,
    pservers: Machines = 2,
    trainers: Machines = 2,
    mode: str | None = None,
    settings: Mapping[str, object] | None = None,
    config: str | os.PathLike[str] | None = None,
    on: str = "local",
    steps: int | None = None,
    batch: int | None = None,
    epochs: int = 1,
    shuffle: int | None = None,
    fetch: Sequence[str] = (),
    seed: int | None = None,
    restarts: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: str | os.PathLike[str] | None = None,
    patience: float = 60.0,
    arithmetic: str = "",
    table_folder: str | os.PathLike[str] | None = None,
    table_memory: int | None = None,
    lease: float | None = None,
    state: str | os.PathLike[str] | None = None,
    state_every: int | None = None,
    threads: int | None = None,
    logs: str | os.PathLike[str] | None = None,
    on_report: OnReport | None = None,
    cpus: float | None = None,
    tls: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    prepare: Callable[[Session], object] | None = None,
) -> Simulated:
    """Trains what `trace` gave on real processes, from its state on; at the end the weights are back in `training`.

    `loader` gives each trainer its rows. It is a function that is called with the number of a trainer and how many
    there are, and gives that trainer's batches, or its place `FILE.py:NAME`; a Dataset of torch, or another sequence or
    iterable of rows, of which a step takes `batch`, all trainers together, `epochs` times, in the order of the seed
    `shuffle`; files of rows, likewise; `Data`, `Rows` or `DatasetRows`; or arrays by input with a leading step axis.
    Every process calls the function, or reads the rows, for itself.

    `pservers`, `trainers`, `mode` and `settings` (other keys of a job file) are the job; `config` is a job file. `on`
    is "local", for processes on this host, or "ray", or "ray://HOST:PORT". The other options are those of the command
    `launch`: `lease`, `state`, `state_every`, `threads`, `logs` and `on_report` of processes, `cpus`, `tls`,
    `environment` and `prepare` of machines on Ray, where (fewest, most) has trainers and servers join and leave.

    Gives the results of the run; the loss is fetched where `fetch` names nothing. Parameters, buffers and the state of
    the optimizer are then those of the cluster, of a trainer's own the ones of trainer 0: `training.write_back(model)`
    puts them into the model. If the job does not come to its end, `training` stays as it was.
    Raises DiagnosticError; ValueError for options that don't go together.
    """
    if not isinstance(training, Training):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise wrong_type("launch", "what pstranspile.torch.trace gives", training, "Training")
    require_no_machine()
    if training.source.startswith(HERE):
        raise no_source("the step calls a module of PyTorch, which the processes of the job would not find")
    of_processes = {
        "lease": lease, "state": state, "state_every": state_every, "threads": threads, "logs": logs,
        "on_report": on_report,
    }  # fmt: skip
    of_ray = {"cpus": cpus, "tls": tls, "environment": environment, "prepare": prepare}
    local = _is_local(on)
    for name, value in (of_ray if local else of_processes).items():
        if value is not None:
            raise ValueError(f"{name} is for {'machines on Ray' if local else 'processes on this host'}, not on={on!r}")
    job = load_job(
        None if config is None else os.fspath(config),
        {
            **(settings or {}),
            "pservers": _least(pservers, "pservers", local),
            "trainers": _least(trainers, "trainers", local),
            "mode": mode,
        },
    )
    compiled = compile(training.module, job)
    common: dict[str, Any] = {
        "steps": steps,
        "fetch": list(fetch) or [training.loss],
        "seed": seed,
        "checkpoint": checkpoint,
        "checkpoint_every": checkpoint_every,
        "resume": resume,
        "patience": patience,
        "arithmetic": arithmetic,
        "table_folder": table_folder,
        "table_memory": table_memory,
    }
    feeds = _feed_source(training, loader, compiled, steps, {"batch": batch, "epochs": epochs, "shuffle": shuffle})
    if local:
        given: dict[str, Any] = {name: value for name, value in of_processes.items() if value is not None}
        done = launch_processes(compiled, feeds, restarts=restarts or 0, **common, **given)
    else:
        done, compiled = _on_ray(compiled, feeds, on, restarts, (trainers, pservers), prepare, {
            **common, "cpus": cpus, "tls": tls or "", "environment": environment,
        })  # fmt: skip
    _take_back(training, done, compiled)
    return done._replace(warnings=(*compiled.warnings, *done.warnings))


def _is_local(on: str) -> bool:
    """Whether machines are processes on this host; else they are on Ray. Raises ValueError for what is neither."""
    if on not in ("local", "ray") and not (on.startswith("ray://") and on != "ray://"):
        raise ValueError(f'on is "local", "ray" or "ray://HOST:PORT", not {on!r}')
    return on == "local"


def _least(machines: Machines, name: str, local: bool) -> object:
    """How many machines the job begins with, as a job takes it."""
    if isinstance(machines, tuple) and all(isinstance(number, int) for number in machines):
        if local:
            raise ValueError(f'{name}: jobs that grow and shrink run on Ray, with on="ray"')
        return machines[0]
    return machines if isinstance(machines, int | str) else list(machines)


def _range(machines: Machines) -> tuple[int, int] | None:
    """The fewest and the most machines of a job that grows and shrinks; None for other jobs."""
    if isinstance(machines, tuple) and all(isinstance(number, int) for number in machines):
        return cast("tuple[int, int]", machines)
    return None


def _on_ray(
    job: Compiled,
    feeds: Any,
    on: str,
    restarts: int | None,
    machines: tuple[Machines, Machines],
    prepare: Callable[[Session], object] | None,
    options: Mapping[str, Any],
) -> tuple[Simulated, Compiled]:
    """What came of a job on Ray, and the job that it has ended as: with other machines, where it has grown or shrunk.
    Raises DiagnosticError.
    """
    from pstranspile.cluster.ray import launch as launch_on_ray

    sessions: list[Session] = []

    def begin(session: Session) -> None:
        sessions.append(session)
        if prepare is not None:
            prepare(session)

    done = launch_on_ray(
        job,
        feeds,
        address=None if on == "ray" else on,
        restarts=10 if restarts is None else restarts,
        trainers=_range(machines[0]),
        servers=_range(machines[1]),
        prepare=begin,
        **options,
    )
    return done, sessions[0].job


_OF_ROWS = ("batch", "epochs", "shuffle")
"""Options about rows, of which a step takes some."""


def _feed_source(training: Training, loader: Any, job: Compiled, steps: int | None, rows: Mapping[str, Any]) -> Any:
    """What the machines are fed. Raises DiagnosticError for what does not fit the program; ValueError, TypeError."""
    if isinstance(loader, str | os.PathLike):
        place = os.fspath(cast("str | os.PathLike[str]", loader))
        if of_python(place) is None and not place.lower().endswith(".npz"):
            _require_batch(rows, place)
            return Data(place, batch=rows["batch"], epochs=rows["epochs"], shuffle=rows["shuffle"])
        _refuse_rows(rows, place)
        if of_python(place) is None:
            return read_arrays(place)
        return _check_first_batch(training, LoaderRows(place, training.inputs, steps), job)
    if isinstance(loader, RowSource | Mapping):
        _refuse_rows(rows, f"a {type(cast('object', loader)).__name__}")
        return cast("Any", loader)
    if hasattr(loader, "batch_sampler"):
        raise TypeError(
            "a DataLoader draws its own batches in every process; give its dataset, with batch and shuffle, or a "
            "function of the number of a trainer and of all trainers"
        )
    if callable(loader) and not hasattr(loader, "__getitem__"):
        _refuse_rows(rows, "a function")
        return _check_first_batch(training, LoaderRows(cast("Loader", loader), training.inputs, steps), job)
    if hasattr(loader, "__getitem__") or isinstance(loader, Iterable):
        _require_batch(rows, "a dataset")
        batches = DatasetBatches(loader, rows["batch"], rows["epochs"], rows["shuffle"])
        return _check_first_batch(training, LoaderRows(batches, training.inputs, steps), job)
    raise wrong_type("launch", "a function, a dataset, files of rows, or arrays", loader)


def _require_batch(rows: Mapping[str, Any], what: str) -> None:
    if rows["batch"] is None:
        raise ValueError(f"{what} gives rows; batch says how many of them a step takes")
    expect_number(rows["batch"], "launch", "a number of rows", least=1)
    expect_number(rows["epochs"], "launch", "a number of epochs", least=1)


def _refuse_rows(rows: Mapping[str, Any], what: str) -> None:
    usual = {"batch": None, "epochs": 1, "shuffle": None}
    given = next((name for name in _OF_ROWS if rows[name] != usual[name]), None)
    if given is not None:
        raise ValueError(f"{given} is about a dataset, or files of rows; {what} has its own batches")


def _check_first_batch(training: Training, rows: LoaderRows, job: Compiled) -> LoaderRows:
    """The same rows, of which the first batch of the first trainer fits the graph. Raises DiagnosticError."""
    first = next(rows.batches(0, job.plan.trainers), None)
    if first is not None:
        training.feeds({name: array_of(value) for name, value in first.items()})
    return rows


def _take_back(training: Training, done: Simulated, job: Compiled) -> None:
    """Sets the variables of a training to those that a cluster has trained."""
    now = training.state
    values: dict[str, Any] = {}
    for name, value in whole_values(done.cluster, job).items():
        if isinstance(value, SelectedRows):  # rows that were never trained are as they were
            whole = now[name].copy()
            whole[value.rows] = value.value[: len(value.rows)].reshape(-1, *whole.shape[1:])
            values[name] = whole
        elif hasattr(value, "shape"):
            values[name] = value
    training.load(values)
