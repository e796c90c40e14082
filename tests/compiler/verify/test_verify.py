"""What the verifier accepts, and what texts can't show: values of the model, programs of servers, long programs."""

from pathlib import Path

import pytest

import pstranspile as ps
from pstranspile.compiler.verify import verify, verify_program
from pstranspile.frontends.program_desc import program_from_bytes
from pstranspile.ir.attributes import BlockRef
from pstranspile.ir.diagnostics import Diagnostic, Severity, render
from pstranspile.ir.model import Block, FrozenMap, Op, Program, TensorType, Var
from pstranspile.ir.types import DType, VarKind
from pstranspile.ops.build import make_op
from pstranspile.ops.textual import parse

ROOT = Path(__file__).parents[3]
GOLDEN = sorted((ROOT / "golden").glob("*.ir"))
RECORDED = sorted((ROOT / "tests" / "data" / "program_desc").glob("*.pb"))


def errors(found: tuple[Diagnostic, ...]) -> list[str]:
    return [render([d]) for d in found if d.severity is Severity.ERROR]


def codes(found: tuple[Diagnostic, ...]) -> list[str]:
    return [d.code for d in found]


def main(body: str) -> str:
    return "ir 1\nprogram @main {\nblock ^0 {\n" + body + "\n}\n}\n"


def tensor(name: str, *shape: int, dtype: DType = DType.FP32, persistable: bool = False) -> Var:
    return Var(name, VarKind.LOD_TENSOR, TensorType(dtype, shape), persistable)


def program(variables: list[Var], ops: list[Op], *more: Block) -> Program:
    return Program((Block(FrozenMap({v.name: v for v in variables}), tuple(ops)), *more))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_recorded_programs_have_no_errors(path: Path):
    assert errors(verify_program(program_from_bytes(path.read_bytes(), path.name, "main"))) == []


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_what_is_compiled_has_no_errors(path: Path, mode: str):
    module = ps.load(path)
    assert errors(verify(module)) == []
    for role in ps.compile(module, ps.Job(pservers=2, trainers=2, mode=mode)).roles().values():
        assert errors(verify(role.module)) == []


def test_findings_are_in_the_order_of_the_text():
    found = verify(parse(main("state %x : f32[2]\nrelu(X=%x) -> Out=%b\nmyop(X=%a) -> Out=%x\nrelu(Z=%x) -> Out=%c")))
    lines = [d.location.line for d in found if d.location]
    assert lines == sorted(lines)
    assert set(codes(found)) == {"undeclared-variable", "unknown-op", "unknown-slot", "missing-slot"}


def test_a_name_is_reported_once():
    found = verify(parse(main("temp %x : f32[2]\n" + "relu(X=%y) -> Out=%x\n" * 3)))
    assert codes(found) == ["undeclared-variable"]


def test_the_empty_name_of_gradient_makers_needs_no_declaration():
    text = "temp %x : f32[2]\ntemp %o@GRAD : f32[2]\nconcat_grad(X=[%x, %x], Out@GRAD=%o@GRAD) -> X@GRAD=[@, %g]"
    text = text.replace("[@, %g]", "[%@EMPTY@, %@EMPTY@]") + " {axis=0}"
    assert errors(verify(parse(main(text)))) == []


def test_places_of_programs_without_text():
    bad = program([tensor("x", 2)], [make_op("relu", {"X": ["y"]}, {"Out": ["x"]})])
    assert render(verify_program(bad, "net")) == "@net^0#0 relu: error[undeclared-variable]: relu: %y is not declared"


def test_a_value_of_no_attribute_kind():
    op = make_op("scale", {"X": ["x"]}, {"Out": ["x"]})
    op = op._replace(attrs=FrozenMap({**op.attrs, "scale": [1.0], "bias": 0}))  # type: ignore[dict-item]
    found = verify_program(program([tensor("x", 2, persistable=True)], [op]))
    assert [d.message for d in found] == [
        "scale: the attribute scale is a list, it must be of kind float",
        "scale: the attribute bias is of kind int, it must be of kind float",
    ]


