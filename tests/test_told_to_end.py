"""A process that is told to end once ends, wherever the signal finds it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

PLACES = {
    "a finalizer": "class Gone:\n    def __del__(self): told()\nGone()",
    "the callback of a weak reference": (
        "import weakref\nclass Gone: ...\ngone = Gone()\nkept = weakref.ref(gone, lambda _: told())\ndel gone"
    ),
    "code that drops every exception": "try: told()\nexcept BaseException: pass",
}


@pytest.mark.parametrize("place", PLACES)
def test_a_signal_whose_exception_is_lost_ends_the_process(place: str, tmp_path: Path) -> None:
    batches = tmp_path / "batches.py"
    told = "import os, signal, time\ndef told():\n    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(60)\n"
    lines = "".join(f"    {line}\n" for line in PLACES[place].split("\n"))
    batches.write_text(f"{told}def batches(trainer, trainers):\n{lines}    time.sleep(60)\n    yield {{}}\n")
    program = Path(__file__).parents[1] / "examples" / "regression.ir"
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pstranspile", "run", str(program), "--feed", f"{batches}:batches", "--steps", "1"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (143, "interrupted")
    assert "Traceback" not in done.stderr
    assert time.monotonic() - begun < 20
