"""Which diagnostic codes a part of the package names."""

import ast
import re
from pathlib import Path

from pstranspile.ir.codes import CODES

PACKAGE = Path(__file__).parent.parent / "pstranspile"

QUOTED = re.compile(r"(?<=[\"'])[a-z0-9-]+(?=[\"'])")
"""Words in quotation marks, as codes stand in the sources."""


def codes_in(folder: str = "") -> set[str]:
    """The codes that stand in the source files of a folder of the package, but for the list of all codes."""
    files = [path for path in (PACKAGE / folder).rglob("*.py") if path != PACKAGE / "ir" / "codes.py"]
    found: set[str] = set()
    for path in files:
        text = path.read_text(encoding="utf-8")
        if (CODES - found).isdisjoint(QUOTED.findall(text)):
            continue  # to parse all sources would take seconds
        nodes = ast.walk(ast.parse(text))
        found |= CODES & {
            node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
    return found