def test_equal_values_of_different_kinds_are_told_apart():
    good = make_op("scale", {"X": ["x"]}, {"Out": ["x"]}, {"scale": 1.0})
    bad = good._replace(attrs=FrozenMap({**good.attrs, "scale": True}))
    found = verify_program(program([tensor("x", 2, persistable=True)], [good, bad, good]))
    assert codes(found) == ["attribute-kind"]


def test_types_are_checked_for_every_use_of_a_form():
    """Ops of the same form are looked at once only where their types are the same too."""
    ops = [make_op("relu", {"X": [a]}, {"Out": [b]}) for a, b in [("a", "b"), ("c", "d"), ("a", "d"), ("c", "b")]]
    variables = [tensor("a", -1, 4), tensor("b", -1, 4), tensor("c", -1, 5), tensor("d", -1, 5)]
    found = verify_program(program(variables, ops))
    assert [d.subject for d in found] == ["@main^0#2 relu", "@main^0#3 relu"]
    assert set(codes(found)) == {"type-mismatch"}


def test_rows_and_untyped_persistables_say_nothing():
    variables = [
        tensor("w", 10, 4, dtype=DType.BOOL, persistable=True),
        tensor("rate", 1, persistable=True),
        tensor("v", 5, 4, persistable=True),
        Var("g", VarKind.SELECTED_ROWS, TensorType(DType.FP32, (10, 4))),
    ]
    ops = [
        make_op("sgd", {"Param": [p], "Grad": ["g"], "LearningRate": ["rate"]}, {"ParamOut": [p]}) for p in ("w", "v")
    ]
    assert verify_program(program(variables, ops)) == ()


def test_a_result_whose_element_type_nobody_set_may_be_of_any():
    """Fluid declares it as bool, which is number 0: `fluid.gradients` makes the `shape` op below."""
    variables = [tensor("x", 4, 2), tensor("dims", 2, dtype=DType.BOOL), tensor("y", 4, 2, dtype=DType.INT32)]
    assert verify_program(program(variables, [make_op("shape", {"Input": ["x"]}, {"Out": ["dims"]})])) == ()
    found = verify_program(program(variables, [make_op("relu", {"X": ["x"]}, {"Out": ["y"]})]))
    assert codes(found) == ["type-mismatch"]


TWO_TYPES = """
program @main {
  block ^0 {
    state %rate : i64[1]
    temp %step : i64[1]
    temp %y : f32[1]
    fill_constant -> Out=%step {shape=[1], dtype=3}
    assign(X=%step) -> Out=%rate
    fill_constant -> Out=%rate {shape=[1], dtype=5}
    cast(X=%rate) -> Out=%y {in_dtype=3, out_dtype=5}
  }
}

program @startup {
  block ^0 {
    state %rate : f32[1]
    fill_constant -> Out=%rate {shape=[1], dtype=5}
  }
}
"""


def test_a_variable_that_is_written_with_two_element_types_is_a_warning():
    """Fluid's ExponentialMovingAverage makes its decay rate so, of an integer step counter."""
    found = verify(parse("ir 1\n" + TWO_TYPES))
    assert codes(found) == ["type-mismatch", "type-mismatch", "declared-differently"]
    assert errors(found) == []


IN_PLACE = """
program @main {
  block ^0 {
    param %w : f32[6, 4]
    temp %x : f32[-1, 6] feed
    temp %h : f32[-1, 2, 2]
    temp %shape : f32[0, -1, 2, 2]
    temp %y : f32[-1, 2, 2]
    mul(X=%x, Y=%w) -> Out=%h
    reshape2(X=%h) -> Out=%h, XShape=%shape {shape=[0, 2, 2]}
    transpose2(X=%h) -> Out=%y, XShape=%shape {axis=[0, 2, 1]}
    LAST
  }
}
"""


