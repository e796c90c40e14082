"""`strict` and `allow`: in Python, in jobs and on the command line; and findings that are folded into one."""

from pathlib import Path

import pytest

import pstranspile as ps
from pstranspile.ir.diagnostics import Diagnostic, Severity, error, fold_similar, warning
from pstranspile.tools.cli import main

NET = """ir 1
program @main {
  block ^0 {
    temp %x : f32[-1, 4] feed
    temp %y : f32[-1, 3]
    temp %z : f32[-1, 4]
    relu(X=%x) -> Out=%y
    elementwise_add(X=%x, Y=%nothing) -> Out=%z
  }
}
"""


def severities(found: tuple[Diagnostic, ...]) -> list[tuple[str, str]]:
    return [(each.code, each.severity.value) for each in found]


def test_findings_are_weighed_as_asked():
    module = ps.loads(NET)
    assert severities(ps.verify(module)) == [("type-mismatch", "warning"), ("undeclared-variable", "error")]
    assert severities(ps.verify(module, strict=True))[0] == ("type-mismatch", "error")
    assert severities(ps.verify(module, allow=["undeclared-variable"]))[1] == ("undeclared-variable", "warning")
    assert severities(ps.verify(module, allow=["type-mismatch"])) == [("undeclared-variable", "error")]
    assert severities(ps.verify(module, strict=True, allow=["type-mismatch"]))[0] == ("type-mismatch", "warning")


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    net = tmp_path / "net.ir"
    net.write_text(NET.replace("%nothing", "%x"), encoding="utf-8")
    assert main(["verify", str(net)]) == 0
    assert "warning[type-mismatch]" in capsys.readouterr().err
    assert main(["verify", str(net), "--strict"]) == 1
    assert "error[type-mismatch]" in capsys.readouterr().err
    assert main(["verify", str(net), "--allow", "type-mismatch"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["verify", str(net), "--allow", "type-mismatsch"]) == 2
    assert "did you mean type-mismatch?" in capsys.readouterr().err
    assert main(["verify", str(net), "--allow", "no-block"]) == 2


def test_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    net, job = Path(__file__).parents[3] / "golden" / "mlp_adam.ir", tmp_path / "job.toml"
    wrong = tmp_path / "net.ir"
    text = net.read_text(encoding="utf-8")
    wrong.write_text(text.replace("%h1 : f32[-1, 128]", "%h1 : f32[-1, 7]"), encoding="utf-8")
    assert wrong.read_text() != text
    job.write_text("pservers = 1\nstrict = true\n")
    assert main(["plan", str(wrong), "--config", str(job)]) == 1
    assert "error[type-mismatch]" in capsys.readouterr().err
    job.write_text('pservers = 1\nstrict = true\nallow = ["type-mismatch"]\n')
    assert main(["plan", str(wrong), "--config", str(job)]) == 0
    assert "warning[type-mismatch]" in capsys.readouterr().err
    assert ps.Job(pservers=1, allow="type-mismatch, unknown-slot").allow == ("type-mismatch", "unknown-slot")
    with pytest.raises(ps.DiagnosticError, match="no finding has the code 'nonsense'"):
        ps.Job(pservers=1, allow=["nonsense"])


def test_many_that_are_alike_are_one():
    found = [warning("type-mismatch", f"this is {number}") for number in range(5)]
    found += [error("type-mismatch", f"that is {number}") for number in range(5)]
    (first, *rest) = fold_similar(found)
    assert first.notes[-1].message.startswith("and 4 more findings warning[type-mismatch]")
    assert rest == found[5:]
    assert fold_similar(found[:3]) == found[:3]
    (one,) = fold_similar([error("type-mismatch", "the same")] * 4)
    assert one.severity is Severity.ERROR


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("type-mismatch", " (`pstranspile verify --all` shows them)"),
        ("data-row", " (`--bad-rows skip` leaves such rows out)"),
        ("data-column", ""),
        ("cluster-barrier", ""),
    ],
)
def test_how_all_that_are_alike_are_seen(code: str, hint: str):
    """Only findings of programs are those of `verify`."""
    (one,) = fold_similar([error(code, "the same")] * 4)
    assert one.notes[-1].message == f"and 3 more findings error[{code}]{hint}"


ONE_NUMBER = """ir 1
program @main {
  block ^0 {
    temp %x : f32[-1, 4] feed
    temp %y : f32[-1, 4]
    temp %z : f32[-1, 1]
    scale(X=%x) -> Out=%y {scale:int=2}
    reduce_sum(X=%y) -> Out=%z {dim=[1], keep_dim:int=1}
  }
}
"""


def test_whole_numbers_are_converted_as_fluid_does():
    import numpy as np

    module = ps.loads(ONE_NUMBER)
    assert severities(ps.verify(module)) == [("attribute-kind", "warning")] * 2
    out = ps.run(module.main, {"x": np.ones((2, 4), "float32")}, ["z"], ps.Scope())
    assert out["z"].tolist() == [[8.0], [8.0]]
