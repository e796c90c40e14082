"""Ops made one by one and in numbers."""

from __future__ import annotations

from pstranspile.ir.attributes import Strings
from pstranspile.ir.model import FrozenMap
from pstranspile.ir.types import OpRole
from pstranspile.ops.build import OpMaker, make_op


def test_an_op_maker_gives_the_ops_of_make_op_with_shared_attributes() -> None:
    attrs = {"epmap": Strings(["a:1"]), "trainer_id": 1}
    make = OpMaker("recv", attrs, role=OpRole.RPC)
    after = FrozenMap({"X": ("x",)})
    ops = [make(after, {"Out": (name,)}, ("p", "g")) for name in ("a", "b")]
    for op, name in zip(ops, ("a", "b"), strict=True):
        assert op == make_op("recv", {"X": ["x"]}, {"Out": [name]}, attrs, role=OpRole.RPC, role_vars=("p", "g"))
        assert op.attrs is ops[0].attrs
        assert op.inputs is after


def test_a_maker_fills_in_empty_inputs_as_make_op_does() -> None:
    made = OpMaker("scale", {"scale": 0.5})({"X": ("x",)}, {"Out": ("y",)})
    assert list(made.inputs.items()) == [("ScaleTensor", ()), ("X", ("x",))]
    assert made == make_op("scale", {"X": ["x"]}, {"Out": ["y"]}, {"scale": 0.5})
