"""Fluid's messages of how long ops took, as protobuf's classes."""

from __future__ import annotations

from typing import Any

from pstranspile.frontends.protobuf_schema import Field, message_classes

_TYPES = {"CPU": 0, "GPUKernel": 1}
_PLACES = {"CUDAPlace": 0, "CPUPlace": 1, "CUDAPinnedPlace": 2}
_CLASSES = message_classes(
    {
        "MemCopy": {"bytes": Field(1, "uint64")},
        "Event": {
            "name": Field(1, "string"),
            "start_ns": Field(2, "uint64"),
            "end_ns": Field(3, "uint64"),
            "device_id": Field(5, "int64"),
            "sub_device_id": Field(6, "int64"),
            "memcopy": Field(7, "MemCopy"),
            "type": Field(8, "EventType"),
            "detail_info": Field(9, "string"),
        },
        "MemEvent": {
            "start_ns": Field(1, "uint64"),
            "end_ns": Field(2, "uint64"),
            "bytes": Field(3, "uint64"),
            "place": Field(4, "Place"),
            "thread_id": Field(5, "uint64"),
            "device_id": Field(6, "int32"),
            "alloc_in": Field(7, "string"),
            "free_in": Field(8, "string"),
        },
        "Profile": {
            "events": Field(1, "Event", True),
            "start_ns": Field(2, "uint64"),
            "end_ns": Field(3, "uint64"),
            "mem_events": Field(4, "MemEvent", True),
        },
    },
    {"EventType": _TYPES, "Place": _PLACES},
)
MemCopy: Any = _CLASSES["MemCopy"]
Event: Any = _CLASSES["Event"]
Event.CPU, Event.GPUKernel = _TYPES.values()
MemEvent: Any = _CLASSES["MemEvent"]
MemEvent.CUDAPlace, MemEvent.CPUPlace, MemEvent.CUDAPinnedPlace = _PLACES.values()
Profile: Any = _CLASSES["Profile"]
