"""Fluid's arithmetic: bit for bit what the real Fluid made, in single ops and in training."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from pstranspile import Scope
from pstranspile.fluid.arithmetic import float_functions, fluid_arithmetic, product_order
from pstranspile.fluid.arithmetic.float_functions import reciprocal_estimate, root_of_eights
from pstranspile.fluid.arithmetic.product_order import in_sequence, product_in_order
from pstranspile.frontends.program_desc import program_from_bytes
from pstranspile.runtime.arithmetic import (
    cos,
    dot,
    exp,
    is_small,
    log,
    matmul,
    product,
    product_of,
    root,
    shares_of_exp,
    sigmoid,
    softplus,
    sum_of_channels,
    sum_of_products,
    sum_of_row,
    sum_over,
    tanh,
)
from pstranspile.runtime.run.prepared import run
from pstranspile.runtime.values import Array
from tests import opdata

ARCHIVE = Path(__file__).parents[2] / "data" / "fluid" / "arithmetic.tar.xz"

EXACT = {
    *("mul", "mul_grad", "matmul", "matmul_grad", "conv2d", "conv2d_grad", "conv3d", "conv3d_grad"),
    *("exp", "sigmoid", "tanh", "sqrt", "softmax", "layer_norm", "layer_norm_grad", "mean", "reduce_sum"),
    *(
        "log",
        "cos",
        "sin",
        "elementwise_pow",
        "cross_entropy",
        "cross_entropy2",
        "elementwise_add_grad",
        "elementwise_sub_grad",
        "elementwise_mul_grad",
        "conv2d_transpose",
        "conv3d_transpose",
        "conv3d_transpose_grad",
        "batch_norm",
        "batch_norm_grad",
        "cos_sim",
        "cos_sim_grad",
        "clip_by_norm",
        "dropout",
        "dropout_grad",
        "lamb",
        "lars_momentum",
        "sequence_softmax",
        "sequence_softmax_grad",
        "softmax_with_cross_entropy",
    ),
}
"""Op types whose recordings are followed to the bit, where they are of f32."""
NOT_FOLLOWED = {"mul__fresh1", "mul_grad__fresh1", "matmul_grad__fresh1", "softmax__axis1_3d", "reduce_sum__dims02"}
NOT_FOLLOWED |= {"softmax_with_cross_entropy__axis1_hard"}


@cache
def files() -> dict[str, bytes]:
    with tarfile.open(ARCHIVE) as archive:
        return {m.name: f.read() for m in archive.getmembers() if (f := archive.extractfile(m)) is not None}


@cache
def arrays(name: str) -> dict[str, Array]:
    with np.load(io.BytesIO(files()[f"{name}.npz"])) as data:
        return dict(data)


def numbers(rows: int, columns: int, salt: int) -> Array:
    """What the recorded products were made of."""
    counted = np.arange(salt, rows * columns + salt, dtype=np.uint32) * np.uint32(2654435761)
    return ((counted >> 8).astype(np.float32) / np.float32(1 << 23) - 1).reshape(rows, columns)


def operands(key: str) -> tuple[Array, Array, bool, bool]:
    *stack, rows, terms, columns, transpose_a, transpose_b = map(int, key.split("_"))
    count = stack[0] if stack else 1
    a = numbers(count * rows, terms, 3).reshape(*stack, rows, terms)
    b = numbers(count * terms, columns, 7).reshape(*stack, terms, columns)
    return a, b, bool(transpose_a), bool(transpose_b)


@pytest.mark.parametrize("key", sorted(arrays("products")))
def test_recorded_product(key: str):
    a, b, transpose_a, transpose_b = operands(key)
    stored_a = np.ascontiguousarray(a.swapaxes(-1, -2)) if transpose_a else a
    stored_b = np.ascontiguousarray(b.swapaxes(-1, -2)) if transpose_b else b
    with fluid_arithmetic():
        found = matmul(stored_a, stored_b, transpose_a, transpose_b)
    want = arrays("products")[key]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found.reshape(want.shape), want)


def test_products_of_numpy_are_others():
    differ = [
        key for key, want in arrays("products").items() if not np.array_equal(plain(key).reshape(want.shape), want)
    ]
    assert len(differ) > 60


def plain(key: str) -> Array:
    a, b, _, _ = operands(key)
    return matmul(a, b)


@pytest.mark.parametrize(
    ("rows", "terms", "columns"), [(1, 9, 1), (1, 9, 5), (5, 9, 1), (3, 40, 3), (9, 113, 17), (4, 400, 8)]
)
def test_every_way_sums_in_sequence(rows: int, terms: int, columns: int, monkeypatch: pytest.MonkeyPatch):
    a, b = numbers(rows, terms, 1), numbers(terms, columns, 2)
    want = np.zeros((rows, columns), np.float32)
    for term in range(terms):
        want = want + a[:, term : term + 1] * b[term : term + 1]
    for blas in (True, False):
        if blas and not product_order._blas_is_in_sequence():  # pyright: ignore[reportPrivateUsage]
            continue
        for einsum in (True, False):
            monkeypatch.setattr(product_order, "_blas_is_in_sequence", lambda chosen=blas: chosen)
            monkeypatch.setattr(product_order, "_einsum_is_in_sequence", lambda chosen=einsum: chosen)
            np.testing.assert_array_equal(in_sequence(a, b), want)
            stacked = in_sequence(np.stack([a, a]), b)
            np.testing.assert_array_equal(stacked, np.stack([want, want]))


def test_many_products_are_not_kept_at_once(monkeypatch: pytest.MonkeyPatch):
    a, b = numbers(50, 30, 1), numbers(30, 20, 2)
    want = product_order._by_terms(a, b)  # pyright: ignore[reportPrivateUsage]
    for most in (1, 2000, 4000):
        monkeypatch.setattr(product_order, "_MOST_VALUES", most)
        for left, right in ((a, b), (np.stack([a, a]), b), (np.stack([a, a]), np.stack([b, b]))):
            found = product_order._by_terms(left, right)  # pyright: ignore[reportPrivateUsage]
            np.testing.assert_array_equal(found, np.broadcast_to(want, found.shape))


KERNELS = ("Haswell", "Nehalem", "Sandybridge")
DIGESTS = """
from tests.runtime.arithmetic.test_fluid import digest
print(digest())
"""


def digest() -> str:
    """Of products of many dims, in Fluid's order."""
    found = hashlib.sha256()
    for rows in (1, 2, 5, 8, 17):
        for terms in (1, 7, 130, 400):
            for columns in (1, 3, 8, 21):
                product = product_in_order(numbers(rows, terms, 5), numbers(terms, columns, 6), False, rows % 2 == 0)
                found.update(np.ascontiguousarray(product).tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("kernels", KERNELS)
def test_products_are_the_same_with_every_blas(kernels: str):
    told = {**os.environ, "OPENBLAS_CORETYPE": kernels}
    done = subprocess.run([sys.executable, "-c", DIGESTS], capture_output=True, text=True, check=True, env=told)
    assert done.stdout.strip() == digest()


@pytest.mark.parametrize(("rows", "terms", "columns"), [(0, 3, 2), (2, 0, 3), (3, 2, 0)])
def test_empty_products(rows: int, terms: int, columns: int):
    with fluid_arithmetic():
        found = dot(np.ones((rows, terms), "f4"), np.ones((terms, columns), "f4"))
    np.testing.assert_array_equal(found, np.zeros((rows, columns), "f4"))


def test_other_element_types_are_left_to_numpy():
    a, b = numbers(9, 130, 1).astype("f8"), numbers(130, 9, 2).astype("f8")
    with fluid_arithmetic():
        np.testing.assert_array_equal(dot(a, b), np.dot(a, b))


def test_it_holds_while_it_is_asked_for():
    a, b = numbers(16, 300, 1), numbers(300, 16, 2)
    outside = dot(a, b)
    with fluid_arithmetic():
        inside = dot(a, b)
        with fluid_arithmetic(False):
            np.testing.assert_array_equal(dot(a, b), outside)
        np.testing.assert_array_equal(dot(a, b), inside)
    np.testing.assert_array_equal(dot(a, b), outside)
    assert not np.array_equal(inside, outside)


@pytest.mark.parametrize("key", sorted({name.partition("/")[0] for name in arrays("scaled")}))
def test_factors_and_stacks(key: str):
    """Of stacks whose matrices begin unaligned too."""
    a, b, product = (arrays("scaled")[f"{key}/{name}"] for name in ("a", "b", "product"))
    transpose_a, transpose_b = (flag == "1" for flag in key.split("_")[-2:])
    with fluid_arithmetic():
        found = matmul(a, b, transpose_a, transpose_b, 0.35355338)
    np.testing.assert_array_equal(found, product)


def test_filters_whose_gradients_have_several_blocks():
    """Each image's product is added block by block, which is not the sum of the products."""
    a, b = np.stack([numbers(9, 250, i) for i in range(3)]), np.stack([numbers(17, 250, i) for i in range(5, 8)])
    with fluid_arithmetic():
        found = sum_of_products(a, b)
        apart = sum(matmul(x, y, False, True) for x, y in zip(a, b, strict=True))
    assert not np.array_equal(found, apart)
    np.testing.assert_allclose(found, sum_of_products(a, b), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", sorted({name.partition("/")[0] for name in arrays("functions")}))
def test_recorded_function_is_exact(name: str):
    """An activation or a loss, and its gradient."""
    held = {
        key.removeprefix(f"{name}/"): value for key, value in arrays("functions").items() if key.startswith(f"{name}/")
    }
    program = program_from_bytes(held["program"].tobytes(), name, "main")
    feed = {key[5:]: value for key, value in held.items() if key.startswith("feed/")}
    result, gradient = map(str, held["names"])
    with fluid_arithmetic():
        found = run(program, feed, [result, gradient])
    np.testing.assert_array_equal(found[result], held["y"])
    np.testing.assert_array_equal(found[gradient], held["gradient"])


@pytest.mark.parametrize("name", ["exp", "log", "sin", "cos"])
def test_functions_of_the_c_library(name: str):
    x, want = arrays("library")[f"{name}/x"], arrays("library")[f"{name}/y"]
    of_library = getattr(float_functions, f"library_{name}" if name in ("exp", "log") else name)
    np.testing.assert_array_equal(of_library(x), want)
    near = getattr(np, name)(x, dtype=np.float64).astype(np.float32)
    assert np.count_nonzero(near != want) < len(x) / 20


def test_exponentials_of_long_rows():
    x, want = arrays("library")["table/x"], arrays("library")["table/y"]
    np.testing.assert_array_equal(float_functions.exp_by_table(x), want)
    assert np.count_nonzero(np.exp(x, dtype=np.float64).astype(np.float32) != want) > 2


def test_functions_of_the_c_library_at_their_ends():
    x = np.array([np.inf, -np.inf, np.nan, 0, -0.0, 88.73, -104, -103, 1e-45, 130], np.float32)
    with np.errstate(invalid="ignore", divide="ignore"):
        np.testing.assert_array_equal(
            float_functions.library_exp(x[:6]), np.array([np.inf, 0, np.nan, 1, 1, np.inf], "f4")
        )
        np.testing.assert_array_equal(float_functions.library_log(x), np.log(x, dtype=np.float64).astype(np.float32))
        assert np.isnan(float_functions.sin(x[:3])).all()
        np.testing.assert_array_equal(float_functions.cos(x[3:5]), np.ones(2, np.float32))
        np.testing.assert_array_equal(float_functions.sin(x[9:]), np.sin(x[9:], dtype=np.float64).astype(np.float32))
        found = float_functions.exp_by_table(np.array([0, -np.inf, np.nan, -104, -1e30], np.float32))
    np.testing.assert_array_equal(found, np.array([1, 0, np.nan, 0, 0], np.float32))


@pytest.mark.parametrize("dims", [(0,), (0, 3), (3, 0), (0, 130), (2, 0, 3), (0, 2, 3)])
def test_functions_of_nothing(dims: tuple[int, ...]):
    """What has no elements has none afterwards, and its sums are 0."""
    x = np.zeros(dims, np.float32)
    with fluid_arithmetic():
        for function in (exp, log, sigmoid, tanh, softplus, root, cos, sum_of_row_of_last):
            assert function(x).dtype == np.float32
        for axis in range(x.ndim):
            np.testing.assert_array_equal(sum_over(x, (axis,)), np.add.reduce(x, axis=axis))
        if x.ndim > 1:
            over = tuple(axis for axis in range(x.ndim) if axis != 1)
            np.testing.assert_array_equal(sum_of_channels(x, over, True), np.zeros(dims[1]))
        if dims[-1]:
            assert shares_of_exp(x.copy(), -1)[0].shape == dims


def sum_of_row_of_last(x: Array) -> Array:
    found = sum_of_row(x, -1)
    assert found.shape == (*x.shape[:-1], 1)
    return found


@pytest.mark.parametrize("dims", [(0, 4, 3, 5), (2, 0, 3, 5), (2, 4, 0, 200), (2, 4, 3, 0)])
def test_sums_of_no_products(dims: tuple[int, ...]):
    count, rows, columns, terms = dims
    with fluid_arithmetic():
        found = sum_of_products(
            np.zeros((count, rows, terms), np.float32), np.zeros((count, columns, terms), np.float32)
        )
    np.testing.assert_array_equal(found, np.zeros((rows, columns)))


def exact_recordings() -> list[str]:
    """Those of f32; of f64, Fluid's order of sums is not followed."""
    names = [name for name in opdata.names() if name.split("__")[0] in EXACT and name not in NOT_FOLLOWED]
    held = {name: opdata.Recording(name).arrays.values() for name in names}
    return [name for name in names if all(array.dtype != np.float64 for array in held[name])]


@pytest.mark.parametrize("name", exact_recordings())
def test_recorded_op_is_exact(name: str, tmp_path: Path):
    recording = opdata.Recording(name)
    recording.meta["tolerance"] = opdata.EXACT
    with fluid_arithmetic():
        assert list(opdata.op_faults(recording, tmp_path)) == []


def test_what_is_exact_is_not_little():
    assert len(exact_recordings()) > 120


@pytest.mark.parametrize("name", ["attention", "images", "rms", "strokes"])
def test_recorded_training_is_exact(name: str):
    """Five steps with Adam, Momentum and RMSProp: every loss and parameter has the bits that Fluid recorded."""
    program = program_from_bytes(files()[f"{name}.pb"], name, "main")
    held, fetch = arrays(name), str(arrays(name)["fetch"])
    scope = Scope()
    scope.update({key[5:]: value.copy() for key, value in held.items() if key.startswith("init/")})
    with fluid_arithmetic():
        losses = [
            run(program, {"x": held["feed/x"][step], "y": held["feed/y"][step]}, [fetch], scope)[fetch].item(0)
            for step in range(len(held["loss"]))
        ]
    assert losses == held["loss"].tolist()
    finals = {key[6:]: value for key, value in held.items() if key.startswith("final/")}
    assert len(finals) > 3
    for parameter, value in finals.items():
        np.testing.assert_array_equal(scope.get(parameter), value)


def test_estimates_have_the_precision_of_the_instruction():
    """|estimate * sqrt(x) - 1| <= 1.5 * 2^-12, over all leading bits and exponents."""
    x = np.ldexp(1 + np.arange(4096, dtype=np.float32) / 4096, np.arange(4096) % 250 - 125).astype(np.float32)
    error = np.abs(reciprocal_estimate(x).astype("f8") * np.sqrt(x.astype("f8")) - 1)
    assert error.max() <= 1.5 * 2**-12
    assert np.abs(root_of_eights(x) / np.sqrt(x.astype("f8")) - 1).max() < 3e-7


def test_roots_of_numbers_without_an_estimate():
    x = np.array([0, 1e-45, 1e-39, np.inf, -1, np.nan, 4, 2], np.float32)
    with np.errstate(invalid="ignore"):
        found = root_of_eights(x)
    np.testing.assert_array_equal(found[:4], np.array([0, 0, 0, np.inf], np.float32))
    assert np.isnan(found[4:6]).all()
    assert found[6] == 2


def test_functions_at_their_ends():
    """As Fluid gives them, but for NaN, which it loses in exp, sigmoid and tanh."""
    x = np.array([np.inf, -np.inf, 100, -100, 88.5, -88.5, 0, np.nan], np.float32)
    with fluid_arithmetic(), np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(exp(x), np.array([np.inf, 0, np.inf, 0, np.inf, 0, 1, np.nan], np.float32))
        np.testing.assert_array_equal(sigmoid(x), np.array([1, 0, 1, 0, 1, 0, 0.5, np.nan], np.float32))
        np.testing.assert_array_equal(tanh(x), np.array([1, -1, 1, -1, 1, -1, 0, np.nan], np.float32))


def test_roots_are_taken_in_eights():
    """Of 30 elements the last 6 are taken one by one, and of a slice of 11 the last 3: as Fluid's servers do."""
    x = np.abs(numbers(1, 30, 9)).ravel()
    with fluid_arithmetic():
        found, of_slice = root(x), root(x[:11])
    np.testing.assert_array_equal(found[24:], np.sqrt(x[24:]))
    assert not np.array_equal(found[:24], np.sqrt(x[:24]))
    np.testing.assert_array_equal(of_slice, [*found[:8], *np.sqrt(x[8:11])])


@pytest.mark.parametrize(("count", "terms", "columns"), [(20, 150, 200), (100, 400, 500), (100, 400, 200)])
def test_some_rows_times_a_large_transposed_matrix(count: int, terms: int, columns: int):
    random = np.random.RandomState(0)
    rows = random.randn(count, 150 + terms).astype("float32")[:, 100 : 100 + terms]
    matrix = np.asfortranarray(random.randn(terms, columns).astype("float32"))
    found = product(rows, matrix)
    assert found.flags.c_contiguous
    np.testing.assert_allclose(found, rows.astype("float64") @ matrix, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [200, 1500])
def test_few_rows_and_a_single_row_times_a_large_matrix_agree(columns: int):
    random = np.random.RandomState(0)
    wide = random.randn(5, 300).astype("float32")[:, 100:250]  # rows lie apart
    matrix = random.randn(150, columns).astype("float32")
    for matrix_ in (matrix, np.asfortranarray(matrix)):
        found, into = product(wide, matrix_), np.empty((5, columns), "float32")
        product_of(len(wide), matrix_)(wide, matrix_, into)
        assert into.tobytes() == found.tobytes()
        if not is_small(len(wide), matrix_):  # then they are products of each row
            assert found.tobytes() == np.concatenate([np.dot(row, matrix_) for row in wide]).tobytes()
        np.testing.assert_allclose(found, wide.astype("float64") @ matrix_, rtol=1e-4, atol=1e-4)
