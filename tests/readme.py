"""The fenced blocks of the documentation, for the tests and for `.ci/run`.

    python tests/readme.py HEADING      the first sh block under that heading of README.md

Needs nothing but Python, so that it runs before anything is installed.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: the heading it stands under, its language, the status it says it ends with, its line, and the
    package that it needs (`needs=torch`; "": none).
    """

    heading: str
    language: str
    status: int
    text: str
    line: int
    needs: str = ""


def blocks(path: Path) -> list[Block]:
    """Every fenced block of a Markdown file, in order."""
    content = path.read_text(encoding="utf-8")
    found: list[Block] = []
    for match in _FENCE.finditer(content):
        above = re.sub(_FENCE, "", content[: match.start()])
        headings = re.findall(r"^#+ +(.*?)\s*$", above, re.MULTILINE)
        language, *rest = match["info"].split() or [""]
        status = next((int(word.removeprefix("status=")) for word in rest if word.startswith("status=")), 0)
        needs = next((word.removeprefix("needs=") for word in rest if word.startswith("needs=")), "")
        line = content.count("\n", 0, match.start()) + 1
        found.append(Block(headings[-1] if headings else "", language, status, match["text"], line, needs))
    return found


def command(heading: str) -> str:
    """The first sh block under a heading of the README. Raises LookupError if there is none."""
    for block in blocks(ROOT / "README.md"):
        if block.heading == heading and block.language == "sh":
            return block.text
    raise LookupError(f"README.md has no sh block under {heading!r}")


if __name__ == "__main__":
    sys.stdout.write(command(sys.argv[1]))
