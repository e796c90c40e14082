"""Random ops in programs: seeds, steps, machines, and slices of initialised variables."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pstranspile as ps
from tests.runtime.run.test_interpreter import program

ROWS, WIDTH = 40, 3
OPS = {
    "uniform_random": "min=-2.0, max=3.0",
    "gaussian_random": "mean=1.0, std=2.0",
    "truncated_gaussian_random": "mean=1.0, std=2.0",
}


def startup(op: str, name: str, rows: int, seed: int = 0, own: int = 0) -> Any:
    module = program(
        f"param %{name} : f32[{rows}, {WIDTH}]",
        f"{op}() -> Out=%{name} {{shape=[{rows}, {WIDTH}], seed={own}, {OPS[op]}}}",
    )
    return module["main"]._replace(random_seed=seed)


def drawn(op: str, name: str = "w", rows: int = ROWS, seed: int = 0, own: int = 0, **options: Any) -> Any:
    scope = ps.Scope()
    ps.run(startup(op, name, rows, seed, own), scope=scope, **options)
    return scope[name]


@settings(max_examples=25, deadline=None)
@given(
    op=st.sampled_from(sorted(OPS)),
    seeds=st.sampled_from([(7, 0), (0, 5), (7, 5)]),
    cuts=st.lists(st.integers(0, ROWS), max_size=4).map(lambda cuts: [0, *sorted(set(cuts) - {0, ROWS}), ROWS]),
)
def test_slices_are_the_whole(op: str, seeds: tuple[int, int], cuts: list[int]):
    whole = drawn(op, seed=seeds[0], own=seeds[1])
    parts = [
        drawn(op, f"w.block{i}", stop - start, *seeds, slices={f"w.block{i}": ("w", start * WIDTH)})
        for i, (start, stop) in enumerate(pairwise(cuts))
    ]
    assert np.concatenate(parts).tobytes() == whole.tobytes()


@pytest.mark.parametrize("op", sorted(OPS))
def test_seeds(op: str):
    assert drawn(op, seed=7).tobytes() == drawn(op, seed=7).tobytes()
    assert drawn(op, own=7).tobytes() == drawn(op, own=7).tobytes()
    assert drawn(op).tobytes() != drawn(op).tobytes()
    assert drawn(op, seed=7).tobytes() != drawn(op, seed=8).tobytes()
    assert drawn(op, seed=7, own=1).tobytes() != drawn(op, seed=7, own=2).tobytes()
    assert drawn(op, "w", seed=7).tobytes() != drawn(op, "v", seed=7).tobytes()


def test_the_callers_seed_takes_the_place_of_the_programs():
    scope = ps.Scope()
    ps.run(startup("uniform_random", "w", ROWS, seed=1), scope=scope, seed=9)
    assert scope["w"].tobytes() == drawn("uniform_random", seed=9).tobytes()


DROPOUT = ("temp %x : f32[100] feed", "temp %y : f32[100]", "temp %m : u8[100]")


def masks(attrs: str, count: int = 3, **options: Any) -> list[bytes]:
    main, scope = program(*DROPOUT, f"dropout(X=%x) -> Out=%y, Mask=%m {{{attrs}}}")["main"], ps.Scope()
    feed = {"x": np.ones(100, "float32")}
    return [ps.run(main, feed, ["m"], scope, **options)["m"].tobytes() for _ in range(count)]


def test_dropout_draws_anew_in_every_step_and_again_in_every_run():
    assert len(set(masks("dropout_prob=0.5", seed=1))) == 3
    assert masks("dropout_prob=0.5", seed=1) == masks("dropout_prob=0.5", seed=1)
    assert not set(masks("dropout_prob=0.5", seed=1)) & set(masks("dropout_prob=0.5", seed=2))
    assert len({*masks("dropout_prob=0.5"), *masks("dropout_prob=0.5")}) == 6


def test_dropout_with_a_seed_of_its_own_draws_the_same_in_every_step():
    assert len(set(masks("dropout_prob=0.5, fix_seed=true, seed=3"))) == 1


def test_both_forms_draw_the_same():
    main = program(*DROPOUT, "dropout(X=%x) -> Out=%y, Mask=%m {dropout_prob=0.5}")["main"]
    feed = {"x": np.ones(100, "float32")}
    from pstranspile.runtime.run.frame import Execution, interpret
    from pstranspile.runtime.run.prepared import Prepared

    plain = Execution(main, ps.Scope(), seed=4)
    fast = Prepared(Execution(main, ps.Scope(), seed=4), ("x",), ("m",))
    for _ in range(3):
        assert interpret(plain, feed, ("m",))["m"].tobytes() == fast.step(feed)["m"].tobytes()
