"""Every text in `golden/rejected` is refused exactly where its comments say, in exactly the recorded words."""

from pathlib import Path

import pytest

from pstranspile import loads, verify
from pstranspile.ir.codes import CODES
from pstranspile.ir.diagnostics import Severity, render
from pstranspile.ir.model import MAX_DEPTH
from pstranspile.tools.cli import main
from tests.codes import codes_in
from tests.compiler.verify.rejected import FOLDER, TEXTS, findings_of, marked, places
from tests.golden import Goldens

ROOT = Path(__file__).parents[3]
every_text = pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)

OTHER_INPUTS = {
    "desc-": "tests/frontends/test_damage.py",  # serialized programs
    "meta-": "tests/frontends/test_meta.py",  # --meta files
    "input-": "tests/test_loading.py",  # files that are no text
    "output-": "tests/test_outputs.py",
    "job-": "tests/test_job.py",  # job files and options
    "plan-": "tests/compiler/plan",  # plan files
    "id-": "tests/compiler/cost",  # files of counts of ids
    "cost-": "tests/compiler/cost",  # profiles of machines
    "usage": "tests/tools/cli",  # the command line itself
    "learning-rate": "tests/tools/cli/test_grad.py",  # an option of `grad`
    "folder-": "tests/compiler",  # folders of programs
    "explain-": "tests/compiler/explain/test_record.py",  # folders that `compile -o` wrote
    "link-": "tests/compiler/link",  # programs of several machines; never provoked by an input
    "torch-": "tests/frontends/torch",  # models of PyTorch
    "run-": "tests",  # values
    "cluster-": "tests/cluster/machines",  # programs of several machines
    "values-": "tests",  # files of values
    "dispatcher": "tests/compiler/plan",  # a function of the user's
    "not-text": "tests/compiler/verify/test_rejected.py",  # a text that no editor shows
    "nesting": "tests/compiler/verify/test_rejected.py",  # a text of hundreds of lines
    "collective-": "tests/compiler/emit",  # need a job
    "geo-": "tests/compiler/emit/test_geo.py",  # the same
    "mode-unsupported": "tests/test_job.py",  # will go when the modes have come
    "pass": "tests/test_plugins.py",  # an installed package
    "op-family": "tests/test_plugins.py",  # the same
    "check-": "tests/proof",  # data
    "table-": "tests/compiler/analysis",  # need a whole model
    "start-": "tests/cluster/net",  # a process
    "launch-": "tests/cluster/net",  # processes
    "data-": "tests/cluster/data",  # files of rows
    "script-": "tests/fluid",  # scripts
    "ray-": "tests/cluster/ray_cluster",  # machines elsewhere
    "feed-shares": "tests/runtime/run",  # data for several trainers
    "program-turns": "tests/runtime/run",  # an option of `run` and `check`
    "programs-": "tests/compiler/emit/test_several.py",  # need two
    "dc-asgd-sparse": "tests/compiler/emit",  # needs a job
    "reserved-name": "tests/compiler/emit",  # the same
    "shuffle-seed": "tests/compiler/plan",  # needs a job that cuts nothing
    "updates-itself": "tests/compiler/analysis",  # an op without a schema
    "checkpoint-": "tests/cluster/checkpoint",  # folders of checkpoints
    "inference-program": "tests/cluster/checkpoint",  # two
    "onnx-": "tests/frontends/onnx",  # models of another format
}
"""Codes (or how they begin) that need another input than a text worth reading, and where they are tested."""

OTHER_FOLDERS = {
    "frontends/autodiff": "tests/frontends/autodiff",  # a text together with a loss to differentiate
    "ops/gradients": "tests/frontends/autodiff",  # found when a program is run
}
"""Folders of the package all of whose codes need another input."""


@every_text
def test_exactly_the_marked_findings(path: Path):
    text = path.read_text(encoding="utf-8")
    assert places(findings_of(text, path.name)) == marked(text)


@every_text
def test_the_words(path: Path, goldens: Goldens, request: pytest.FixtureRequest):
    text = path.read_text(encoding="utf-8")
    shown = render(findings_of(text, path.name), {path.name: text})
    goldens.check(path.with_suffix(".txt"), f"{shown}\n", request.node.nodeid)


