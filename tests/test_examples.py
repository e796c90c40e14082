"""Every example builds the text beside it, equals what Fluid recorded where it did, and learns."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import pstranspile as ps
from tests.training import module_differences, recorded

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = {
    "linear_regression": ("fit_a_line_sgd", 60),
    "mnist_mlp": ("mnist_mlp_adam", 15),
    "mnist_conv": ("mnist_conv_momentum", 15),
    "word2vec": ("word2vec_sparse_sgd", 60),
    "ctr_dnn": ("ctr_dnn_adam", 60),
    "deepfm": (None, 30),
    "simnet_bow": ("simnet_bow_sgd", 60),
    "transformer_encoder": ("transformer_noam", 50),
}
"""Example -> the recording of the same model, and a number of steps after which the loss has clearly fallen."""


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location(f"example_{request.param}", FOLDER / f"{request.param}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_listed():
    files = {path.stem for path in FOLDER.glob("*.py")} - {"training"}
    run_by_guides = {"fluid_fit_a_line", "masked_loss"}
    assert files == {*EXAMPLES, "gan", *run_by_guides}


@pytest.mark.parametrize("example", [*EXAMPLES, "gan"], indirect=True)
def test_text_is_what_the_file_builds(example: ModuleType):
    assert example.__file__ is not None
    module, _ = example.build()
    text = Path(example.__file__).with_suffix(".ir").read_text(encoding="utf-8")
    assert ps.dumps(module) == text
    assert ps.loads(text) == module
    assert list(ps.verify(module)) == []


@pytest.mark.parametrize("example", [name for name, (case, _) in EXAMPLES.items() if case], indirect=True)
def test_program_is_what_fluid_recorded(example: ModuleType):
    assert example.__file__ is not None
    case, _ = EXAMPLES[Path(example.__file__).stem]
    assert case is not None
    module, _ = example.build()
    assert module_differences(module, recorded(case)) == []


@pytest.mark.parametrize("example", EXAMPLES, indirect=True)
def test_loss_falls(example: ModuleType, capsys: pytest.CaptureFixture[str]):
    assert example.__file__ is not None
    _, steps = EXAMPLES[Path(example.__file__).stem]
    module, loss = example.build()
    losses = example.training.train(module, loss, example.feed, steps)
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert f"step {steps - 1:4d}  loss" in capsys.readouterr().out


@pytest.mark.parametrize("example", ["gan"], indirect=True)
def test_two_programs_in_turns(example: ModuleType, capsys: pytest.CaptureFixture[str]):
    module, distance = example.build()
    found = example.train(module, distance, example.ROUNDS)
    assert sum(found[-5:]) < 0.1 * sum(found[:5])
    assert "round  199  distance 0.0" in capsys.readouterr().out


def test_one_command_each():
    done = subprocess.run(
        [sys.executable, str(FOLDER / "linear_regression.py")],
        cwd=FOLDER.parent,
        env={"PYTHONPATH": str(FOLDER.parent), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1].startswith("step  199  loss 0.0")