def test_a_variable_has_the_type_that_its_last_op_gave_it():
    """As after `fluid.layers.reshape(inplace=True)`: the declaration is that of the last op."""
    found = verify(parse("ir 1\n" + IN_PLACE.replace("LAST", "")))
    assert [d.severity.value for d in found] == ["warning"] * 2
    assert found[0].message == "mul: %h is declared f32[-1, 2, 2], the op gives f32[-1, 4]"
    again = "transpose2(X=%h) -> Out=%y, XShape=%shape {axis=[1, 0]}"
    wrong = verify(parse("ir 1\n" + IN_PLACE.replace("LAST", again)))
    assert [d.code for d in wrong if d.severity.value == "error"] == ["type-mismatch"]


DECLARED = """
program @main {
  block ^0 {
    param %w : f32[6, 4]
    temp %x : f32[-1, 5]
    temp %h : f32[-1, 5]
    temp %y : f32[-1, 4]
    my_op(X=%x) -> Out=%h
    mul(X=%h, Y=%w) -> Out=%y
  }
}
"""


@pytest.mark.parametrize(("op_type", "severity"), [("my_op", "warning"), ("relu", "error")])
def test_what_only_a_declaration_says_is_no_error(op_type: str, severity: str):
    found = verify(parse("ir 1\n" + DECLARED.replace("my_op", op_type)))
    (wrong,) = [d for d in found if d.code == "type-mismatch"]
    assert wrong.message == "mul: X is f32[-1, 5] with 5 columns, Y is f32[6, 4] with 6 rows"
    assert wrong.severity.value == severity


STARTUP = """
program @startup {
  block ^0 {
    param %w : f32[5, 4]
    fill_constant -> Out=%w {shape=[5, 4]}
  }
}
"""


def test_a_persistable_variable_has_the_type_that_startup_gives_it():
    main = "ir 1\n" + DECLARED.replace("my_op", "relu")
    assert len(errors(verify(parse(main)))) == 1
    assert codes(verify(parse(main + STARTUP))) == ["declared-differently"]
    assert errors(verify(parse(main + STARTUP))) == []


LOOP = """
state %limit : i64[1]
temp %i : i64[1]
temp %go : bool[1]
temp %sum : f32[1]
temp %steps : array f32[1]
temp %scopes : step_scopes
fill_constant -> Out=%i {shape=[1], dtype=3}
less_than(X=%i, Y=%limit) -> Out=%go
while(X=[%i, %sum], Condition=[%go]) -> Out=[%i, %sum], StepScopes=%scopes {sub_block=^1}
block ^1 {
  temp %value : f32[1]
  read_from_array(X=%steps, I=%i) -> Out=%value
  FIRST
  SECOND
  increment(X=%i) -> Out=%i
  less_than(X=%i, Y=%limit) -> Out=%go
}
assign(X=%sum) -> Out=%sum
"""


def test_a_loop_may_read_what_its_last_turn_wrote():
    read, write = "elementwise_add(X=%value, Y=%sum) -> Out=%value", "assign(X=%value) -> Out=%sum"
    assert errors(verify(parse(main(LOOP.replace("FIRST", read).replace("SECOND", write))))) == []


def test_a_loop_starts_each_turn_without_its_own_variables():
    text = LOOP.replace("FIRST", "temp %late : f32[1]\n  assign(X=%late) -> Out=%sum")
    found = verify(parse(main(text.replace("SECOND", "assign(X=%value) -> Out=%late"))))
    assert codes(found) == ["read-before-write"]


BRANCH_GRADIENT = (
    """
state %go : bool[1]
state %scopes : step_scopes
state %x : f32[4]
temp %a : f32[4]
temp %a@GRAD : f32[4]
temp %b : f32[4]
temp %x@GRAD : f32[4]
conditional_block(Cond=%go, Input=%x) -> Out=[%a, %b], Scope=%scopes {sub_block=^1}
block ^1 {
  scale(X=%x) -> Out=%a
  scale(X=%x) -> Out=%b
}
fill_constant -> Out=%a@GRAD {shape=[4], dtype=5} : backward
conditional_block_grad(Cond=%go, Input=%x, Out=[%a, %b], Out@GRAD=GRADIENTS, Scope=%scopes)"""
    """ -> Input@GRAD=%x@GRAD {sub_block=^2} : backward
block ^2 forward=^1 {
  scale(X=%a@GRAD) -> Out=%x@GRAD : backward
}
"""
)


