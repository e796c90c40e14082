"""Runs that are like the one before them: as fast as they can be, and never another run's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
import pstranspile.fluid as fluid
from pstranspile.fluid.running.feeding import RepeatedRun
from pstranspile.runtime.run.prepared import latest_of
from tests.fluid.running import fresh


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    with fresh():
        yield


def net() -> tuple[Any, Any]:
    """A net with a dropout, and its loss."""
    x = fluid.data("x", [None, 4])
    hidden = fluid.layers.dropout(fluid.layers.fc(x, 3), 0.5)
    loss = fluid.layers.mean(hidden)
    fluid.optimizer.Adam(0.1).minimize(loss)
    fluid.default_main_program().random_seed = fluid.default_startup_program().random_seed = 3
    return hidden, loss


def feed(rows: int = 2) -> dict[str, Any]:
    return {"x": np.arange(rows * 4, dtype="float32").reshape(rows, 4)}


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each run was a repetition, in order."""
    seen: list[bool] = []
    whole = RepeatedRun.repeat_run

    def made(self: RepeatedRun, *given: Any) -> Any:
        result = whole(self, *given)
        seen.append(result is not None)
        return result

    monkeypatch.setattr(RepeatedRun, "repeat_run", made)
    return seen


def test_repetitions_give_what_other_runs_give(repeated: list[bool]) -> None:
    hidden, loss = net()
    program = fluid.default_main_program()

    def losses(executors: list[Any]) -> list[float]:
        with fluid.scope_guard(fluid.Scope()):
            fluid.Executor().run(fluid.default_startup_program())
            return [float(each.run(program, feed(), [hidden, loss])[1][0]) for each in executors]

    one = fluid.Executor()
    fetched = [hidden, loss]
    with fluid.scope_guard(fluid.Scope()):
        one.run(fluid.default_startup_program())
        expected = [float(one.run(program, feed(), fetched)[1][0]) for _ in range(6)]
    assert repeated[-3:] == [True] * 3
    assert len(set(expected)) == 6
    repeated.clear()
    assert losses([fluid.Executor() for _ in range(6)]) == expected
    assert not any(repeated)


def test_what_differs_is_looked_at(repeated: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, loss = net()
    executor, program, scope = fluid.Executor(), fluid.default_main_program(), fluid.global_scope()
    executor.run(fluid.default_startup_program())
    fetched = [loss]

    def run(**changed: Any) -> bool:
        for _ in range(4):
            executor.run(program, feed(), fetched)
        assert repeated[-1]
        repeated.clear()
        executor.run(**{"program": program, "feed": feed(), "fetch_list": fetched, **changed})
        return any(repeated)

    assert run()
    assert run(return_numpy=False)
    assert not run(feed=feed(3))
    assert not run(feed=[feed()])
    assert not run(fetch_list=[hidden])
    assert not run(fetch_list=[hidden, loss])
    assert not run(fetch_list=loss)
    assert not run(program=program.clone())
    assert not run(program=fluid.CompiledProgram(program))
    assert not run(use_prune=True)
    other = fluid.Scope()
    with fluid.scope_guard(other):
        executor.run(fluid.default_startup_program())
    assert not run(scope=other)
    assert run(scope=scope)
    with pytest.raises(ValueError, match="received fed shape"):
        run(feed={"x": np.zeros((2, 5), "float32")})
    monkeypatch.setitem(fluid.core.globals(), "FLAGS_check_nan_inf", True)
    repeated.clear()
    executor.run(program, feed(), fetched)
    assert repeated == [False]


def test_a_changed_program_is_run_as_it_is(repeated: list[bool]) -> None:
    _, loss = net()
    executor, program = fluid.Executor(), fluid.default_main_program()
    executor.run(fluid.default_startup_program())
    fetched = [loss]
    for _ in range(4):
        executor.run(program, feed(), fetched)
    with fluid.program_guard(program):
        program.global_block().append_op("scale", {"X": [loss.name]}, {"Out": [loss.name]}, {"scale": 0.0, "bias": 7.0})
    (changed,) = executor.run(program, feed(), fetched)
    assert repeated[-2:] == [True, False]
    assert changed.tolist() == [7.0]


def test_a_closed_executor_repeats_nothing() -> None:
    _, loss = net()
    executor = fluid.Executor()
    executor.run(fluid.default_startup_program())
    fetched = [loss]
    for _ in range(3):
        executor.run(fluid.default_main_program(), feed(), fetched)
    executor.close()
    with pytest.raises(RuntimeError, match="closed"):
        executor.run(fluid.default_main_program(), feed(), fetched)


def test_only_the_latest_run_of_a_scope_is_stepped_again() -> None:
    module = ps.load(Path(__file__).parents[2] / "examples" / "regression.ir")
    scope = ps.Scope()
    assert module.startup is not None
    ps.run(module.startup, scope=scope)
    batch = {"x": np.ones((4, 1000), "float32"), "y": np.ones((4, 20), "float32")}
    asked = (module.main, tuple(batch), ())
    assert latest_of(scope, *asked) is None
    for _ in range(2):
        ps.run(module.main, batch, scope=scope)
    assert latest_of(scope, *asked) is not None
    assert latest_of(scope, module.main, tuple(batch), ("no such",)) is None
    ps.run(module.main, batch, scope=scope, seed=3)
    assert latest_of(scope, *asked) is None
