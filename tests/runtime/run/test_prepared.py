"""The prepared form gives bitwise what the straightforward form gives, and fails as it fails."""

from __future__ import annotations

import gc
import linecache
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pstranspile import loads
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.run.frame import Execution, interpret
from pstranspile.runtime.run.prepared import Prepared, prepare, run
from pstranspile.runtime.run.scope import Scope
from pstranspile.runtime.values import LoDTensor, SelectedRows
from tests.runtime.run.feeding import batch, same
from tests.training import CASES, case, recorded

READERS = {"py_reader"}  # its input comes from a reader; see test_readers

SMALL = """\
ir 1
program @main seed=1 {
  block ^0 {
    param %w : f32[3, 2]
    temp %x : f32[-1, 3] feed
    temp %xw : f32[-1, 2]
    temp %y : f32[-1, 2]
    temp %w@GRAD : f32[3, 2]
    state %lr : f32[1]
    mul(X=%x, Y=%w) -> Out=%xw
    relu(X=%xw) -> Out=%y
    mul_grad(X=%x, Y=%w, Out@GRAD=%y) -> X@GRAD=[], Y@GRAD=%w@GRAD
    sgd(Param=%w, Grad=%w@GRAD, LearningRate=%lr) -> ParamOut=%w
  }
}
"""


def small() -> tuple[Any, Scope, dict[str, Any]]:
    scope = Scope()
    scope["w"] = np.arange(6, dtype="float32").reshape(3, 2)
    scope["lr"] = np.array([0.5], "float32")
    return loads(SMALL).main, scope, {"x": np.ones((4, 3), "float32")}


@pytest.mark.parametrize("name", [name for name in CASES if name not in READERS])
def test_training_programs(name: str):
    module, loss = recorded(name), case(name)["loss"]
    plain, fast = Scope(), Scope()
    for scope in (plain, fast):
        assert module.startup is not None
        interpret(Execution(module.startup, scope, seed=5))
    execution, prepared = Execution(module.main, plain, seed=5), None
    for step in range(2):
        feed = batch(name, step)
        prepared = prepared or Prepared(Execution(module.main, fast, seed=5), tuple(feed), (loss,))
        want, got = interpret(execution, feed, (loss,)), prepared.step(feed)
        assert same(got[loss], want[loss])
        assert np.isfinite(got[loss]).all()
        assert set(fast) == set(plain)
        assert [key for key in plain if not same(fast[key], plain[key])] == []


def test_what_is_fetched_stays_as_it_was():
    main, scope, feed = small()
    prepared = prepare(main, ("x",), ("w", "y"), scope)
    first = prepared.step(feed)
    kept = {name: value.copy() for name, value in first.items()}
    prepared.step(feed)
    assert all(same(first[name], kept[name]) for name in kept)


def test_a_scope_may_be_changed_between_steps():
    main, scope, feed = small()
    prepared = prepare(main, ("x",), ("y",), scope)
    prepared.step(feed)
    scope["w"] = np.zeros((3, 2), "float32")
    assert not prepared.step(feed)["y"].any()


def test_a_variable_of_the_scope_may_become_ragged():
    main, scope, feed = small()
    prepared = prepare(main, ("x",), ("y",), scope)
    before = prepared.step(feed)["y"]
    scope["lr"] = np.zeros(1, "float32")
    scope["w"] = LoDTensor(np.ones((3, 2), "float32"), [[0, 3]])
    assert (prepared.step(feed)["y"] == 3).all()
    assert before.shape == (4, 2)


def test_a_feed_of_other_dims_is_taken():
    main, scope, feed = small()
    prepared = prepare(main, ("x",), ("y",), scope)
    assert prepared.step(feed)["y"].shape == (4, 2)
    assert prepared.step({"x": np.ones((7, 3), "float32")})["y"].shape == (7, 2)


RAGGED = """ir 1
program @main {
  block ^0 {
    temp %x : f32[-1, 3] lod=1 feed
    temp %y : f32[-1, 3] lod=1
    relu(X=%x) -> Out=%y
  }
}
"""


