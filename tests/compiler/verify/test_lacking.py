"""Variables without a value, without a declaration, or of another kind: refused where Fluid fails, else warned of."""

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.runtime.run.step_feeds import Feeds

HEAD = """ir 1
program @main {
  block ^0 {
    temp %x : f32[3, 4] feed
    temp %n : f32[3, 4]
    temp %n2 : f32[3, 4]
    temp %y : f32[3, 4]
    temp %z : f32[3, 4]
    temp %rows : rows f32[3, 4]
    temp %rows2 : rows f32[3, 4]
    temp %array : array f32[3, 4]
    temp %raw : raw
    temp %ids : i64[3, 1]
    temp %chosen : bool[3, 1]
    temp %go : bool[1]
    temp %scope : step_scopes
    state %w : f32[4, 4]
"""
LATE = "    relu(X=%x) -> Out=%n\n    relu(X=%x) -> Out=%n2\n"
RUNS = {
    "sum": "sum(X=[%x, %n]) -> Out=%y",
    "sum, first": "sum(X=[%n, %x]) -> Out=%y",
    "sum, in place": "sum(X=[%y, %x]) -> Out=%y",
    "merge": "fill_constant -> Out=%chosen {shape=[3, 1], dtype=0, value=1.0}\n"
    "merge_lod_tensor(X=%x, Mask=%chosen, InTrue=%x, InFalse=%n) -> Out=%y",
    "named by an op that runs a block": "fill_constant -> Out=%go {shape=[1], dtype=0, value=1.0}\n"
    "relu(X=%x) -> Out=%y\n"
    "conditional_block(Cond=[%go], Input=[%n]) -> Out=[], Scope=%scope {sub_block=^1, is_scalar_condition=true}\n"
    "block ^1 {\nrelu(X=%x) -> Out=%z\n}",
    "optional slot": "scale(X=%x, ScaleTensor=%nothing) -> Out=%y",
    "optional slot of no input": "fill_constant(ShapeTensor=%nothing) -> Out=%y {shape=[3, 4], value=1.0}",
    "the mask of a dropout that tests": "dropout(X=%x) -> Out=%y, Mask=%nothing "
    '{is_test=true, dropout_implementation="upscale_in_train"}',
    "a gradient nobody wants": "relu(X=%x) -> Out=%y\n"
    "elementwise_add_grad(X=%x, Y=%x, Out@GRAD=%y) -> X@GRAD=%nothing, Y@GRAD=%z : backward",
}
FAILS = {
    "sum of nothing": "relu(X=%x) -> Out=%y\nsum(X=[%n, %n2]) -> Out=%z",
    "sum, undeclared": "sum(X=[%x, %nothing]) -> Out=%y",
    "the mask of a dropout that trains": "dropout(X=%x) -> Out=%y, Mask=%nothing",
    "concat": "relu(X=%x) -> Out=%y\nconcat(X=[%x, %n]) -> Out=%z",
    "optional slot": "scale(X=%x, ScaleTensor=%n) -> Out=%y",
    "optional list": "relu(X=%x) -> Out=%y\nreshape2(X=%x, ShapeTensor=[%nothing]) -> Out=%z, XShape=%n {shape=[3, 4]}",
    "both": "scale(X=%x, ScaleTensor=%nothing) -> Out=%y\nrelu(X=%nothing) -> Out=%z",
    "sum, then another": "sum(X=[%x, %n]) -> Out=%y\nrelu(X=%n) -> Out=%z",
    "output": "relu(X=%x) -> Out=%nothing",
    "the only gradient": "relu(X=%x) -> Out=%y\nrelu_grad(Out=%y, Out@GRAD=%y) -> X@GRAD=%nothing : backward",
    "rows": "relu(X=%x) -> Out=%rows",
    "rows of a sum": "sum(X=[%x, %x]) -> Out=%rows",
    "array": "mul(X=%x, Y=%w) -> Out=%array",
    "raw": "fill_constant_batch_size_like(Input=%x) -> Out=%raw {shape=[3, 4]}",
    "tensor for rows": "fill_constant -> Out=%ids {shape=[3, 1], dtype=3}\n"
    "lookup_table_grad(W=%w, Ids=%ids, Out@GRAD=%x) -> W@GRAD=%z {is_sparse=true} : backward",
    "rows for a tensor": "fill_constant -> Out=%ids {shape=[3, 1], dtype=3}\n"
    "lookup_table_grad(W=%w, Ids=%ids, Out@GRAD=%x) -> W@GRAD=%rows {is_sparse=false} : backward",
    "no array": "fill_constant -> Out=%ids {shape=[1], dtype=3}\nwrite_to_array(X=%x, I=%ids) -> Out=%z",
}


