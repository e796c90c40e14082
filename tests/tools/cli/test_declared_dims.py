"""Values with other dims than their declarations say are told where the variable is declared."""

from pathlib import Path

import numpy as np
import pytest

from pstranspile.tools.cli import main

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "examples" / "regression.ir").read_text()


def added(declared: int, made: int) -> str:
    """The example with a parameter that no op of @main uses."""
    text = TEXT.replace("    param %b : f32[20]\n", f"    param %b : f32[20]\n    param %u : f32[{declared}]\n")
    return text.replace(
        "fill_constant -> Out=%b", f"fill_constant -> Out=%u {{shape=[{made}]}}\n    fill_constant -> Out=%b"
    )


@pytest.mark.parametrize("options", ["--pservers 2 --trainers 2", "--trainers 2 --mode ddp"])
def test_a_value_of_other_dims_is_told_at_its_declaration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str
):
    file = tmp_path / "net.ir"
    file.write_text(added(7, 9))
    assert main(["verify", str(file)]) == 0
    capsys.readouterr()
    assert main(["check", str(file), *options.split()]) == 1
    told = capsys.readouterr().err
    line = next(number for number, text in enumerate(added(7, 9).split("\n"), 1) if "%u" in text)
    wrong = [text for text in told.splitlines() if "error[" in text]
    assert wrong[0] == f"{file}:{line}:11: error[checkpoint-state]: u on trainer_0 is float32[9], declared f32[7]"
    assert all(f"{file}:{line}:11: error[checkpoint-state]" in text for text in wrong)


def test_verify_says_that_compile_refuses_what_one_machine_may_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "net.ir"
    file.write_text(TEXT.replace("param %b : f32[20]", "param %b : f32[21]", 1))
    assert main(["verify", str(file)]) == 0
    told = capsys.readouterr().err
    assert told.endswith(f"{file}: one machine may run it, compile refuses it for servers\n")
    assert told.count("declared-differently") == 1
    assert main(["compile", str(file), "--pservers", "2", "--trainers", "2", "-o", str(tmp_path / "out")]) == 1
    assert "error[declared-differently]" in capsys.readouterr().err


@pytest.mark.parametrize("verb", [["run"], ["check", "--pservers", "1"], ["launch", "--pservers", "1"]], ids="-".join)
def test_a_given_value_of_other_dims_is_told_with_the_declaration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: list[str]
):
    file, init = tmp_path / "net.ir", tmp_path / "init.npz"
    file.write_text(TEXT)
    np.savez(init, b=np.zeros(9, "float32"))
    np.savez(tmp_path / "data.npz", x=np.ones((1, 2, 1000), "float32"), y=np.ones((1, 2, 20), "float32"))
    options = ["--init", str(init), "--feed", str(tmp_path / "data.npz")]
    assert main([verb[0], str(file), *verb[1:], *options]) == 1
    told = capsys.readouterr().err
    assert f"{init}: error[run-file-unusable]: b is declared f32[20], but the file holds f32[9]\n" in told
    assert f"{file}:7:11: note: %b is declared here\n" in told
