"""The documentation as a site: every public name is in its reference, and a link that leads nowhere is refused."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pstranspile

pytest.importorskip("material", reason="the extra docs is not installed")
ROOT = Path(__file__).parent.parent


def built(root: Path, target: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(root / "docs" / "site.py"), str(target)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """What a site is made of, in a folder of its own."""
    root = tmp_path / "copy"
    for folder in ("docs", "examples", "pstranspile"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (*ROOT.glob("*.md"), ROOT / "mkdocs.yml"):
        shutil.copy(file, root)
    return root


def test_the_site_is_built_with_the_interface(copied: Path, tmp_path: Path):
    done = built(copied, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    page = (tmp_path / "site" / "docs" / "reference" / "api.html").read_text()
    headings = {
        re.sub("<[^>]*>|&para;", "", text).split()[0] for text in re.findall("<h3[^>]*>(.*?)</h3>", page, re.DOTALL)
    }
    assert {f"ps.{name}" for name in pstranspile.__all__} == headings
    assert 'href="#pscompile"' in page
    assert "The module in a file: " in page
    text = (tmp_path / "site" / "docs" / "reference" / "ir.html").read_text()
    assert '<span class="kd">param</span>' in text  # programs are coloured
    assert '<span class="nv">%fc_0.w_0</span>' in text


def test_a_link_that_leads_nowhere_is_refused(copied: Path, tmp_path: Path):
    with (copied / "docs" / "getting_started.md").open("a") as file:
        file.write("\n[nowhere](guides/nowhere.md) and [no heading](guides/running.md#no-heading)\n")
    done = built(copied, tmp_path / "site")
    assert done.returncode == 1
    assert "guides/nowhere.md" in done.stderr
    assert "no-heading" in done.stderr
