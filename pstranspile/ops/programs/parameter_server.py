"""Communication with parameter servers."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.facts import Below
from pstranspile.ops.schema import STRING, blocks, declare, declare_gradient, long, longs, strings
from pstranspile.ops.shapes import Types, dtype_attr, one, several, shape_rule

declare(
    "send",
    "X* -> Out*",
    {
        "trainer_id": 0,
        "epmap": strings("127.0.0.1:6164"),
        "sections": longs(),
        "send_varnames": strings(),
        "num": 0,
        "merge_add": False,
        "use_send_handler": True,
    },
    communicates="request",
    sends="X",
    lists_may_be_empty=True,
    doc="sends X to the servers epmap",
)
declare(
    "send_barrier",
    "X* -> Out*",
    {"trainer_id": 0, "endpoints": strings("127.0.0.1:6164"), "half_async": False},
    communicates="request",
    lists_may_be_empty=True,
    doc="tells all servers that this trainer sent everything",
)
declare(
    "recv",
    "X* -> Out*",
    {
        "epmap": strings(),
        "trainer_id": 0,
        "with_barrier": True,
        "varnames": strings(),
        "recv_varnames": strings(),
        "do_not_run": 0,
    },
    communicates="request",
    receives="Out",
    lists_may_be_empty=True,
    doc="Out = the variables of the servers epmap",
)
declare(
    "fetch_barrier",
    "X*? -> Out*",
    {"trainer_id": 0, "endpoints": strings("127.0.0.1:6164")},
    communicates="request",
    lists_may_be_empty=True,
    doc="tells all servers that this trainer received everything",
)
declare(
    "listen_and_serv",
    "X* ->",
    {
        "endpoint": "127.0.0.1:6164",
        "pserver_id": -1,
        "grad_to_block_id": strings(),
        "distributed_mode": 0,
        "dc_asgd": False,
        "optimize_blocks": blocks(),
        "prefetch_var_name_to_block_id": strings(),
        "sparse_grad_to_param": strings(),
        "Fanin": 1,
        "checkpint_block_id": -1,
        "lr_decay_block_id": -1,
        "rpc_get_thread_num": 1,
        "rpc_send_thread_num": 1,
        "rpc_prefetch_thread_num": 1,
    },
    communicates="server",
    lists_may_be_empty=True,
    doc="serves the parameters of this server until all trainers have left",
)
declare(
    "fl_listen_and_serv",
    "X* ->",
    {"endpoint": "127.0.0.1:6164", "sync_mode": True, "Fanin": 1, "optimize_blocks": blocks()},
    communicates="server",
    lists_may_be_empty=True,
    doc="serves federated learning",
)
declare(
    "prefetch",
    "X* -> Out*",
    {"trainer_id": 0, "epmap": strings("127.0.0.1:6164")},
    communicates="request",
    sends="X",
    receives="Out",
    doc="Out = the rows of tables on the servers epmap at the ids X",
)
declare(
    "distributed_lookup_table",
    "Ids* W -> Outputs*",
    {
        "table_names": strings(""),
        "height_sections": longs(),
        "endpoints": strings("127.0.0.1:6164"),
        "trainer_id": 0,
        "lookup_table_version": "lookup_table",
        "padding_idx": long(-1),
        "dtype": 5,
    },
    communicates="request",
    sends="Ids",
    receives="Outputs",
    looks_up="W",
    domains={"Ids": Below("W", 0)},
    doc="Outputs = the rows of the table cut over `endpoints` at Ids",
)
declare(
    "checkpoint_notify",
    "->",
    {"epmap": strings("127.0.0.1:6164"), "dir": STRING, "lookup_table": STRING, "trainer_id": 0},
    communicates="command",
    doc="tells the servers to save their part of lookup_table",
)
declare(
    "shrink_table",
    "->",
    {"epmap": strings("127.0.0.1:6164"), "table": STRING, "unseen": 1},
    communicates="command",
    doc="has rows leave the parts of a large table on the servers epmap that had no gradient for `unseen` such ops",
)
declare(
    "recv_save",
    "->",
    {
        "dtype": 5,
        "overwrite": True,
        "file_path": STRING,
        "shape": longs(),
        "slice_varnames": strings(),
        "remote_varnames": strings(),
        "slice_shapes": strings(),
        "endpoints": strings(),
        "trainer_id": 0,
    },
    communicates="command",
    doc="writes a variable to a file, its slices fetched from `endpoints` one by one",
)


@shape_rule("distributed_lookup_table")
def _distributed_lookup_table(op: Op, types: Types) -> Types:
    table, ids = one(types, "W"), several(types, "Ids")
    dropped = op.attrs.get("lookup_table_version") == "lookup_table"
    leading = [item.shape[:-1] if dropped else item.shape for item in ids]
    width, dtype = table.shape[1], dtype_attr(op)
    rows = [TensorType(dtype, (*dims, width), item.lod_level) for dims, item in zip(leading, ids, strict=True)]
    return {"Outputs": tuple(rows)}


# Tables held by Fluid's own servers (pslib).

_TABLE = {
    "EmbeddingDim": 11,
    "TableId": 0,
    "AccessorClass": "",
    "CtrLabelName": "",
    "PaddingId": 0,
    "ScaleSparseGrad": True,
    "InputNames": strings(),
    "is_distributed": True,
}

declare(
    "pull_sparse",
    "Ids* W* -> Out*",
    _TABLE,
    doc="Out = the rows of table TableId at Ids",
)
declare_gradient("pull_sparse", "Ids* W* Out@GRAD* -> Out@GRAD*", op_type="push_sparse")
declare(
    "pull_sparse_v2",
    "Ids* W* -> Out*",
    _TABLE,
    doc="as pull_sparse, Ids of any shape",
)
declare_gradient("pull_sparse_v2", "Ids* W* Out@GRAD* -> Out@GRAD*", op_type="push_sparse_v2")
declare(
    "push_dense",
    "Ids* ->",
    {"TableId": -1, "ScaleDataNorm": -1.0, "InputNames": strings()},
    doc="sends the gradients of dense parameters to table TableId",
)
