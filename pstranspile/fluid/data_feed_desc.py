"""Fluid's `data_feed_desc`: what the samples of files look like, read from a file with protobuf's text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.proto import data_feed_pb2


class DataFeedDesc:
    """What samples look like. Raises OSError for a file that can't be read, ParseError for one with other text."""

    def __init__(self, proto_file: str):
        from google.protobuf import text_format

        self.proto_desc: Any = data_feed_pb2.DataFeedDesc(pipe_command="cat")
        text_format.Parse(Path(proto_file).read_text(encoding="utf-8"), self.proto_desc)

    def set_batch_size(self, batch_size: int) -> None:
        """Sets how many samples a batch has."""
        self.proto_desc.batch_size = batch_size

    def _slots(self, names: Sequence[str]) -> list[Any]:
        """The slots of these names. Raises ValueError where samples have none, KeyError for other names."""
        if self.proto_desc.name != "MultiSlotDataFeed":
            raise ValueError(f"only a MultiSlotDataFeed has slots, {self.proto_desc.name!r} has none")
        slots = {slot.name: slot for slot in self.proto_desc.multi_slot_desc.slots}
        return [slots[name] for name in names]

    def set_dense_slots(self, dense_slots_name: Sequence[str]) -> None:
        """Has slots give as many values in every sample. Raises ValueError and KeyError for what has no such slots."""
        for slot in self._slots(dense_slots_name):
            slot.is_dense = True

    def set_use_slots(self, use_slots_name: Sequence[str]) -> None:
        """Has slots be used. Raises ValueError and KeyError for what has no such slots."""
        for slot in self._slots(use_slots_name):
            slot.is_used = True

    def desc(self) -> str:
        """The description as protobuf's text."""
        from google.protobuf import text_format

        return text_format.MessageToString(self.proto_desc)


__getattr__ = names_of_fluid(__name__, globals())
