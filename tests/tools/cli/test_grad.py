"""`pstranspile grad`: a forward program made into a training program."""

import io
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import pstranspile as ps
from pstranspile.compiler.verify import verify
from pstranspile.frontends.autodiff import L2, Adam, ClipByGlobalNorm, Exponential, train
from pstranspile.frontends.autodiff.optimizers import OPTIMIZERS
from pstranspile.tools.cli import main

FORWARD = str(Path(__file__).parents[2] / "data" / "forward.ir")


def grad(capsys, *arguments: str) -> str:
    assert main(["grad", FORWARD, *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys, *arguments: str, status: int = 1) -> str:
    assert main(["grad", FORWARD, *arguments]) == status
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_what_it_writes_is_what_train_makes(capsys, tmp_path):
    arguments = ["--loss", "loss", "--optimizer", "adam", "--lr", "0.001", "--set", "beta1=0.8"]
    more = [
        "--clip",
        "global_norm:1.0",
        "--regularizer",
        "l2:0.1",
        "--schedule",
        "exponential:decay_steps=10,decay_rate=0.5",
    ]
    optimizer = Adam(Exponential(0.001, 10, 0.5), beta1=0.8, clip=ClipByGlobalNorm(1.0), regularizer=L2(0.1))
    expected = ps.dumps(train(ps.load(FORWARD), "loss", optimizer))
    assert grad(capsys, *arguments, *more) == expected
    assert grad(capsys, *arguments, *more, "-o", str(tmp_path / "training.ir")) == ""
    assert (tmp_path / "training.ir").read_text() == expected
    assert list(verify(ps.loads(expected))) == []


def test_stdin(capsys, monkeypatch):
    arguments = ["--loss", "loss", "--optimizer", "sgd", "--lr", "0.1"]
    from_file = grad(capsys, *arguments)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(FORWARD).read_bytes())))
    assert main(["grad", "-", *arguments]) == 0
    assert capsys.readouterr().out == from_file


def test_training_program_compiles(capsys, tmp_path):
    path = tmp_path / "training.ir"
    grad(capsys, "--loss", "loss", "--optimizer", "momentum", "--lr", "0.1", "--set", "momentum=0.9", "-o", str(path))
    assert main(["compile", str(path), "--pservers", "2", "--trainers", "2", "-o", str(tmp_path / "out")]) == 0


def test_some_parameters_only(capsys):
    text = grad(capsys, "--loss", "loss", "--optimizer", "sgd", "--parameters", "fc_0.w_0,%fc_1.w_0")
    assert text.count("sgd(") == 2
    stopped = grad(capsys, "--loss", "loss", "--optimizer", "sgd", "--no-grad", "fc_0.tmp_1")
    assert stopped.count("sgd(") == 1


def test_unknown_loss(capsys):
    assert "%los; did you mean %loss?" in refused(capsys, "--loss", "los", "--optimizer", "sgd")


def test_loss_with_more_than_one_element(capsys):
    err = refused(capsys, "--loss", "fc_1.tmp_0", "--optimizer", "sgd")
    assert "the dims [-1, 1], it must have one element" in err
    assert "mul(X=%fc_0.tmp_1, Y=%fc_1.w_0) -> Out=%fc_1.tmp_0" in err


