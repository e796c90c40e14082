"""Which diagnostic codes a part of the package names."""

import ast
from pathlib import Path

from pstranspile.ir.codes import CODES

PACKAGE = Path(__file__).parent.parent / "pstranspile"


def codes_in(folder: str = "") -> set[str]:
    """The codes that stand in the source files of a folder of the package, but for the list of all codes."""
    files = [path for path in (PACKAGE / folder).rglob("*.py") if path != PACKAGE / "ir" / "codes.py"]
    nodes = (node for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return CODES & {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
