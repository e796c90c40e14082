"""A training step of saved programs here, in Fluid, and written by hand with numpy; one process and one thread each.

    python benchmarks/real.py FOLDER... [--fluid PYTHON] [--batch 32] [--seconds 1.5] [--only NAME]

A folder (or a folder of such) holds `main.pb`, `startup.pb` and `case.json` (what a ProgramDesc does not carry), and
may hold `init.npz` (every persistable variable after start-up) and `feeds_steps.npz` (`STEP|NAME`, and offsets
`STEP|NAME|LEVEL`). Without them the start-up program is run here, and data is made as `check` makes it. `--fluid`
names a Python that has Fluid 1.8, which runs the same steps from the same start. Steps written by hand are in
`by_hand.py` and `by_hand_recurrent.py`, by the name of the folder.

The table gives milliseconds of CPU time, and how many steps are made here while Fluid, or the step by hand, makes one.
The sides take turns; of each the least counts of the rounds' medians over the steps, so that other work on the machine
counts little.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import argparse
import fnmatch
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import by_hand
import by_hand_recurrent

import pstranspile as ps
from pstranspile.proof.values import make_feeds
from pstranspile.runtime.run.step_feeds import Feeds
from pstranspile.runtime.values import NUMPY_TYPES, LoDTensor

STEPS = {**by_hand.STEPS, **by_hand_recurrent.STEPS}

IN_FLUID = r"""
import json, sys, time
import numpy as np
import paddle.fluid as fluid
folder, data, loss = sys.argv[1:]
with open(folder + "/main.pb", "rb") as file:
    program = fluid.Program.parse_from_string(file.read())
block = program.global_block()
for number in reversed(range(len(block.ops))):
    if block.ops[number].type in ("read", "create_double_buffer_reader", "create_py_reader"):
        block._remove_op(number)
init, steps = {}, {}
stored = np.load(data)
for key in stored.files:
    kind, name = key.split("|", 1)
    if kind == "init":
        init[name] = stored[key]
    elif name.count("|") == 0:
        tensor, lod = fluid.LoDTensor(), []
        tensor.set(stored[key], fluid.CPUPlace())
        while "%s|%d" % (key, len(lod)) in stored.files:
            lod.append(stored["%s|%d" % (key, len(lod))].tolist())
        if lod:
            tensor.set_lod(lod)
        steps.setdefault(int(kind), {})[name] = tensor
feeds = [steps[number] for number in sorted(steps)]

def start(cached):
    executor, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    for name, value in init.items():
        scope.var(name).get_tensor().set(value, fluid.CPUPlace())
    def run(feed):
        found = executor.run(program, feed=feed, fetch_list=[loss], scope=scope, use_program_cache=cached)
        return float(np.ravel(found[0])[0])
    return run, [run(feed) for feed in feeds]

try:
    run, losses = start(True)
except fluid.core_avx.EnforceNotMet:  # a cached program keeps arrays of tensors from one step to the next
    run, losses = start(False)
print(json.dumps(losses), flush=True)
for line in sys.stdin:
    times, began = [], time.time()
    while time.time() - began < float(line) or len(times) < len(feeds):
        start = time.process_time()
        run(feeds[len(times) % len(feeds)])
        times.append(time.process_time() - start)
    print(float(np.median(times)), flush=True)
