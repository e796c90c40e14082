"""What scripts expect of Python and numpy, in a process of the runner and in one that it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """\
import math, subprocess, sys
import collections
import numpy as np

assert issubclass(dict, collections.Mapping) and np.float is float

one = np.array([[1.5]], dtype="float32")
print(float(one), int(one), "%.1f %d" % (one, one), math.floor(one.reshape(1)), float(one[0, 0]), int(np.array(7)))
for wrong in (np.zeros(2), np.zeros(0)):
    try:
        float(wrong)
    except TypeError as problem:
        print("refused")
try:
    int(np.array(["x"]))
except ValueError as problem:
    print(problem)
if "child" not in sys.argv:
    sys.stdout.flush()
    subprocess.run([sys.executable, "-c", "import paddle, numpy; print(float(numpy.array([2.5])))"], check=True)
"""


def test_arrays_of_one_element_are_numbers_for_scripts(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ran = subprocess.run(
        [sys.executable, "-m", "pstranspile.fluid", str(script)], capture_output=True, text=True, check=False
    )
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == [
        "1.5 1 1.5 1 1 1.5 7",
        "refused",
        "refused",
        "invalid literal for int() with base 10: 'x'",
        "2.5",
    ]
