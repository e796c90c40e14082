"""A process ends in order whatever the data: none of Arrow's threads holds an object of Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.data.tables import clicks, data, rows, write

pyarrow = pytest.importorskip("pyarrow", reason="files of text are parsed by pyarrow")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_arrow_reads_text_from_memory_of_its_own(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """From an object of Python Arrow reads ahead in a thread, which now and then aborted the process as it ended."""
    from pyarrow import csv, json

    given: list[Any] = []

    def noting(read: Any) -> Any:
        return lambda source, *more, **options: (given.append(source), read(source, *more, **options))[1]

    monkeypatch.setattr(csv, "read_csv", noting(csv.read_csv))
    monkeypatch.setattr(json, "read_json", noting(json.read_json))
    source = data(write(tmp_path / f"x.{kind}", rows(30)))
    assert len(clicks(source)) > 0
    assert given
    assert all(isinstance(one, pyarrow.BufferReader) for one in given)
