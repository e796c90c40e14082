"""Jobs played in this process: every machine is a thread with machines of its own, and they talk over the network."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.record import write_record
from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.machines.simulate import Simulated, results_of
from pstranspile.cluster.net.job import JobFolder
from pstranspile.cluster.net.process import ProcessPlace, play_server, play_trainer
from pstranspile.cluster.net.status import StatusPipe
from pstranspile.cluster.net.supervisor import Ports
from pstranspile.cluster.net.terms import Terms
from pstranspile.cluster.net.tls import Credentials
from pstranspile.fluid.net.message import SERVICE
from pstranspile.fluid.net.system import FluidSystem

TERMS = Terms("job", "token")
SECONDS = 120


def play(
    job: JobFolder,
    feeds: Mapping[str, Any] | None,
    steps: int,
    *,
    through: Callable[[str, str], str] | None = None,
    fluid: bool = False,
    terms: Terms = TERMS,
    record: Path | None = None,
    credentials: Credentials | None = None,
    patience: float = 60.0,
    parts: tuple[Path, int] | None = None,
    state: tuple[Path, int] | None = None,
    told: Callable[..., object] | None = None,
    **options: Any,
) -> Simulated:
    """The outcome of a job whose machines are threads; `options` are those of a cluster.

    `through(trainer, address)` gives the address at which a trainer finds the server that listens at `address`. With
    `fluid` machines of Fluid may take part. What every machine does is written to `record`. `parts`: where parts of
    checkpoints go, and after how many steps; `state`: where servers keep theirs, and how often. `told` is
    called with what each role tells.
    """
    ports = Ports(len(job.roles))
    addresses = dict(zip(job.roles, ports.addresses, strict=True))
    played: dict[str, Cluster] = {}
    problems: list[BaseException] = []
    over = threading.Event()
    options.setdefault("seed", 1)
    records = {role: "" if record is None else f"{record}.{role}" for role in job.roles}
    lock = threading.Lock()
    folder, every = parts or ("", 0)
    kept, often = state or ("", 20)

    def one(role: str) -> None:
        cluster = played[role]

        tell = _Tells(lambda **fields: told(role, **fields) if told is not None else None, lock)
        try:
            if any(server.name == role for server in cluster.servers):
                place = ProcessPlace(
                    addresses, str(kept), often, foreign_system=FluidSystem() if fluid else None, record=records[role],
                    credentials=credentials, parts=str(folder), parts_every=every,
                )  # fmt: skip
                play_server(cluster, role, terms, place, tell, lambda _: None)
            else:
                given = {server.name: addresses[server.name] for server in cluster.servers}
                if through is not None:
                    given = {name: through(role, address) for name, address in given.items()}
                own = {**addresses, **given}
                place = ProcessPlace(
                    own, patience=patience, foreign_system=FluidSystem() if fluid else None, record=records[role],
                    credentials=credentials, parts=str(folder), parts_every=every,
                )  # fmt: skip
                play_trainer(cluster, role, terms, place, steps, tell, lambda _: None)
        except BaseException as problem:
            problems.append(problem)
            over.set()

    for role in job.roles:
        cluster = played[role] = job.cluster(**options)
        cluster.feed(feeds)
    threads = [threading.Thread(target=one, args=(role,), daemon=True) for role in job.roles]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and not over.is_set():
            thread.join(0.2)
    ports.close()
    if problems:
        raise problems[0]
    if record is not None:
        write_record(str(record), options["seed"], steps, records)
    return gathered(job.cluster(**options), played)


class _Tells(StatusPipe):
    """Hands on what machines tell, one after the other."""

    def __init__(self, told: Callable[..., object], lock: threading.Lock):
        super().__init__()
        self.tell_one, self.one_at_a_time = told, lock

    def __call__(self, **fields: Any) -> None:
        with self.one_at_a_time:
            self.tell_one(**fields)


def gathered(cluster: Cluster, played: Mapping[str, Cluster]) -> Simulated:
    """One cluster of the machines that each thread has played."""
    for machine in (*cluster.servers, *cluster.trainers):
        own: Any = played[machine.name].machines[machine.name]
        machine.scope.values_here.update(own.scope.values_here)
        if isinstance(machine, Server):
            machine.updates = own.updates
        else:
            machine.results = own.results
    return Simulated(tuple(map(results_of, cluster.trainers)), cluster.parameters(), cluster)


@contextmanager
def proxies() -> Iterator[Callable[[str, str], str]]:
    """Addresses at which only Fluid's service is known, one for each trainer and server: calls go on to the server."""
    opened: list[Any] = []

    def through(_trainer: str, address: str) -> str:
        options = [("grpc.use_local_subchannel_pool", 1)]  # the server tells trainers apart by their connections
        channel = grpc.insecure_channel(address, options=options)
        listening = grpc.server(ThreadPoolExecutor(8))
        listening.add_generic_rpc_handlers([_Forward(channel)])
        port = listening.add_insecure_port("127.0.0.1:0")
        listening.start()
        opened.append((listening, channel))
        return f"127.0.0.1:{port}"

    try:
        yield through
    finally:
        for listening, channel in opened:
            listening.stop(0)
            channel.close()


class _Forward(grpc.GenericRpcHandler):
    def __init__(self, channel: Any):
        self.channel = channel

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method
        if not method.startswith(f"/{SERVICE}/"):
            return None
        call = self.channel.unary_unary(method)

        def forward(data: bytes, context: Any) -> bytes:
            try:
                return call(data, wait_for_ready=True, timeout=SECONDS)
            except grpc.RpcError as problem:
                status: Any = problem
                context.abort(status.code(), status.details())
                raise

        return grpc.unary_unary_rpc_method_handler(forward)


def compiled(folder: Path, program: str, *options: str) -> JobFolder:
    """A job that is compiled into a folder."""
    from pstranspile.cluster.net.job import load_job_folder
    from pstranspile.tools.cli import main

    assert main(["compile", program, *options, "-o", str(folder)]) == 0
    return load_job_folder(folder)
