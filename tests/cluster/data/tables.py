"""One small table in every format, and a program that takes its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize

FORMATS = ("parquet", "arrow", "csv", "jsonl", "multislot")


def module() -> ps.Module:
    """Clicks from ragged ids and two dense numbers."""
    model = L.Draft(seed=4)
    ids = L.data(model, "ids", [-1, 1], "i64", lod_level=1)
    dense = L.data(model, "dense", [-1, 2], "f32")
    click = L.data(model, "click", [-1, 1], "f32")
    pooled = L.sequence_pool(L.embedding(ids, (50, 3), is_sparse=True), "sum")
    loss = L.mean(L.square_error_cost(L.fc(L.concat([pooled, dense], axis=1), 1), click))
    minimize(loss, SGD(0.01))
    return model.module()


def rows(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Rows whose `click` is their number."""
    random = np.random.default_rng(first + 7)
    return [
        {
            "click": float(first + number),
            "ids": random.integers(0, 50, random.integers(1, 5)).tolist(),
            "a": number / 8,
            "b": -number * 1.5,
        }
        for number in range(count)
    ]


def write(path: Path, given: list[dict[str, Any]], units: int = 10) -> str:
    """Writes rows in the format that the name says, in units of so many where the format has any."""
    kind = path.suffix[1:]
    if kind in ("parquet", "arrow"):
        import pyarrow
        from pyarrow import feather, parquet

        table = pyarrow.Table.from_pylist(given)
        if kind == "parquet":
            parquet.write_table(table, path, row_group_size=units)
        else:
            feather.write_feather(table, str(path), chunksize=units)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in given))
    elif kind == "csv":
        lines = [f"{r['click']},{' '.join(map(str, r['ids']))},{r['a']},{r['b']}\n" for r in given]
        path.write_text("click,ids,a,b\n" + "".join(lines))
    else:
        lines = [f"{len(r['ids'])} {' '.join(map(str, r['ids']))} 2 {r['a']} {r['b']} 1 {r['click']}\n" for r in given]
        path.write_text("".join(lines))
    return str(path)


def data(path: Path | str, **options: Any) -> ps.Data:
    """The rows of a file for the program."""
    columns = {} if str(path).endswith("multislot") else {"dense": ["a", "b"]}
    return ps.Data(path, **{"columns": columns, "batch": 8, **options})


def clicks(source: ps.Data, trainers: int = 1, steps: range | None = None) -> list[list[list[float]]]:
    """The clicks of every step, by trainer: the numbers of rows."""
    feeds, count = source.feeds([module().main] * trainers)
    taken = steps if steps is not None else range(count)
    return [[np.asarray(feed(step)["click"]).ravel().tolist() for feed in feeds] for step in taken]  # pyright: ignore
