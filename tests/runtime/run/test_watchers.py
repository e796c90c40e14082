"""What watches a run: the search for NaN, the profile, the trace."""

import io

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.runtime.run.watchers import Profile, Trace
from tests.runtime.run.test_interpreter import program

LOG = ("temp %x : f32[3] feed", "temp %y : f32[3]", "temp %z : f32[3]", "log(X=%x) -> Out=%y", "relu(X=%y) -> Out=%z")


@pytest.mark.parametrize(("values", "what"), [([1, 0, -1], "NaN"), ([1, 0, 2], "infinite")])
def test_the_first_op_that_makes_no_number_is_named(values: list[float], what: str):
    main, scope = program(*LOG)["main"], ps.Scope()
    for _ in range(3):
        with pytest.raises(ps.DiagnosticError, match=rf"<string>:7:1: .*run-not-finite.*log: y is not finite.*{what}"):
            ps.run(main, {"x": values}, scope=scope, check_nan=True)
    assert ps.run(main, {"x": [1, 1, 1]}, ["z"], scope, check_nan=True)["z"].tolist() == [0, 0, 0]
    assert not np.isfinite(ps.run(main, {"x": values}, ["y"], scope)["y"]).all()


def test_profile():
    profile = Profile()
    for _ in range(2):
        ps.run(program(*LOG)["main"], {"x": [1, 2, 3]}, watchers=[profile])
    assert {kind: (cost.calls, cost.bytes) for kind, cost in profile.costs.items()} == {"log": (2, 24), "relu": (2, 24)}
    assert all(cost.seconds > 0 for cost in profile.costs.values())
    lines = profile.table().splitlines()
    assert lines[0].split() == ["op", "calls", "seconds", "share", "us/call", "MB", "written"]
    assert sorted(line.split()[0] for line in lines[1:]) == ["log", "relu"]


def test_trace():
    stream = io.StringIO()
    ps.run(program(*LOG)["main"], {"x": [1, 2, 3]}, watchers=[Trace(stream)])
    assert stream.getvalue() == "     0 log -> y f32[3]\n     1 relu -> z f32[3]\n"
