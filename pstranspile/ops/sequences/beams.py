"""Beam search: the best continuations of every prefix, step by step, and the resulting sentences."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.facts import Below
from pstranspile.ops.schema import INT, declare
from pstranspile.ops.shapes import Types, given, one, outputs_like, shape_rule

declare(
    "beam_search",
    "pre_ids pre_scores ids? scores -> selected_ids selected_scores parent_idx?",
    {"level": INT, "beam_size": INT, "end_id": INT, "is_accumulated": True},
    rows="own",
    row_order="by_values",
    doc="the best continuations of each beam",
)
declare(
    "beam_search_decode",
    "Ids Scores -> SentenceIds SentenceScores",
    {"beam_size": INT, "end_id": INT},
    rows="own",
    row_order="by_values",
    doc="the sentences of all beams",
)
declare(
    "gather_tree",
    "Ids Parents -> Out",
    domains={"Parents": Below("Ids", 2)},
    doc="Out = the sentences behind the last step of beams",
)


shape_rule("gather_tree")(outputs_like(Out="Ids"))


@shape_rule("beam_search")
def _beam_search(_op: Op, types: Types) -> Types:
    ids, scores = one(types, "pre_ids"), given(types, "pre_scores")
    result: dict[str, tuple[TensorType | None, ...]] = {"selected_ids": (TensorType(ids.dtype, (-1, 1)),)}
    if scores is not None:
        result["selected_scores"] = (TensorType(scores.dtype, (-1, 1)),)
    return result | {"parent_idx": (TensorType(DType.INT32, (-1,)),)}
