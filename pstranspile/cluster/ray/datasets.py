"""Ray datasets as feeds: their blocks are the units in which rows are read and dealt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ray

from pstranspile.cluster.data.columns import Chunk, map_columns
from pstranspile.cluster.data.files import FileReader, ReadRequest, Unit
from pstranspile.cluster.data.source import BadRows, Data
from pstranspile.cluster.data.tables import chunk_of

_NAME = "the dataset"


class DatasetRows(Data):
    """The rows of a `ray.data.Dataset`, as `Data` are those of files. It is computed once, when this is made, and stays
    in Ray's object store. After a restart the job has the same rows, as long as the process that has made them runs.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch: int,
        columns: Mapping[str, str | Sequence[str]] | None = None,
        epochs: int = 1,
        shuffle: int | None = None,
        bad_rows: BadRows = "refuse",
    ):
        super().__init__((), batch=batch, columns=columns, epochs=epochs, shuffle=shuffle, bad_rows=bad_rows)
        self.files = [_NAME]
        self._blocks: list[Any] = dataset.to_arrow_refs()
        count: Any = ray.remote(num_cpus=0)(_rows_and_names)
        self._shapes: list[tuple[int, list[str]]] = ray.get([count.remote(block) for block in self._blocks])

    def readers(self, wanted: ReadRequest) -> dict[str, FileReader]:
        """The readers of the blocks, by name. Raises DiagnosticError."""
        return {_NAME: _BlockReader(self._blocks, self._shapes, wanted)}

    def sizes(self) -> list[tuple[str, int]]:
        """The rows of every block."""
        return [(_NAME, rows) for rows, _ in self._shapes]


def _rows_and_names(block: Any) -> tuple[int, list[str]]:
    return block.num_rows, list(block.column_names)


class _BlockReader:
    """Reads the blocks of a dataset from Ray's object store."""

    def __init__(self, blocks: Sequence[Any], shapes: Sequence[tuple[int, list[str]]], wanted: ReadRequest):
        self._blocks, self._shapes = blocks, shapes
        names = shapes[0][1] if shapes else ()
        self._column_map = map_columns(
            wanted.inputs, wanted.columns, names, _NAME, shown_by="dataset.columns()", on_left=wanted.on_left
        )

    def units(self) -> list[Unit]:
        """A unit for each block."""
        result: list[Unit] = []
        first = 0
        for place, (rows, _) in enumerate(self._shapes):
            result.append(Unit(_NAME, rows, first, place))
            first += rows
        return result

    def read(self, unit: Unit) -> Chunk:
        """The rows of a block."""
        return chunk_of(ray.get(self._blocks[unit.place]), self._column_map, unit)
