"""Fluid's messages of how a program is trained on a data set, as protobuf's classes; without those of pslib."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.proto import data_feed_pb2
from pstranspile.frontends.protobuf_schema import Field, message_classes

_CLASSES = message_classes(
    {
        **data_feed_pb2.MESSAGES,
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
TrainerDesc: Any = _CLASSES["TrainerDesc"]