def test_a_ragged_feed_is_looked_at_again_when_it_changes_where_it_is():
    prepared = prepare(loads(RAGGED).main, ("x",), ("y",))
    levels, data = [[0, 1, 4]], np.ones((4, 3), "float32")
    for _ in range(2):
        assert prepared.step({"x": LoDTensor(data, levels)})["y"].lod == [[0, 1, 4]]
    levels[0][1] = 2
    assert prepared.step({"x": LoDTensor(data, levels)})["y"].lod == [[0, 2, 4]]
    levels[0][1] = 5
    with pytest.raises(DiagnosticError, match="must rise from 0 to 4"):
        prepared.step({"x": LoDTensor(data, levels)})
    tuples: Any = [(0, 3, 4)]
    for _ in range(2):
        assert prepared.step({"x": LoDTensor(data, tuples)})["y"].lod == [[0, 3, 4]]
    with pytest.raises(DiagnosticError, match="without LoD"):
        prepared.step({"x": data})


LODS_APART = """ir 1
program @main {
  block ^0 {
    temp %x : f32[-1, 3] lod=1 feed
    temp %w : f32[-1, 3] feed
    temp %y : f32[-1, 3] lod=1
    temp %z : f32[-1, 3] lod=1
    temp %s : f32[-1, 3] lod=1
    temp %shape : f32[0, -1, 3]
    temp %flat : f32[-1, 1] lod=1
    temp %rows : f32[-1]
    temp %p : f32[-1, 3]
    temp %index : i32[-1, 3]
    temp %parts0 : f32[-1, 1] lod=1
    temp %parts1 : f32[-1, 2] lod=1
    temp %grad : f32[-1, 3] lod=1
    state %kept : f32[-1, 3] lod=1
    relu(X=%x) -> Out=%y
    elementwise_mul(X=%w, Y=%y) -> Out=%z
    sum(X=[%z, %y, %x]) -> Out=%s
    scale(X=%s) -> Out=%kept { scale = 2.0 }
    reshape2(X=%z) -> Out=%flat, XShape=%shape { shape = [-1, 1] }
    reduce_sum(X=%kept) -> Out=%rows { dim = [0] }
    sequence_pool(X=%s) -> Out=%p, MaxIndex=%index { pooltype = "MAX" }
    relu_grad(Out=%y, Out@GRAD=%z) -> X@GRAD=%grad
    tanh(X=%y) -> Out=%y
    split(X=%y) -> Out=[%parts0, %parts1] { axis = 1, sections = [1, 2] }
    elementwise_add(X=%y, Y=%parts0) -> Out=%y
    elementwise_mul(X=%y, Y=%y) -> Out=%x
  }
}
"""


@pytest.mark.parametrize("fetch", ["x y z s flat rows p grad kept parts0 parts1", "y", "z p", "x grad"])
def test_values_with_lod_are_the_same_taken_apart(fetch: str):
    """The LoD has a local of its own: variables written anew, results of other rows, lists, and what is kept."""
    main, names, plain, fast = loads(LODS_APART).main, tuple(fetch.split()), Scope(), Scope()
    prepared = prepare(main, ("x", "w"), names, fast)
    for offsets in ([0, 2, 4], [0, 3], [0, 1, 1, 3], [0, 5]):
        x = np.linspace(-1, 2, 3 * offsets[-1], dtype="float32").reshape(-1, 3)
        feed = {"x": LoDTensor(x, [offsets]), "w": x * 3}
        want, got = interpret(Execution(main, plain), feed, names), prepared.step(feed)
        assert [name for name in names if not same(got[name], want[name])] == []
        assert same(fast["kept"], plain["kept"])
        assert isinstance(got[names[0]], LoDTensor)


