"""A training step of saved programs here, in Fluid, and written by hand with numpy; one process and one thread each.

    python benchmarks/real.py FOLDER... [--fluid PYTHON] [--batch 32] [--seconds 1.5] [--only NAME]

A folder (or a folder of such) holds `main.pb`, `startup.pb` and `case.json` (what a ProgramDesc does not carry), and
may hold `init.npz` (every persistable variable after start-up) and `feeds_steps.npz` (`STEP|NAME`, and offsets
`STEP|NAME|LEVEL`). Without them the start-up program is run here, and data is made as `check` makes it. `--fluid`
names a Python that has Fluid 1.8, which runs the same steps from the same start. Steps written by hand are in
`by_hand.py` and `by_hand_recurrent.py`, by the name of the folder.

The table gives milliseconds of CPU time (medians over the steps, so that other work on the machine counts little), and
how many steps are made here while Fluid, or the step by hand, makes one.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import argparse
import fnmatch
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
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
folder, data, loss, seconds = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
with open(folder + "/main.pb", "rb") as file:
    program = fluid.Program.parse_from_string(file.read())
block = program.global_block()
for number in reversed(range(len(block.ops))):
    if block.ops[number].type in ("read", "create_double_buffer_reader", "create_py_reader"):
        block._remove_op(number)
scope, steps = fluid.Scope(), {}
stored = np.load(data)
for key in stored.files:
    kind, name = key.split("|", 1)
    if kind == "init":
        scope.var(name).get_tensor().set(stored[key], fluid.CPUPlace())
    elif name.count("|") == 0:
        tensor, lod = fluid.LoDTensor(), []
        tensor.set(stored[key], fluid.CPUPlace())
        while "%s|%d" % (key, len(lod)) in stored.files:
            lod.append(stored["%s|%d" % (key, len(lod))].tolist())
        if lod:
            tensor.set_lod(lod)
        steps.setdefault(int(kind), {})[name] = tensor
feeds = [steps[number] for number in sorted(steps)]
executor, times, losses = fluid.Executor(fluid.CPUPlace()), [], []
with fluid.scope_guard(scope):
    began = time.time()
    while time.time() - began < seconds or len(times) < 2 * len(feeds):
        start = time.process_time()
        found = executor.run(program, feed=feeds[len(times) % len(feeds)], fetch_list=[loss], use_program_cache=True)
        times.append(time.process_time() - start)
        losses.append(float(np.ravel(found[0])[0]))
print(json.dumps([float(np.median(times[len(feeds):])), losses[:len(feeds)]]))
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
    """Seconds of CPU time of a step, the median after a first round over the feeds."""
    for feed in feeds * 2:
        step(feed)
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


def in_fluid(case: Case, python: str, seconds: float) -> tuple[float, list[float]]:
    """Seconds of a step in Fluid, and the losses of the first ones. Raises RuntimeError if Fluid fails."""
    arrays = {f"init|{name}": value for name, value in case.init.items()}
    for number, feed in enumerate(case.feeds):
        for name, value in feed.items():
            arrays[f"{number}|{name}"] = value.data if isinstance(value, LoDTensor) else value
            for level, offsets in enumerate(value.lod if isinstance(value, LoDTensor) else []):
                arrays[f"{number}|{name}|{level}"] = np.array(offsets)
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/data.npz", **arrays)
        command = [python, "-c", IN_FLUID, str(case.folder), f"{folder}/data.npz", case.loss, str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "CPU_NUM": "1"}, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or "no message").splitlines()[-1][:100])
    time, losses = json.loads(done.stdout.splitlines()[-1])
    return time, losses


def row(case: Case, python: str, seconds: float) -> float | None:
    """Prints one line of the table, and gives how many steps are made here while Fluid makes one."""
    ours = measured(here(case), case.feeds, seconds)
    text = f"{case.name:<36} {sum(len(block.ops) for block in case.module.main.blocks):>5} {1e3 * ours:>9.3f}"
    ratio = None
    if python:
        try:
            theirs, losses = in_fluid(case, python, seconds)
            ours = min(ours, measured(here(case), case.feeds, seconds))  # right after it as well
            ratio = theirs / ours
            again = here(case)
            alike = np.allclose([again(feed) for feed in case.feeds], losses, rtol=1e-3)
            text += f" {1e3 * theirs:>9.3f} {ratio:>6.2f}x{'' if alike else '  other losses'}"
        except RuntimeError as problem:
            text += f"  Fluid: {problem}"
    if case.name in STEPS:
        by_hand = STEPS[case.name]({name: value.copy() for name, value in case.init.items()})
        there = here(case)
        for feed in case.feeds:
            want, got = there(feed), by_hand(feed)
            if not np.isclose(got, want, rtol=1e-3):
                raise SystemExit(f"{case.name}: by hand the loss is {got}, here it is {want}")
        hand = measured(by_hand, case.feeds, seconds)
        text += f"  by hand {1e3 * hand:>9.3f} {hand / ours:>6.2f}x"
    print(text, flush=True)
    return ratio


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
