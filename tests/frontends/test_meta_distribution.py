"""What programs know of their part in a cluster, kept beside serialized programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from pstranspile.compiler.compile import compile
from pstranspile.compiler.diff import diff_programs
from pstranspile.compiler.job import Job
from pstranspile.frontends.loading import load
from pstranspile.frontends.meta import apply_meta, meta_of, parse_meta
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import DistributedVar, Distribution, FrozenMap, Module, Program
from pstranspile.tools.cli import main
from tests.models import mlp
from tests.strategies import distributions

HELD = DistributedVar("w", (13, 1), "w.block1", (6, 1), True, 1, 7, "b:2", "Param")


@given(distributions)
def test_any_distribution_comes_back(distribution: Distribution) -> None:
    module = Module(FrozenMap({"main": Program(distribution=distribution)}))
    text = json.dumps(meta_of(module))
    again, warnings = apply_meta(Module(FrozenMap({"main": Program()})), parse_meta(text, "meta.json"))
    assert warnings == ()
    assert again.main.distribution == distribution


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ([], "distribution must be an object by program name, it is a list"),
        ({"main": 1}, "distribution.main must be an object, it is 1"),
        ({"main": {"is_chief": 1}}, "distribution.main.is_chief must be true or false, it is 1"),
        ({"main": {"endpoints": "a:1"}}, "distribution.main.endpoints must be a list of strings, it is 'a:1'"),
        (
            {"main": {"nccl_comm_num": True}},
            "distribution.main.nccl_comm_num must be an integer of 64 bits, it is True",
        ),
        ({"main": {"variables": {}}}, "distribution.main.variables must be a list, it is an object"),
        ({"main": {"variables": [1]}}, "distribution.main.variables[0] must be an object, it is 1"),
        ({"main": {"variables": [{}]}}, "distribution.main.variables[0].origin must be a string, it is null"),
        (
            {"main": {"variables": [{**HELD._asdict(), "slice_shape": [0.5]}]}},
            "distribution.main.variables[0].slice_shape must be a list of integers, it is a list",
        ),
    ],
)
def test_what_it_can_not_say(said: Any, message: str) -> None:
    with pytest.raises(DiagnosticError) as refused:
        parse_meta(json.dumps({"distribution": said}), "meta.json")
    assert [(d.code, d.message) for d in refused.value.diagnostics] == [("meta-type", message)]


def test_a_program_that_is_not_there() -> None:
    meta = parse_meta('{"distribution": {"eval": {"is_chief": true}}}', "meta.json")
    module = Module(FrozenMap({"main": Program()}))
    same, warnings = apply_meta(module, meta)
    assert same == module
    assert [(w.code, w.message) for w in warnings] == [
        ("meta-unknown-program", "there is no program @eval for a distribution to be set on")
    ]


@pytest.mark.parametrize("job", [Job("a:1,b:2", 2), Job(trainers="a:1,b:2", mode="nccl2")], ids=["servers", "nccl2"])
def test_compiled_programs_come_back_from_pb_with_their_metadata(job: Job, tmp_path: Path) -> None:
    module = mlp(2, 100)
    source = tmp_path / "net.ir"
    from pstranspile.ops.textual import print_module

    source.write_text(print_module(module))
    (tmp_path / "job.json").write_text(json.dumps({k: v for k, v in job.as_dict().items() if k in KEPT and v}))
    for emit in ("ir", "pb"):
        argv = ["compile", str(source), "--config", str(tmp_path / "job.json"), "--emit", emit]
        assert main([*argv, "-o", str(tmp_path / emit)]) == 0
    expected = compile(module, job).roles()
    pb = tmp_path / "pb"
    assert {path.name for path in pb.iterdir()} == {
        "plan.json",
        *(f"{role}.{part}" for role in expected for part in ("main.pb", "startup.pb", "meta.json")),
    }
    for name, role in expected.items():
        again = load(pb / f"{name}.main.pb", pb / f"{name}.startup.pb", pb / f"{name}.meta.json")
        assert again.main.distribution == role.main.distribution
        assert again.main.distribution is not None
        assert again.startup is not None
        assert again.startup.distribution is None
    assert main(["diff", str(tmp_path / "ir"), str(pb)]) == 0
    assert b"ps_endpoint" not in b"".join(path.read_bytes() for path in pb.glob("*.pb"))


KEPT = ("pservers", "trainers", "mode", "trainer_endpoints")


def test_export_keeps_it(tmp_path: Path) -> None:
    role = compile(mlp(2, 100), Job("a:1,b:2", 2)).pserver("b:2")
    from pstranspile.ops.textual import print_module

    (tmp_path / "role.ir").write_text(print_module(role.module))
    assert main(["export", str(tmp_path / "role.ir"), "--to", "pb", "-o", str(tmp_path / "pb")]) == 0
    pb = tmp_path / "pb"
    argv = ["import", str(pb / "main.pb"), "--startup", str(pb / "startup.pb"), "--meta", str(pb / "meta.json")]
    assert main([*argv, "-o", str(tmp_path / "again.ir")]) == 0
    assert load(tmp_path / "again.ir").main.distribution == role.main.distribution


def test_diff_shows_the_statements_that_differ() -> None:
    a = Program(distribution=Distribution(is_chief=True, variables=(HELD,)))
    b = Program(distribution=Distribution(variables=(HELD, HELD._replace(slice="w.block2"))))
    (difference,) = diff_programs(a, b)
    assert difference.what == "distribution"
    assert [(line.sign, line.text.split(" {")[0]) for line in difference.lines] == [
        ("-", "distribution"),
        ("+", "distribution"),
        ("+", "placed(Param=%w) -> Slice=%w.block2"),
    ]
    assert diff_programs(a, a._replace(distribution=None)) == ()
