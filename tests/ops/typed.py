"""Ops over variables of given types, for the tests of shape rules."""

from collections.abc import Mapping

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DTYPES
from pstranspile.ops.build import make_op
from pstranspile.ops.shapes import ShapeError, ShapeProblem, TypeOf, describe, infer_types, output_problems


def tensor(text: str, lod: int = 0) -> TensorType:
    """`f32[2, 3]` as a type."""
    dtype, _, dims = text.partition("[")
    return TensorType(DTYPES[dtype], tuple(int(dim) for dim in dims.rstrip("]").split(",") if dim), lod)


def op_and_types(op_type: str, inputs: Mapping[str, object], attrs: Mapping = {}, outputs: Mapping = {}):
    """An op over variables named by slot and position, and their types; a single type stands for a list of one."""
    types: dict[str, TensorType | None] = {}

    def slots(given: Mapping[str, object]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for slot, items in given.items():
            listed = items if isinstance(items, list) else [items]
            found[slot] = [f"{slot}.{at}" for at in range(len(listed))]
            types.update(zip(found[slot], [tensor(t) if isinstance(t, str) else t for t in listed], strict=True))
        return found

    op = make_op(op_type, slots(inputs), slots(outputs), attrs)
    return op, types


def check_types(op: Op, type_of: TypeOf) -> list[ShapeProblem]:
    """Where an op's declared types disagree, with each other or with what the op gives. Empty: nowhere known."""
    try:
        inferred = infer_types(op, type_of)
    except ShapeError as error:
        return [ShapeProblem(error.message, error.slot, op.input(error.slot) or "")]
    return output_problems(op, inferred, type_of)


def problems(op_type: str, inputs: Mapping[str, object], attrs: Mapping = {}, outputs: Mapping = {}) -> list[str]:
    op, types = op_and_types(op_type, inputs, attrs, outputs)
    return [problem.message for problem in check_types(op, types.get)]


def infer(op_type: str, inputs: Mapping[str, object], attrs: Mapping = {}) -> dict[str, list[str]]:
    """What the op gives, as text; outputs have to be neither named nor declared for that."""
    op, types = op_and_types(op_type, inputs, attrs)
    return {slot: [describe(item) for item in held if item] for slot, held in infer_types(op, types.get).items()}
