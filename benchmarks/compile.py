"""How fast programs are compiled, how the time grows with the program, and what Fluid 1.8.5 takes.

    python benchmarks/compile.py [--layers 10,100,400,2000,10000] [--fluid PYTHON]

Every figure is the best of several runs, program in memory to emitted programs in memory. Each program is measured in
a process of its own, which reads it as text first, as `pstranspile compile` does: its memory is then laid out as a
user's is, and not in the holes that the program before left. `--fluid` names a Python that has paddlepaddle 1.8.5: then
it is run side by side on the same nets. Without it the ratios are to the figures recorded of it on another machine
(8.1 s and 163 s for one trainer program of 100 and 400 layers), and say so.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from programs import embeddings, mlp

from pstranspile.compiler.compile import compile, prepare
from pstranspile.compiler.job import Job
from pstranspile.compiler.verify import verify
from pstranspile.ir.model import Module
from pstranspile.ops.textual import parse, print_module

RECORDED = {100: 8.1, 400: 163.0}
"""Seconds that Fluid 1.8.5 took for `transpile` and `get_trainer_program`, by fc layers."""


def best(run: Callable[[], object], seconds: float = 2.0) -> float:
    """The shortest of the runs that fit in `seconds` (at least 5), in seconds."""
    found: list[float] = []
    gc.collect()
    while len(found) < 5 or (sum(found) < seconds and len(found) < 60):
        start = time.perf_counter()
        result = run()
        found.append(time.perf_counter() - start)
        del result
    return min(found)


def exponent(small: tuple[int, float], large: tuple[int, float]) -> float:
    """How time grows with size: 1 is linear."""
    return math.log(large[1] / small[1]) / math.log(large[0] / small[0])


def walk(module: Module) -> dict[str, int]:
    """The least a compiler does: look at every name of every op. Its growth is that of the machine's memory."""
    seen: dict[str, int] = {}
    for index, op in enumerate(module.main.main_block.ops):
        for side in (op.inputs, op.outputs):
            for names in side.values():
                for name in names:
                    seen[name] = index
    return seen


def servers(count: int) -> list[str]:
    return [f"127.0.0.1:{6174 + i}" for i in range(count)]


def figures(module: Module, count: int, names: list[str]) -> dict[str, float]:
    """Seconds of what is to be measured, for a job with so many servers and 2 trainers; and the number of ops."""
    job = Job(servers(count), 2)
    runs: dict[str, Callable[[], object]] = {
        "trainer": lambda: prepare(module, job).trainer(0),
        "verified": lambda: (verify(module), compile(module, job)),
        "compiled": lambda: compile(module, job),
        "floor": lambda: walk(module),
    }
    return {"ops": len(module.main.main_block.ops), **{name: best(runs[name]) for name in names}}


def apart(module: Module, count: int, *names: str) -> dict[str, float]:
    """`figures` of the module in a process of its own."""
    command = [sys.executable, __file__, "--measure", str(count), *names]
    done = subprocess.run(command, input=print_module(module), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


FLUID = """
import sys, time
import paddle.fluid as fluid
layers = int(sys.argv[1])
main, startup = fluid.Program(), fluid.Program()
with fluid.program_guard(main, startup), fluid.unique_name.guard():
    x = fluid.layers.data("x", [64]); y = fluid.layers.data("y", [1])
    for i in range(layers - 1): x = fluid.layers.fc(x, 64, act="relu")
    loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, 1), y))
    fluid.optimizer.Adam(0.001).minimize(loss)
    t = fluid.DistributeTranspiler()
    start = time.time()
    t.transpile(0, program=main, pservers=",".join("127.0.0.1:%d" % (6174 + i) for i in range(4)), trainers=2,
                startup_program=startup)
    t.get_trainer_program(wait_port=False)
    print(time.time() - start)
"""


def fluid_seconds(python: str, layers: int) -> float:
    done = subprocess.run([python, "-c", FLUID, str(layers)], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="10,100,400,2000,10000")
    parser.add_argument("--fluid", metavar="PYTHON", help="a Python with paddlepaddle 1.8.5, run side by side")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        count, *names = options.measure
        print(json.dumps(figures(parse(sys.stdin.read()), int(count), names)))
        return
    rows: list[tuple[int, float, float]] = []
    floor: dict[int, float] = {}
    print("MLP, Adam, 4 servers, 2 trainers; milliseconds")
    print(f"{'layers':>7} {'ops':>7} {'trainer_0':>10} {'all roles':>10} {'us/op':>7}")
    for layers in map(int, options.layers.split(",")):
        found = apart(mlp(layers), 4, "trainer", "verified", "floor")
        ops, trainer, everything = int(found["ops"]), found["trainer"], found["verified"]
        floor[layers] = found["floor"]
        rows.append((layers, trainer, everything))
        print(f"{layers:7} {ops:7} {trainer * 1e3:10.2f} {everything * 1e3:10.2f} {everything / ops * 1e6:7.1f}")
    print("\n(all roles: verification of the source, plan, both trainers, four servers, link check)")
    by_layers = {row[0]: row for row in rows}
    low, high = (by_layers.get(400), rows[-1])
    if low is not None and high[0] > 400:
        for name, i in (("trainer_0", 1), ("all roles", 2)):
            grown = exponent((low[0], low[i]), (high[0], high[i]))
            print(f"growth of {name} from 400 to {high[0]} layers: exponent {grown:.3f} (1 is linear)")
        grown = exponent((400, floor[400]), (high[0], floor[high[0]]))
        print(f"growth of the floor, a walk that puts every name into one dict: exponent {grown:.3f}")
    print()
    for layers in (100, 400):
        if layers in by_layers:
            where = "side by side" if options.fluid else "recorded elsewhere"
            theirs = fluid_seconds(options.fluid, layers) if options.fluid else RECORDED[layers]
            _, trainer, everything = by_layers[layers]
            print(
                f"{layers} layers: Fluid {theirs:.2f} s for one trainer ({where}); "
                f"ours 1/{theirs / trainer:.0f} of that, all roles 1/{theirs / everything:.0f}"
            )
    print()
    wide, many = apart(embeddings(2000), 4, "compiled"), apart(mlp(50), 100, "compiled")
    print(f"2,000 embedding tables, 4 servers: {wide['compiled'] * 1e3:.1f} ms")
    print(f"50 layers over 100 servers: {many['compiled'] * 1e3:.1f} ms for 102 roles")
    if options.json:
        options.json.write_text(json.dumps([dict(zip(("layers", "trainer", "all"), r, strict=True)) for r in rows]))


if __name__ == "__main__":
    sys.exit(main())