def module_of(ops: str) -> ps.Module:
    late = LATE if "%n" in ops.replace("%nothing", "") else ""
    return ps.loads(f"{HEAD}{ops}\n{late}  }}\n}}\n")


@pytest.mark.parametrize("name", RUNS)
def test_what_fluid_runs_is_a_warning_and_runs(name: str):
    module = module_of(RUNS[name])
    found = ps.verify(module)
    assert {each.code for each in found} & {"read-before-write", "undeclared-variable"}
    assert {each.severity.value for each in found} == {"warning"}
    out = ps.run(module.main, {"x": np.ones((3, 4), "float32")}, ["y"], ps.Scope())
    assert out["y"].tolist() == np.ones((3, 4)).tolist()


@pytest.mark.parametrize("name", FAILS)
def test_what_fluid_cannot_run_is_an_error(name: str):
    found = ps.verify(module_of(FAILS[name]))
    assert "error" in {each.severity.value for each in found}


@pytest.mark.parametrize(
    "op",
    [
        "fill_constant -> Out=%rows {shape=[3, 4]}",
        "uniform_random -> Out=%rows {shape=[3, 4]}",
        "fill_constant -> Out=%rows {shape=[3, 4]}\nsum(X=[%rows, %rows]) -> Out=%rows2",
    ],
)
def test_rows_are_made_by_what_makes_rows(op: str):
    assert not [each for each in ps.verify(module_of(op)) if each.severity.value == "error"]


def test_a_sum_of_nothing_says_so():
    feed = {"x": np.ones((3, 4), "float32")}
    with pytest.raises(ps.DiagnosticError, match="none of X has a value"):
        ps.run(module_of(FAILS["sum of nothing"]).main, feed, ["z"], ps.Scope())


BEFORE = {
    "in place": ("", "reshape2(X=%in) -> Out=%in, XShape=%shape {shape=[-1, 6]}\n    relu(X=%in) -> Out=%out"),
    "declared as an input": (" feed", "relu(X=%in) -> Out=%out\n    scale(X=%in) -> Out=%in {scale=2.0}"),
    "of another rank": (
        "",
        "transpose(X=%in) -> Out=%in {axis=[0, 2, 1]}\nreshape(X=%in) -> Out=%in {shape=[-1, 6]}",
    ),
}


@pytest.mark.parametrize("case", BEFORE)
def test_inputs_may_be_overwritten(case: str):
    """As Fluid has it: the declaration is that of the last op, what is fed may have other dims."""
    mark, ops = BEFORE[case]
    text = f"""ir 1
program @main {{
  block ^0 {{
    temp %in : f32[-1, {"2, 3" if mark else "6"}]{mark}
    temp %out : f32[-1, 6]
    temp %shape : f32[0, -1, 2, 3]
    {ops}
  }}
}}
"""
    module = ps.loads(text)
    found = ps.verify(module)
    assert {each.severity.value for each in found} <= {"warning"}
    assert ("read-before-write" in {each.code for each in found}) == (not mark)
    fed = np.arange(12, dtype="float32").reshape(2, 2, 3) - 5
    for feed in ({"in": fed}, Feeds(module.main, {"in": fed[None]}).step(0)):
        assert ps.run(module.main, feed, ["in"])["in"].size == 12
    assert (fed == np.arange(12).reshape(2, 2, 3) - 5).all()
    with pytest.raises(ps.DiagnosticError, match="in"):
        ps.run(module.main, {"in": fed.astype("float64")}, ["in"])


def test_what_an_op_writes_without_a_declaration_is_no_variable_later():
    late = "dropout(X=%x) -> Out=%y, Mask=%nothing {is_test=true}\nrelu(X=%nothing) -> Out=%z"
    found = [(each.severity.value, each.code) for each in ps.verify(module_of(late))]
    assert found == [("warning", "undeclared-variable"), ("error", "undeclared-variable")]
    late = "scale(X=%x, ScaleTensor=%nothing) -> Out=%y"
    kept = "dropout(X=%x) -> Out=%y, Mask=%nothing {is_test=true}\n"
    assert {each.severity.value for each in ps.verify(module_of(kept + late))} == {"warning"}