"""


class Case(NamedTuple):
    """A program with the feeds of some steps, where it starts, and what it loses."""

    name: str
    folder: Path
    module: Any
    feeds: list[dict[str, Any]]
    init: dict[str, Any]
    loss: str


def load(folder: Path, batch: int) -> Case:
    """A case as its folder holds it; what is not there is made."""
    about = json.loads((folder / "case.json").read_text())
    module = ps.load(str(folder / "main.pb"), startup=str(folder / "startup.pb"), meta=str(folder / "case.json"))
    if (folder / "init.npz").exists():
        with np.load(folder / "init.npz") as stored:
            init = dict(stored)
    else:
        scope = ps.Scope()
        ps.run(module.startup, scope=scope, seed=1)
        init = {name: value for name, value in scope.items() if isinstance(value, np.ndarray)}
    if (folder / "feeds_steps.npz").exists():
        feeds = recorded(folder / "feeds_steps.npz", module.main)
    else:
        made = Feeds(module.main, make_feeds(module.main, 4, batch))
        feeds = [made.step(number) for number in range(4)]
    return Case(folder.name, folder, module, feeds, init, about["loss"] or about["fetches"][0])


def recorded(file: Path, main: Any) -> list[dict[str, Any]]:
    """The feeds of the steps in a file."""
    steps: dict[int, dict[str, Any]] = {}
    with np.load(file) as stored:
        for key in stored.files:
            number, name, *level = key.split("|")
            if not level:
                var, lod, data = main.main_block.vars[name], list[list[int]](), stored[key]
                while f"{key}|{len(lod)}" in stored.files:
                    lod.append(stored[f"{key}|{len(lod)}"].tolist())
                data = data.astype(NUMPY_TYPES[var.dtype], copy=False)  # files hold what their writer had
                steps.setdefault(int(number), {})[name] = LoDTensor(data, lod) if lod else data
    return [steps[number] for number in sorted(steps)]


def measured(step: Callable[[dict[str, Any]], float], feeds: list[dict[str, Any]], seconds: float) -> float:
    """Seconds of CPU time of a step, the median over the steps of a round."""
    times: list[float] = []
    began = perf_counter()
    while perf_counter() - began < seconds or len(times) < len(feeds):
        start = thread_time()
        step(feeds[len(times) % len(feeds)])
        times.append(thread_time() - start)
    return statistics.median(times)


def here(case: Case) -> Callable[[dict[str, Any]], float]:
    """A step of the program in a scope of its own."""
    scope = ps.Scope()
    scope.update(case.init)

    def step(feed: dict[str, Any]) -> float:
        value = ps.run(case.module.main, feed, (case.loss,), scope, seed=1)[case.loss]
        return float(np.ravel(value.data if isinstance(value, LoDTensor) else value)[0])

    return step


class InFluid:
    """A process of Fluid with the program, which runs rounds of steps. Raises RuntimeError if Fluid fails."""

    def __init__(self, case: Case, python: str):
        arrays = {f"init|{name}": value for name, value in case.init.items()}
        for number, feed in enumerate(case.feeds):
            for name, value in feed.items():
                arrays[f"{number}|{name}"] = value.data if isinstance(value, LoDTensor) else value
                for level, offsets in enumerate(value.lod if isinstance(value, LoDTensor) else []):
                    arrays[f"{number}|{name}|{level}"] = np.array(offsets)
        self._folder = tempfile.TemporaryDirectory()
        np.savez(f"{self._folder.name}/data.npz", **arrays)
        command = [python, "-c", IN_FLUID, str(case.folder), f"{self._folder.name}/data.npz", case.loss]
        pipe, environment = subprocess.PIPE, {**os.environ, "CPU_NUM": "1"}
        self._process = subprocess.Popen(command, text=True, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)
        self.losses: list[float] = json.loads(self._line())
        """Those of the first steps, one for each feed."""

    def _line(self) -> str:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError((self._process.stderr.read().strip() or "no message").splitlines()[-1][:100])
        return line

    def measured(self, seconds: float) -> float:
        """Seconds of CPU time of a step, the median over the steps of a round."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()
        self._folder.cleanup()


def row(case: Case, python: str, seconds: float) -> float | None:
    """Prints one line of the table, and gives how many steps are made here while Fluid makes one."""
    text, name = f"{case.name:<36} {sum(len(block.ops) for block in case.module.main.blocks):>5}", case.name
    step, problem, fluid = here(case), "", None
    losses = [step(feed) for feed in case.feeds]
    rounds: dict[str, Callable[[float], float]] = {"here": partial(measured, step, case.feeds)}
    if python:
        try:
            fluid = InFluid(case, python)
        except RuntimeError as failed:
            problem = f"  Fluid: {failed}"
        else:
            problem = "" if np.allclose(losses, fluid.losses, rtol=1e-3) else "  other losses"
            rounds["Fluid"] = fluid.measured
    if name in STEPS:
        by_hand = STEPS[name]({key: value.copy() for key, value in case.init.items()})
        for feed, want in zip(case.feeds, losses, strict=True):
            if not np.isclose(got := by_hand(feed), want, rtol=1e-3):
                raise SystemExit(f"{name}: by hand the loss is {got}, here it is {want}")
        rounds["by hand"] = partial(measured, by_hand, case.feeds)
    times = dict.fromkeys(rounds, math.inf)
    for _ in range(ROUNDS):
        for side, measure in rounds.items():
            times[side] = min(times[side], measure(seconds / ROUNDS))
    if fluid is not None:
        fluid.close()
    ratios = {side: time / times["here"] for side, time in times.items()}
    text += f" {1e3 * times['here']:>9.3f}"
    if "Fluid" in times:
        text += f" {1e3 * times['Fluid']:>9.3f} {ratios['Fluid']:>6.2f}x"
    text += problem
    if "by hand" in times:
        text += f"  by hand {1e3 * times['by hand']:>9.3f} {ratios['by hand']:>6.2f}x"
    print(text, flush=True)
    return ratios.get("Fluid")


ROUNDS = 3
"""The number of turns of each side."""


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--fluid", default="")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--only", default="*")
    args = parser.parse_args()
    found = [inner for folder in args.folders for inner in (folder, *sorted(folder.glob("*")))]
    folders = [folder for folder in found if (folder / "main.pb").exists() and fnmatch.fnmatch(folder.name, args.only)]
    print(f"{'program':<36} {'ops':>5} {'here ms':>9}{'  Fluid ms   ratio' if args.fluid else ''}")
    ratios: list[float] = []
    for folder in folders:
        try:
            ratio = row(load(folder, args.batch), args.fluid, args.seconds)
        except ps.DiagnosticError as problem:
            print(f"{folder.name:<36} not run: {str(problem).splitlines()[0][-150:]}", flush=True)
            continue
        ratios += [] if ratio is None else [ratio]
    if ratios:
        median, least = statistics.median(ratios), min(ratios)
        print(f"steps/s of {len(ratios)} programs: median {median:.2f}x, least {least:.2f}x of Fluid")
    return 0


if __name__ == "__main__":
    sys.exit(main())
