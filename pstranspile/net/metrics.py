"""The progress of a job in the form that Prometheus collects: the last report of each process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.visible import visible
from pstranspile.net.transport import place_of


class Known(NamedTuple):
    """The process in a role: whether it runs, how often it was started, and the fields of its last reports."""

    role: str
    running: bool
    starts: int
    reported: Mapping[str, Any]


class Metrics:
    """Answers at `address` (host:port, any path) with what `look` gives then, until it is closed.

    Raises DiagnosticError if that can't be done.
    """

    def __init__(self, address: str, look: Callable[[], Iterable[Known]]):
        if find_spec("prometheus_client") is None:
            message = "--metrics needs prometheus_client; get it with: pip install 'pstranspile[metrics]'"
            raise DiagnosticError([error("start-library", message)])
        library: Any = import_module("prometheus_client")
        self._look = look
        registry = library.CollectorRegistry()
        registry.register(self)
        try:
            host, port = place_of(address)
            self._server, self._thread = library.start_http_server(port, host, registry)
        except OSError as problem:
            message = f"--metrics {address}: {problem.strerror or problem}"
            raise DiagnosticError([error("launch-metrics", message)]) from None

    def collect(self) -> Iterator[Any]:
        """The metrics by role, when Prometheus asks."""
        library: Any = import_module("prometheus_client.core")
        running = library.GaugeMetricFamily("pstranspile_running", "1 while the process runs", labels=["role"])
        starts = library.CounterMetricFamily("pstranspile_starts", "how often it was started", labels=["role"])
        steps = library.CounterMetricFamily("pstranspile_steps", "steps done, or updates made", labels=["role"])
        cpu = library.CounterMetricFamily("pstranspile_cpu_seconds", "seconds of CPU used", labels=["role"])
        fetched = library.GaugeMetricFamily(
            "pstranspile_fetched",
            "the last value of what steps fetch, if it is one number",
            labels=["role", "variable"],
        )
        for role, runs, started, fields in self._look():
            running.add_metric([role], float(runs))
            starts.add_metric([role], float(started))
            steps.add_metric([role], float(fields.get("step", 0)))
            cpu.add_metric([role], float(fields.get("cpu", 0.0)))
            for name, value in _numbers(fields.get("values", {})):
                fetched.add_metric([role, visible(name)], value)
        yield from (running, starts, steps, cpu, fetched)

    def close(self) -> None:
        """Nobody is answered any more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The variables that hold one number, as a process reports them: form, numbers, ..."""
    for name, (_, few, *_) in values.items():
        if len(few) == 1:
            yield name, float(few[0])
