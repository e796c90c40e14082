"""Products, sums, scalings and norms of whole tensors."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pstranspile as ps
from pstranspile.ir.attributes import Ints
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.run.frame import Execution
from pstranspile.runtime.run.prepared import Prepared
from pstranspile.runtime.values import SelectedRows
from tests.ops.computing import compute
from tests.ops.differences import check_gradients, dims, one_output, quick, seeds, values


@quick
@given(rows=dims(1, 2, 3), shared=dims(1, 2, 3), columns=dims(1, 2, 3), seed=seeds)
def test_mul_makes_matrices_of_both(rows, shared, columns, seed):
    x, y = values(seed, *rows, *shared), values(seed + 1, *shared, *columns)
    attrs = {"x_num_col_dims": len(rows), "y_num_col_dims": len(shared)}
    found = one_output("mul", {"X": x, "Y": y}, attrs)
    expected = np.tensordot(x, y, len(shared))
    assert found.shape == rows + columns
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    check_gradients("mul", {"X": x, "Y": y}, ["Out"], attrs, of=("X", "Y"))


@st.composite
def factors(draw):
    """Operands of matmul (vectors, matrices, batches of them), which to transpose, and alpha."""
    seed, n = draw(seeds), draw(st.integers(1, 3))
    batch = draw(dims(0, 2, 2))
    flags = draw(st.booleans()), draw(st.booleans())

    def operand(left, transposed):
        if draw(st.booleans()) and (n == 1 or not transposed):
            # A vector is a row on the left; transposed it is a column, and the shared dim has one element
            return [draw(st.integers(1, 3)) if transposed else n]
        matrix = [draw(st.integers(1, 3)), n] if left != transposed else [n, draw(st.integers(1, 3))]
        return [*(batch if draw(st.booleans()) else ()), *matrix]

    x, y = operand(True, flags[0]), operand(False, flags[1])
    return values(seed, *x), values(seed + 1, *y), flags, draw(st.sampled_from([1.0, -0.5]))


@quick
@given(case=factors())
def test_matmul(case):
    x, y, (transpose_x, transpose_y), alpha = case
    a = x if x.ndim > 1 else x.reshape(1, -1)
    b = y if y.ndim > 1 else y.reshape(-1, 1)
    a = np.swapaxes(a, -1, -2) if transpose_x else a
    b = np.swapaxes(b, -1, -2) if transpose_y else b
    expected = alpha * np.einsum("...ij,...jk->...ik", a, b)
    attrs = {"transpose_X": transpose_x, "transpose_Y": transpose_y, "alpha": alpha}
    found = one_output("matmul", {"X": x, "Y": y}, attrs)
    if x.ndim > 1 and y.ndim > 1:
        assert found.shape == expected.shape
    assert found.ndim >= 1
    np.testing.assert_allclose(found.reshape(-1), expected.reshape(-1), rtol=1e-12, atol=1e-12)
    check_gradients("matmul", {"X": x, "Y": y}, ["Out"], attrs, of=("X", "Y"))


@pytest.mark.parametrize(
    ("x", "y", "flags", "shape"),
    [
        ((3,), (3,), (False, False), (1,)),
        ((3,), (4,), (True, True), (3, 4)),
        ((2, 3), (3,), (False, False), (2,)),
        ((3,), (3, 2), (False, False), (2,)),
        ((5, 2, 3), (3, 4), (False, False), (5, 2, 4)),
        ((5, 2, 3), (3,), (False, False), (5, 2)),
    ],
)
def test_dims_that_matmul_gives(x, y, flags, shape):
    attrs = {"transpose_X": flags[0], "transpose_Y": flags[1]}
    assert one_output("matmul", {"X": np.ones(x), "Y": np.ones(y)}, attrs).shape == shape


def test_matmul_refuses_attributes_of_mkl_kernels():
    with pytest.raises(DiagnosticError, match="head_number"):
        one_output("matmul", {"X": np.ones((2, 2)), "Y": np.ones((2, 2))}, {"head_number": 2})


@quick
@given(shape=dims(), count=st.integers(1, 4), seed=seeds)
def test_sum_of_tensors(shape, count, seed):
    terms = [values(seed + at, *shape) for at in range(count)]
    found = compute("sum", {"X": terms}, {"Out": "out"}).find("out")
    np.testing.assert_allclose(found, sum(terms), rtol=1e-12, atol=1e-12)


ROWS = st.lists(st.integers(0, 5), max_size=5)


@quick
@given(parts=st.lists(ROWS, min_size=1, max_size=3), seed=seeds)
def test_sum_of_sparse_rows(parts, seed):
    terms = [SelectedRows(np.array(rows, "int64"), values(seed + len(rows), len(rows), 2), 6) for rows in parts]
    found = compute("sum", {"X": terms}, {"Out": "out"}, sparse=("out",)).find("out")
    listed = [row for rows in parts for row in rows]
    repeats = len(set(listed)) < len(listed)
    assert found.rows.tolist() == (sorted(set(listed)) if repeats else listed)
    whole = np.zeros((6, 2))
    for term in terms:
        for row, value in zip(term.rows, term.value, strict=True):
            whole[row] += value
    np.testing.assert_allclose(found.value, whole[found.rows], rtol=1e-12, atol=1e-12)
    mixed = compute("sum", {"X": [terms[0], np.ones((6, 2)), *terms[1:]]}, {"Out": "out"}).find("out")
    np.testing.assert_allclose(mixed, whole + 1, rtol=1e-12, atol=1e-12)


def test_a_sum_of_one_is_a_copy():
    x = np.ones(2)
    frame = compute("sum", {"X": [x]}, {"Out": "out"})
    assert not np.shares_memory(frame.find("out"), frame.find("X0"))


@quick
@given(shape=dims(), scale=st.integers(-8, 8), bias=st.integers(-8, 8), after=st.booleans(), seed=seeds)
def test_scale(shape, scale, bias, after, seed):
    attrs = {"scale": scale / 4, "bias": bias / 4, "bias_after_scale": after}
    x = values(seed, *shape)
    expected = x * scale / 4 + bias / 4 if after else (x + bias / 4) * scale / 4
    np.testing.assert_allclose(one_output("scale", {"X": x}, attrs), expected, rtol=1e-12, atol=1e-12)
    tensor = {"X": x, "ScaleTensor": np.array([scale / 4], "float32")}
    np.testing.assert_allclose(one_output("scale", tensor, {**attrs, "scale": 9.0}), expected, rtol=1e-12, atol=1e-12)
    assert one_output("scale", {"X": x.astype("float32")}, attrs).dtype == "float32"


def test_scale_and_bias_of_integers_are_integers():
    x = np.array([3, -3])
    assert one_output("scale", {"X": x}, {"scale": 2.9, "bias": -1.9}).tolist() == [5, -7]
    assert one_output("increment", {"X": np.array([3])}, {"step": 2.7}).tolist() == [5]


def test_scale_of_sparse_rows():
    rows = SelectedRows(np.array([2, 2]), np.ones((2, 1)), 4)
    found = compute("scale", {"X": rows}, {"Out": "X"}, {"scale": 3.0}).find("X")
    assert (found.rows.tolist(), found.value.tolist(), found.height) == ([2, 2], [[3.0], [3.0]], 4)


@quick
@given(shape=dims(), seed=seeds)
def test_mean_and_norm(shape, seed):
    x = values(seed, *shape)
    assert one_output("mean", {"X": x}).tolist() == pytest.approx([math.fsum(x.reshape(-1)) / x.size])
    assert one_output("squared_l2_norm", {"X": x}).tolist() == pytest.approx([math.fsum(x.reshape(-1) ** 2)])
    check_gradients("mean", {"X": x}, ["Out"])
    check_gradients("squared_l2_norm", {"X": x}, ["Out"])
    assert one_output("mean", {"X": x.astype("float32")}).dtype == "float32"


@quick
@given(shape=dims(2, 3), single=st.booleans(), seed=seeds)
def test_distances_and_cosines_of_rows(shape, single, seed):
    x, y = values(seed, *shape), values(seed + 1, *((1, *shape[1:]) if single else shape))
    distance = compute("squared_l2_distance", {"X": x, "Y": y}, {"sub_result": "sub", "Out": "out"})
    cosine = one_output("cos_sim", {"X": x, "Y": y})
    for row in range(shape[0]):
        a, b = x[row].reshape(-1), y[0 if single else row].reshape(-1)
        np.testing.assert_allclose(distance.find("sub")[row], a - b)
        assert distance.find("out")[row, 0] == pytest.approx(sum((a - b) ** 2))
        assert cosine[row, 0] == pytest.approx(a @ b / math.sqrt((a @ a) * (b @ b)))
    check_gradients("squared_l2_distance", {"X": x, "Y": y}, ["sub_result", "Out"], of=("X", "Y"))
    check_gradients("cos_sim", {"X": x, "Y": y}, ["Out", "XNorm", "YNorm"], of=("X", "Y"), tolerance=1e-4)


def test_the_cosines_with_another_number_of_rows_are_those_with_the_first():
    """As in Fluid, which looks at the first row of Y alone unless X and Y have equally many."""
    x, y = values(1, 5, 4), values(2, 3, 4)
    for rows, others in ((5, 3), (2, 3), (1, 3)):
        cosine = one_output("cos_sim", {"X": x[:rows], "Y": y[:others]})
        assert cosine.tolist() == one_output("cos_sim", {"X": x[:rows], "Y": y[:1]}).tolist()
    check_gradients("cos_sim", {"X": x, "Y": y}, ["Out", "XNorm", "YNorm"], of=("X", "Y"), tolerance=1e-4)


def test_the_cosine_of_zeros_is_zero():
    assert one_output("cos_sim", {"X": np.zeros((1, 2)), "Y": np.ones((1, 2))}).tolist() == [[0]]


@pytest.mark.parametrize("offset", [-(1 << 31), -4, 5, (1 << 31) - 1])
def test_a_diagonal_outside_of_a_matrix_has_no_elements(offset):
    """Numpy reads other memory where it is given the smallest offset."""
    x = np.ones((2, 3, 4))
    np.testing.assert_array_equal(one_output("trace", {"Input": x}, {"offset": offset, "dim1": 1, "dim2": 2}), [0, 0])


@pytest.mark.parametrize("count", [2, 100, 101, 5000])
def test_a_sum_has_any_number_of_terms(count):
    """Also where a program is prepared: Python compiles an expression a level deeper for every term."""
    terms = [f"%{name}" for name in ("x", "y")] * (count // 2) + ["%x"] * (count % 2)
    text = f"""ir 1
