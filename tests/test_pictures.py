"""Pictures of the documents are those that the commands draw now."""

from pathlib import Path

import numpy as np

import pstranspile as ps
from pstranspile.proof import make_feeds
from pstranspile.tools.cli import main
from tests.golden import Goldens

ROOT = Path(__file__).parent.parent
PROGRAM = str(ROOT / "examples" / "regression.ir")


def test_the_chart_of_a_step_is_current(goldens: Goldens, tmp_path: Path):
    np.savez(tmp_path / "data.npz", **make_feeds(ps.load(PROGRAM).main, 1, 4))
    drawn = tmp_path / "step.svg"
    given = ["--feed", str(tmp_path / "data.npz"), "--chart", str(drawn), "--chart-steps", "1"]
    assert main(["run", PROGRAM, "--pservers", "2", "--trainers", "2", *given]) == 0
    goldens.check(ROOT / "docs" / "pictures" / "step.svg", drawn.read_text(encoding="utf-8"), __name__)
