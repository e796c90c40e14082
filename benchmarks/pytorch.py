"""Models traced from PyTorch beside PyTorch itself: one thread, and a cluster beside DistributedDataParallel.

    python benchmarks/pytorch.py [MODEL ...] [--batch 64,512] [--rows 100000] [--steps 60] [--cluster]

Each model of `pytorch_models.py` is trained with Adagrad by PyTorch (eager), and as `pstranspile.torch` traces it; the
first also as it is built with `pstranspile.layers`. All take turns in one process, with the same batches from the same
start, and their losses are compared. Printed are medians of CPU time per step, and ratios to PyTorch. Goals: a median
of 1.2 over the models, 1.4 for ctr-dnn, traced at most 1.05 times the time of the built one.

With `--cluster`, two trainers and two servers as processes train ctr-dnn, then two processes with
DistributedDataParallel (gloo, sparse gradients), and their CPU time per step of one global batch is compared. Goal: at
most 0.5 times that of PyTorch.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy and torch are imported

import argparse
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, permutations
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

try:
    import torch
except ImportError:
    raise SystemExit("PyTorch is not installed: pip install '.[torch]'") from None

import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from machines import cpu
from pytorch_models import HIDDEN, MODELS, NUMBERS, SLOTS, WIDTH, batch, loss

import pstranspile.torch as pt
from pstranspile.cluster.net.supervisor import Ports
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import Adagrad, minimize
from pstranspile.ir.model import Module
from pstranspile.runtime.run.prepared import run
from pstranspile.runtime.run.scope import Scope
from pstranspile.tools.cli import main as command

RATE, WARM, BATCHES = 0.01, 8, 10
Step = Callable[[int], float]


def traced(name: str, rows: int, size: int) -> pt.Training:
    """A model as this package traces it."""
    torch.manual_seed(0)
    model = MODELS[name](rows)
    return pt.trace(model, batch(rows, size, 0), loss=loss, optimizer=torch.optim.Adagrad(model.parameters(), lr=RATE))


def eager(name: str, rows: int, batches: Sequence[Any]) -> Step:
    """A step of PyTorch."""
    torch.manual_seed(0)
    model = MODELS[name](rows)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=RATE)

    def step(number: int) -> float:
        optimizer.zero_grad(set_to_none=True)
        value = loss(model, *batches[number % BATCHES])
        value.backward()
        optimizer.step()
        return value.item()

    return step


def interpreted(module: Module, fetch: str, feeds: Sequence[Any]) -> Step:
    """A step of this package."""
    scope = Scope()
    run(module["startup"], scope=scope)
    for name, value in module.start.items():
        scope[name] = np.array(value)
    main = module["main"]
    return lambda number: float(run(main, feed=feeds[number % BATCHES], fetch=[fetch], scope=scope)[fetch].reshape(()))


def built(rows: int) -> tuple[Module, str]:
    """ctr-dnn as it is built with layers, and the name of its loss."""
    draft = L.Draft(seed=1)
    dense, click = L.data(draft, "numbers", [-1, NUMBERS]), L.data(draft, "click", [-1, 1])
    ids = [L.data(draft, f"id_{slot}", [-1, 1], "int64") for slot in range(SLOTS)]
    seen = L.concat([*[L.embedding(each, [rows, WIDTH], is_sparse=True) for each in ids], dense], axis=1)
    for width in HIDDEN:
        seen = L.fc(seen, width, act="relu")
    value = L.mean(L.sigmoid_cross_entropy_with_logits(L.fc(seen, 1), click))
    minimize(value, Adagrad(RATE))
    return draft.module(), value.name


def fed_to_built(values: Sequence[Any]) -> dict[str, Any]:
    """A batch as the built model is fed it."""
    ids = {f"id_{slot}": values[slot].numpy().reshape(-1, 1) for slot in range(SLOTS)}
    return {**ids, "numbers": values[SLOTS].numpy(), "click": values[SLOTS + 1].numpy()}


def in_turns(steps: dict[str, Step], count: int) -> dict[str, float]:
    """The median CPU time of each side's step in ms, where the sides take turns."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    # each side comes after each other one, whose data then fill the processor's cache
    for number, names in zip(range(count), cycle(permutations(steps)), strict=False):
        for name in names:
            start = process_time()
            steps[name](number)
            taken[name].append(process_time() - start)
    return {name: 1e3 * statistics.median(times) for name, times in taken.items()}


def beside_eager(names: Sequence[str], sizes: Sequence[int], rows: int, count: int) -> None:
    """Measures models in one process, and prints a line each."""
    ratios: list[float] = []
    for name in names:
        for size in sizes:
            batches = [batch(rows, size, seed) for seed in range(BATCHES)]
            began = perf_counter()
            training = traced(name, rows, size)
            tracing = perf_counter() - began
            feeds = [training.feeds(each) for each in batches]
            steps = {
                "PyTorch": eager(name, rows, batches),
                "traced": interpreted(training.module, training.loss, feeds),
            }
            for number in range(WARM):
                expected, got = steps["PyTorch"](number), steps["traced"](number)
                if abs(expected - got) > 1e-3 * abs(expected):
                    raise SystemExit(f"{name}: the loss of step {number} is {got}, PyTorch's is {expected}")
            if name == "ctr-dnn":
                module, fetch = built(rows)
                steps["built"] = interpreted(module, fetch, [fed_to_built(each) for each in batches])
                for number in range(WARM):
                    steps["built"](number)
            times = in_turns(steps, count)
            ratios.append(times["PyTorch"] / times["traced"])
            told = ", ".join(f"{side} {time:.2f} ms" for side, time in times.items())
            more = f"; traced to built {times['traced'] / times['built']:.2f}" if "built" in times else ""
            print(f"{name} {size}: {told}: {ratios[-1]:.2f}x PyTorch{more} (traced in {tracing:.1f} s)", flush=True)
    print(f"median of {len(ratios)}: {statistics.median(ratios):.2f}x PyTorch")