def test_the_gradient_of_an_output_that_nothing_uses_needs_no_declaration():
    """Fluid leaves it out where the gradient op runs blocks (`layers.rnn` with an LSTMCell makes such programs)."""
    text = BRANCH_GRADIENT.replace("GRADIENTS", "[%a@GRAD, %b@GRAD]")
    assert errors(verify(parse(main(text)))) == []
    none = BRANCH_GRADIENT.replace("GRADIENTS", "[%b@GRAD]")
    assert codes(verify(parse(main(none)))) == ["undeclared-variable"]


SERVER = """
param %w : f32[4, 2]
state %rate : f32[1]
temp %w@GRAD : f32[4, 2]
temp %w@GRAD.trainer_0 : f32[4, 2]
temp %w@GRAD.trainer_1 : f32[4, 2]
listen_and_serv(X=[]) {endpoint="a:1", grad_to_block_id=["w@GRAD:1"], optimize_blocks=[^1]} : rpc
block ^1 {
  FIRST
  SECOND
}
"""
SUM = "sum(X=[%w@GRAD.trainer_0, %w@GRAD.trainer_1]) -> Out=%w@GRAD : optimize(%elsewhere, %elsewhere@GRAD)"
SGD = "sgd(Param=%w, Grad=%w@GRAD, LearningRate=%rate) -> ParamOut=%w : optimize(%elsewhere, %elsewhere@GRAD)"


def test_what_a_server_receives_needs_no_writer():
    assert verify(parse(main(SERVER.replace("FIRST", SUM).replace("SECOND", SGD)))) == ()


def test_a_server_that_updates_before_it_sums():
    assert codes(verify(parse(main(SERVER.replace("FIRST", SGD).replace("SECOND", SUM))))) == ["read-before-write"]


def test_the_blocks_a_server_names_by_number():
    text = SERVER.replace("FIRST", SUM).replace("SECOND", SGD)
    assert codes(verify(parse(main(text.replace('"w@GRAD:1"', '"w@GRAD:7"'))))) == ["block-reference"]
    text = text.replace("optimize_blocks=[^1]", "lr_decay_block_id=2, optimize_blocks=[^1]")
    assert codes(verify(parse(main(text + "block ^2 {\nincrement(X=%rate) -> Out=%rate\n}")))) == []
    assert codes(verify(parse(main(text)))) == ["block-reference"]


def test_deep_programs_do_not_exhaust_the_stack():
    count = 3000
    blocks = [Block(FrozenMap({v.name: v for v in (tensor("c", 1, dtype=DType.BOOL, persistable=True),)}))]
    blocks += [Block(FrozenMap(), (), index) for index in range(count)]

    def enter(index: int) -> Op:
        attrs = {"sub_block": BlockRef(index)}
        return make_op("conditional_block", {"Cond": ["c"], "Input": []}, {"Out": [], "Scope": ["@EMPTY@"]}, attrs)

    blocks = [block._replace(ops=(enter(i + 1),)) if i < count else block for i, block in enumerate(blocks)]
    assert codes(verify_program(Program(tuple(blocks)))) == ["nesting"]
    blocks[1:] = [block._replace(parent=0) for block in blocks[1:]]
    assert codes(verify_program(Program(tuple(blocks)))) == ["nesting"]
    loop = blocks[-1]._replace(ops=(enter(1),))
    assert codes(verify_program(Program((*blocks[:-1], loop)))) == ["block-reference-cycle"]


def test_many_wrong_names_take_no_time_to_suggest():
    ops = [make_op("relu", {"X": [f"wrong_{n}"]}, {"Out": ["x"]}) for n in range(3000)]
    variables = [tensor("x", 1), *(tensor(f"right_{n}", 1) for n in range(3000))]
    assert codes(verify_program(program(variables, ops))) == ["undeclared-variable"] * 3000


def test_programs_are_not_changed():
    module = ps.load(GOLDEN[0])
    before = ps.dumps(module)
    verify(module)
    assert ps.dumps(module) == before
