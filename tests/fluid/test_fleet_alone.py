"""A Fleet script of 2.x that no launcher has started trains alone, as in Paddle 2.6.2, and says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import paddle
from paddle.distributed import fleet
paddle.enable_static()
fleet.init(is_collective={collective})
x = paddle.static.data("x", [None, 2])
loss = paddle.mean(paddle.static.nn.fc(x, 1))
strategy = fleet.DistributedStrategy()
strategy.a_sync = not {collective}
for _ in range(2):
    fleet.distributed_optimizer(paddle.optimizer.SGD(0.1), strategy).minimize(loss)
"""


@pytest.mark.parametrize(
    ("collective", "set_already", "unset", "options"),
    [
        (
            False,
            "PADDLE_TRAINERS_NUM",
            "PADDLE_PSERVERS_IP_PORT_LIST, TRAINING_ROLE, PADDLE_TRAINER_ID",
            "--server_num 2",
        ),
        (True, "TRAINING_ROLE", "PADDLE_TRAINER_ENDPOINTS, PADDLE_TRAINER_ID", "--nproc_per_node 2"),
    ],
)
def test_training_alone_is_told(collective: bool, set_already: str, unset: str, options: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(collective=collective))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PADDLE_", "TRAINING_"))}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2]), set_already: "2"}
    command = [sys.executable, "-m", "pstranspile.fluid", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"fleet: this process trains alone, as the environment does not set {unset}; `pstranspile ")
    assert options in line
    assert done.returncode == 0
