"""Fluid scripts run here and in Fluid itself: seconds to the end of the first step, and steps per second.

    python benchmarks/scripts.py --fluid PYTHON [--rounds 3] [--only NAME]

The scripts are those of `fluid_scripts/`. PYTHON has Fluid 1.8. Both take turns, with one thread each. The figures are
the medians of the rounds. Goals: at least as many steps per second as Fluid, and at most half of its time to the end
of the first step.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = HERE / "fluid_scripts"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CPU_NUM": "1"}


def run(command: list[str], script: Path) -> tuple[float, float]:
    """Seconds to the end of the first step, and steps per second."""
    environment = {**os.environ, **ONE_THREAD, "STARTED": str(time.time())}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its byte code
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    if "-m" not in command:
        del environment["PYTHONPATH"]
    done = subprocess.run([*command, str(script)], env=environment, capture_output=True, text=True, check=False)
    figures = dict(line.split() for line in done.stdout.splitlines() if line.startswith(("first ", "steps ")))
    if done.returncode or len(figures) != 2:
        sys.exit(f"{' '.join(command)} {script.name} failed:\n{done.stderr[-2000:]}")
    return float(figures["first"]), float(figures["steps"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fluid", required=True, metavar="PYTHON", help="a Python that has Fluid 1.8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", metavar="NAME", help="just this script")
    options = parser.parse_args()
    commands = {"here": [sys.executable, "-m", "pstranspile.fluid"], "Fluid": [options.fluid]}
    met = True
    print(f"{'script':<14} {'first step, s':>22} {'':>7} {'steps/s':>20}")
    for script in sorted(SCRIPTS.glob("*.py")):
        if script.stem == "timing" or options.only not in ("", script.stem):
            continue
        rounds = [{name: run(command, script) for name, command in commands.items()} for _ in range(options.rounds)]
        first, steps = (
            {name: statistics.median(figures[name][place] for figures in rounds) for name in commands}
            for place in (0, 1)
        )
        sooner, faster = first["here"] / first["Fluid"], steps["here"] / steps["Fluid"]
        print(
            f"{script.stem:<14} {first['here']:>9.2f} of {first['Fluid']:>9.2f} {sooner:>6.2f}x "
            f"{steps['here']:>8.1f} of {steps['Fluid']:>8.1f} {faster:>6.2f}x"
        )
        met = met and sooner <= 0.5 and faster >= 1
    print("all goals met" if met else "goals missed")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
