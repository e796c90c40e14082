"""Arithmetic on SelectedRows, and the ops that merge, cut up and put together rows and ids."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstranspile.ir.attributes import Ints, Longs
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.kernels.rows import add_rows, merge_rows, scatter, sum_tables, update_rows
from pstranspile.runtime.values import LoDTensor, SelectedRows
from tests.ops.computing import compute

HEIGHT = 9


@st.composite
def sparse_rows(draw, width=3):
    rows = draw(st.lists(st.integers(0, HEIGHT - 1), max_size=8))
    values = st.lists(st.integers(-8, 8), min_size=len(rows) * width, max_size=len(rows) * width)
    value = np.array(draw(values), "float32").reshape(len(rows), width)
    return SelectedRows(np.array(rows, "int64"), value, HEIGHT)


def dense(*parts):
    total = np.zeros((HEIGHT, 3), "float32")
    for part in parts:
        for row, value in zip(part.rows, part.value, strict=True):
            total[row] += value
    return total


@given(st.lists(sparse_rows(), min_size=1, max_size=3))
def test_merging_adds_up_and_keeps_the_order_of_rows_that_do_not_repeat(parts):
    merged = merge_rows(parts)
    rows = np.concatenate([part.rows for part in parts])
    if len(set(rows.tolist())) == len(rows):
        assert merged.rows.tolist() == rows.tolist()
    else:
        assert merged.rows.tolist() == sorted(set(rows.tolist()))
    np.testing.assert_array_equal(dense(merged), dense(*parts))
    assert not any(np.shares_memory(merged.value, part.value) for part in parts)


@pytest.mark.parametrize("count", [2, 64, 65, 200, 256, 257])
def test_repeated_rows_are_detected_in_any_number_of_rows(count):
    rows = np.random.default_rng(count).permutation(1000)[:count]
    value = np.arange(count, dtype="float32").reshape(-1, 1)
    assert merge_rows([SelectedRows(rows, value, 1000)]).rows.tolist() == rows.tolist()
    rows[-1] = rows[0]
    merged = merge_rows([SelectedRows(rows[: count // 2], value[: count // 2], 1000), SelectedRows(rows, value, 1000)])
    assert merged.rows.tolist() == sorted({*rows.tolist()})
    assert merged.value.sum() == value.sum() + value[: count // 2].sum()


@pytest.mark.parametrize("kind", ["int64", "int32"])
@pytest.mark.parametrize("height", [90, 1 << 60])
def test_many_repeated_rows_are_added_in_their_order(height: int, kind: str):
    r = np.random.default_rng(3)
    rows = r.integers(0, min(height, np.iinfo(kind).max), 80).astype(kind)[r.integers(0, 80, 700)]
    value = r.standard_normal((700, 3)).astype("float32")
    merged = merge_rows([SelectedRows(rows, value, height)])
    assert merged.rows.tolist() == sorted({*rows.tolist()})
    total = np.zeros(merged.value.shape, "float32")
    np.add.at(total, merged.rows.searchsorted(rows), value)
    assert merged.value.tobytes() == total.tobytes()


def test_ascending_rows_are_added_as_others_are():
    rows, value = np.arange(1, 60, 3), np.random.default_rng(0).standard_normal((20, 5))
    one, other = np.ones((2, 60, 5))
    add_rows(one, rows, value)
    add_rows(other, rows[::-1], value[::-1])
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("most", [5, 100, 2000])
@pytest.mark.parametrize("width", [1, 3, 200])
def test_tables_add_up_as_the_dense_ones_do_bit_by_bit(most, width):
    r = np.random.default_rng(most + width)
    parts = [
        SelectedRows(r.integers(0, 90, count), r.standard_normal((count, width)).astype("float32"), 90)
        for count in r.integers(1, most, 3)
    ]
    tables = [np.zeros((90, width), "float32") for _ in parts]
    for table, part in zip(tables, parts, strict=True):
        np.add.at(table, part.rows, part.value)
        assert scatter(part, table.shape).tobytes() == table.tobytes()
        assert scatter(merge_rows([part]), table.shape).tobytes() == table.tobytes()
    found = sum_tables(parts)
    assert found.rows.tolist() == sorted({*np.concatenate([part.rows for part in parts]).tolist()})
    assert scatter(found, tables[0].shape).tobytes() == (tables[0] + tables[1] + tables[2]).tobytes()


@given(sparse_rows())
def test_scattering_and_adding(part):
    np.testing.assert_array_equal(scatter(part, (HEIGHT, 3)), dense(part))
    for table in (np.ones((HEIGHT, 3), "float32"), np.ones((3, HEIGHT), "float32").T):
        add_rows(table, part.rows, part.value)
        np.testing.assert_array_equal(table, dense(part) + 1)


def test_rows_of_another_width_are_refused():
    with pytest.raises(ValueError, match=r"rows of dims \[1\] can't be added to rows of dims \[3\]"):
        add_rows(np.zeros((4, 3)), np.array([1]), np.ones((1, 1)))


def test_the_room_of_a_growing_table_is_not_merged():
    part = SelectedRows(np.array([4, 2]), np.arange(12.0).reshape(4, 3), HEIGHT)
    assert merge_rows([part]).value.shape == (2, 3)


@given(sparse_rows())
def test_updating_rows_sees_each_row_once(part):
    table = np.zeros((HEIGHT, 3), "float32")

    def step(gradient, rows):
        rows += 100 + gradient

    update_rows(part, step, table)
    touched = np.isin(np.arange(HEIGHT), part.rows)[:, None]
    np.testing.assert_array_equal(table, (dense(part) + 100) * touched)


@given(sparse_rows())
def test_merge_selected_rows_and_get_tensor(part):
    merged = compute("merge_selected_rows", {"X": part}, {"Out": "out"}).find("out")
    np.testing.assert_array_equal(dense(merged), dense(part))
    assert merged.height == HEIGHT
    got = compute("get_tensor_from_selected_rows", {"X": part}, {"Out": "out"}).find("out")
    np.testing.assert_array_equal(got, part.value)


@given(sparse_rows(), st.integers(0, HEIGHT), st.integers(0, HEIGHT))
def test_split_selected_rows_cuts_at_the_sections(part, a, b):
    cuts = sorted((a, b))
    sections = (cuts[0], cuts[1] - cuts[0], HEIGHT - cuts[1])
    attrs = {"height_sections": Longs(sections)}
    frame = compute("split_selected_rows", {"X": part}, {"Out": ["a", "b", "c"]}, attrs)
    start = 0
    for name, section in zip("abc", sections, strict=True):
        shard = frame.find(name)
        here = (part.rows >= start) & (part.rows < start + section)
        assert shard.height == section
        assert (shard.rows + start).tolist() == part.rows[here].tolist()
        np.testing.assert_array_equal(shard.value, part.value[here])
        start += section


def test_split_selected_rows_refuses_rows_behind_the_sections():
    part = SelectedRows(np.array([5]), np.ones((1, 3)), HEIGHT)
    with pytest.raises(DiagnosticError, match="row 5 is not in 0 to 4"):
        compute("split_selected_rows", {"X": part}, {"Out": ["a", "b"]}, {"height_sections": Longs((2, 3))})


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=6), min_size=1, max_size=3), st.integers(1, 4))
def test_split_ids_and_merge_ids_bring_each_id_its_row(lists, count):
    ids = [np.array(item, "int64").reshape(-1, 1) for item in lists]
    names = [f"shard{number}" for number in range(count)]
    frame = compute("split_ids", {"Ids": ids}, {"Out": names})
    shards = [frame.find(name) for name in names]
    for number, shard in enumerate(shards):
        wanted = sorted({i for item in lists for i in item if i % count == number})
        assert shard.reshape(-1).tolist() == wanted
        assert shard.shape == (len(wanted), 1)
    answers = [np.concatenate([shard * 10, shard + 0.5], axis=1) for shard in shards]
    outs = [f"out{number}" for number in range(len(ids))]
    merged = compute("merge_ids", {"Ids": ids, "Rows": shards, "X": answers}, {"Out": outs})
    for given_ids, name in zip(ids, outs, strict=True):
        np.testing.assert_array_equal(merged.find(name), np.concatenate([given_ids * 10, given_ids + 0.5], axis=1))


@given(sparse_rows(), st.integers(1, 4))
def test_split_ids_of_sparse_rows_keeps_repeated_rows_and_their_values(part, count):
    names = [f"shard{number}" for number in range(count)]
    frame = compute("split_ids", {"Ids": [part]}, {"Out": names}, sparse=tuple(names))
    for number, name in enumerate(names):
        here = part.rows % count == number
        np.testing.assert_array_equal(frame.find(name).rows, part.rows[here])
        np.testing.assert_array_equal(frame.find(name).value, part.value[here])


def test_merge_ids_passes_lod_on_and_refuses_unknown_ids():
    inputs = {"Ids": [LoDTensor(np.array([[3], [1], [3]]), [[0, 2, 3]])], "Rows": [np.array([[1], [3]])]}
    inputs["X"] = [np.array([[1.5], [3.5]])]
    out = compute("merge_ids", inputs, {"Out": ["out"]}).find("out")
    assert out.data.tolist() == [[3.5], [1.5], [3.5]]
    assert out.lod == [[0, 2, 3]]
    with pytest.raises(DiagnosticError, match="Rows has no row 2"):
        compute("merge_ids", inputs | {"Ids": [np.array([[2]])]}, {"Out": ["out"]})


def test_split_byref_cuts_rows():
    x = np.arange(12.0).reshape(6, 2)
    frame = compute("split_byref", {"X": x}, {"Out": ["a", "b"]}, {"sections": Ints((4, 2))})
    np.testing.assert_array_equal(frame.find("b"), x[4:])
    frame = compute("split_byref", {"X": x}, {"Out": ["a", "b", "c"]}, {"num": 3})
    np.testing.assert_array_equal(frame.find("b"), x[2:4])
    with pytest.raises(DiagnosticError, match="cannot be cut"):
        compute("split_byref", {"X": x}, {"Out": ["a", "b"]}, {"num": 4})


def test_ref_by_trainer_id():
    xs = [np.array([1.0]), np.array([2.0])]
    assert compute("ref_by_trainer_id", {"X": xs, "TrainerId": np.array([1])}, {"Out": "out"}).find("out") == 2.0
    with pytest.raises(DiagnosticError, match="TrainerId is 2, but X has 2 variables"):
        compute("ref_by_trainer_id", {"X": xs, "TrainerId": np.array([2])}, {"Out": "out"})


@pytest.mark.parametrize("sparse", [(), ("W",)])
def test_a_fake_table_has_dims_and_no_rows(sparse):
    attrs = {"shape": Longs((10**12, 3))}
    table = compute("fake_init", {}, {"Out": "W"}, attrs, sparse=sparse).find("W")
    assert (len(table.rows), table.value.shape, table.height) == (0, (0, 3), 10**12)
    inputs = {"W": table, "Ids": np.array([[5]])}
    with pytest.raises(DiagnosticError, match="W has no row 5"):
        compute("lookup_table", inputs, {"Out": "out"})
    inputs["Out@GRAD"] = np.ones((1, 3))
    gradient = compute("lookup_table_grad", inputs, {"W@GRAD": "g"}, {"is_sparse": True}, sparse=("g",)).find("g")
    assert (gradient.rows.tolist(), gradient.height) == ([5], 10**12)
    with pytest.raises(DiagnosticError, match="not the dims of a table"):
        compute("fake_init", {}, {"Out": "W"}, {"shape": Longs((-1, 3))})


def test_filled_sparse_rows_have_room_but_no_rows():
    attrs = {"shape": Longs((8, 2)), "value": 0.5}
    table = compute("fill_constant", {}, {"Out": "out"}, attrs, sparse=("out",)).find("out")
    assert (len(table.rows), table.value.tolist(), table.height) == (0, [[0.5, 0.5]] * 8, 8)
