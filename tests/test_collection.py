"""Workers import test modules before they are collected; what is wrong with one is left to the collection."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import import_known

MODULES = {
    "collected_fine": "",
    "collected_fails": "raise OSError('no disk')",
    "collected_wrong": "def f(:",
    "collected_skips": "import pytest\npytest.skip('not here', allow_module_level=True)",
}


def test_a_module_that_fails_is_left_to_the_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    import_known(MODULES)
    assert [name for name in MODULES if name in sys.modules] == ["collected_fine"]
    del sys.modules["collected_fine"]
