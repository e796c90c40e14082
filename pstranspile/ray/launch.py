"""`pstranspile.ray.launch`: a compiled job on Ray's cluster."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pstranspile.compile import Compiled
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.expect import names_of, wrong_type
from pstranspile.ray.missing import require_ray
from pstranspile.run.cluster.simulate import Simulated

if TYPE_CHECKING:
    from pstranspile.ray.session import Session

EVERY = 20
"""After how many steps a cut is taken, where nobody says it."""


def launch(
    job: Compiled,
    feeds: Any = None,
    *,
    steps: int | None = None,
    fetch: Sequence[str] = (),
    init: Mapping[str, Any] | None = None,
    seed: int | None = None,
    address: str | None = None,
    cpus: float = 1.0,
    trainers: tuple[int, int] | None = None,
    restarts: int = 10,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: str | os.PathLike[str] | None = None,
    patience: float = 60.0,
    as_fluid: bool = False,
    environment: Mapping[str, str] | None = None,
    prepare: Callable[[Session], object] | None = None,
) -> Simulated:
    """Runs a compiled job on Ray's cluster: an actor for each machine, which talk on their own wire.

    `feeds` are arrays with a leading step axis or rows (`Data`, `Rows`, `DatasetRows`), which all
    nodes must be able to read; `steps`, `fetch`, `init` and `seed` are those of `simulate`. `address` is the cluster's,
    as `ray.init` takes it (None: that of this process or of RAY_ADDRESS, or the one that `ray start` has begun or
    joined on this host, else one is started here); each machine is given `cpus`. When a machine is gone, Ray starts
    it elsewhere, and the job goes back to its last cut, at most `restarts` times. Cuts are taken every
    `checkpoint_every` steps (20) and kept in `checkpoint`; `resume` is one to begin with. Trainers of asynchronous
    and geo jobs meet for a cut: who is ahead waits for who is behind. With `trainers` (fewest, most), as many take
    part as there is room for; they join and leave between steps. Machines that can't be placed in `patience`
    seconds end the job. `environment` are variables of the actors' processes. `prepare` is handed the session
    before it runs: its `on_told` hears of steps, `resize` changes how many machines there are.
    Raises DiagnosticError.
    """
    require_ray()
    if not isinstance(job, Compiled):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise wrong_type("launch", "what a compile gives", job, "Compiled")
    from pstranspile.ray.cuts import Cuts
    from pstranspile.ray.hosts import Hosts
    from pstranspile.ray.session import Session, Settings

    settings = Settings(steps, names_of(fetch, "launch"), seed, restarts, patience, as_fluid, trainers)
    with _connected(address), tempfile.TemporaryDirectory(prefix="pstranspile-") as folder:
        target = os.fspath(checkpoint) if checkpoint is not None else str(Path(folder, "cuts"))
        every = checkpoint_every or (EVERY if restarts else None)
        source = os.fspath(resume) if resume is not None else None
        cuts = Cuts(source, target, every, Path(folder), at_end=checkpoint is not None)
        hosts = Hosts(cpus, environment or {}, patience)
        session = Session(job, feeds, dict(init or {}), settings, hosts, cuts)
        if prepare is not None:
            prepare(session)
        return session.run()


@contextmanager
def _connected(address: str | None) -> Generator[None]:
    """Holds while this process is connected to a cluster; left as it was, if it was before. Raises DiagnosticError."""
    import ray

    if ray.is_initialized():
        yield
        return
    _connect(address)
    try:
        yield
    finally:
        ray.shutdown()


def _connect(address: str | None) -> None:
    """Connects this process to a cluster. Raises DiagnosticError."""
    import ray

    from pstranspile.ray.hosts import first_line

    options: dict[str, Any] = {"logging_level": "error"}
    named = address or os.environ.get("RAY_ADDRESS")
    try:
        ray.init(address=address, **options)
        return
    except ConnectionError as problem:
        if named:
            raise _no_cluster(f"no cluster answers at {named}: {first_line(problem)}") from None
    except Exception as problem:  # Ray raises plain exceptions, too
        failed = f"the cluster at {named} can't be joined" if named else _NONE_HERE
        raise _no_cluster(f"{failed}: {first_line(problem)}") from None
    try:
        ray.init(address="local", **options)  # what `ray start` has recorded on this host is gone
    except Exception as problem:
        raise _no_cluster(f"{_NONE_HERE}: {first_line(problem)}") from None


_NONE_HERE = "Ray neither joins a cluster nor starts one on this host"


def _no_cluster(message: str) -> DiagnosticError:
    return DiagnosticError([error("ray-lost", message)])