# The cluster.


def ddp(rank: int, rows: int, size: int, steps: int, port: int, told: Any) -> None:
    """A process with DistributedDataParallel; tells its seconds and CPU seconds."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(MODELS["ctr-dnn"](rows))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=RATE)
    batches = [batch(rows, size // 2, 2 * seed + rank) for seed in range(BATCHES)]
    began = used = 0.0
    for number in range(WARM + steps):
        if number == WARM:
            dist.barrier()
            began, used = perf_counter(), process_time()
        optimizer.zero_grad(set_to_none=True)
        value = loss(model, *batches[number % BATCHES])
        value.backward()
        optimizer.step()
        value.item()
    dist.barrier()
    told.put((perf_counter() - began, process_time() - used))
    dist.destroy_process_group()


def of_servers(rows: int, size: int, steps: int, work: Path) -> tuple[float, float]:
    """Seconds and CPU seconds of two trainers and two servers."""
    import json

    (work / "model.py").write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import pytorch\n"
        f"def training(): return pytorch.traced('ctr-dnn', {rows}, {size})\n"
    )
    ports = Ports(2)
    servers = ",".join(ports.addresses)
    job = ["--pservers", servers, "--trainers", "2", "-o", str(work / "job")]
    if command(["compile", f"{work / 'model.py'}:training", *job]):
        raise SystemExit("the job does not compile")
    training = traced("ctr-dnn", rows, size)
    feeds = [training.feeds(batch(rows, size, seed)) for seed in range(BATCHES)]
    total = WARM + steps
    arrays = {name: np.stack([feeds[number % BATCHES][name] for number in range(total)]) for name in feeds[0]}
    np.savez(work / "feed.npz", **arrays)
    ports.close()
    start = [sys.executable, "-m", "pstranspile", "start", str(work / "job"), "--role"]
    feed = ["--feed", str(work / "feed.npz"), "--fetch", training.loss]
    reading, writing = os.pipe()
    processes: list[subprocess.Popen[bytes]] = []
    for role in ("pserver_0", "pserver_1", "trainer_0", "trainer_1"):
        told = {"PSTRANSPILE_STATUS": str(writing)} if role == "trainer_0" else {}
        of_trainers = feed if role.startswith("trainer") else []
        with (work / f"{role}.log").open("wb") as log:
            processes.append(
                subprocess.Popen(
                    [*start, role, *of_trainers],
                    env={**os.environ, **told},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=[writing] if told else [],
                )
            )
    os.close(writing)
    marks: dict[int, tuple[float, float]] = {}
    with os.fdopen(reading) as lines:
        for line in lines:
            step = json.loads(line).get("step")
            if step in (WARM, total):
                marks[step] = perf_counter(), sum(cpu(process.pid) for process in processes)
    for process in processes:
        process.kill()
        process.wait()
    if len(marks) < 2:
        raise SystemExit("\n".join(log.read_text() for log in sorted(work.glob("*.log"))))
    return marks[total][0] - marks[WARM][0], marks[total][1] - marks[WARM][1]


def beside_ddp(sizes: Sequence[int], rows: int, steps: int) -> None:
    """Measures clusters, and prints a line for each size of the global batch."""
    for size in sizes:
        with tempfile.TemporaryDirectory() as work:
            own, own_cpu = of_servers(rows, size, steps, Path(work))
        told = multiprocessing.get_context("spawn").SimpleQueue()
        ports = Ports(1)
        port = int(ports.addresses[0].rpartition(":")[2])
        ports.close()
        multiprocessing.spawn(ddp, (rows, size, steps, port, told), 2)
        ends = [told.get() for _ in range(2)]
        theirs, theirs_cpu = max(end[0] for end in ends), sum(end[1] for end in ends)
        print(
            f"cluster {size}: PyTorch DDP {steps / theirs:.1f} steps/s, {1e3 * theirs_cpu / steps:.1f} CPU ms a step; "
            f"2 x 2 {steps / own:.1f} steps/s, {1e3 * own_cpu / steps:.1f} CPU ms a step: "
            f"{theirs / own:.2f}x the steps, {own_cpu / theirs_cpu:.2f} of the CPU time",
            flush=True,
        )


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--batch", default="64,512", help="rows of a batch")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of a table")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--cluster", action="store_true", help="measure a cluster instead")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [int(size) for size in options.batch.split(",")]
    measure = partial(beside_ddp) if options.cluster else partial(beside_eager, options.models or list(MODELS))
    measure(sizes, options.rows, options.steps)


if __name__ == "__main__":
    main()
