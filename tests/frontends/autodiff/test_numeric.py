"""Every gradient with a kernel agrees with central differences in float64, for dims that hypothesis draws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import append_backward
from pstranspile.ir.model import TensorType, Var
from pstranspile.ir.types import DType, VarKind
from pstranspile.ops.gradient import differentiable_types
from pstranspile.runtime.kernels.kernel import kernel_of
from tests.frontends.autodiff import (
    cases_contributed,  # noqa: F401 - its cases register themselves
    cases_detection,  # noqa: F401 - its cases register themselves
    cases_encoded,  # noqa: F401 - its cases register themselves
    cases_image,  # noqa: F401 - its cases register themselves
    cases_index,  # noqa: F401 - its cases register themselves
    cases_losses,  # noqa: F401 - its cases register themselves
    cases_products,  # noqa: F401 - its cases register themselves
    cases_recurrent,  # noqa: F401 - its cases register themselves
    cases_second,  # noqa: F401 - its cases register themselves
)
from tests.frontends.autodiff.cases import CASES, NOT_CHECKED
from tests.frontends.autodiff.numeric import Case, check, data_of

COMPUTED = tuple(op_type for op_type in differentiable_types() if kernel_of(op_type) is not None)


def test_every_gradient_with_a_kernel_is_checked():
    assert [op_type for op_type in COMPUTED if op_type not in CASES and op_type not in NOT_CHECKED] == []


@pytest.mark.parametrize("op_type", [op_type for op_type in COMPUTED if op_type in CASES])
def test_gradient_is_the_central_difference(op_type: str):
    @settings(max_examples=12, deadline=None, derandomize=True, database=None)
    @given(st.data(), st.integers(0, 2**32 - 1))
    def examples(data: st.DataObject, seed: int) -> None:
        random = np.random.default_rng(seed)
        check(CASES[op_type](data.draw, random), random)

    examples()


def slope(main: ps.Program, feed: dict[str, np.ndarray], name: str, by: np.ndarray, loss: str) -> float:
    around: list[float] = []
    for sign in (1, -1):
        moved = {**feed, name: feed[name] + sign * 1e-6 * by}
        around.append(float(ps.run(main, feed=moved, fetch=[loss])[loss][0]))
    return (around[0] - around[1]) / 2e-6


def compare(model: L.Draft, loss: L.Value, feed: dict[str, np.ndarray], names: list[str]) -> None:
    forward = model.main()
    append_backward(model, loss.name, names)
    found = ps.run(model.main(), feed=feed, fetch=[f"{name}@GRAD" for name in names])
    random = np.random.default_rng(3)
    for name in names:
        direction = random.normal(size=feed[name].shape)
        along = float((found[f"{name}@GRAD"] * direction).sum())
        assert along == pytest.approx(slope(forward, feed, name, direction, loss.name), rel=1e-6, abs=1e-8)


def inputs(model: L.Draft, **arrays: np.ndarray) -> tuple[list[L.Value], dict[str, np.ndarray]]:
    values = [L.data(model, name, array.shape, "f64") for name, array in arrays.items()]
    model.stop_gradient.clear()
    return values, dict(arrays)


def test_while():
    model, random = L.Draft(seed=1), np.random.default_rng(1)
    (x, w), feed = inputs(model, x=random.normal(size=(3, 4)), w=random.normal(size=(4, 4)))
    step, steps = (L.fill_constant(model, [1], DType.INT64, number) for number in (0, 3))
    array = L.array_write(x, step)
    going_on = L.less_than(step, steps)
    with L.while_(going_on):
        hidden = L.tanh(L.matmul(L.array_read(array, step), w))
        L.increment(step)
        L.array_write(hidden, step, array)
        L.less_than(step, steps, out=going_on)
    loss = L.mean(L.square(L.array_read(array, step)))
    compare(model, loss, feed, ["w", "x"])


def test_recurrent():
    model, random = L.Draft(seed=1), np.random.default_rng(1)
    arrays = {"x": random.normal(size=(5, 2, 3)), "start": random.normal(size=(2, 3)), "w": random.normal(size=(3, 3))}
    (x, start, w), feed = inputs(model, **arrays)
    rnn = L.StaticRNN(model)
    with rnn.step():
        before = rnn.memory(start)
        hidden = L.tanh(L.matmul(before, w) + rnn.step_input(x))
        rnn.update_memory(before, hidden)
        rnn.step_output(hidden)
    compare(model, L.mean(L.square(rnn())), feed, ["w", "x", "start"])


def rank_table(model: L.Draft, x: L.Value) -> L.Value:
    table = model.declare(Var("table", VarKind.LOD_RANK_TABLE))
    model.op("lod_rank_table", {"X": x}, {"Out": table})
    return table.stopped()


def array_named(model: L.Draft, name: str) -> L.Value:
    return model.declare(Var(name, VarKind.LOD_TENSOR_ARRAY, TensorType(DType.FP64, (-1, 2))))


def compare_ragged(model: L.Draft, out: L.Value, data: np.ndarray, ends: list[int]) -> None:
    loss = L.mean(L.square(out))
    forward = model.main()
    append_backward(model, loss.name, ["x"])
    fed = ps.LoDTensor(data, [ends])
    main, scope = model.main(), ps.Scope()
    gradient, again = (
        data_of(ps.run(main, feed={"x": fed}, fetch=["x@GRAD"], scope=scope)["x@GRAD"]) for _ in range(2)
    )
    assert np.array_equal(gradient, again)  # the second run is of the prepared program
    direction = np.random.default_rng(3).normal(size=data.shape)
    around: list[float] = []
    for sign in (1, -1):
        moved = {"x": ps.LoDTensor(data + sign * 1e-6 * direction, [ends])}
        around.append(float(data_of(ps.run(forward, feed=moved, fetch=[loss.name])[loss.name])[0]))
    assert float((gradient * direction).sum()) == pytest.approx((around[0] - around[1]) / 2e-6, rel=1e-6)


def test_arrays_by_rank():
    """Sequences by length to steps, the steps that go on to the next one, and back."""
    model, data = L.Draft(seed=1), np.random.default_rng(1).normal(size=(6, 2))
    x = L.data(model, "x", [-1, 2], "f64", lod_level=1)
    model.stop_gradient.clear()
    table = rank_table(model, x)
    ordered = L.layer("reorder_lod_tensor_by_rank", {"X": x, "RankTable": table}, DType.FP64)
    steps = array_named(model, "steps")
    model.op("lod_tensor_to_array", {"X": L.tanh(x), "RankTable": table}, {"Out": steps})
    first, second = (L.fill_constant(model, [1], DType.INT64, number) for number in (0, 1))
    going_on = L.layer(
        "shrink_rnn_memory", {"X": L.array_read(steps, first), "RankTable": table, "I": second}, DType.FP64
    )
    joined = L.square(L.layer("array_to_lod_tensor", {"X": steps, "RankTable": table}, DType.FP64))
    parts = [L.mean(value) for value in (L.square(ordered), L.square(going_on), joined)]
    compare_ragged(model, L.sums(parts), data, [0, 1, 4, 6])


def test_array_to_tensor():
    model, data = L.Draft(seed=1), np.random.default_rng(1).normal(size=(3, 2))
    x = L.data(model, "x", [-1, 2], "f64", lod_level=1)
    model.stop_gradient.clear()
    first, second = (L.fill_constant(model, [1], DType.INT64, number) for number in (0, 1))
    array = L.array_write(x, first)
    L.array_write(L.square(x), second, array)
    out, index = model.fresh("out", DType.FP64), model.fresh("index", DType.INT32, stop_gradient=True)
    model.op("tensor_array_to_tensor", {"X": array}, {"Out": out, "OutIndex": index}, {"axis": 1})
    compare_ragged(model, out, data, [0, 1, 3])


def test_conditional_block():
    model, random = L.Draft(seed=1), np.random.default_rng(1)
    (x, out), feed = inputs(model, x=random.normal(size=(3,)), out=random.normal(size=(3,)))
    one, two = (L.fill_constant(model, [1], DType.FP64, number) for number in (1.0, 2.0))
    with L.when(one < two):
        L.assign(x * 3.0, out)
    compare(model, L.mean(L.square(out)), feed, ["x"])


@pytest.mark.parametrize("chosen", [True, False])
def test_two_branches(chosen: bool):
    """What `fluid.layers.cond` makes: a conditional block for each branch, and the choice of its result."""
    model, random = L.Draft(seed=1), np.random.default_rng(1)
    (x,), feed = inputs(model, x=random.normal(size=(3,)))
    one, two = (L.fill_constant(model, [1], DType.FP64, number) for number in (1.0, 2.0))
    holds = one < two if chosen else two < one
    results = [model.fresh("result", DType.FP64) for _ in range(2)]
    for condition, result, factor in ((L.logical_not(holds), results[0], 3.0), (holds, results[1], 2.0)):
        with L.when(condition):
            L.assign(x * factor, result)
    number = L.cast(holds, DType.INT32).stopped()
    out = L.layer("select_input", {"X": results, "Mask": number}, DType.FP64)
    compare(model, L.mean(L.square(out)), feed, ["x"])


def test_the_harness_notices_a_wrong_gradient():
    """At a jump the slope is far from the gradient that `round` declares."""
    with pytest.raises(AssertionError, match="by differences"):
        check(Case("round", {"X": np.array([0.5])}), np.random.default_rng(0))
