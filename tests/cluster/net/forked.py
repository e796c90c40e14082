"""Jobs of which every machine is a process, forked from one that has imported the package already."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pstranspile.cluster.machines.simulate import Simulated
from pstranspile.cluster.net.job import JobFolder
from pstranspile.cluster.net.parts import gather, write_server, write_trainer
from pstranspile.cluster.net.process import ProcessPlace, play_server, play_trainer
from pstranspile.cluster.net.status import StatusPipe
from pstranspile.cluster.net.supervisor import Ports
from pstranspile.cluster.net.terms import Terms
from tests.forking import prepared

SECONDS = 120


def play(job: JobFolder, feeds: Mapping[str, Any], steps: int, work: Path, **options: Any) -> Simulated:
    """The outcome of a job whose machines are processes. `options` are those of a cluster; files go to `work`.

    Raises RuntimeError, with what a process says of itself, if one does not do its part.
    """
    ports = Ports(len(job.roles))
    addresses = dict(zip(job.roles, ports.addresses, strict=True))
    results = {role: str(work / f"{role}.result") for role in job.roles}
    processes = {
        role: prepared().Process(target=_machine, args=(job, role, addresses, feeds, steps, result, options))
        for role, result in results.items()
    }
    try:
        for process in processes.values():
            process.start()
        for process in processes.values():
            process.join(SECONDS)
        failed = [role for role, process in processes.items() if process.exitcode != 0]
        if failed:
            told = [Path(f"{results[role]}.problem") for role in failed]
            raise RuntimeError("\n".join([str(failed), *(path.read_text() for path in told if path.exists())]))
    finally:
        for process in processes.values():
            if process.is_alive():
                process.kill()
        ports.close()
    return gather(job.cluster(**options), results)


def _machine(
    job: JobFolder,
    role: str,
    addresses: Mapping[str, str],
    feeds: Mapping[str, Any],
    steps: int,
    result: str,
    options: Mapping[str, Any],
) -> None:
    try:
        cluster = job.cluster(**options)
        cluster.feed(feeds)
        terms, place, tell = Terms(job.hash), ProcessPlace(addresses), StatusPipe()
        if any(server.name == role for server in cluster.servers):
            play_server(cluster, role, terms, place, tell, lambda server: write_server(result, server))
        else:
            play_trainer(cluster, role, terms, place, steps, tell, lambda trainer: write_trainer(result, trainer))
    except BaseException:
        Path(f"{result}.problem").write_text(traceback.format_exc())
        raise
