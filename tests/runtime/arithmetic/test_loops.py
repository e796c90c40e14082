"""The compiled loops: the bits of numpy, and no change where they don't take the arrays."""

from __future__ import annotations

import math
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, Adagrad, Adam, Momentum, minimize
from pstranspile.ir.model import FrozenMap
from pstranspile.ir.types import DType
from pstranspile.ops.build import make_op
from pstranspile.runtime.arithmetic import loops
from pstranspile.runtime.arithmetic import numpy as plain
from pstranspile.runtime.arithmetic.loops import AdamFactors, Reach, RowGradient
from pstranspile.runtime.arithmetic.numpy import _table, erf
from pstranspile.runtime.kernels import rows
from pstranspile.runtime.kernels.images.conv import Windows
from pstranspile.runtime.kernels.random import Rows, RowStream
from pstranspile.runtime.run.bound_ops import bind
from pstranspile.runtime.values import SelectedRows

WIDTHS = st.integers(0, 40) | st.integers(120, 140) | st.sampled_from([255, 256, 257, 1000, 40_000])
FLOATS = st.floats(width=32)
RATES = st.floats(-2, 2)

needs_loops = pytest.mark.skipif(not loops.COMPILED, reason="installed without a C compiler")


def test_a_compiler_compiles_them() -> None:
    headers = Path(sysconfig.get_path("include"), "Python.h")
    assert loops.COMPILED or shutil.which("cc") is None or not headers.exists()


@needs_loops
def test_a_module_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert loops._is_current(loops._loops.SOURCE)
    assert not loops._is_current("00000000")
    monkeypatch.setattr(loops, "__file__", str(tmp_path / "loops.py"))
    assert loops._is_current("00000000")


def vectors(count: int) -> Any:
    """Arrays of one size, some of them views that don't begin where vectors of the processor do."""

    def made(size: int, start: int) -> Any:
        each = arrays(np.float32, size + start, elements=FLOATS, fill=FLOATS)
        return st.tuples(*[each.map(lambda array: array[start:])] * count)

    return st.tuples(WIDTHS, st.integers(0, 3)).flatmap(lambda drawn: made(*drawn))


