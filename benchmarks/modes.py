"""How the time of a compile grows in every mode: with layers, with tables over 100 servers, and with trainers.

    python benchmarks/modes.py [MODE ...]

Every figure is the best of several compiles of all roles, in a process of its own that reads the program as text.
Layers: an MLP of 100 and of 1,000 fc layers with Adam, 2 trainers, 4 servers in modes with servers. Tables: 200 and
2,000 embeddings of 60,000 x 16, each cut over 100 servers, 2 trainers. Trainers: the MLP of 100 layers for 4 and for 40
trainers; the programs that are asked for grow with them. An exponent of 1 is linear growth.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from compile import best, exponent, servers
from programs import embeddings, mlp

from pstranspile.compiler.compile import compile, prepare
from pstranspile.compiler.job import Job
from pstranspile.compiler.job.modes import mode_names, settings_of
from pstranspile.ir.model import Module
from pstranspile.ops.textual import parse, print_module


def job_of(mode: str, trainers: int, count: int) -> Job:
    """A job of a mode; the modes without servers get endpoints of trainers instead."""
    if settings_of(mode).servers:
        return Job(servers(count), trainers, mode=mode)
    return Job(trainers=[f"127.0.0.1:{7164 + i}" for i in range(trainers)], mode=mode)


def seconds(module: Module, mode: str, trainers: int, count: int) -> tuple[float, float]:
    """Seconds of a compile of all roles, and of the first trainer's programs alone."""
    command = [sys.executable, __file__, "--measure", mode, str(trainers), str(count)]
    done = subprocess.run(command, input=print_module(module), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    everything, one = json.loads(done.stdout)
    return everything, one


def row(what: str, small: tuple[int, float, float], large: tuple[int, float, float]) -> None:
    """Prints what was measured at two sizes."""
    text = f"  {what:<10} {small[0]:6} {small[1] * 1e3:9.1f} ms {large[0]:6} {large[1] * 1e3:9.1f} ms"
    grown = exponent((small[0], small[1]), (large[0], large[1]))
    one = exponent((small[0], small[2]), (large[0], large[2]))
    print(f"{text}   exponent {grown:.2f};  one trainer {small[2] * 1e3:7.1f} {large[2] * 1e3:8.1f} ms, {one:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modes", nargs="*", metavar="MODE", help="the modes to measure (default: all)")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        mode, trainers, count = options.measure
        module, job = parse(sys.stdin.read()), job_of(mode, int(trainers), int(count))
        everything = best(lambda: compile(module, job).roles())
        print(json.dumps((everything, best(lambda: prepare(module, job).trainer(0)))))
        return
    for mode in options.modes or mode_names():
        if mode not in mode_names():
            raise SystemExit(f"no mode {mode!r}; there are {', '.join(mode_names())}")
        print(mode)
        row("layers", *((n, *seconds(mlp(n), mode, 2, 4)) for n in (100, 1000)))
        if settings_of(mode).servers:
            row("tables", *((n, *seconds(embeddings(n, 60_000), mode, 2, 100)) for n in (200, 2000)))
        row("trainers", *((n, *seconds(mlp(100), mode, n, 4)) for n in (4, 40)))


if __name__ == "__main__":
    main()
