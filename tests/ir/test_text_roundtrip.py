"""Printing and reading back gives the same module to the last bit, for everything a ProgramDesc can hold."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from pstranspile.ir.attributes import Floats, Long
from pstranspile.ir.model import Block, FrozenMap, Module, Op, ParameterInfo, Program, TensorType, Var
from pstranspile.ir.types import DType, VarKind
from pstranspile.ops.textual import LANGUAGE, format_text, parse, print_module, print_program
from tests.hostile.counts import cases
from tests.ir import by_grammar
from tests.strategies import exactly, modules

big = settings(
    max_examples=cases(30), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@big
@given(modules)
def test_print_then_parse_is_the_identity(module: Module):
    text = print_module(module)
    assert exactly(parse(text)) == exactly(module)
    assert print_module(parse(text)) == text


@big
@given(modules)
def test_the_reader_gives_the_result_of_lark(module: Module):
    text = print_module(module)
    assert exactly(parse(text, "a.ir"), places=True) == exactly(by_grammar.read(text, "a.ir"), places=True)


@big
@given(modules)
def test_format_leaves_canonical_text_as_it_is(module: Module):
    text = print_module(module)
    assert format_text(text) == text


def one(op: Op) -> Module:
    return Module(FrozenMap(main=Program((Block(ops=(op,)),))))


def test_a_program_prints_as_within_its_module():
    module = one(Op("relu", FrozenMap(X=("a",)), FrozenMap(Out=("b",))))
    assert print_module(module) == "ir 1\n\n" + print_program(module.main, "main")


def test_equal_modules_print_the_same_whatever_the_order_of_slots_and_attributes():
    there = Op("foo", FrozenMap(X=("a",), Y=("b",)), FrozenMap(), FrozenMap(m=1, n=Long(2)))
    back = Op("foo", FrozenMap(Y=("b",), X=("a",)), FrozenMap(), FrozenMap(n=Long(2), m=1))
    assert print_module(one(there)) == print_module(one(back))


def test_attributes_that_differ_only_in_kind_or_sign_are_distinct():
    values = [1, True, Long(1), 1.0, 0.0, -0.0, Floats((0.0,)), Floats((-0.0,)), 0, False]
    ops = tuple([Op("foo", attrs=FrozenMap(a=value)) for value in values for _ in range(20)])
    module = Module(FrozenMap(main=Program((Block(ops=ops),))))
    assert exactly(parse(print_module(module))) == exactly(module)


def test_more_than_two_hundred_nested_blocks_print_in_a_form_that_parses():
    from pstranspile.ir.attributes import BlockRef

    blocks = [
        Block(ops=(Op("while", attrs=FrozenMap(sub_block=BlockRef(i + 1))),) if i < 999 else (), parent=i - 1)
        for i in range(1000)
    ]
    module = Module(FrozenMap(main=Program(tuple(blocks))))
    assert parse(print_module(module)) == module


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, Long(2**63)])
def test_integers_beyond_their_kind_are_not_printed(value: int):
    with pytest.raises(ValueError, match="is no integer of"):
        print_module(one(Op("foo", attrs=FrozenMap(a=value))))


def test_a_variable_that_describes_another_kind_is_not_printed():
    odd = Var("x", VarKind.RAW, readers=(TensorType(DType.FP32, (1,)),))
    with pytest.raises(ValueError, match="'x' is a RAW but describes another kind"):
        print_module(Module(FrozenMap(main=Program((Block(FrozenMap(x=odd)),)))))


def test_many_ops_of_one_shape_some_with_names_to_quote():
    names = [f"v{i}" if i % 7 else f"odd name {i}" for i in range(200)] + ["", "a\nb", "ü"]
    ops = tuple([Op("mul", FrozenMap(X=(n,), Y=("w",)), FrozenMap(Out=(n,)), role_vars=("w", n)) for n in names])
    declared = FrozenMap({n: Var(n, VarKind.LOD_TENSOR, TensorType(DType.FP32, (1,))) for n in names})
    module = Module(FrozenMap(main=Program((Block(declared, ops),))))
    assert exactly(parse(print_module(module))) == exactly(module)


def test_shapes_with_varying_numbers_of_names():
    ops = tuple(
        [Op("sum", FrozenMap(X=tuple([f"x{i}" for i in range(n % 5)])), FrozenMap(Out=("y",))) for n in range(150)]
    )
    module = Module(FrozenMap(main=Program((Block(ops=ops),))))
    text = print_module(module)
    assert "sum(X=[%x0, %x1, %x2]) -> Out=%y" in text
    assert "sum(X=[]) -> Out=%y" in text
    assert exactly(parse(text)) == exactly(module)


def test_a_quoted_op_type_can_end_a_block():
    module = one(Op("no word", attrs=LANGUAGE.generic_defaults))
    text = print_module(module)
    assert '    "no word"\n  }\n' in text
    assert by_grammar.read(text) == parse(text) == module


def test_variables_with_a_shared_description_are_distinct():
    tensor = TensorType(DType.FP32, (1,))
    plain = Var("x", VarKind.LOD_TENSOR, tensor)
    forms = [
        plain,
        plain._replace(written_defaults=("lod_level",)),
        plain._replace(persistable=True),
        plain._replace(need_check_feed=True),
        plain._replace(kind=VarKind.SELECTED_ROWS),
        plain._replace(parameter=ParameterInfo()),
        plain._replace(parameter=ParameterInfo(learning_rate=0.0)),
        plain._replace(parameter=ParameterInfo(learning_rate=-0.0)),
        plain._replace(tensor=TensorType(DType.FP32, (1,), 0)),
    ]
    variables = [form._replace(name=f"x{i}") for i, form in enumerate([*forms, *reversed(forms), *forms])]
    module = Module(FrozenMap(main=Program((Block(FrozenMap({v.name: v for v in variables})),))))
    assert exactly(parse(print_module(module))) == exactly(module)


def test_values_are_shared_between_ops():
    text = print_module(
        Module(
            FrozenMap(main=Program((Block(ops=tuple([Op("foo", FrozenMap(X=("a",)), attrs=FrozenMap(n=3))] * 40)),)))
        )
    )
    ops = parse(text).main.main_block.ops
    assert len({id(op.attrs) for op in ops}) == 1
    assert len({id(op.inputs["X"]) for op in ops}) == 1


def test_long_lists():
    """Lists grow in place as they are read; with a copy per element this would take minutes."""
    numbers = ", ".join(map(str, range(100_000)))
    text = f"ir 1\n\nprogram @main {{\n  block ^0 {{\n    my_op {{v=[{numbers}]}}\n  }}\n}}\n"
    (op,) = parse(text).main.main_block.ops
    assert op.attrs["v"] == tuple(range(100_000))
    assert print_module(parse(text)) == text


def test_a_name_is_one_object_wherever_it_stands():
    op = Op("foo", FrozenMap(X=("%a", "b")), FrozenMap(Out=("b",)), role_vars=("%a", "b"))
    block = Block(FrozenMap({"%a": Var("%a"), "b": Var("b")}), (op,) * 40)
    module = parse(print_module(Module(FrozenMap(main=Program((block,)), startup=Program((block,))))))
    found = [name for program in module.programs.values() for name in program.main_block.vars]
    for read in module.main.main_block.ops:
        found += [*read.input_names, *read.output_names, *(read.role_vars or ())]
    assert len({id(name) for name in found}) == 2