def test_a_failure_behind_a_ragged_feed_is_the_same():
    """The values that are told of are those with their LoD, however the locals hold them."""
    main, told = loads(LODS_APART.replace("shape = [-1, 1]", "shape = [-1, 2]")).main, list[str]()
    feed = {"x": LoDTensor(np.ones((3, 3), "float32"), [[0, 1, 3]]), "w": np.ones((3, 3), "float32")}
    for form in (
        lambda: interpret(Execution(main, Scope()), feed, ("y",)),
        lambda: prepare(main, ("x", "w"), ("y",)).step(feed),
    ):
        with pytest.raises(DiagnosticError) as caught:
            form()
        told.append(str(caught.value))
    assert told[0] == told[1]
    assert "z f32[3, 3]" in told[0]


@pytest.mark.parametrize(
    ("change", "feed"),
    [
        (lambda scope: scope.pop("w"), {"x": np.ones((4, 3), "float32")}),
        (lambda scope: None, {"x": np.ones((4, 3), "float64")}),
        (lambda scope: None, {"x": np.ones((4, 5), "float32")}),
        (lambda scope: None, {"x": np.ones(3, "float32")}),
        (lambda scope: scope.update(w=np.ones((5, 2), "float32")), {"x": np.ones((4, 3), "float32")}),
        (
            lambda scope: scope.update(lr=SelectedRows(np.arange(1), np.ones((1, 1)), 1)),
            {"x": np.ones((4, 3), "float32")},
        ),
    ],
    ids=["no value", "element type", "dims", "rank", "dims inside", "sparse rate"],
)
def test_failures_are_the_same(change: Any, feed: dict[str, Any]):
    def straightforward(main: Any, scope: Scope) -> None:
        interpret(Execution(main, scope), feed, ("y",))

    def prepared(main: Any, scope: Scope) -> None:
        prepare(main, ("x",), ("y",), scope).step(feed)

    told: list[str] = []
    for form in (straightforward, prepared):
        main, scope, _ = small()
        change(scope)
        with pytest.raises(DiagnosticError) as caught:
            form(main, scope)
        told.append(str(caught.value))
    assert told[0] == told[1]


def test_a_failure_inside_names_op_line_and_what_it_was_given():
    main, scope, feed = small()
    scope["w"] = np.ones((5, 2), "float32")
    with pytest.raises(DiagnosticError, match=r"<string>:10:5: error\[run-op-failed\]: mul: ") as caught:
        prepare(main, ("x",), ("y",), scope).step(feed)
    assert "x f32[4, 3], w f32[5, 2]" in str(caught.value)


def test_running_again_is_prepared_and_gives_the_same():
    main, scope, feed = small()
    other = Scope()
    other.update(scope)
    for _ in range(4):
        want = interpret(Execution(main, other), feed, ("y",))["y"]
        assert same(run(main, feed, ("y",), scope)["y"], want)


def test_other_feeds_than_prepared_for():
    main, scope, feed = small()
    with pytest.raises(DiagnosticError, match="prepared for the feeds x; y differs"):
        prepare(main, ("x",), (), scope).step({**feed, "y": feed["x"]})


def test_readers():
    module, loss = recorded("py_reader"), case("py_reader")["loss"]
    scope = Scope()
    run(module["startup"], scope=scope)
    rng = np.random.default_rng(0)
    feed = {
        "read_file_0.tmp_0": rng.normal(size=(8, 60)).astype("float32"),
        "read_file_0.tmp_1": rng.integers(0, 5, (8, 1)),
    }
    losses = [run(module.main, feed, (loss,), scope)[loss].item() for _ in range(4)]
    assert losses == sorted(losses, reverse=True)
    with pytest.raises(DiagnosticError, match=r"read_file_0\.tmp_0, read_file_0\.tmp_1 must be fed"):
        run(module.main, {}, (loss,), scope)


def test_the_text_of_a_prepared_program_goes_with_it():
    """`linecache` holds it for tracebacks; thousands of programs in one process must not pile up there."""
    before = set(linecache.cache)
    main, scope, feed = small()
    prepared = Prepared(Execution(main, scope), ("x",), ("y",))
    prepared.step(feed)
    (name,) = set(linecache.cache) - before
    assert "prepared program" in name
    del prepared
    gc.collect()
    assert set(linecache.cache) <= before


