"""Lookups in tables and their gradients."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstranspile.ir.attributes import Long
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.kernels.rows import merge_rows
from pstranspile.runtime.values import LoDTensor, SelectedRows
from tests.ops.computing import compute

TABLE = np.arange(15.0).reshape(5, 3) + 1
IDS = st.lists(st.integers(1, 3), min_size=1, max_size=2).flatmap(
    lambda dims: st.lists(st.integers(0, 4), min_size=int(np.prod(dims)), max_size=int(np.prod(dims))).map(
        lambda ids: np.array(ids, "int64").reshape(dims)
    )
)


def as_input(op_type, ids):
    return ids[..., None] if op_type == "lookup_table" else ids


@pytest.mark.parametrize("op_type", ["lookup_table", "lookup_table_v2"])
@given(ids=IDS, padding=st.integers(-1, 4))
def test_lookup_and_gradients(op_type, ids, padding):
    attrs = {"padding_idx": Long(padding)}
    inputs = {"W": TABLE, "Ids": as_input(op_type, ids)}
    expected = TABLE[ids] * (ids != padding)[..., None]
    np.testing.assert_array_equal(compute(op_type, inputs, {"Out": "out"}, attrs).find("out"), expected)

    gradient = np.random.default_rng(1).standard_normal((*ids.shape, 3))
    inputs["Out@GRAD"] = gradient
    dense = compute(f"{op_type}_grad", inputs, {"W@GRAD": "g"}, attrs).find("g")
    total = np.zeros_like(TABLE)
    np.add.at(total, ids.reshape(-1), (gradient * (ids != padding)[..., None]).reshape(-1, 3))
    np.testing.assert_allclose(dense, total, rtol=1e-12)

    sparse = compute(f"{op_type}_grad", inputs, {"W@GRAD": "g"}, attrs | {"is_sparse": True}, sparse=("g",)).find("g")
    assert sparse.rows.tolist() == ids.reshape(-1).tolist()
    assert sparse.height == 5
    np.testing.assert_array_equal(sparse.value, gradient.reshape(-1, 3))


@given(ids=IDS, padding=st.integers(-1, 6))
def test_lookup_in_sparse_rows_finds_rows_by_their_number(ids, padding):
    table = SelectedRows(np.array([4, 0, 3, 1, 2]), TABLE, 9)
    place = np.array([1, 3, 4, 2, 0])
    out = compute("lookup_table_v2", {"W": table, "Ids": ids}, {"Out": "out"}, {"padding_idx": Long(padding)})
    np.testing.assert_array_equal(out.find("out"), TABLE[place[ids]] * (ids != padding)[..., None])


def test_lod_of_ids_is_passed_on():
    ids = LoDTensor(np.array([[1], [2], [0]]), [[0, 1, 3]])
    assert compute("lookup_table", {"W": TABLE, "Ids": ids}, {"Out": "out"}).find("out").lod == [[0, 1, 3]]


@pytest.mark.parametrize(("wrong", "dtype"), [(5, "int64"), (-1, "int64"), (7, "int32"), (-2, "int32")])
def test_ids_outside_the_table_are_refused(wrong, dtype):
    with pytest.raises(DiagnosticError, match=f"Ids holds {wrong}, but W has 5 rows"):
        compute("lookup_table_v2", {"W": TABLE, "Ids": np.array([1, wrong], dtype)}, {"Out": "out"})


@pytest.mark.parametrize("wrong", [5, -1])
def test_a_sparse_gradient_has_no_rows_outside_the_table(wrong: int):
    inputs = {"W": TABLE, "Ids": np.array([[1], [wrong]]), "Out@GRAD": np.ones((2, 3))}
    with pytest.raises(DiagnosticError, match=f"Ids holds {wrong}, but W has 5 rows"):
        compute("lookup_table_grad", inputs, {"W@GRAD": "out"}, {"is_sparse": True})


def test_an_id_that_sparse_rows_lack_is_refused():
    table = SelectedRows(np.array([4, 0]), TABLE[:2], 9)
    with pytest.raises(DiagnosticError, match="W has no row 3"):
        compute("lookup_table_v2", {"W": table, "Ids": np.array([4, 3])}, {"Out": "out"})


def test_a_table_grows_by_the_ids_it_meets():
    table = SelectedRows(np.array([7, 3]), TABLE, 100)
    inputs = {"W": table, "Ids": np.array([[9], [3], [1], [9]])}
    frame = compute("lookup_sparse_table", inputs, {"Out": "out"})
    grown = frame.find("W")
    assert grown.rows.tolist() == [7, 3, 9, 1]
    np.testing.assert_array_equal(frame.find("out"), TABLE[[2, 1, 3, 2]])
    inputs["Ids"] = np.array([[9], [8], [6], [5], [4]])
    with pytest.raises(DiagnosticError, match="W has room for 3 more rows, but Ids brings 5 new ids"):
        compute("lookup_sparse_table", inputs, {"Out": "out"})


def test_a_table_does_not_grow_in_test():
    table = SelectedRows(np.array([7, 3]), TABLE, 100)
    frame = compute("lookup_sparse_table", {"W": table, "Ids": np.array([[9], [3]])}, {"Out": "out"}, {"is_test": True})
    assert frame.find("W").rows.tolist() == [7, 3]
    np.testing.assert_array_equal(frame.find("out"), [[0, 0, 0], TABLE[1]])


OFFSETS = [0, 2, 5, 5, 6]
WORDS = np.array([[1], [2], [2], [4], [0], [3]], "int64")


@pytest.mark.parametrize("padding", [-1, 2])
def test_pooled_lookup_is_the_sum_of_rows_of_a_sequence(padding):
    inputs = {"W": TABLE, "Ids": LoDTensor(WORDS, (tuple(OFFSETS),))}
    attrs = {"padding_idx": Long(padding), "combiner": "sum"}
    out = compute("fused_embedding_seq_pool", inputs, {"Out": "out"}, attrs).find("out")
    rows = TABLE[WORDS[:, 0]] * (padding != WORDS)
    expected = np.stack([rows[a:b].sum(0) for a, b in itertools.pairwise(OFFSETS)])
    np.testing.assert_allclose(out, expected, rtol=1e-12)

    gradient = np.random.default_rng(1).standard_normal(expected.shape)
    inputs["Out@GRAD"] = gradient
    dense = compute("fused_embedding_seq_pool_grad", inputs, {"W@GRAD": "g"}, attrs).find("g")
    spread = np.repeat(gradient, np.diff(OFFSETS), axis=0)
    total = np.zeros_like(TABLE)
    np.add.at(total, WORDS[:, 0], spread * (padding != WORDS))
    np.testing.assert_allclose(dense, total, rtol=1e-12)
    sparse = compute(
        "fused_embedding_seq_pool_grad", inputs, {"W@GRAD": "g"}, attrs | {"is_sparse": True}, sparse=("g",)
    ).find("g")
    np.testing.assert_array_equal(sparse.rows, WORDS[:, 0])
    np.testing.assert_array_equal(sparse.value, spread)


def test_pooled_lookup_of_several_columns_puts_them_side_by_side():
    ids = np.array([[0, 1], [2, 3], [4, 0]], "int64")
    out = compute(
        "fused_embedding_seq_pool", {"W": TABLE, "Ids": LoDTensor(ids, ((0, 2, 3),))}, {"Out": "out"}, {}
    ).find("out")
    first, last = TABLE[[0, 2]].sum(0), TABLE[[1, 3]].sum(0)
    np.testing.assert_array_equal(out, [[*first, *last], [*TABLE[4], *TABLE[0]]])


def test_pooled_lookup_only_adds():
    with pytest.raises(DiagnosticError, match="combiner is 'mean'"):
        compute(
            "fused_embedding_seq_pool",
            {"W": TABLE, "Ids": LoDTensor(WORDS, ((0, 6),))},
            {"Out": "o"},
            {"combiner": "mean"},
        )


def test_rows_of_bytes_are_looked_up_as_numbers():
    table = np.zeros((3, 4), "float32")
    table[:, 0], table[:, 1] = [-1, 0, 2], [1, 256, 3]
    levels = np.arange(24, dtype="uint8").reshape(3, 8) * 10
    table[:, 2:] = levels.view("float32")
    frame = compute(
        "lookup_table_dequant",
        {"W": table, "Ids": np.array([[2], [0], [1]])},
        {"Out": "out"},
        {"padding_idx": Long(1)},
    )
    wanted = table[:, :1] + levels * (table[:, 1:2] - table[:, :1]) / 256
    wanted[1] = 0
    assert np.allclose(frame.find("out"), wanted[[2, 0, 1]])


def test_ids_of_rows_of_bytes_are_those_that_the_table_has():
    with pytest.raises(DiagnosticError, match="Ids holds 3, but W has 3 rows"):
        compute("lookup_table_dequant", {"W": np.zeros((3, 4), "float32"), "Ids": np.array([[3]])}, {"Out": "out"})


@pytest.mark.parametrize("op_type", ["lookup_table", "lookup_table_v2"])
@given(ids=IDS)
def test_merge_rows_adds_up_the_rows_of_a_sparse_gradient(op_type, ids):
    inputs = {"W": TABLE.astype("float32"), "Ids": as_input(op_type, ids)}
    inputs["Out@GRAD"] = np.random.default_rng(2).standard_normal((*ids.shape, 3)).astype("float32")
    sparse = compute(f"{op_type}_grad", inputs, {"W@GRAD": "g"}, {"is_sparse": True}).find("g")
    once = compute(f"{op_type}_grad", inputs, {"W@GRAD": "g"}, {"is_sparse": True, "merge_rows": True}).find("g")
    assert sparse.rows.tolist() == ids.reshape(-1).tolist()
    wanted = merge_rows([sparse])
    assert once.rows.tolist() == wanted.rows.tolist()
    assert once.value.tobytes() == wanted.value.tobytes()