def matrices(count: int) -> Any:
    shapes = st.tuples(st.integers(1, 5), WIDTHS.filter(bool).filter(lambda width: width <= 1000))
    return shapes.flatmap(lambda shape: st.tuples(*[arrays(np.float32, shape, elements=FLOATS, fill=FLOATS)] * count))


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are equal; all NaN count as one."""
    return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=True)


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with np.errstate(all="ignore"):
        yield


@needs_loops
@given(vectors(2), RATES, st.booleans())
def test_sgd(drawn: Any, rate: float, in_place: bool) -> None:
    param, gradient = drawn
    wanted = param - rate * gradient
    new = param if in_place else np.empty_like(param)
    assert loops.sgd(param, gradient, new, rate)
    assert same_bits(new, wanted)


@needs_loops
@given(vectors(3), RATES, RATES, st.booleans())
def test_momentum(drawn: Any, mu: float, rate: float, nesterov: bool) -> None:
    param, gradient, velocity = drawn
    moved = velocity * mu + gradient
    wanted = param - rate * (gradient + mu * moved if nesterov else moved)
    assert loops.momentum(param, gradient, velocity, param, mu, rate, nesterov)
    assert same_bits(velocity, moved)
    assert same_bits(param, wanted)


@needs_loops
@given(vectors(4), st.floats(0, 1), st.floats(0, 1), RATES)
def test_adam(drawn: Any, beta1: float, beta2: float, rate: float) -> None:
    param, gradient, moment1, moment2 = drawn
    factors = AdamFactors(beta1, 1 - beta1, beta2, 1 - beta2, 1e-8)
    first = moment1 * factors.kept1 + factors.new1 * gradient
    second = moment2 * factors.kept2 + gradient * factors.new2 * gradient
    wanted = param - first / (np.sqrt(second) + factors.epsilon) * rate
    new = np.empty_like(param)
    assert loops.adam(param, gradient, moment1, moment2, new, factors, rate)
    assert same_bits(moment1, first)
    assert same_bits(moment2, second)
    assert same_bits(new, wanted)


@needs_loops
@given(vectors(3), RATES)
def test_adagrad(drawn: Any, rate: float) -> None:
    param, gradient, moment = drawn
    summed = moment + gradient * gradient
    wanted = param - rate * gradient / (np.sqrt(summed) + 1e-6)
    assert loops.adagrad(param, gradient, moment, rate, 1e-6)
    assert same_bits(moment, summed)
    assert same_bits(param, wanted)


SLOPES: dict[str, Callable[[Any, Any], Any]] = {
    "tanh_grad": lambda dy, y: dy * (1 - y * y),
    "sigmoid_grad": lambda dy, y: dy * y * (1 - y),
    "relu_grad": lambda dy, y: dy * (y > 0),
}


@needs_loops
@pytest.mark.parametrize("name", SLOPES)
@given(drawn=vectors(2))
def test_gradients_of_activations(name: str, drawn: Any) -> None:
    y, dy = drawn
    out = np.empty_like(y)
    assert getattr(loops, name)(y, dy, out)
    assert same_bits(out, SLOPES[name](dy, y))
    assert same_bits(getattr(plain, name)(dy, y), out)


@pytest.mark.parametrize("name", SLOPES)
def test_gradients_of_other_arrays(name: str) -> None:
    y, dy = np.linspace(-1, 1, 6).reshape(2, 3), np.arange(2.0, 8).reshape(2, 3)
    given = getattr(plain, name)
    assert (given(dy, y) == SLOPES[name](dy, y)).all()
    assert (given(dy[:, :1].astype("f"), y.astype("f")) == SLOPES[name](dy[:, :1].astype("f"), y.astype("f"))).all()


@needs_loops
@given(vectors(1))
def test_erf(drawn: Any) -> None:
    (x,) = drawn
    out = np.empty_like(x)
    assert loops.erf(x, out, *erf_table())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "COMPILED", False)
        assert same_bits(out, erf(x))


def erf_table() -> tuple[np.ndarray, int]:
    """The table of float32, and its points per unit."""
    return _table(1024, 3), 1024


@needs_loops
@given(matrices(1))
def test_below_largest(drawn: Any) -> None:
    (x,) = drawn
    out = np.empty_like(x)
    assert loops.below_largest(x, out, -64)
    assert same_bits(out, np.maximum(x - x.max(axis=1, keepdims=True), np.float32(-64)))


@needs_loops
@given(matrices(1))
def test_shares(drawn: Any) -> None:
    (x,) = drawn
    wanted = np.add.reduce(x, axis=1, keepdims=True)
    of_each, sums = x / wanted, np.empty_like(wanted)
    assert loops.shares(x, sums)
    assert same_bits(sums, wanted)
    assert same_bits(x, of_each)


@needs_loops
@given(matrices(1), st.booleans())
def test_softmax(drawn: Any, in_place: bool) -> None:
    (x,) = drawn
    wanted = np.exp(np.maximum(x - x.max(axis=-1, keepdims=True), np.float32(-64)))
    wanted /= wanted.sum(axis=-1, keepdims=True)
    out = x if in_place else np.empty_like(x)
    assert loops.softmax(x, out, -64)
    assert same_bits(out, wanted)


@needs_loops
@given(vectors(1), st.booleans())
def test_negative_within(drawn: Any, in_place: bool) -> None:
    (x,) = drawn
    wanted = -np.minimum(np.maximum(x, np.float32(-1e20)), np.float32(1e20))
    out = x if in_place else np.empty_like(x)
    assert loops.negative_within(x, out, 1e20)
    assert same_bits(out, wanted)


@needs_loops
@given(vectors(1))
def test_sum_all(drawn: Any) -> None:
    (x,) = drawn
    wanted, out = np.add.reduce(x.reshape(1, -1), axis=1), np.full(1, 7, np.float32)
    assert loops.sum_all(x, out) == bool(wanted != 0)
    assert same_bits(out, wanted if wanted != 0 else np.full_like(out, 7))


@needs_loops
@given(matrices(2))
def test_softmax_grad(drawn: Any) -> None:
    y, dy = drawn
    out = np.empty_like(y)
    assert loops.softmax_grad(y, dy, out)
    assert same_bits(out, (dy - np.add.reduce(dy * y, axis=1, keepdims=True)) * y)


def of_gru(rows: int = 5, width: int = 3) -> dict[str, Any]:
    """Arguments of a unit over two sequences, of 3 rows and of 2."""
    random = np.random.RandomState(0)
    x, gates, candidate, first = (
        random.randn(*dims).astype("float32")
        for dims in ((rows, 3 * width), (width, 2 * width), (width, width), (2, width))
    )
    steps = np.array([0, 2, 4, 5]), np.array([0, 3, 1, 4, 2])
    return {
        "x": x,
        "bias": None,
        "gates": gates,
        "candidate": candidate,
        "first": first,
        "steps": steps,
        "origin": False,
    }


@needs_loops
@pytest.mark.parametrize(
    "changed",
    [
        {"x": np.zeros((6, 9), "float32")},
        {"x": np.zeros((5, 9))},
        {"bias": np.zeros(8, "float32")},
        {"gates": np.zeros((3, 5), "float32")},
        {"candidate": np.zeros((3, 3))},
        {"first": np.zeros((1, 3), "float32")},
        {"first": np.zeros((2, 0), "float32")},
        {"steps": (np.array([0, 1, 3, 5]), np.arange(5))},
        {"steps": (np.array([0, 2, 2, 5]), np.arange(5))},
        {"steps": (np.array([0, 2, 4, 6]), np.arange(5))},
        {"steps": (np.array([1, 2, 4, 5]), np.arange(5))},
        {"steps": (np.array([0, 2, 4, 5]), np.array([0, 1, 2, 3, 5]))},
        {"steps": (np.array([0, 2, 4, 5]), np.array([0, 1, 2, 3, -1]))},
        {"steps": (np.array([0, 2, 4, 5]), np.arange(4))},
        {"steps": (np.array([], int), np.arange(5))},
    ],
)
def test_steps_that_do_not_fit_are_not_run(changed: dict[str, Any]) -> None:
    assert loops.gru(**of_gru()) is not None
    assert loops.gru(**of_gru() | changed) is None


def half_of(array: np.ndarray) -> np.ndarray:
    """The array as the first columns of a wider one, as concat gives the gradient of one direction."""
    return np.concatenate([array, array], axis=1)[:, : array.shape[1]]


@needs_loops
def test_a_unit_takes_columns_of_a_wider_array() -> None:
    given = of_gru()
    made = loops.gru(**given)
    of_view = loops.gru(**given | {"x": half_of(given["x"])})
    assert made is not None
    assert of_view is not None
    assert all(same_bits(one, other) for one, other in zip(made, of_view, strict=True))
    gates, reset, hidden, _ = made
    grad, weight = np.ones_like(hidden), np.ones((3, 9), "float32")
    transposed = given["gates"].T.copy(), given["candidate"].T.copy()
    values = gates, reset, hidden
    back = [
        loops.gru_back(values, each, given["first"], weight, transposed, given["steps"], False)
        for each in (grad, half_of(grad))
    ]
    assert back[0] is not None
    assert back[1] is not None
    assert all(same_bits(one, other) for one, other in zip(back[0], back[1], strict=True))


@needs_loops
def test_memory_cells_take_columns_of_a_wider_array() -> None:
    random, width = np.random.RandomState(0), 3
    x, matrix = (random.randn(*dims).astype("float32") for dims in ((5, 4 * width), (width, 4 * width)))
    bias, first = np.zeros(4 * width, "float32"), (np.zeros((2, width), "float32"), np.zeros((2, width), "float32"))
    steps = of_gru()["steps"]
    results = [loops.lstm(each, (bias, None, matrix, None), first, steps, False) for each in (x, half_of(x))]
    assert results[0] is not None
    assert results[1] is not None
    assert all(same_bits(one, other) for one, other in zip(results[0], results[1], strict=True))
    made, grad = results[0], random.randn(5, width).astype("float32")
    values = made.gates, made.cells, made.active, made.states
    back = [
        loops.lstm_back(values, each, (matrix.T.copy(), None), None, first, steps, False)
        for each in (grad, half_of(grad))
    ]
    assert back[0] is not None
    assert back[1] is not None
    assert all(same_bits(one, other) for one, other in zip(back[0], back[1], strict=True))


@needs_loops
def test_functions_that_are_not_numpys_are_not_called() -> None:
    for wrong in (np.exp2, math.exp, None, np.matmul):
        assert not loops._loops.use_numpy(wrong, np.log, np.tanh, np.matmul)
        assert not loops._loops.use_numpy(np.exp, wrong, np.tanh, np.matmul)
        assert loops.gru(**of_gru()) is None
    assert loops._take_from_numpy()


@st.composite
def convolutions(draw: st.DrawFn) -> Windows:
    """Windows of any size, steps, distances and padding over images; some lie outside of the images altogether."""
    pairs = [draw(st.tuples(*[st.integers(*span)] * 2)) for span in ((1, 9), (1, 4), (1, 4), (1, 3))]
    dims, size, strides, dilations = pairs
    padding = tuple((draw(st.integers(0, 5)), draw(st.integers(0, 9))) for _ in dims)
    reach = [(k - 1) * dilation + 1 for k, dilation in zip(size, dilations, strict=True)]
    counts = [
        (dim + sum(pad) - r) // stride + 1 for dim, pad, r, stride in zip(dims, padding, reach, strides, strict=True)
    ]
    assume(min(counts) > 0)
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 3)), *dims)
    return Windows(shape, size, 1, strides, dilations, padding, tuple(counts))


@needs_loops
@given(convolutions(), st.integers(0, 99))
def test_windows_of_convolutions(windows: Windows, seed: int) -> None:
    random = np.random.RandomState(seed)
    x = random.randn(*windows.shape).astype("float32")
    columns = windows.columns(x)
    gradient = random.randn(*columns.shape).astype("float32")
    images = windows.images(gradient)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "COMPILED", False)
        assert same_bits(columns, windows.columns(x))
        assert same_bits(images, windows.images(gradient))


@needs_loops
@pytest.mark.parametrize(
    ("place", "number"), [(0, 3), (1, -1), (2, 9), (5, 4), (8, 0), (10, -1), (12, -2), (7, 2**60), (3, 2**62)]
)
def test_windows_that_do_not_fit_change_nothing(place: int, number: int) -> None:
    geometry = np.array([2, 1, 4, 4, 3, 3, 2, 2, 1, 1, 1, 1, 0, 0])
    x, windows = np.ones((2, 1, 4, 4), "float32"), np.ones((2, 1, 3, 3, 2, 2), "float32")
    geometry[place] = number
    assert not loops.unfold(x, windows, geometry)
    assert not loops.fold(x, windows, geometry)
    assert (x == 1).all()
    assert (windows == 1).all()


@needs_loops
@given(st.tuples(*[st.integers(1, 4)] * 2, st.integers(1, 9), st.integers(1, 9)), st.integers(0, 99))
def test_batch_normalisation(dims: tuple[int, ...], seed: int) -> None:
    images, channels, *inner = dims
    random = np.random.RandomState(seed)
    x, dy = (random.randn(*dims).astype("float32") for _ in range(2))
    mean, inverse, bias, scale, factor = (random.randn(channels).astype("float32") for _ in range(5))
    m, v, b, s, f = (each[:, None, None] for each in (mean, inverse, bias, scale, factor))
    elements = int(np.prod(inner))
    out = np.empty_like(x)
    for done, wanted in (
        (lambda: loops.scale_channels(x, scale, bias, out), x * s + b),
        (lambda: loops.squares(x, mean, out), np.square(x - m)),
        (lambda: loops.norm_products(x, dy, mean, inverse, out), (x - m) * v * dy),
        (
            lambda: loops.norm_grad(x, dy, mean, inverse, bias, scale, factor, out),
            (dy * images * elements - b - (x - m) * s * v) * f,
        ),
    ):
        out.fill(7)
        assert done() == (elements >= 16)
        assert same_bits(out, wanted if elements >= 16 else np.full_like(out, 7))
    assert not loops.squares(x, np.ones(channels + 1, "float32"), out)
    assert not loops.squares(x.reshape(-1), mean, out)


@needs_loops
@given(matrices(1), st.data())
def test_add_rows(drawn: Any, data: Any) -> None:
    (target,) = drawn
    height, width = target.shape
    ids = data.draw(arrays(np.int64, st.integers(0, 9), elements=st.integers(0, height - 1)))
    value = data.draw(arrays(np.float32, (len(ids), width), elements=FLOATS, fill=FLOATS))
    wanted = target.copy()
    np.add.at(wanted, ids, value)
    assert loops.add_rows(target, ids, value)
    assert same_bits(target, wanted)


@needs_loops
@given(matrices(1), st.data())
def test_cross_entropy(drawn: Any, data: Any) -> None:
    (x,) = drawn
    rows, classes = x.shape
    labels = data.draw(arrays(np.int64, rows, elements=st.integers(0, classes - 1)))
    match, loss = np.full((2, rows), 7, np.float32)
    assert loops.cross_entropy(x, labels, match, loss, -100, 1e20)
    wanted = x[np.arange(rows), labels]
    assert same_bits(match, wanted)
    assert same_bits(loss, -np.minimum(np.maximum(np.log(wanted), np.float32(-1e20)), np.float32(1e20)))
    grad, gradient = np.arange(rows, dtype=np.float32), np.full_like(x, 7)
    assert loops.cross_entropy_grad(gradient, labels, grad, match, -100)
    expected = np.zeros_like(x)
    expected[np.arange(rows), labels] = -grad / match
    assert same_bits(gradient, expected)
    for ignored, wrong in ((int(labels[0]), labels), (-100, labels - classes), (-100, labels[1:])):
        assert not loops.cross_entropy(x, wrong, match, loss, ignored, 1e20)
        assert not loops.cross_entropy_grad(gradient, wrong, grad, match, ignored)
    assert same_bits(match, wanted)
    assert same_bits(gradient, expected)


@needs_loops
@pytest.mark.parametrize("apart", [False, True])
def test_put_largest(apart: bool) -> None:
    value = np.arange(1, 13, dtype=np.float32).reshape(2, 6)[:, :3] if apart else np.ones((2, 3), np.float32)
    places, out = np.array([[0, 1, 2], [4, 3, 4]], np.int32), np.full((5, 3), 7, np.float32)
    for wrong in (places - 1, places + 1, places[:1], places.astype("int64")):
        assert not loops.put_largest(out, wrong, value)
        assert (out == 7).all()
    assert loops.put_largest(out, places, value)
    wanted = np.zeros_like(out)
    np.put_along_axis(wanted, places.astype("int64"), value, axis=0)
    assert same_bits(out, wanted)


@needs_loops
@given(matrices(1), st.booleans(), st.data())
def test_take_rows(drawn: Any, apart: bool, data: Any) -> None:
    (table,) = drawn
    height, width = table.shape
    table = np.concatenate([table, table], axis=1)[:, :width] if apart else table
    ids = data.draw(arrays(np.int64, st.integers(0, 9), elements=st.integers(0, height - 1)))
    out = np.full((len(ids), width), 7, np.float32)
    assert loops.take_rows(table, ids, out)
    assert same_bits(out, table[ids])
    for wrong in (-1, height):
        out[...] = 7
        assert not loops.take_rows(table, np.array([*ids[1:], wrong]), out[: max(len(ids), 1)])
        assert (out == 7).all()


@needs_loops
@given(st.lists(st.integers(1, 129), min_size=1, max_size=6), st.integers(1, 20), st.integers(0, 2**31), st.booleans())
def test_sum_runs(lengths: list[int], width: int, seed: int, zeros: bool) -> None:
    random = np.random.RandomState(seed)
    x = random.standard_normal((sum(lengths), width)).astype("float32")
    x[random.random_sample(x.shape) < zeros * 0.9] = -0.0
    starts = np.array([0, *np.cumsum(lengths)[:-1]])
    out = np.empty((len(starts), width), np.float32)
    assert loops.sum_runs(x, starts, out, plain._ZERO)
    wanted = np.add.reduceat(x, starts, axis=0)
    assert out.tobytes() == wanted.tobytes()
    out[...] = 7
    for wrong in (starts - 1, starts + len(x), np.repeat(starts, 2)):
        assert not loops.sum_runs(x, wrong, np.resize(out, (len(wrong), width)), 0.0)
    assert not loops.sum_runs(np.ones((130, width), np.float32), np.zeros(1, int), out[:1], 0.0)


@needs_loops
@given(matrices(1), st.integers(1, 9), st.data())
def test_merge_rows(drawn: Any, height: int, data: Any) -> None:
    (value,) = drawn
    ids = data.draw(arrays(np.int64, len(value), elements=st.integers(0, height - 1)))
    merged, sums = np.full_like(ids, 7), np.full_like(value, 7)
    wide = np.concatenate([value, value], axis=1)  # rows that lie apart
    count = loops.merge_rows(ids, wide[:, : value.shape[1]], merged, sums)
    wanted = np.unique(ids)
    assert count == len(wanted)
    if count == len(ids):
        assert (merged == 7).all()
        assert (sums == 7).all()
        return
    assert merged[:count].tolist() == wanted.tolist()
    for row, found in zip(wanted, sums, strict=False):
        first, *others = value[ids == row]
        for other in others:
            first = first + other
        assert same_bits(found, first)


@needs_loops
@given(matrices(3), st.lists(st.integers(0, 5), min_size=1, max_size=4), st.booleans(), st.data())
def test_sum_tables(drawn: Any, chosen: list[int], apart: bool, data: Any) -> None:
    parts: list[SelectedRows] = []
    for number in chosen:
        value = np.concatenate([drawn[number % 3]] * (1 + apart), axis=1)[:, : drawn[0].shape[1]]  # rows that lie apart
        ids = data.draw(arrays(np.int64, len(value), elements=st.integers(0, 5)))
        parts.append(SelectedRows(ids, value, 6))
    found = rows.sum_tables(parts)
    dense = [np.zeros((6, drawn[0].shape[1]), np.float32) for _ in parts]
    for table, part in zip(dense, parts, strict=True):
        np.add.at(table, part.rows, part.value)
    total = dense[0]
    for table in dense[1:]:
        total = total + table
    assert found.rows.tolist() == np.unique(np.concatenate([part.rows for part in parts])).tolist()
    assert same_bits(found.value, total[found.rows])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loops, "COMPILED", False)
        assert same_bits(found.value, rows.sum_tables(parts).value)


@needs_loops
def test_tables_that_are_not_summed() -> None:
    ids, value = np.array([1, 1, 2]), np.ones((3, 2), np.float32)
    merged, sums = np.full(6, 7), np.full((6, 2), 7, np.float32)
    for wrong_ids, wrong in ((ids, value.astype("float64")), (ids, value[:2]), (ids, value[:, :1]), (ids[:2], value)):
        assert not loops.sum_tables((ids, wrong_ids), (value, wrong), merged, sums)
    assert not loops.sum_tables((ids,) * 9, (value,) * 9, np.empty(27, int), np.empty((27, 2), np.float32))
    assert not loops.sum_tables((ids[:0],), (value[:0],), merged[:0], sums[:0])
    assert (merged == 7).all()
    assert (sums == 7).all()


@needs_loops
def test_arrays_are_copied_together_or_not_at_all() -> None:
    values = tuple(np.full(dims, 3, np.float32) for dims in ((2, 3), (4,), ()))
    parts = tuple(np.zeros_like(value) for value in values)
    for place, wrong in (
        (0, values[0].T),
        (1, values[1][:3]),
        (1, values[1].astype("float64")),
        (1, None),
        (2, values[1]),
    ):
        assert not loops.copy_each((*values[:place], wrong, *values[place + 1 :]), parts)
        assert not any(part.any() for part in parts)
    assert not loops.copy_each(values[:2], parts)
    assert loops.copy_each(values, parts)
    assert all(part.tolist() == value.tolist() for part, value in zip(parts, values, strict=True))


@needs_loops
def test_rows_that_are_not_merged() -> None:
    rows, value = np.array([1, 1, 2]), np.ones((3, 2), np.float32)
    merged, sums = np.full_like(rows, 7), np.full_like(value, 7)
    assert not loops.merge_rows(rows, value.astype("float64"), merged, sums)
    assert not loops.merge_rows(rows.astype("int32"), value, merged, sums)
    assert not loops.merge_rows(rows, value[:, ::2], merged, sums[:, :1])
    assert not loops.merge_rows(rows, value[:2], merged, sums)
    assert not loops.merge_rows(rows, value, merged[:2], sums)
    assert not loops.merge_rows(rows, value, merged, sums[:2])
    assert (merged == 7).all()
    assert (sums == 7).all()


@needs_loops
@given(matrices(1), st.data())
def test_pick_and_put(drawn: Any, data: Any) -> None:
    (x,) = drawn
    height, width = x.shape
    labels = data.draw(arrays(np.int64, (height, 1), elements=st.integers(-1, width)))
    ignored = data.draw(st.integers(-1, width))
    fits = bool(((labels >= 0) & (labels < width) & (labels != ignored)).all())
    out, spread = np.full(height, 7, np.float32), np.full_like(x, 7)
    assert loops.pick(x, labels, out, ignored) == fits
    assert loops.put(spread, labels, x[:, 0].copy(), ignored) == fits
    if not fits:
        assert (out == 7).all()
        assert (spread == 7).all()
        return
    wanted = np.zeros_like(x)
    np.put_along_axis(wanted, labels, x[:, :1], axis=1)
    assert same_bits(out, np.take_along_axis(x, labels, axis=1)[:, 0])
    assert same_bits(spread, wanted)


@needs_loops
@given(vectors(1), st.sampled_from([0.5, 0.9, 1.0, math.inf]), st.integers(0, 9))
def test_masked(drawn: Any, divisor: float, seed: int) -> None:
    (x,) = drawn
    mask = np.random.default_rng(seed).integers(0, 2, x.shape, np.uint8)
    out = np.empty_like(x)
    with np.errstate(all="ignore"):
        expected = x * mask.astype(bool) / divisor
    assert loops.masked(x, mask, divisor, out)
    assert out.tobytes() == expected.tobytes()


@needs_loops
@given(
    st.lists(st.integers(0, 2**40), min_size=1, max_size=20),
    st.integers(0, 5000),
    st.integers(1, 3),
    st.floats(0, 1),
    st.integers(0, (1 << 128) - 1),
)
def test_masks_are_drawn_as_without_compiled_loops(
    places: list[int], width: int, outer: int, rate: float, key: int
) -> None:
    stream = RowStream(key, Rows(np.array(places), width * outer, outer))
    found = stream.reaches(rate)
    assert found.dtype == bool
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "COMPILED", False)
        assert found.tobytes() == stream.reaches(rate).tobytes()


ONES = np.ones(6, np.float32)
REFUSED: dict[str, Callable[[], np.ndarray]] = {
    "float64": lambda: np.ones(6),
    "int32": lambda: np.ones(6, np.int32),
    "swapped": lambda: np.ones(6, ">f4"),
    "not contiguous": lambda: np.ones(12, np.float32)[::2],
    "of another size": lambda: np.ones(5, np.float32),
    "read-only": lambda: np.frombuffer(np.ones(6, np.float32).tobytes(), np.float32),
}


@needs_loops
@pytest.mark.parametrize("kind", REFUSED)
def test_other_arrays_stay_as_they_are(kind: str) -> None:
    factors = AdamFactors(0.9, 0.1, 0.9, 0.1, 1e-8)
    param, other = ONES.copy(), REFUSED[kind]()
    assert not loops.sgd(param, ONES, other, 0.1)
    assert not loops.momentum(param, ONES, other, param, 0.9, 0.1, False)
    assert not loops.adam(param, ONES, param, other, param, factors, 0.1)
    assert not loops.adagrad(param, ONES, other, 0.1, 1e-6)
    assert not loops.below_largest(ONES, other, -64)
    assert not loops.softmax_grad(ONES, ONES, other)
    assert not loops.masked(ONES, np.ones(7, np.uint8), 1.0, param)
    assert not loops.masked(ONES, np.ones(6, np.uint8), 1.0, other)
    assert (param == 1).all()
    assert (other == 1).all()


@needs_loops
@pytest.mark.parametrize("ids", [[0, 3], [-1, 0]])
def test_rows_that_are_not_there_change_nothing(ids: list[int]) -> None:
    target = np.zeros((3, 2), np.float32)
    value = np.ones((2, 2), np.float32)
    assert not loops.add_rows(target, np.array(ids), value)
    assert not target.any()
    with pytest.raises(ValueError, match=r"row -?[13] is not in 0 to 2"):
        rows.add_rows(target, np.array(ids), value)


@needs_loops
def test_wrong_calls_are_errors() -> None:
    with pytest.raises(TypeError, match="4 arguments are needed, not 1"):
        loops._loops.sgd(ONES)
    with pytest.raises(TypeError):
        loops.sgd(ONES, ONES, ONES.copy(), "much")  # pyright: ignore[reportArgumentType]


def trained(optimizer: Any) -> dict[str, bytes]:
    """What a scope holds after three steps of a classifier with an embedding."""
    model = L.Draft(seed=1)
    words, label = (L.data(model, name, [-1, 1], dtype=DType.INT64) for name in ("words", "label"))
    hidden = L.embedding(words, (30, 8), is_sparse=True)
    for activation in ("tanh", "relu", "sigmoid"):
        hidden = L.fc(hidden, 16, act=activation)
    minimize(L.mean(L.cross_entropy(L.softmax(L.fc(hidden, 5)), label)), optimizer)
    module, scope = model.module(), ps.Scope()
    assert module.startup is not None
    ps.run(module.startup, scope=scope)
    random = np.random.RandomState(0)
    for _ in range(3):
        feed = {"words": random.randint(0, 30, (20, 1)), "label": random.randint(0, 5, (20, 1))}
        ps.run(module.main, feed=feed, scope=scope)
    return {name: np.asarray(scope[name]).tobytes() for name in scope.values_here}


@needs_loops
@pytest.mark.parametrize(
    "optimizer", [SGD(0.1), Momentum(0.1, 0.9), Momentum(0.1, 0.9, use_nesterov=True), Adam(0.1), Adagrad(0.1)]
)
def test_a_program_trains_to_the_same_bits_without_them(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = trained(optimizer)
    monkeypatch.setattr(loops, "COMPILED", False)
    assert trained(optimizer) == compiled


def sparse_gradients(draw: st.DrawFn, tables: int) -> tuple[Any, ...]:
    """Tables of one size, and the rows and values of a gradient in which rows repeat."""
    height, width = draw(st.sampled_from([1, 2, 5, 300, 70_000])), draw(st.integers(1, 40))
    generator = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    ids = draw(arrays(np.int64, st.integers(0, 40), elements=st.integers(0, height - 1), fill=st.nothing()))
    numbers = draw(st.lists(FLOATS, min_size=1, max_size=9))
    value = generator.choice(np.array(numbers, "float32"), (len(ids), width))
    return *[generator.normal(size=(height, width)).astype("float32") for _ in range(tables)], ids, value


OPTIMIZERS: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {
    "sgd": ({}, (), ()),
    "momentum": ({"mu": 0.9}, ("Velocity",), ()),
    "nesterov": ({"mu": 0.9, "use_nesterov": True}, ("Velocity",), ()),
    "adagrad": ({"epsilon": 1e-6}, ("Moment",), ()),
    "adam": ({}, ("Moment1", "Moment2"), ("Beta1Pow", "Beta2Pow")),
    "adam scaled": ({"scaled_epsilon": True}, ("Moment1", "Moment2"), ("Beta1Pow", "Beta2Pow")),
    "adam lazy": ({"lazy_mode": True}, ("Moment1", "Moment2"), ("Beta1Pow", "Beta2Pow")),
    "adam decayed": ({"decoupled_decay": 0.1}, ("Moment1", "Moment2"), ("Beta1Pow", "Beta2Pow")),
    "ftrl": ({"l1": 0.5, "l2": 0.1}, ("SquaredAccumulator", "LinearAccumulator"), ()),
    "rmsprop": ({"momentum": 0.9}, ("Moment", "MeanSquare"), ()),
    "rmsprop of root": ({"epsilon_of_root": True}, ("Moment", "MeanSquare"), ()),
    "rmsprop centered": ({"centered": True}, ("Moment", "MeanSquare", "MeanGrad"), ()),
    "rmsprop centered of root": (
        {"centered": True, "epsilon_of_root": True},
        ("Moment", "MeanSquare", "MeanGrad"),
        (),
    ),
}
OUTPUTS = {"SquaredAccumulator": "SquaredAccumOut", "LinearAccumulator": "LinearAccumOut"}


def optimizer_op(kind: str, marks: dict[str, Any]) -> Any:
    """A bound op of an optimizer in which every value that it updates is one variable."""
    attributes, states, numbers = OPTIMIZERS[kind]
    of_op = "momentum" if kind == "nesterov" else kind.split()[0]
    inputs = {slot: [slot] for slot in ("Param", "Grad", "LearningRate", *states, *numbers)}
    outputs = {OUTPUTS.get(slot, f"{slot}Out"): [slot] for slot in ("Param", *states, *numbers)}
    op = make_op(of_op, inputs, outputs, attributes)
    return bind(op._replace(attrs=FrozenMap({**op.attrs, **marks})))


def all_bits(array: Any) -> bytes:
    """The bits of an array; all NaN count as one."""
    return np.where(np.isnan(array), np.nan, array).tobytes()


@needs_loops
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("marks", [{}, {rows.AS_ROWS: True}, {rows.GIVEN_ROWS: True}], ids=["", "rows", "given"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
@settings(max_examples=20)
@given(st.data())
def test_updates_by_rows(kind: str, marks: dict[str, Any], dtype: str, data: Any) -> None:
    """A step on sparse rows is bit for bit that of numpy, also with NaN, -0 and denormal numbers, in views as well."""
    height, width = data.draw(st.sampled_from([1, 5, 300, 9_000])), data.draw(st.integers(1, 20))
    generator = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    ids = data.draw(arrays(np.int64, st.integers(0, 40), elements=st.integers(0, height - 1), fill=st.nothing()))
    drawn = np.array([-0.0, *data.draw(st.lists(FLOATS, max_size=9))], "float32").astype(dtype)
    gradient = SelectedRows(ids, generator.choice(drawn, (len(ids) + 1, width)), height)
    _, states, numbers = OPTIMIZERS[kind]
    bound = optimizer_op(kind, marks)
    wide = generator.normal(size=(height, 1 + len(states), width)).astype(dtype)
    wide[generator.random(wide.shape) < 0.2] = -0.0
    wide[:, 1:] = abs(wide[:, 1:]) if data.draw(st.booleans()) else wide[:, 1:]
    apart = data.draw(st.booleans())

    def step() -> list[bytes]:
        own = wide.copy()
        tables = [own[:, at] if apart else own[:, at].copy() for at in range(1 + len(states))]
        values: dict[str, Any] = dict(zip(("Param", *states), tables, strict=True))
        values.update({slot: np.array([0.9 - 0.1 * at], dtype) for at, slot in enumerate(numbers)})
        values.update(Grad=gradient, LearningRate=np.array([0.1], dtype))
        made = bound.run(*(values.get(argument.slot) for argument in bound.arguments))
        made = [made] if len(bound.results) == 1 else made
        return [all_bits(array) for array in (*made, *tables) if array is not None]

    compiled = step()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "COMPILED", False)
        assert step() == compiled


@needs_loops
@given(st.composite(sparse_gradients)(1), st.lists(st.integers(0, 300), max_size=5), st.data())
def test_split_rows(drawn: Any, cuts: list[int], data: Any) -> None:
    param, ids, value = drawn
    assume(len(ids))
    ends = np.array([0, *sorted(cut for cut in cuts if cut <= len(param)), len(param)])
    order, wanted = rows.in_sections(ids, ends)
    starts, parts, values = np.empty_like(ends), np.empty_like(ids), np.empty_like(value)
    wide = np.concatenate([value, value], axis=1)
    given = wide[:, : value.shape[1]] if data.draw(st.booleans()) else value
    assert loops.split_rows(ids, given, ends, starts, parts, values)
    assert starts.tolist() == wanted
    assert same_bits(values, value[order])
    for start, stop, first in zip(wanted, wanted[1:], ends, strict=False):
        assert (parts[start:stop] + first).tolist() == ids[order][start:stop].tolist()


@needs_loops
@pytest.mark.parametrize("ids", [[0, 5], [-1, 2], [1 << 62]])
def test_rows_that_a_table_does_not_have_change_none(ids: list[int]) -> None:
    table, moment = np.ones((5, 3), "float32"), np.ones((5, 3), "float32")
    given, value = np.array(ids), np.ones((len(ids), 3), "float32")
    for reach in Reach:
        gradient = RowGradient(given, value, reach)
        assert not loops.sgd_rows(table, gradient, 0.1)
        assert not loops.adagrad_rows(table, gradient, moment, 0.1, 1e-6)
        assert not loops.ftrl_rows(table, gradient, (moment, moment), 0.1, 0.1, 0.1)
    ends = np.array([0, 2, 5])
    assert not loops.split_rows(given, value, ends, ends.copy(), given.copy(), value.copy())
    assert (table == 1).all()
    assert (moment == 1).all()
    narrow, fitting = (RowGradient(given[:1] * 0, np.ones((1, n), "float32"), Reach.GIVEN) for n in (2, 3))
    assert not loops.adagrad_rows(table, narrow, moment, 0.1, 1e-6)
    assert not loops.adagrad_rows(table, fitting, moment[:4], 0.1, 1e-6)


@needs_loops
def test_updates_of_rows_that_there_are_not_are_errors() -> None:
    table, given = np.ones((5, 3), "float32"), np.array([1])
    with pytest.raises(ValueError, match="there is no optimizer of this number"):
        loops._loops.update_rows(99, 1, given, table[:1], table, 0.1)
    with pytest.raises(ValueError, match="no update reaches 9"):
        loops._loops.update_rows(0, 9, given, table[:1], table, 0.1)
    with pytest.raises(TypeError, match="6 arguments are needed, not 5"):
        loops._loops.update_rows(0, 1, given, table[:1], table)


@needs_loops
@pytest.mark.parametrize("rows", [[0], [5, 3], [2**40, 7, 9], [*range(20)]], ids=len)
@pytest.mark.parametrize(("width", "outer"), [(1, 1), (6, 3), (5000, 1)])
def test_words_of_rows(rows: list[int], width: int, outer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = RowStream(0x1234567890ABCDEF_FEDCBA0987654321, Rows(np.array(rows), width, outer))
    compiled = stream.words()
    monkeypatch.setattr(loops, "COMPILED", False)
    assert same_bits(compiled, stream.words())


@needs_loops
@pytest.mark.parametrize("dims", [(1, 2), (9, 2), (1000, 3), (9000, 5), (130, 96), (70, 3, 33), (200, 1024)], ids=str)
def test_sum_rows(dims: tuple[int, ...]) -> None:
    x = np.random.RandomState(0).randn(*dims).astype("float32")
    sums = np.empty(dims[1:], "float32")
    assert loops.sum_rows(x, sums)
    assert same_bits(sums, np.add.reduce(x, axis=0))
    whole = np.empty(dims[-1:], "float32")
    assert loops.sum_rows(x, whole)
    assert same_bits(whole, np.add.reduce(x, axis=tuple(range(len(dims) - 1))))


@needs_loops
def test_rows_of_one_element_are_not_summed() -> None:
    assert not loops.sum_rows(np.ones((9, 1), "float32"), np.empty(1, "float32"))
    assert not loops.sum_rows(np.ones((0, 2), "float32"), np.empty(2, "float32"))
    assert not loops.sum_rows(np.ones((3, 3), "float32"), np.empty(2, "float32"))
