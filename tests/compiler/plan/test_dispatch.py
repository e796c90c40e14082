"""Placement: round robin, names, and dispatchers of the user's own."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import pytest

from pstranspile.compiler.compile import compile, prepare
from pstranspile.compiler.job import Job
from pstranspile.compiler.plan.make import Dispatcher, Placeable
from pstranspile.ir.diagnostics import DiagnosticError
from tests.models import mlp

SERVERS = ["a:1", "b:2", "c:3"]


class Last(Dispatcher):
    """Everything to the last server."""

    def dispatch(self, varlist: Sequence[Placeable]) -> Sequence[str]:
        return [self.endpoints[-1] for _ in varlist]


class Unrelated:
    def __init__(self, endpoints: Sequence[str]):
        raise AssertionError("nobody has said that this may run")


class Leaving(Last):
    def __init__(self, endpoints: Sequence[str]):
        raise SystemExit(0)


class TooFew(Last):
    def dispatch(self, varlist: Sequence[Placeable]) -> Sequence[str]:
        return []


class Stranger(Last):
    def dispatch(self, varlist: Sequence[Placeable]) -> Sequence[str]:
        return ["elsewhere:1" for _ in varlist]


class Broken(Last):
    def dispatch(self, varlist: Sequence[Placeable]) -> Sequence[str]:
        raise RuntimeError("no disk")


def placement(**settings: object) -> list[tuple[str, str]]:
    plan = prepare(mlp(2, 100), Job(SERVERS, 2, **settings)).plan
    return [(s.name, s.endpoint) for p in plan.parameters for s in p.slices]


def test_round_robin_deals_in_parameter_order() -> None:
    assert placement(min_block_size=2000) == [
        ("fc_0.b_0", "a:1"),
        ("fc_0.w_0.block0", "b:2"),
        ("fc_0.w_0.block1", "c:3"),
        ("fc_0.w_0.block2", "a:1"),
        ("fc_1.b_0", "b:2"),
        ("fc_1.w_0", "c:3"),
    ]


def test_hash_of_the_parameters_name_decides_for_both() -> None:
    for name, endpoint in placement(split_method="HashName", slice_var_up=False):
        assert endpoint == SERVERS[zlib.crc32(name.encode()) % 3]
    compile(mlp(2, 100), Job(SERVERS, 2, split_method="HashName"))


def test_slices_of_one_variable_may_share_a_server() -> None:
    job = Job(SERVERS, 2, split_method=f"{__name__}:Last", min_block_size=2000)
    compiled = compile(mlp(2, 100), job)
    server = compiled.pserver("c:3").main
    states = [name for name in server.main_block.vars if "fc_0.w_0_moment1_0" in name]
    assert states == [f"fc_0.w_0_moment1_0.block{i}" for i in range(3)]
    updated = [op.output("ParamOut") for block in server.blocks[1:] for op in block.ops if op.type == "adam"]
    assert {"fc_0.w_0.block0", "fc_0.w_0.block1", "fc_0.w_0.block2"} <= set(updated)
    made = [op.output("Out") for op in compiled.pserver("c:3").startup.main_block.ops]
    assert {"fc_0.w_0.block1", "fc_0.w_0_moment1_0.block1"} <= set(made)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("TooFew", "gave 0 endpoints for"),
        ("Stranger", "'elsewhere:1' for %fc_0.b_0, which is not a server"),
        ("Broken", "RuntimeError: no disk"),
        ("Missing", "has no attribute 'Missing'"),
        ("Unrelated", "is no subclass of pstranspile.Dispatcher"),
        ("SERVERS", "is no subclass of pstranspile.Dispatcher"),
        ("Leaving", "SystemExit: 0"),
    ],
)
def test_faulty_dispatchers_are_named(method: str, words: str) -> None:
    with pytest.raises(DiagnosticError) as found:
        placement(split_method=f"{__name__}:{method}")
    assert [d.code for d in found.value.diagnostics] == ["dispatcher"]
    assert words in found.value.diagnostics[0].message


def test_the_shuffle_without_slicing_leaves_numpys_state_alone() -> None:
    import numpy as np

    np.random.seed(5)
    before = np.random.get_state()[1].tolist()  # type: ignore[index]
    placement(slice_var_up=False)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]