program @main {{
  block ^0 {{
    temp %x : f32[3] feed
    temp %y : f32[3] feed
    temp %z : f32[3]
    sum(X=[{", ".join(terms)}]) -> Out=%z
  }}
}}
"""
    x, y = np.float32([1, 0.1, 1e8]), np.float32([2, 0.3, -1e8])
    expected = x
    for term in terms[1:]:
        expected = expected + (x if term == "%x" else y)
    program = ps.loads(text).main
    prepared = Prepared(Execution(program, ps.Scope()), ["x", "y"], ["z"])
    for found in (ps.run(program, {"x": x, "y": y}, ["z"]), prepared.step({"x": x, "y": y})):
        np.testing.assert_array_equal(found["z"], expected)


@pytest.mark.parametrize(
    ("op_type", "slots", "attrs", "told"),
    [
        ("fake_quantize_abs_max", {"X": [1.0]}, {"bit_length": 2**31 - 1}, "integers of 2147483647 bits"),
        ("fake_quantize_abs_max", {"X": [1.0]}, {"bit_length": -3}, "integers of -3 bits"),
        (
            "fake_channel_wise_dequantize_max_abs",
            {"X": [[1.0]], "Scales": [np.ones(1)]},
            {"quant_bits": Ints((2**31 - 1,))},
            "integers of 2147483647 bits",
        ),
    ],
)
def test_integers_have_a_number_of_bits(op_type, slots, attrs, told):
    inputs = {slot: value if slot == "Scales" else np.array(value) for slot, value in slots.items()}
    with pytest.raises(DiagnosticError, match=told):
        compute(op_type, inputs, {"Out": "Out"}, attrs)


def test_attributes_by_which_nothing_can_be_divided_are_told():
    """A kernel may divide by an attribute as it is made."""
    x, boxes, labels = np.ones((1, 8, 2, 2)), np.ones((1, 1, 4)), np.ones((1, 1), "int32")
    attrs = {"class_num": 0, "anchors": Ints((1, 1)), "anchor_mask": Ints((0,))}
    with pytest.raises(DiagnosticError, match=r"error\[run-op-failed\]: yolov3_loss: .*zero"):
        compute("yolov3_loss", {"X": x, "GTBox": boxes, "GTLabel": labels}, {"Loss": "Loss"}, attrs)
