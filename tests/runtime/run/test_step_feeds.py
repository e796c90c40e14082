"""What is fed in each step: arrays for all steps, arrays for each step, mappings; and files written of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pstranspile as ps
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.run.files import read_arrays
from pstranspile.runtime.run.step_feeds import LENGTHS, Feeds, feed_arrays, step_key
from tests.runtime.run.feeding import same

PROGRAM = ps.loads("""ir 1
program @main {
  block ^0 {
    temp %x : f32[-1, 3] feed
    temp %words : i64[-1, 1] lod=1 feed
    temp %deep : i64[-1, 1] lod=2 feed
    temp %"3|q" : f32[2] feed
    temp %image : f32[-1, -1] feed
  }
}
""").main


def rows(count: int) -> Any:
    return np.arange(count, dtype="int64").reshape(count, 1)


@st.composite
def values(draw: st.DrawFn, name: str) -> Any:
    """What can be fed to an input, of any size."""
    batch = draw(st.integers(0, 3))
    if name == "x":
        return np.full((batch, 3), draw(st.integers(0, 9)), "float32")
    if name == "image":
        return np.zeros((batch, draw(st.integers(0, 3))), "float32")
    if name == "3|q":
        return np.zeros(2, "float32")
    lod: list[list[int]] = []
    for _ in range({"words": 1, "deep": 2}[name]):
        lengths = draw(st.lists(st.integers(0, 3), min_size=batch, max_size=batch))
        lod.append([0, *np.cumsum(lengths).tolist()])
        batch = sum(lengths)
    return ps.LoDTensor(rows(batch), lod)


@st.composite
def runs(draw: st.DrawFn) -> list[dict[str, Any]]:
    names = draw(st.sets(st.sampled_from(sorted(PROGRAM.main_block.vars)), min_size=1))
    return [{name: draw(values(name)) for name in sorted(names)} for _ in range(draw(st.integers(1, 4)))]


@settings(max_examples=150, deadline=None)
@given(batches=runs())
def test_what_is_written_is_read(batches: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("feeds") / "data.npz"
    ps.save_feeds(path, batches)
    feeds = Feeds(PROGRAM, read_arrays(path))
    assert feeds.steps == len(batches)
    for step, batch in enumerate(batches):
        found = feeds.step(step)
        assert found.keys() == batch.keys()
        assert all(same(found[name], value) for name, value in batch.items())


def test_steps_of_one_shape_share_an_array():
    batches = [{"x": np.ones((2, 3), "float32"), "words": ps.LoDTensor(rows(3), [[0, n, 3]])} for n in (1, 2)]
    found = feed_arrays(batches)
    assert {key: array.shape for key, array in found.items()} == {
        "x": (2, 2, 3),
        "words": (6, 1),
        f"words{LENGTHS}": (2, 2),
    }
    batches.append({"x": np.ones((1, 3), "float32"), "words": ps.LoDTensor(rows(2), [[0, 2]])})
    assert sorted(feed_arrays(batches)) == sorted(
        f"{step}|{name}" for step in (1, 2, 3) for name in ("x", "words", "words|0")
    )


def test_arrays_of_all_steps_and_of_each_step_go_together():
    feeds = Feeds(
        PROGRAM,
        {"x": np.ones((2, 4, 3), "float32"), "1|image": np.ones((4, 1), "f4"), "2|image": np.ones((4, 9), "f4")},
    )
    assert [feeds.step(step)["image"].shape for step in range(2)] == [(4, 1), (4, 9)]


def test_a_variable_may_be_called_like_a_key():
    assert step_key("3|q", PROGRAM.main_block.vars) is None
    assert step_key("12|deep|1", PROGRAM.main_block.vars) == (12, "deep", 1)
    assert step_key("1|3|q", PROGRAM.main_block.vars) == (1, "3|q", -1)


X = np.ones((2, 3), "float32")
TWO = np.array([1, 1])


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"0|x": X, "1|x": X}, r"there is 1|x, but no 2|x for step 2; steps count from 1"),
        ({"1|x": X, "4|x": X}, r"there is 4|x, but no 2|x for step 2"),
        ({"999999999|x": X}, r"there is 999999999|x, but no 1|x for step 1"),
        ({"x": X[None], "1|x": X}, "x has an array for all steps, and 1|x besides"),
        ({"1|y": X}, "the program declares no variable y"),
        ({"1|x": X[:, :2]}, "step 1: x is declared f32[-1, 3], but is fed f32[2, 2]"),
        ({"1|x": X, "2|x": X, "1|image": X}, "different numbers of steps: x 2, image 1"),
        ({"1|x": X, "1|x|0": TWO}, "step 1: x is declared f32[-1, 3], it can't have 1|x|0"),
        ({"1|words": rows(2)}, "but the lengths of its sequences are missing: an array 1|words|0"),
        ({"1|words|0": TWO}, "but its rows are missing: an array 1|words"),
        ({"1|words": rows(3), "1|words|0": TWO}, "the lengths in 1|words|0 add up to 2, and it is fed i64[3, 1]"),
        ({"1|words": rows(2), "1|words|0": TWO * 1.0}, "1|words|0 must hold lengths"),
        ({"1|words": rows(2), "1|words|0": TWO[None]}, "1|words|0 must hold lengths"),
        ({"1|words": rows(2), "1|words|0": np.array([3, -1])}, "1|words|0 must hold lengths"),
        ({"1|words": rows(0), "1|words|0": np.array([2**62] * 4)}, "the lengths in 1|words|0 add up to"),
        ({"deep": rows(2)[None]}, "1|deep for its rows in step 1, and 1|deep|0 and 1|deep|1 for lengths"),
        ({"1|deep": rows(2), "1|deep|0": TWO, "1|deep|1": np.array([1, 1, 0])}, "|0 add up to 2, and 1|deep|1 holds 3"),
        ({"1|deep": rows(2), "1|deep|0": TWO}, "an array 1|deep|1"),
        ({"1|deep": rows(2), "1|deep|0": TWO, "1|deep|1": TWO, "1|deep|2": TWO}, "it can't have 1|deep|2"),
    ],
)  # fmt: skip
def test_arrays_of_steps_that_do_not_fit(arrays: dict[str, Any], told: str, tmp_path: Path):
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(DiagnosticError) as refused:
        Feeds(PROGRAM, read_arrays(tmp_path / "data.npz"))
    (found,) = refused.value.diagnostics
    assert told in found.message
    assert str(found.location) == str(tmp_path / "data.npz")


def test_what_no_file_can_hold(tmp_path: Path):
    for batches, told in (
        ([{"x": X}, {}], "x is fed, but not in step 2"),
        ([{"x": ps.SelectedRows(np.array([1]), X[:1], 4)}], "x holds sparse rows"),
    ):
        with pytest.raises(DiagnosticError, match=told):
            ps.save_feeds(tmp_path / "data.npz", batches)
    assert not (tmp_path / "data.npz").exists()


@pytest.mark.parametrize("wrong", [3, "data.npz", [3]])
def test_what_is_no_feed(wrong: Any):
    with pytest.raises(TypeError, match="Feeds takes what is fed"):
        Feeds(PROGRAM, wrong)


def test_python_objects_are_not_written(tmp_path: Path):
    with pytest.raises(ps.DiagnosticError, match="x holds Python objects"):
        ps.save_feeds(tmp_path / "feed.npz", [{"x": np.array([None, 1])}])
    assert not (tmp_path / "feed.npz").exists()