def test_op_without_gradient_on_the_way(capsys):
    err = refused(capsys, "--loss", "loss2", "--optimizer", "sgd")
    assert "error[not-differentiable]: arg_max: has no gradient" in err
    assert "arg_max(X=%fc_0.tmp_1) -> Out=%idx {axis=-1}" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--optimizer", "adm"], "there is no optimizer 'adm'; did you mean adam?"),
        (["--optimizer", "adam", "--set", "bta1=0.5"], "no setting 'bta1'; did you mean beta1?"),
        (["--optimizer", "adam", "--set", "beta1"], "'beta1' is not KEY=VALUE"),
        (["--optimizer", "adam", "--set", "beta1=x"], "beta1 takes a number, got 'x'"),
        (["--optimizer", "adam", "--set", "lazy_mode=1"], "lazy_mode is true or false, got '1'"),
        (["--optimizer", "sgd", "--schedule", "expo:decay_steps=1"], "there is no schedule 'expo'"),
        (["--optimizer", "sgd", "--schedule", "exponential:decay_steps=1"], "needs learning_rate, decay_rate"),
        (["--optimizer", "sgd", "--schedule", "piecewise:boundaries=1/2,values=0.1/0.2"], "one value more"),
        (["--optimizer", "sgd", "--schedule", "piecewise:boundaries=2/1,values=0.1/0.2/0.3"], "must rise, got [2, 1]"),
        (
            ["--optimizer", "sgd", "--lr", "0.1", "--schedule", "exponential:decay_steps=0,decay_rate=0.5"],
            "decay_steps of a schedule is 0, it must be at least 1",
        ),
        (["--optimizer", "sgd", "--lr", "nan"], "the learning rate is nan, it must be a finite number"),
        (["--optimizer", "sgd", "--clip", "norm:-1"], "it must be greater than 0"),
        (["--optimizer", "sgd", "--clip", "value:1/-1"], "its lower bound is above the upper"),
        (["--optimizer", "sgd", "--regularizer", "l3:1"], "there is no regularizer 'l3'"),
    ],
)
def test_wrong_usage(capsys, arguments, message):
    assert message in refused(capsys, "--loss", "loss", *arguments, status=2)


@pytest.mark.parametrize(("option", "kind"), [("--parameters", "parameter"), ("--no-grad", "declared")])
def test_unknown_names(capsys, option, kind):
    err = refused(capsys, "--loss", "loss", "--optimizer", "sgd", option, "fc_0.w_1")
    assert f"%fc_0.w_1 is not {'a ' if kind == 'parameter' else ''}{kind}; did you mean %fc_0.w_0?" in err


def test_warmup_after_another_schedule(capsys):
    schedules = ["--schedule", "piecewise:boundaries=10/20,values=0.1/0.05/0.01"]
    warmup = ["--schedule", "warmup:warmup_steps=5,start_lr=0.0,end_lr=0.1"]
    text = grad(capsys, "--loss", "loss", "--optimizer", "sgd", *schedules, *warmup)
    assert text.count("conditional_block(") == 5
    assert "LearningRate=%learning_rate_warmup" in text


def test_a_training_program_taken_for_a_forward_one(capsys, tmp_path):
    path = tmp_path / "training.ir"
    arguments = ["--loss", "loss", "--optimizer", "sgd", "--lr", "0.1"]
    grad(capsys, *arguments, "-o", str(path))
    assert main(["grad", str(path), *arguments]) == 0
    err = capsys.readouterr().err
    assert "warning[trained-twice]: " in err
    assert "is updated by this op" in err
    assert f"{path}:" in err
    untouched = ps.load(FORWARD).main.parameters()[-1].name
    assert main(["grad", str(path), *arguments, "--parameters", untouched]) == 0
    assert f"%{untouched} is updated by this op" in capsys.readouterr().err
    grad(capsys, *arguments, "--parameters", untouched, "-o", str(path))
    others = ",".join(p.name for p in ps.load(FORWARD).main.parameters() if p.name != untouched)
    assert main(["grad", str(path), *arguments, "--parameters", others]) == 0
    assert "trained-twice" not in capsys.readouterr().err


def test_a_negative_learning_rate_is_warned_of(tmp_path, capsys):
    forward = str(Path(__file__).parents[3] / "examples" / "forward.ir")
    arguments = ["grad", forward, "--loss", "mean_0.tmp_0", "--optimizer", "sgd", "-o", str(tmp_path / "t.ir")]
    told = "warning[learning-rate]: the learning rate is -0.1: below 0 every update makes mean_0.tmp_0 larger"
    for rate, warned in (("-0.1", True), ("0.1", False)):
        assert main([*arguments, "--lr", rate]) == 0
        assert (told in capsys.readouterr().err) == warned


