"""Communication between trainers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.gradient import WantedGradients, gradient, like_forward, output_gradients
from pstranspile.ops.schema import INT, STRING, declare, ints, strings
from pstranspile.ops.shapes import ShapeError, Types, describe, one, outputs_like, shape_rule

if TYPE_CHECKING:
    from pstranspile.ops.facts import AllReduce, StatedFacts

_RING = {"ring_id": 0, "use_calc_stream": False}


def _of_all(all_reduce: AllReduce = "") -> StatedFacts:
    """The facts of an op in which all trainers of a ring take part. `all_reduce` is the operation by which it combines
    values.
    """
    return {"communicates": "collective", "sends": "X", "receives": "Out", "all_reduce": all_reduce}


declare("c_allreduce_sum", "X -> Out", _RING, **_of_all("sum"), doc="Out = the sum of X over all trainers of the ring")
declare("c_allreduce_max", "X -> Out", _RING, **_of_all("max"), doc="Out = the largest X over all trainers of the ring")
declare(
    "c_allreduce_min", "X -> Out", _RING, **_of_all("min"), doc="Out = the smallest X over all trainers of the ring"
)
declare(
    "c_allreduce_prod", "X -> Out", _RING, **_of_all("prod"), doc="Out = the product of X over all trainers of the ring"
)
declare("c_broadcast", "X -> Out", {"root": 0, **_RING}, **_of_all(), doc="Out = X of trainer `root`")
declare(
    "c_allgather",
    "X -> Out",
    {"nranks": INT, **_RING},
    **_of_all(),
    doc="Out = X of all trainers, one after another along dim 0",
)
declare(
    "c_reducescatter",
    "X -> Out",
    {"nranks": 1, **_RING},
    **_of_all(),
    doc="Out = this trainer's part of the sum of X over all trainers",
)
declare("c_sync_calc_stream", "X -> Out", communicates="stream", doc="waits for all computations before it")
declare(
    "c_sync_comm_stream",
    "X -> Out",
    {"ring_id": 0},
    communicates="stream",
    doc="waits for all communications of the ring before it",
)
declare(
    "c_gen_nccl_id",
    "-> Out",
    {"endpoint": STRING, "other_endpoints": strings(), "rank": 0},
    communicates="set-up",
    doc="Out = the id of a ring, made by trainer 0 and given to the others",
)
declare(
    "c_comm_init",
    "X ->",
    {"nranks": INT, "rank": INT, "ring_id": 0},
    communicates="set-up",
    doc="joins the ring of the id X",
)
declare(
    "c_comm_init_all",
    "->",
    {"devices": ints(), "ring_id": 0},
    communicates="set-up",
    doc="makes a ring of all devices of this machine",
)
declare(
    "gen_nccl_id",
    "-> NCCLID",
    {
        "trainers": strings(),
        "trainer_id": INT,
        "nccl_comm_num": 1,
        "use_hierarchical_allreduce": False,
        "hierarchical_allreduce_inter_nranks": -1,
    },
    communicates="set-up",
    doc="NCCLID = the id of all trainers, made by trainer 0 and given to the others",
)
declare(
    "allreduce", "X -> Out", {"reduce_type": 0, "sync_mode": False}, **_of_all(), doc="Out = X reduced over all devices"
)
declare("broadcast", "X -> Out", {"sync_mode": False, "root": 0}, **_of_all(), doc="Out = X of device `root`")


shape_rule(
    "c_allreduce_sum",
    "c_allreduce_max",
    "c_allreduce_min",
    "c_allreduce_prod",
    "c_broadcast",
    "c_sync_calc_stream",
    "c_sync_comm_stream",
    "allreduce",
    "broadcast",
)(outputs_like(Out="X"))


@shape_rule("c_allgather")
def _allgather(op: Op, types: Types) -> Types:
    x = one(types, "X")
    rows = x.shape[0] * int_attr(op, "nranks", 1) if x.shape[0] >= 0 else -1
    return {"Out": (TensorType(x.dtype, (rows, *x.shape[1:])),)}


@shape_rule("c_reducescatter")
def _reducescatter(op: Op, types: Types) -> Types:
    x, ranks = one(types, "X"), int_attr(op, "nranks", 1)
    if x.shape[0] % ranks and x.shape[0] >= 0:
        raise ShapeError(f"X is {describe(x)}, its rows cannot be divided among {ranks} trainers", "X")
    rows = x.shape[0] // ranks if x.shape[0] >= 0 else -1
    return {"Out": (TensorType(x.dtype, (rows, *x.shape[1:])),)}


@gradient("c_allreduce_sum")
def _allreduce_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out")}
    return (like_forward(op, "c_allreduce_sum", inputs, {"Out": wanted.gradient_names(op, "X")}),)


@gradient("c_allgather")
def _allgather_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out")}
    return (like_forward(op, "c_reducescatter", inputs, {"Out": wanted.gradient_names(op, "X")}),)
