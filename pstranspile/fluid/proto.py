"""Fluid's messages as protobuf classes.

They are the messages of programs and of op declarations (`framework_pb2`), of the layout of samples (`data_feed_pb2`),
of a program's training on a data set, without those of pslib (`trainer_desc_pb2`), and of the durations of ops
(`profiler_pb2`).
"""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.graph.values import VarType as VarType
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends.program_desc import MESSAGES as SCHEMA
from pstranspile.frontends.program_desc import Field, message_classes
from pstranspile.ir.attributes import AttrKind

_OF_OPS = {
    "OpProto": {
        "type": Field(1, "string"),
        "inputs": Field(2, "OpProtoVar", True),
        "outputs": Field(3, "OpProtoVar", True),
        "attrs": Field(4, "OpProtoAttr", True),
        "comment": Field(5, "string"),
    },
    "OpProtoVar": {
        "name": Field(1, "string"),
        "comment": Field(2, "string"),
        "duplicable": Field(3, "bool"),
        "intermediate": Field(4, "bool"),
        "dispensable": Field(5, "bool"),
    },
    "OpProtoAttr": {
        "name": Field(1, "string"),
        "type": Field(2, "AttrType"),
        "comment": Field(3, "string"),
        "generated": Field(4, "bool"),
    },
}


_ENUMS = {
    "Type": {kind.name: kind.value for kind in VarType},
    "AttrType": {kind.name: kind.value for kind in AttrKind},
    "Compatibility": {"COMPATIBLE": 0, "DEFINITELY_NOT": 1, "POSSIBLE": 2, "BUG_FIX": 3, "PRECISION_CHANGE": 4},
}
_NUMBERED = {
    ("VarType", "type"): "Type",
    ("TensorDesc", "data_type"): "Type",
    ("Tuple", "element_type"): "Type",
    ("OpAttr", "type"): "AttrType",
    ("CompatibleInfo", "type"): "Compatibility",
}
"""The fields whose numbers are shown by name in the text of a message."""


def _with_text(message: str, fields: dict[str, Field]) -> dict[str, Field]:
    texts = {name: "string" for name, field in fields.items() if field.type == "bytes"}
    return {
        name: field._replace(type=_NUMBERED.get((message, name), texts.get(name, field.type)))
        for name, field in fields.items()
    }


_OF_PROGRAMS = message_classes(
    {**{name: _with_text(name, fields) for name, fields in SCHEMA.items()}, **_OF_OPS}, _ENUMS
)
OpProto: Any = _OF_PROGRAMS["OpProto"]
OpDesc: Any = _OF_PROGRAMS["OpDesc"]
VarDesc: Any = _OF_PROGRAMS["VarDesc"]
BlockDesc: Any = _OF_PROGRAMS["BlockDesc"]
ProgramDesc: Any = _OF_PROGRAMS["ProgramDesc"]
Version: Any = _OF_PROGRAMS["Version"]
INT, FLOAT, STRING, INTS, FLOATS, STRINGS, BOOLEAN, BOOLEANS, BLOCK, LONG, BLOCKS, LONGS = (
    k.value
    for k in AttrKind
    if k is not AttrKind.FLOAT64  # Fluid 1.8 has no such kind
)


_SAMPLES = {
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

_OF_SAMPLES = message_classes(_SAMPLES)
Slot: Any = _OF_SAMPLES["Slot"]
MultiSlotDesc: Any = _OF_SAMPLES["MultiSlotDesc"]
DataFeedDesc: Any = _OF_SAMPLES["DataFeedDesc"]


_OF_TRAININGS = message_classes(
    {
        **_SAMPLES,
        "TrainerDesc": {
            "class_name": Field(1, "string"),
            "device_worker_name": Field(2, "string"),
            "thread_num": Field(3, "int32"),
            "binding_cpu": Field(4, "bool"),
            "filelist": Field(5, "string", True),
            "debug": Field(6, "bool"),
            "fetch_config": Field(7, "FetchConfig"),
            "use_cvm": Field(8, "bool"),
            "dump_slot": Field(9, "bool"),
            "scale_datanorm": Field(10, "float", default="-1"),
            "mpi_rank": Field(11, "int32", default="-1"),
            "dump_fields_path": Field(12, "string"),
            "dump_fields": Field(13, "string", True),
            "dump_converter": Field(14, "string"),
            "dump_param": Field(15, "string", True),
            "mpi_size": Field(16, "int32", default="-1"),
            "dump_file_num": Field(17, "int32", default="16"),
            "check_nan_var_names": Field(18, "string", True),
            "copy_table_config": Field(19, "CopyTableConfig"),
            "adjust_ins_weight_config": Field(20, "AdjustInsWeightConfig"),
            "no_cvm": Field(21, "bool"),
            "thread_barrier": Field(22, "bool"),
            "loss_names": Field(23, "string", True),
            "hogwild_param": Field(101, "HogwildWorkerParameter"),
            "data_desc": Field(201, "DataFeedDesc"),
        },
        "FetchConfig": {
            "fetch_var_names": Field(1, "string", True),
            "fetch_var_str_format": Field(2, "string", True),
            "print_period": Field(3, "int32", default="100"),
            "method": Field(4, "int32"),
        },
        "HogwildWorkerParameter": {
            "skip_ops": Field(1, "string", True),
            "stat_var_names": Field(2, "string", True),
        },
        "AdjustInsWeightConfig": {
            "need_adjust": Field(1, "bool"),
            "nid_slot": Field(2, "string"),
            "nid_adjw_threshold": Field(3, "float"),
            "nid_adjw_ratio": Field(4, "float"),
            "ins_weight_slot": Field(5, "string"),
        },
        "CopyTableConfig": {
            "need_copy": Field(1, "bool"),
            "batch_num": Field(2, "int32", default="100"),
            "src_sparse_tables": Field(3, "int32", True),
            "dest_sparse_tables": Field(4, "int32", True),
            "src_dense_tables": Field(5, "int32", True),
            "dest_dense_tables": Field(6, "int32", True),
            "src_var_list": Field(7, "string", True),
            "dest_var_list": Field(8, "string", True),
            "dense_pull_after_copy": Field(9, "bool"),
            "sparse_copy_by_feasign": Field(10, "bool", default="true"),
            "enable_dependency": Field(11, "bool"),
            "table_denpendency_map": Field(12, "TableDependencyMap", True),
        },
        "TableDependencyMap": {"key": Field(1, "int32"), "values": Field(2, "int32", True)},
    }
)
TrainerDesc: Any = _OF_TRAININGS["TrainerDesc"]


_TYPES = {"CPU": 0, "GPUKernel": 1}
_PLACES = {"CUDAPlace": 0, "CPUPlace": 1, "CUDAPinnedPlace": 2}
_OF_PROFILES = message_classes(
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
MemCopy: Any = _OF_PROFILES["MemCopy"]
Event: Any = _OF_PROFILES["Event"]
Event.CPU, Event.GPUKernel = _TYPES.values()
MemEvent: Any = _OF_PROFILES["MemEvent"]
MemEvent.CUDAPlace, MemEvent.CPUPlace, MemEvent.CUDAPinnedPlace = _PLACES.values()
Profile: Any = _OF_PROFILES["Profile"]

__getattr__ = names_of_fluid(__name__, globals())
