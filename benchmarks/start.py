"""How long commands take to start, against `python -c "import numpy"`, measured in the same run.

    python benchmarks/start.py [--repeat N]

Prints the median of N wall-clock times of each command and its ratio to the median for numpy. The commands
take turns, so that a machine that is busy for a while is busy for all of them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "golden" / "linear_regression.ir"
JOB = ["--pservers", "a:6174,b:6174", "--trainers", "2"]

BASE = 'python -c "import numpy"'
COMMANDS = {
    BASE: ["-c", "import numpy"],
    'python -c ""': ["-c", ""],
    "pstranspile --help": ["-m", "pstranspile", "--help"],
    "pstranspile verify (13 ops)": ["-m", "pstranspile", "verify", str(PROGRAM)],
    "pstranspile compile (13 ops)": ["-m", "pstranspile", "compile", str(PROGRAM), *JOB],
}


def seconds(arguments: list[str]) -> float:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its byte code
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, check=False)
    elapsed = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} failed:\n{done.stderr.decode()}")
    return elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=11)
    repeat = parser.parse_args().repeat
    for arguments in COMMANDS.values():  # byte code is written and files are cached before anything is measured
        seconds(arguments)
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(repeat):
        for name, arguments in COMMANDS.items():
            times[name].append(seconds(arguments))
    base = statistics.median(times[BASE])
    for name, measured in times.items():
        median = statistics.median(measured)
        print(f"{name:<30} {median * 1000:8.1f} ms   {median / base:5.2f} x numpy")


if __name__ == "__main__":
    main()
