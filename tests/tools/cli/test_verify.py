"""`verify`: findings for people, for programs and for code hosts; what @startup must initialise; unknown op types."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pstranspile.tools.cli import main

REGRESSION = (Path(__file__).parents[3] / "examples" / "regression.ir").read_text(encoding="utf-8")
UNKNOWN = """ir 1
program @main {
  block ^0 {
    temp  %x : f32[-1, 4] feed
    temp  %y : f32[-1, 4]
    reluu(X=%x) -> Out=%y
  }
}
"""


def without(initialiser: str) -> str:
    """The regression without the lines that initialise a variable."""
    kept = [line for line in REGRESSION.splitlines() if f"-> Out=%{initialiser} " not in line or "max=" not in line]
    kept = [line for line in kept if not (f"-> Out=%{initialiser} " in line and "fill_constant" in line)]
    assert len(kept) < len(REGRESSION.splitlines())
    return "\n".join(kept) + "\n"


def verified(tmp_path: Path, text: str, *options: str) -> int:
    (tmp_path / "net.ir").write_text(text, encoding="utf-8")
    return main(["verify", str(tmp_path / "net.ir"), *options])


@pytest.mark.parametrize("name", ["net.ir", "-"])
def test_errors_of_the_text_are_counted_too(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    text = "ir 1\nprogram @main {\n  bad bad\n  block ^0 {\n    worse worse\n  }\n}\n"
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text(text)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["verify", name]) == 1
    *found, last = capsys.readouterr().err.splitlines()
    count = sum("error[" in line for line in found)
    named = "<stdin>" if name == "-" else name
    assert last == f"{named}: {count} error{'s' * (count != 1)}"


def logged(capsys: pytest.CaptureFixture[str]) -> Any:
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def test_an_op_type_that_nobody_declares_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert verified(tmp_path, UNKNOWN) == 1
    assert "error[unknown-op]: reluu: neither Fluid nor a plug-in has this op type; did you mean `relu`?" in (
        capsys.readouterr().err
    )
    assert verified(tmp_path, UNKNOWN, "--allow", "unknown-op") == 0
    assert "warning[unknown-op]" in capsys.readouterr().err
    several = UNKNOWN.replace("    reluu(X=%x) -> Out=%y\n", "    reluu(X=%x) -> Out=%y\n" * 3)
    assert verified(tmp_path, several) == 1
    err = capsys.readouterr().err
    assert err.count("[unknown-op]") == 1
    assert "this op type, which 3 ops have" in err


@pytest.mark.parametrize("name", ["w", "b", "lr"])
def test_a_missing_initialiser_is_found_as_by_compile(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str):
    assert verified(tmp_path, without(name)) == 1
    assert "error[parameter-without-value]" in capsys.readouterr().err
    assert main(["compile", str(tmp_path / "net.ir"), "--pservers", "2", "-o", str(tmp_path / "out")]) == 1
    assert f"is %{name}, but no op of @startup gives it a value" in capsys.readouterr().err
    assert verified(tmp_path, without(name), "--allow", "parameter-without-value") == 0


def test_what_is_loaded_may_lack_an_initialiser_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    import numpy as np

    (tmp_path / "net.ir").write_text(without("b"), encoding="utf-8")
    np.savez(tmp_path / "b.npz", b=np.zeros(20, np.float32))
    np.savez(tmp_path / "data.npz", x=np.ones((1, 2, 1000), np.float32), y=np.ones((1, 2, 20), np.float32))
    given = ["--init", str(tmp_path / "b.npz"), "--feed", str(tmp_path / "data.npz")]
    assert main(["run", str(tmp_path / "net.ir"), *given]) == 0
    assert "warning[parameter-without-value]" in capsys.readouterr().err


def test_findings_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert verified(tmp_path, UNKNOWN, "--json") == 1
    log = logged(capsys)
    assert (log["version"], log["errors"], log["warnings"]) == (1, 1, 0)
    (finding,) = log["findings"]
    assert finding["file"] == str(tmp_path / "net.ir")
    assert (finding["line"], finding["column"], finding["end_column"]) == (6, 5, 10)
    assert (finding["severity"], finding["code"]) == ("error", "unknown-op")
    assert verified(tmp_path, REGRESSION, "--json") == 0
    assert logged(capsys)["findings"] == []


def test_files_that_cannot_be_read_are_findings_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "net.ir").write_text(REGRESSION.replace("{axis=1}", "{axis: 1}"), encoding="utf-8")
    empty = tmp_path / "empty"
    empty.mkdir()
    text = io.TextIOWrapper(io.BytesIO(UNKNOWN.replace("}", "").encode()))
    monkeypatch.setattr(sys, "stdin", text)
    inputs = [str(tmp_path / "net.ir"), str(tmp_path / "nothing.ir"), str(empty), "-"]
    assert main(["verify", *inputs, "--json"]) == 1
    found = [(finding["file"], finding["line"], finding["code"]) for finding in logged(capsys)["findings"]]
    assert (inputs[0], 24, "syntax") in found
    assert (inputs[1], None, "input-unreadable") in found
    assert (inputs[2], None, "folder-without-programs") in found
    assert any(file == "<stdin>" and code == "unbalanced" for file, _, code in found)


def test_findings_as_sarif(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = REGRESSION.replace("X=%xw, Y=%b)", "X=%xw, Y=%bb)")
    assert verified(tmp_path, text, "--sarif") == 1
    log = logged(capsys)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert run["tool"]["driver"]["name"] == "pstranspile"
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == sorted(rules)
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("error", "warning")
    first = next(result for result in run["results"] if result["ruleId"] == "undeclared-variable")
    place = first["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == str(tmp_path / "net.ir")
    line = text.splitlines()[place["region"]["startLine"] - 1]
    assert line[place["region"]["startColumn"] - 1 : place["region"]["endColumn"] - 1] == "%bb"


def test_sarif_of_a_file_whose_name_is_no_utf_8(capsys: pytest.CaptureFixture[str]):
    assert main(["verify", "miss\u00e9\udcff", "--sarif"]) == 1
    (result,) = logged(capsys)["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "miss%C3%A9%FF"


def test_one_form_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert verified(tmp_path, UNKNOWN, "--json", "--sarif") == 2
    assert "not allowed with" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["{", '{"version": 1, "trainrs": 2}'])
def test_a_plan_that_no_command_could_read_is_an_error(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text(REGRESSION, encoding="utf-8")
    assert main(["compile", "net.ir", "--pservers", "2", "--trainers", "2", "-o", "job"]) == 0
    assert main(["verify", "job"]) == 0
    Path("job", "plan.json").write_text(content)
    capsys.readouterr()
    assert main(["verify", "job"]) == 1
    assert "plan.json" in capsys.readouterr().err


UNCOMPILABLE = {
    "parameter-shape": ("param %w : f32[1000, 20]", "param %w : f32[-1, 20]"),
    "not-initialised": ("LearningRate=%lr", "LearningRate=%y"),
    "no-program": (REGRESSION[REGRESSION.index("program @startup") :], ""),
}
"""By code, what makes of the regression a program that one machine runs and compile refuses."""


@pytest.mark.parametrize("code", UNCOMPILABLE)
def test_what_compile_refuses_is_told(code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = REGRESSION.replace(*UNCOMPILABLE[code])
    assert text != REGRESSION
    assert verified(tmp_path, text) == 0
    err = capsys.readouterr().err
    assert f"warning[{code}]" in err
    assert err.endswith("net.ir: one machine may run it, compile refuses it for servers\n")
    assert verified(tmp_path, text, "--strict") == 1
    assert f"error[{code}]" in capsys.readouterr().err
    assert main(["compile", str(tmp_path / "net.ir"), "--pservers", "1"]) == 1


def test_what_compiles_is_told_nothing_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert verified(tmp_path, REGRESSION) == 0
    assert capsys.readouterr().err == ""


def test_a_text_without_programs_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert verified(tmp_path, "ir 1\n") == 1
    assert "error[no-program]: there is no program" in capsys.readouterr().err


@pytest.mark.parametrize("strict", [(), ("--strict",)])
def test_what_compile_finds_too_is_told_once(
    strict: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    text = (
        (Path(__file__).parents[3] / "examples" / "regression.ir")
        .read_text()
        .replace("state %lr : f32[1]", "state %lr : f32[3]")
    )
    verified(tmp_path, text.replace("state %lr : f32[1]", "state %lr : f32[3]"), *strict)
    assert capsys.readouterr().err.count("fill_constant: %lr is declared f32[3], the op gives f32[1]") == 1