def test_what_nothing_reads_is_left_out_where_the_kernel_spares_it():
    text = """\
ir 1
program @main {
  block ^0 {
    temp %p : f32[-1, 1] feed
    temp %y : i64[-1, 1] feed
    state %pos : i64[1, 8]
    state %neg : i64[1, 8]
    temp %auc : f64[1]
    auc(Predict=%p, Label=%y, StatPos=%pos, StatNeg=%neg) -> AUC=%auc, StatPosOut=%pos, StatNegOut=%neg {
      num_thresholds=7, slide_steps=0}
  }
}
"""
    main, scope = loads(text).main, Scope()
    scope["pos"] = scope["neg"] = np.zeros((1, 8), "int64")
    feed = {"p": np.array([[0.9], [0.1]], "float32"), "y": np.array([[1], [0]])}
    unread, fetched = (prepare(main, ("p", "y"), fetch, scope) for fetch in ((), ("auc",)))
    unread.step(feed)
    assert fetched.step(feed)["auc"] == [1.0]
    assert scope["pos"].sum() == scope["neg"].sum() == 2
    assert unread.source is not None
    assert unread.source.bound[0].results[0].names == ()


MEANS = """\
ir 1
program @main {
  block ^0 {
    temp %a : f32[-1, 2] feed
    temp %b : f32[-1, 2] feed
    temp %total : f32[-1, 2]
    temp %other : f32[-1, 2]
    temp %mean : f32[-1, 2]
    sum(X=[%a, %b]) -> Out=%total
    ?
  }
}
"""


@pytest.mark.parametrize(
    ("op", "fetch", "over"),
    [
        ("scale(X=%total) -> Out=%mean { scale=0.5 }", "mean", True),
        ("scale(X=%total) -> Out=%total { scale=0.5 }", "total", True),
        ("scale(X=%total) -> Out=%mean { scale=0.5 }", "total", False),
        ("scale(X=%a) -> Out=%mean { scale=0.5 }", "a", False),
        ("scale(X=%total) -> Out=%mean { scale=0.5 }\n    scale(X=%total) -> Out=%other", "mean", False),
    ],
)
def test_a_sum_is_scaled_in_its_own_memory_where_nobody_else_reads_it(op: str, fetch: str, over: bool):
    main = loads(MEANS.replace("?", op)).main
    feed = {"a": np.arange(6, dtype="float32").reshape(3, 2), "b": np.ones((3, 2), "float32")}
    prepared = prepare(main, ("a", "b"), (fetch,))
    want = interpret(Execution(main, Scope()), feed, (fetch,))
    for _ in range(2):
        assert same(prepared.step(feed)[fetch], want[fetch])
    assert feed["a"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert prepared.source is not None
    assert any("imul" in line for line in prepared.source.lines) == over


def interpreted(ending: list[Callable[[], Any]]) -> None:
    main, scope, feed = small()
    execution = Execution(main, scope)
    interpret(execution, feed)
    ending += (weakref.ref(bound.run_any) for bound in execution.ops_of(0) if bound.run_any is not bound.run)


def stepped(ending: list[Callable[[], Any]]) -> None:
    main, scope, feed = small()
    prepared = prepare(main, list(feed), ["y"], scope)
    prepared.step(feed)
    step: Any = prepared._step  # pyright: ignore[reportPrivateUsage]
    ending += weakref.ref(prepared), weakref.ref(step), weakref.ref(prepared.source)


@pytest.mark.parametrize("ran", [interpreted, stepped])
def test_what_ran_is_freed_at_once(ran: Callable[[list[Callable[[], Any]]], None]):
    """Kernels keep arrays from step to step, which must not wait until Python looks for cycles."""
    ending: list[Callable[[], Any]] = []
    gc.collect()
    gc.disable()
    try:
        ran(ending)
        assert ending
        assert all(ended() is None for ended in ending)
    finally:
        gc.enable()
