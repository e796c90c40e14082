"""What the scripts of a page compute, tested by node where there is one."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from pstranspile import Job, compile, loads
from pstranspile.compiler.explain import of_compiled
from pstranspile.tools.report.data import report_data
from tests.tools.report.jobs import ROOT

NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="there is no node")
def test_what_the_scripts_compute():
    module = loads((ROOT / "examples" / "regression.ir").read_text())
    data = report_data(of_compiled(compile(module, Job(pservers=2, trainers=2))), "net.ir", module)
    assert NODE is not None
    command = [NODE, str(Path(__file__).parent / "scripts.js"), str(ROOT / "pstranspile" / "tools" / "report")]
    done = subprocess.run(command, input=json.dumps(data), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "18 tests\n"
