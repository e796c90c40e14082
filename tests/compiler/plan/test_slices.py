"""Slicing: Fluid's formula, and what every cut must be."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstranspile.compiler.compile import compile
from pstranspile.compiler.job import Job
from pstranspile.compiler.plan.plan import cut_rows, plan_text
from pstranspile.compiler.plan.plan_file import parse_plan
from pstranspile.frontends.loading import loads
from pstranspile.ir.diagnostics import DiagnosticError
from tests.conftest import ROOT

# Shape -> elements of every slice.
VECTORS = [
    (1024, 10, [3, 5], [15]),
    (1024, 10, [1024], [1024]),
    (1024, 10, [28, 784], [2352] * 9 + [784]),
    (1024, 10, [8, 1020], [2040] * 4),
    (1024, 10, [800, 10], [1150] * 6 + [1100]),
    (8192, 10, [28, 784], [10976] * 2),
    (8192, 10, [8, 1020], [8160]),
    (8192, 10, [800, 10], [8000]),
    (8192, 10, [6, 33, 33, 33], [35937] * 6),
    (8192, 2, [1000, 1000], [500000] * 2),
    (8192, 2, [1000], [1000]),
    (8192, 4, [20000], [10000] * 2),
]


@pytest.mark.parametrize(("block", "servers", "shape", "sizes"), VECTORS)
def test_vectors(block: int, servers: int, shape: list[int], sizes: list[int]) -> None:
    cuts = cut_rows(tuple(shape), servers, block)
    assert [(c.stop - c.start) * prod(shape[1:]) for c in cuts] == sizes


shapes = st.lists(st.integers(1, 50), min_size=1, max_size=4).map(tuple)


@given(shapes, st.integers(1, 20), st.integers(1, 500))
def test_cuts_partition_the_rows(shape: tuple[int, ...], servers: int, block: int) -> None:
    cuts = cut_rows(shape, servers, block)
    assert cuts[0].start == 0
    assert cuts[-1].stop == shape[0]
    assert all(a.stop == b.start for a, b in itertools.pairwise(cuts))
    assert all(c.start < c.stop for c in cuts)
    assert len(cuts) <= servers


@given(shapes, st.integers(1, 20), st.integers(1, 500))
def test_only_the_last_cut_is_shorter(shape: tuple[int, ...], servers: int, block: int) -> None:
    rows = [c.stop - c.start for c in cut_rows(shape, servers, block)]
    assert len(set(rows[:-1])) <= 1
    assert rows[-1] <= rows[0]


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), ()])
def test_variables_without_elements_are_whole(shape: tuple[int, ...]) -> None:
    assert len(cut_rows(shape, 4, 1)) == 1


@pytest.mark.parametrize("mode", ["sync", "async", "half-async", "geo"])
@pytest.mark.parametrize("kept", ["w1", "w1_moment1_0"])
def test_what_an_unknown_op_initialises_stays_whole(mode: str, kept: str) -> None:
    text = (ROOT / "golden" / "mlp_adam.ir").read_text(encoding="utf-8")
    changed, count = re.subn(
        rf"\n    \w+(?:\(\))? -> Out=%{kept} \{{[^\n]*\}}", f"\n    somebody_s -> Out=%{kept}", text
    )
    assert count == 1
    job = Job(["a:1", "b:2"], 2, mode=mode, min_block_size=4)
    compiled = compile(loads(changed), job)
    cut = compiled.plan.by_name["w1"].is_cut
    assert cut == (mode == "geo" and kept != "w1")
    if not cut:
        assert [(d.code, kept in d.message or "of it" in d.message) for d in compiled.warnings] == [
            ("whole-initialiser", True)
        ]
        edited = plan_text(replace(compile(loads(text), job).plan, made_for=compiled.source))
        with pytest.raises(DiagnosticError, match="can't be cut: somebody_s can't make a slice"):
            compile(loads(changed), job, plan=parse_plan(edited))


def test_a_table_that_is_dealt_out_needs_an_initialiser_of_parts() -> None:
    text = (ROOT / "golden" / "distributed_table.ir").read_text(encoding="utf-8")
    changed = re.sub(r"\n    uniform_random\(\) -> Out=%words \{[^\n]*\}", "\n    somebody_s -> Out=%words", text)
    assert changed != text
    with pytest.raises(DiagnosticError) as found:
        compile(loads(changed), Job(["a:1", "b:2"], 2))
    (finding,) = found.value.diagnostics
    assert (finding.code, "somebody_s can't make a part of it" in finding.message) == ("whole-initialiser", True)
    assert finding.location is not None


@pytest.mark.parametrize("seed", [-5, 2**32, 2**62])
def test_a_seed_that_shuffles_nothing_is_refused(seed: int) -> None:
    text = (ROOT / "golden" / "mlp_adam.ir").read_text(encoding="utf-8")
    module = loads(re.sub(r"program @main[^{]*", f"program @main seed={seed} ", text))
    with pytest.raises(DiagnosticError) as found:
        compile(module, Job(["a:1", "b:2"], 2, slice_var_up=False))
    assert [d.code for d in found.value.diagnostics] == ["shuffle-seed"]
    compile(module, Job(["a:1", "b:2"], 2))


def test_parts_have_no_more_rows_than_32_bits_count():
    """A gradient is cut by an op that counts rows so; one that is not cut has as many as it likes."""
    text = (ROOT / "examples" / "linear_regression.ir").read_text().replace("[13, 1]", f"[{1 << 40}, 1]")
    module = loads(text.replace("[-1, 13]", f"[-1, {1 << 40}]"))
    with pytest.raises(
        DiagnosticError, match=r"%fc_0.w_0 is cut into parts of 549755813888 rows; a part has at most 2147"
    ):
        compile(module, Job(pservers=["a:1", "b:1"], trainers=2))
    compile(module, Job(pservers=["a:1"], trainers=2)).roles()["trainer_0"]
