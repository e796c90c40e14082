"""What is kept in plan.json gives every op its origin back."""

import json
from pathlib import Path

import pytest

from pstranspile.compiler.explain import answer_json, explain_job, explain_op, explain_variable, read_folder
from pstranspile.compiler.explain.folder import read_record, with_origins
from pstranspile.compiler.folders import record
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import Location, Op
from pstranspile.tools.cli import main
from tests.compiler.explain.jobs import ALL, GOLDEN, compiled, explained

PROGRAM = str(GOLDEN / "mlp_adam.ir")
JOB = ["--pservers", "a:6174,b:6174", "--trainers", "2"]


def without_column(op: Op):
    """An op's origin, as far as a record keeps it."""
    origin = op.origin
    assert origin is not None
    place = origin.location
    return origin._replace(location=Location(place.file, place.line) if place else None)


@pytest.mark.parametrize("name", ALL)
def test_origins_come_back(name: str):
    kept = read_record(json.loads(json.dumps(record(compiled(name)))))
    assert kept is not None
    for role in compiled(name).roles().values():
        programs = dict(role.module.programs)
        bare = {
            n: p._replace(blocks=tuple(b._replace(ops=tuple(o._replace(origin=None) for o in b.ops)) for b in p.blocks))
            for n, p in programs.items()
        }
        again = with_origins(kept, role.name, bare)
        for n, program in programs.items():
            for block, other in zip(program.blocks, again[n].blocks, strict=True):
                assert [o.origin for o in other.ops] == [without_column(o) for o in block.ops]


@pytest.mark.parametrize("name", ALL)
def test_the_lines_of_source_ops_come_back(name: str):
    kept = read_record(record(compiled(name)))
    assert kept is not None
    job = explained(name)
    for machine in job.machines:
        for place in job.places(machine):
            origin = job.op(place).origin
            if origin is not None and origin.rule and origin.op >= 0:
                assert kept.line_of(origin) == job.source_line(origin)
                assert kept.line_of(origin) is not None


@pytest.mark.parametrize("emit", ["ir", "pb"])
def test_a_folder_is_explained_like_the_job(tmp_path: Path, emit: str, capsys: pytest.CaptureFixture[str]):
    assert main(["compile", PROGRAM, *JOB, "--emit", emit, "-o", str(tmp_path)]) == 0
    folder, job = read_folder(tmp_path), explained("mlp_adam")
    assert explain_job(folder) == explain_job(job)
    for machine in job.machines:
        for place in job.places(machine):
            name = f"@{place.program}^{place.block}#{place.number}"
            ours, theirs = answer_json(explain_op(folder, machine, name)), answer_json(explain_op(job, machine, name))
            for answer in (ours, theirs):
                if answer["source"]["text"] is None or not answer["rule"]:
                    answer["source"]["text"] = None
                answer["source"]["file"] = ""
            assert ours == theirs
    for name in ("w1", "w1.block1", "w1@GRAD", "b2"):
        assert explain_variable(folder, name).uses == explain_variable(job, name).uses
        assert explain_variable(folder, name).parts == explain_variable(job, name).parts
    capsys.readouterr()


def test_the_record_names_no_folder(tmp_path: Path):
    text = Path(PROGRAM).read_text()
    written: set[bytes] = set()
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "net.ir").write_text(text)
        assert main(["compile", str(tmp_path / folder / "net.ir"), *JOB, "-o", str(tmp_path / folder / "out")]) == 0
        written.add((tmp_path / folder / "out" / "plan.json").read_bytes())
    assert len(written) == 1


