"""Builds the documentation as a site, with strict links: `python docs/site.py [FOLDER]` (default: build/site).

The documents link to files beside docs/, so the site is made of a copy in which these stand where they stand here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "build" / "documents"


def stage() -> None:
    """Copies the documents and the examples."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.copytree(ROOT / "docs", SOURCE / "docs", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    shutil.copytree(
        ROOT / "examples", SOURCE / "examples", ignore=shutil.ignore_patterns("node_modules", "__pycache__")
    )
    for document in ROOT.glob("*.md"):
        shutil.copy(document, SOURCE)
    for document in SOURCE.rglob("*.md"):  # what tests read of a fence is no language to the site
        text = document.read_text(encoding="utf-8")
        document.write_text(re.sub(r"^```(\w+) status=\d+$", r"```\1", text, flags=re.MULTILINE), encoding="utf-8")


def main() -> int:
    """Builds the site; 1 where a link leads nowhere."""
    stage()
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site").absolute()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
