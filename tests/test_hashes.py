"""What the package keeps in dicts is found there, whatever a script has made of the built-in `hash`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import builtins, itertools, sys
import numpy as np
import paddle.fluid as fluid

x = fluid.data("x", [None, 4], "float32")
loss = fluid.layers.mean(fluid.layers.fc(x, 1))
{replacement}
fluid.optimizer.Adam(0.1).minimize(loss)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
for step in range(3):
    (value,) = exe.run(feed={{"x": np.ones((2 + step % 2, 4), "float32")}}, fetch_list=[loss])
copy = fluid.Program.parse_from_string(fluid.default_main_program().desc.serialize_to_string())
assert len(copy.global_block().ops) == len(fluid.default_main_program().global_block().ops)
transpiler = fluid.DistributeTranspiler()
transpiler.transpile(0, pservers="a:1,b:1", trainers=2)
print(len(transpiler.get_pserver_program("a:1").global_block().ops), value.shape)
"""


@pytest.mark.parametrize(
    "replacement",
    [
        "import zlib; builtins.hash = lambda value: zlib.crc32(str(value).encode())",
        "builtins.hash = lambda value: len(str(value))",
        "counter = itertools.count(); builtins.hash = lambda value: next(counter)",
    ],
)
def test_a_script_may_replace_hash(replacement: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(replacement=replacement))
    command = [sys.executable, "-m", "pstranspile.fluid", str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stdout) == (0, "1 (1,)\n"), done.stderr
