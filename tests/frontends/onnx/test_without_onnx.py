"""Where onnx is not installed, the tests of it are skipped, with a reason."""

import subprocess
import sys
from pathlib import Path

HIDING = """\
import sys, pytest
sys.modules["onnx"] = None  # as if it were not installed
sys.exit(pytest.main(["--collect-only", "-rs", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def test_the_tests_of_it_are_skipped():
    here = Path(__file__)
    files = sorted(str(file) for file in here.parent.glob("test_*.py") if file != here)
    command = [sys.executable, "-c", HIDING, *files]
    done = subprocess.run(command, capture_output=True, text=True, cwd=here.parents[3], check=False)
    assert done.returncode == 5, done.stdout  # nothing is left to run, and nothing has failed
    assert "could not import 'onnx'" in done.stdout
