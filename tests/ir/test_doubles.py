"""Attributes in double precision, which stand wherever a FLOAT may, in text and in a ProgramDesc."""

import pytest

import pstranspile as ps
from pstranspile.frontends.program_desc import program_from_bytes, program_to_bytes
from pstranspile.ir.attributes import Double

TEXT = """ir 1
program @main {
  block ^0 {
    temp %x : f64[2]
    temp %y : f64[2]
    scale(X=%x) -> Out=%y {scale:double=0.1}
  }
}
"""


def test_a_double_is_kept_by_text_and_protobuf():
    module = ps.loads(TEXT)
    (op,) = module.main.main_block.ops
    assert op.attrs["scale"] == Double(0.1)
    assert type(op.attrs["scale"]) is Double
    assert "scale:double=0.1" in ps.dumps(module)
    again = program_from_bytes(program_to_bytes(module.main), "a.pb", "main")
    assert again.main_block.ops[0].attrs["scale"] == 0.1
    assert not [item for item in ps.verify(module) if item.code == "attribute-kind"]


def test_a_double_is_computed_with():
    scope = ps.Scope()
    out = ps.run(ps.loads(TEXT).main, feed={"x": [1.0, 3.0]}, fetch=["y"], scope=scope)["y"]
    assert list(out) == [0.1, 0.30000000000000004]


def test_a_number_beyond_doubles_is_refused():
    with pytest.raises(ps.DiagnosticError, match="does not fit a float64"):
        ps.loads(TEXT.replace("0.1", "1e999"))