@every_text
def test_a_text_is_named_after_what_it_provokes(path: Path):
    assert path.stem in {code for _, _, code in marked(path.read_text(encoding="utf-8"))}


def test_every_code_has_a_text_or_a_test():
    rejected = {path.stem for path in TEXTS}
    for folder in OTHER_FOLDERS:
        rejected |= codes_in(folder)
    without = [
        code
        for code in sorted(CODES)
        if code not in rejected and not any(code.startswith(beginning) for beginning in OTHER_INPUTS)
    ]
    assert without == [], "add golden/rejected/<code>.ir, with the offending line marked `# error: <code>`"


def test_every_code_is_used():
    assert sorted(CODES - codes_in()) == []


def test_the_other_inputs_are_tested_where_it_says():
    tested = [*OTHER_INPUTS.values(), *OTHER_FOLDERS.values()]
    assert [place for place in tested if not (ROOT / place).exists()] == []


def test_nothing_is_recorded_without_a_text():
    names = {path.stem for path in TEXTS}
    assert [path.name for path in FOLDER.iterdir() if path.stem not in names] == []


def test_nesting():
    lines = ["ir 1", "program @main {"]
    lines += [f"block ^{n} {{" for n in range(MAX_DEPTH + 1)]
    lines += ["}"] * (MAX_DEPTH + 2)
    assert ("nesting", MAX_DEPTH + 3) in [(code, line) for line, _, code in places(findings_of("\n".join(lines), "x"))]


HEAD = ["ir 1", "program @main {", "block ^0 {", "temp %c : bool[1]", "temp %s : step_scopes"]


def _nested(depth: int, *, parents: bool) -> str:
    """Blocks that run each other, written one after the other, in each other or all in the first."""
    run = "conditional_block(Cond=%c, Input=[]) -> Out=[], Scope=%s {{sub_block=^{}}}"
    lines = [*HEAD, "fill_constant -> Out=%c {shape=[1], value=1.0, dtype=0}", run.format(1), "}"]
    for at in range(1, depth):
        inner = run.format(at + 1) if at + 1 < depth else "logical_not(X=%c) -> Out=%c"
        lines += [f"block ^{at} in ^{at - 1 if parents else 0} {{", inner, "}"]
    return "\n".join([*lines, "}"])


@pytest.mark.parametrize("parents", [True, False])
def test_blocks_that_run_each_other_too_deep(parents: bool):
    code = "nesting"
    assert code not in [found for _, _, found in places(findings_of(_nested(MAX_DEPTH, parents=parents), "x"))]
    deep = _nested(MAX_DEPTH + 1, parents=parents)
    assert [found for _, _, found in places(findings_of(deep, "x"))].count(code) == 1
    (finding,) = [found for found in verify(loads(deep), allow=["nesting"]) if found.code == code]
    assert finding.severity is Severity.ERROR
    assert finding.location is not None
    assert deep.split("\n")[finding.location.line - 1].startswith("block" if parents else "conditional_block")


@pytest.mark.parametrize(
    "verb", ["verify", "compile", "plan", "check", "run", "report", "mlir", "dot", "mermaid", "onnx"]
)
@pytest.mark.parametrize("parents", [True, False])
def test_every_verb_refuses_blocks_nested_a_thousand_deep(
    verb: str, parents: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file, job = tmp_path / "deep.ir", ["--pservers", "2", "--trainers", "2"]
    file.write_text(_nested(1000, parents=parents))
    rest = {"compile": [*job, "-o", str(tmp_path / "o")], "plan": job, "check": [*job, "--steps", "1"], "report": job}
    command = [verb, str(file), *rest.get(verb, [])]
    if verb in ("mlir", "dot", "mermaid", "onnx"):
        command = ["export", str(file), "--to", verb, "-o", str(tmp_path / "o"), *(["--fetch", "c"] * (verb == "onnx"))]
    if verb == "report":
        command += ["-o", str(tmp_path / "r.html")]
    assert main(command) == 1
    assert "error[nesting]" in capsys.readouterr().err


def test_not_text():
    assert [code for _, _, code in places(findings_of("\x7fELF\x02", "x"))] == ["not-text"]
