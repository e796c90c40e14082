"""Files, functions and folders of the package stay small enough to be read at once."""

import ast
from collections import Counter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "pstranspile"
FILES = sorted(PACKAGE.rglob("*.py"))

LINES_OF_FILE, LINES_OF_FUNCTION, FILES_OF_FOLDER = 400, 60, 40


def functions_of(path: Path) -> dict[str, int]:
    """How many lines every function takes, by where it stands."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, functions)
    }


def test_no_file_is_too_long():
    lines = {str(path.relative_to(PACKAGE)): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {name: count for name, count in lines.items() if count > LINES_OF_FILE} == {}


def test_no_function_is_too_long():
    found = {where: count for path in FILES for where, count in functions_of(path).items()}
    assert {where: count for where, count in found.items() if count > LINES_OF_FUNCTION} == {}


def test_no_folder_has_too_many_files():
    counts = Counter(str(path.parent.relative_to(PACKAGE)) for path in FILES)
    assert {folder: count for folder, count in counts.items() if count > FILES_OF_FOLDER} == {}


@pytest.mark.parametrize(
    ("text", "lines"), [("def f():\n    return 1\n", 2), ("async def f():\n    a = 1\n    return a\n", 3)]
)
def test_lines_of_functions_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, lines: int):
    monkeypatch.setattr("tests.test_sizes.PACKAGE", tmp_path)
    (tmp_path / "one.py").write_text(text, encoding="utf-8")
    assert functions_of(tmp_path / "one.py") == {"one.py:1 f": lines}
