"""Fluid's messages of what samples look like, as protobuf's classes."""

from __future__ import annotations

from typing import Any

from pstranspile.frontends.protobuf_schema import Field, message_classes

MESSAGES = {
    "Slot": {
        "name": Field(1, "string"),
        "type": Field(2, "string"),
        "is_dense": Field(3, "bool"),
        "is_used": Field(4, "bool"),
        "shape": Field(5, "int32", True),
    },
    "MultiSlotDesc": {"slots": Field(1, "Slot", True)},
    "DataFeedDesc": {
        "name": Field(1, "string"),
        "batch_size": Field(2, "int32", default="32"),
        "multi_slot_desc": Field(3, "MultiSlotDesc"),
        "pipe_command": Field(4, "string"),
        "thread_num": Field(5, "int32"),
        "rank_offset": Field(6, "string"),
        "pv_batch_size": Field(7, "int32", default="32"),
    },
}

_CLASSES = message_classes(MESSAGES)
Slot: Any = _CLASSES["Slot"]
MultiSlotDesc: Any = _CLASSES["MultiSlotDesc"]
DataFeedDesc: Any = _CLASSES["DataFeedDesc"]
