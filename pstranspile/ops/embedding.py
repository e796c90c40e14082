"""Lookups in tables."""

from __future__ import annotations

from pstranspile.ops.schema import declare, declare_gradient, long, longs, strings

_TABLE = {"is_sparse": False, "is_distributed": False, "padding_idx": long(-1)}

declare(
    "lookup_table",
    "W Ids -> Out",
    {
        "grad_inplace": False,
        "remote_prefetch": False,
        "trainer_id": 0,
        "height_sections": longs(),
        "epmap": strings(),
        "table_names": strings(),
        **_TABLE,
    },
    doc="Out = the rows of W at Ids [..., 1]; rows at padding_idx are zero",
)
declare_gradient("lookup_table", "W Ids Out@GRAD -> W@GRAD")
declare(
    "lookup_table_v2",
    "W Ids -> Out",
    {
        "remote_prefetch": False,
        "trainer_id": 0,
        "height_sections": longs(),
        "epmap": strings(),
        "table_names": strings(),
        **_TABLE,
    },
    doc="Out = the rows of W at Ids of any shape",
)
declare_gradient("lookup_table_v2", "W Ids Out@GRAD -> W@GRAD")
declare(
    "lookup_sparse_table",
    "W Ids -> Out",
    {"padding_idx": long(-1), "auto_grown_table": True, "is_test": False},
    doc="Out = the rows of the SelectedRows W at Ids, taken in as they come when it grows by itself",
)
