"""What `import` says of a program that comes without its start-up program."""

from pathlib import Path

import pytest

import pstranspile as ps
from pstranspile.frontends.program_desc import program_to_bytes
from pstranspile.tools.cli import main

ROOT = Path(__file__).parents[3]
MODULE = ps.load(ROOT / "examples" / "regression.ir")


def told(capsys: pytest.CaptureFixture[str], tmp_path: Path, *options: str) -> str:
    (tmp_path / "main.pb").write_bytes(program_to_bytes(MODULE["main"]))
    (tmp_path / "startup.pb").write_bytes(program_to_bytes(MODULE["startup"]))
    assert main(["import", str(tmp_path / "main.pb"), *options, "-o", str(tmp_path / "net.ir")]) == 0
    return capsys.readouterr().err


def test_a_training_program_without_its_startup_program_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    err = told(capsys, tmp_path)
    assert err.startswith(
        f"{tmp_path / 'main.pb'}: warning[no-program]: without the start-up program, which --startup "
    )
    assert "warning" not in told(capsys, tmp_path, "--startup", str(tmp_path / "startup.pb"))


def test_a_program_that_does_not_train_needs_no_startup_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    block = MODULE.main.main_block
    forward = MODULE.main.with_main_block(block._replace(ops=block.ops[:5]))
    (tmp_path / "model.pb").write_bytes(program_to_bytes(forward))
    assert main(["import", str(tmp_path / "model.pb"), "-o", str(tmp_path / "net.ir")]) == 0
    assert "warning" not in capsys.readouterr().err
