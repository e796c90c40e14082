"""docs/reference/pytorch.md is what the readers of operators and optimizers say, and says it of all of them."""

import subprocess
import sys

from pstranspile.frontends.torch.training import operators
from tests.readme import ROOT

PAGE = ROOT / "docs" / "reference" / "pytorch.md"


def test_the_page_is_made_of_the_code():
    code = "import torch_page as made; assert made.PAGE.read_text(encoding='utf-8') == made.page(), 'make generated'"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT / "docs", check=True)


def test_every_operator_has_its_place():
    text = PAGE.read_text(encoding="utf-8")
    missing = [name for names in operators().values() for name in names if f"`{name}`" not in text]
    assert not missing
    assert "it looks for a number, or in an order that is given beside the bounds" in text