SENSELESS = [
    *[("adam", setting) for setting in ("beta1=1", "beta2=2", "beta1=-0.1", "epsilon=-1e-8", "decoupled_decay=-1")],
    *[("adamax", setting) for setting in ("beta1=1", "beta2=1.5", "epsilon=-1")],
    *[("lamb", setting) for setting in ("beta1=1", "beta2=2", "epsilon=-1", "lamb_weight_decay=-0.1")],
    *[("momentum", setting) for setting in ("momentum=-0.5", "momentum=1", "dampening=2")],
    *[("lars_momentum", setting) for setting in ("momentum=2", "lars_coeff=0", "lars_weight_decay=-1")],
    *[("adagrad", setting) for setting in ("epsilon=-1", "initial_accumulator_value=-1", "rate_decay=-1")],
    *[("decayed_adagrad", setting) for setting in ("decay=1", "epsilon=-1")],
    *[("dpsgd", setting) for setting in ("clip_norm=0", "batch_size=0", "sigma=-1")],
    *[("adadelta", setting) for setting in ("rho=1", "epsilon=-1")],
    *[("rmsprop", setting) for setting in ("rho=-1", "epsilon=-1", "momentum=1")],
    *[("ftrl", setting) for setting in ("l1=-1", "l2=-1", "lr_power=0.5")],
]


@pytest.mark.parametrize(("optimizer", "setting"), SENSELESS)
def test_a_setting_without_meaning(optimizer: str, setting: str, capsys: pytest.CaptureFixture[str]):
    key, _, value = setting.partition("=")
    err = refused(capsys, "--loss", "loss", "--optimizer", optimizer, "--set", setting, status=2)
    assert f"optimizer {optimizer}: {key} is {float(value):g}, it must be " in err


@pytest.mark.parametrize(
    ("optimizer", "setting", "told"),
    [
        ("sgd", "momentum=0.9", "'momentum'; --optimizer momentum has it; it has name"),
        ("sgd", "beta1=0.9", "'beta1'; --optimizer adam has it; it has name"),
        ("momentum", "learning_rate=0.1", "'learning_rate'; --lr gives it; it has "),
        ("momentum", "momentm=0.9", "'momentm'; did you mean momentum?"),
        ("sgd", "nothing=1", "'nothing'; it has name"),
    ],
)
def test_a_setting_of_another_optimizer(optimizer: str, setting: str, told: str, capsys: pytest.CaptureFixture[str]):
    err = refused(capsys, "--loss", "loss", "--optimizer", optimizer, "--set", setting, status=2)
    assert f"optimizer {optimizer} has no setting {told}" in err


def test_every_setting_that_is_a_number_has_bounds():
    numbers = {
        field.name
        for kind in OPTIMIZERS.values()
        for field in fields(kind)
        if "float" in str(field.type) and field.name != "learning_rate"
    }
    assert numbers == {setting.partition("=")[0] for _, setting in SENSELESS}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--regularizer", "l2:-0.1"],
        ["--schedule", "exponential:decay_steps=2,decay_rate=-1"],
        ["--schedule", "polynomial:decay_steps=2,power=-1"],
    ],
)
def test_numbers_without_meaning_of_what_goes_with_an_optimizer(arguments, capsys):
    err = refused(capsys, "--loss", "loss", "--optimizer", "sgd", "--lr", "0.1", *arguments, status=2)
    assert "it must be at least 0" in err


@pytest.mark.parametrize("seed", ["99999999999", "9" * 5000])
def test_a_setting_that_no_attribute_holds(seed: str, capsys: pytest.CaptureFixture[str]):
    err = refused(capsys, "--loss", "loss", "--optimizer", "dpsgd", "--set", f"seed={seed}", status=2)
    assert "optimizer dpsgd: seed " in err
    assert len(err) < 300


def test_the_classes_take_what_fluid_takes():
    assert train(ps.load(FORWARD), "loss", Adam(beta2=2.0, epsilon=-1.0)).main.main_block.ops[-1].attrs["beta2"] == 2.0
