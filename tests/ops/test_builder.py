"""Programs written with the builder are those that the text describes."""

from __future__ import annotations

import pytest

from pstranspile.ir.attributes import AttrKind, BlockRef, Floats, Ints, Long, Longs, Strings, float32
from pstranspile.ir.types import DTYPES, OpRole, VarKind, element_type
from pstranspile.ops.build import ProgramBuilder, as_attribute, build_module
from pstranspile.ops.textual import parse
from tests.strategies import exactly

TEXT = """ir 1

program @main seed=1 {
  block ^0 {
    param %w : f32[13, 1]
    state %lr : f32[1]
    temp  %x : f32[-1, 13] feed
    temp  %ids : rows i64[-1, 1] lod=1
    mul(X=%x, Y=%w) -> Out=%y {x_num_col_dims=2}
    sum(X=[%x, %y]) -> Out=%z : backward(%w, %w@GRAD)
    fill_constant() -> Out=%c {shape=[1, 2], value=0.1}
    while(X=%x, Condition=%c) -> Out=%x {sub_block=^1}
    block ^1 {
      increment(X=%i) -> Out=%i {step=2.0}
    }
    unheard_of {f=0.5, n=3, names=["a"], on=true}
  }
}
"""


def test_a_built_program_equals_its_parsed_text():
    main = ProgramBuilder(seed=1)
    block = main.block
    block.param("w", "f32", [13, 1])
    block.state("lr")
    block.temp("x", shape=[-1, 13], feed=True)
    block.temp("ids", "i64", [-1, 1], kind=VarKind.SELECTED_ROWS, lod_level=1)
    block.op("mul", {"X": "x", "Y": "w"}, {"Out": "y"}, x_num_col_dims=2)
    block.op("sum", {"X": ["x", "y"]}, {"Out": "z"}, role=OpRole.BACKWARD, role_vars=["w", "w@GRAD"])
    block.op("fill_constant", {}, {"Out": "c"}, shape=[1, 2], value=0.1)
    body = main.new_block(parent=block)
    block.op("while", {"X": "x", "Condition": "c"}, {"Out": "x"}, sub_block=body)
    body.op("increment", {"X": "i"}, {"Out": "i"}, step=2)
    block.op("unheard_of", attrs={"n": 3, "f": 0.5, "on": True, "names": ["a"]})
    assert exactly(build_module(main=main)) == exactly(parse(TEXT))


def test_plain_values_get_the_kind_that_is_asked_for():
    for value, kind, expected in [
        (1, AttrKind.LONG, Long(1)),
        (1, AttrKind.FLOAT, 1.0),
        (0.1, AttrKind.FLOAT, float32(0.1)),
        ([], AttrKind.LONGS, Longs()),
        ((1, 2), AttrKind.FLOATS, Floats((1.0, 2.0))),
        (2, AttrKind.BLOCK, BlockRef(2)),
        ([1], None, Ints((1,))),
        (["a"], None, Strings(("a",))),
        (Long(3), AttrKind.INT, Long(3)),
    ]:
        made = as_attribute(value, kind)
        assert (type(made), made) == (type(expected), expected)


@pytest.mark.parametrize(
    ("value", "kind"), [([], None), ([1, "a"], None), ("a", AttrKind.INT), (True, AttrKind.INT), (1, AttrKind.BOOLEAN)]
)
def test_values_without_that_kind_are_refused(value, kind):
    with pytest.raises(TypeError, match="kind"):
        as_attribute(value, kind)


def test_a_wrong_attribute_is_named():
    with pytest.raises(TypeError, match="scale, attribute bias: 'x' is no value of kind FLOAT"):
        ProgramBuilder().block.op("scale", {"X": "x"}, {"Out": "x"}, bias="x")


def test_names_are_declared_once():
    block = ProgramBuilder().block
    block.temp("x")
    with pytest.raises(ValueError, match="'x' is declared twice"):
        block.state("x")


def test_element_types_have_their_textual_name_and_that_of_fluid():
    names = {"f32": "float32", "i64": "int64", "u8": "uint8", "bool": "bool", "size_t": "size_t"}
    for text, fluid in names.items():
        assert element_type(text) is element_type(fluid) is DTYPES[text]


def test_an_unknown_element_type_is_refused():
    with pytest.raises(ValueError, match="'f31' is no element type"):
        ProgramBuilder().block.temp("x", "f31")