def damaged(folder: Path, key: str, value: object) -> DiagnosticError:
    """What is said of a folder in whose plan.json one entry is replaced, or (None) missing."""
    plan = json.loads((folder / "plan.json").read_text())
    if value is None:
        del plan[key]
    else:
        plan[key] = value
    (folder / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(DiagnosticError) as found:
        read_folder(folder)
    return found.value


ENDLESS = {
    "machines": ["trainer_0"],
    "program": "main",
    "block": 0,
    "file": "",
    "line": 1,
    "texts": {},
    "lines": [[0, 10**30]],
    "ops": [["", 0, 10**15]],
}
"""An entry that claims more ops than memory holds."""


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("origins", None, "explain-record"),
        ("settings", {"slice_up": 1}, "explain-record"),
        ("source_ops", [{"program": "main"}], "explain-record"),
        ("origins", [], "explain-programs"),
        ("origins", 7, "explain-record"),
        ("mode", None, "explain-record"),
        ("trainers", "2", "explain-record"),
        ("pservers", [1, 2], "explain-record"),
        ("distributed_vars", [{"origin": "w1"}], "explain-record"),
        ("source_ops", [ENDLESS], "explain-record"),
        ("origins", [ENDLESS], "explain-programs"),
        ("origins", [{**ENDLESS, "ops": [["", 0, 10**30]]}], "explain-record"),
        ("origins", [{**ENDLESS, "ops": [[[], 0, 1]]}], "explain-record"),
        ("source_ops", [{**ENDLESS, "line": "1", "lines": []}], "explain-record"),
        ("settings", {"min_block_size": "8192"}, "explain-record"),
        ("settings", {"min_block_size": 0}, "explain-record"),
        ("settings", {"random_seed": -1}, "explain-record"),
        ("pservers", [], "explain-record"),
        ("pservers", ["else:1"], "explain-record"),
        ("groups", [1], "explain-record"),
        ("trainers", 10**30, "explain-record"),
    ],
)
def test_a_damaged_record(tmp_path: Path, key: str, value: object, code: str):
    assert main(["compile", PROGRAM, *JOB, "-o", str(tmp_path)]) == 0
    problem = damaged(tmp_path, key, value)
    assert [d.code for d in problem.diagnostics] == [code]
    assert "compile again" in problem.diagnostics[0].message


@pytest.mark.parametrize("shape", [[[1], 2], [10**4000, 10**4000], [-1, 4], ["3", 4], [None]])
@pytest.mark.parametrize("key", ["origin_shape", "slice_shape"])
def test_dims_that_are_none(tmp_path: Path, key: str, shape: list[object]):
    assert main(["compile", PROGRAM, *JOB, "-o", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "plan.json").read_text())["distributed_vars"]
    problem = damaged(tmp_path, "distributed_vars", [{**rows[0], key: shape}, *rows[1:]])
    assert [d.code for d in problem.diagnostics] == ["explain-record"]


def test_a_record_of_any_number_of_lines_takes_no_memory(tmp_path: Path):
    assert main(["compile", PROGRAM, *JOB, "-o", str(tmp_path)]) == 0
    plan = json.loads((tmp_path / "plan.json").read_text())
    for row in plan["source_ops"]:
        row["lines"] = [[1, 10**15]]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    origins = [op.origin for op in read_folder(tmp_path).machines["trainer_0"]["main"].main_block.ops]
    assert {(o.location.line - o.op) for o in origins if o and o.location and o.op >= 0} == {1}


def test_programs_that_were_changed(tmp_path: Path):
    assert main(["compile", PROGRAM, *JOB, "-o", str(tmp_path)]) == 0
    file = tmp_path / "trainer_1.ir"
    lines = file.read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if " send(" in line)
    file.write_text("".join(lines[:at] + lines[at + 1 :]))
    with pytest.raises(DiagnosticError) as found:
        read_folder(tmp_path)
    assert [d.code for d in found.value.diagnostics] == ["explain-programs"]
    assert "@main^0 of trainer_1 has" in found.value.diagnostics[0].message


@pytest.mark.parametrize(("key", "kind"), [("trainers", "trainer"), ("pservers", "pserver")])
def test_machines_that_the_plan_does_not_have(tmp_path: Path, key: str, kind: str):
    assert main(["compile", PROGRAM, *JOB, "-o", str(tmp_path)]) == 0
    plan = json.loads((tmp_path / "plan.json").read_text())
    count = 1 if key == "trainers" else plan[key][:1]
    rows = [row for row in plan["distributed_vars"] if row["endpoint"] in plan["pservers"][:1]]
    (tmp_path / "plan.json").write_text(json.dumps({**plan, key: count, "distributed_vars": rows}))
    with pytest.raises(DiagnosticError, match=f"it has 1 {kind}s, but there are programs of {kind}_1; compile again"):
        read_folder(tmp_path)


def test_machines_without_programs_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["compile", PROGRAM, *JOB, "-o", str(tmp_path)]) == 0
    plan = json.loads((tmp_path / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps({**plan, "trainers": 10**9}))
    capsys.readouterr()
    assert main(["explain", str(tmp_path)]) == 0
    assert "there are programs of 2 of 1000000000 trainers only" in capsys.readouterr().err


@pytest.mark.parametrize("text", [None, "{", "[]", "\udcff"])
def test_no_plan(tmp_path: Path, text: str | None):
    assert main(["compile", PROGRAM, *JOB, "-o", str(tmp_path)]) == 0
    (tmp_path / "plan.json").unlink()
    if text is not None:
        (tmp_path / "plan.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DiagnosticError) as found:
        read_folder(tmp_path)
    assert [d.code for d in found.value.diagnostics] == ["explain-record"]
