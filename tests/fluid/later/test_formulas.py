"""Optimizers of the 2.x interface compute what Paddle 2.6.2 does, where that differs from Fluid 1.8.5."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
import pstranspile.fluid as fluid
import pstranspile.fluid.paddle as paddle
from pstranspile.fluid import optimizer as older
from pstranspile.fluid.graph.variable import Variable
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import Adadelta, Adagrad, Adam, Lamb, Momentum, minimize
from pstranspile.proof.check import check
from pstranspile.tools.cli import main
from tests.fluid.later.computing import computed
from tests.fluid.running import fresh

WEIGHTS = (np.arange(12).reshape(4, 3) / 10 - 0.5).astype("float32")


def trained(make: Callable[[], Any], sparse: bool, scale: float = 1.0) -> list[float]:
    """The first weights after three steps."""
    with fresh():
        x = paddle.static.data("x", [None] if sparse else [None, 4], "int64" if sparse else "float32")
        attr = paddle.ParamAttr(name="w", initializer=paddle.nn.initializer.Assign(WEIGHTS))
        if sparse:
            y = paddle.static.nn.embedding(x, [4, 3], is_sparse=True, param_attr=attr)
        else:
            y = paddle.static.nn.fc(
                x, 3, weight_attr=attr, bias_attr=paddle.ParamAttr(initializer=paddle.nn.initializer.Constant(0.1))
            )
        make().minimize(paddle.mean(y * y) * scale)
        exe = paddle.static.Executor(paddle.CPUPlace())
        exe.run(paddle.static.default_startup_program())
        for step in range(3):
            ids = np.array([[1, 2, 1], [3, 2, 3], [0, 1, 0]][step], "int64")
            exe.run(feed={"x": ids if sparse else np.sin(np.arange(8).reshape(2, 4) + step).astype("float32")})
        return np.array(paddle.static.global_scope().find_var("w").get_tensor()).ravel()[:6].tolist()


opt = paddle.optimizer
MEASURED: dict[str, tuple[Callable[[], Any], bool, list[float]]] = {
    "adam_eps, dense": (
        lambda: opt.Adam(0.1, epsilon=0.01),
        False,
        [-0.2186378, -0.120699, -0.02295908, 0.06342259, 0.1566059, 0.2281864],
    ),
    "adam_eps, sparse": (
        lambda: opt.Adam(0.1, epsilon=0.01),
        True,
        [-0.4466823, -0.3477599, -0.2494623, -0.07203567, 0.002897132, 0],
    ),
    "adam_lazy, dense": (
        lambda: opt.Adam(0.1, epsilon=0.01, lazy_mode=True),
        False,
        [-0.2186378, -0.120699, -0.02295908, 0.06342259, 0.1566059, 0.2281864],
    ),
    "adam_lazy, sparse": (
        lambda: opt.Adam(0.1, epsilon=0.01, lazy_mode=True),
        True,
        [-0.4466823, -0.3477599, -0.2494623, -0.07954285, 0.0005627871, 0],
    ),
    "adam_wd, dense": (
        lambda: opt.Adam(0.1, epsilon=0.01, weight_decay=0.1),
        False,
        [-0.2154695, -0.1176839, -0.01970864, 0.06441704, 0.1568838, 0.2228588],
    ),
    "adam_wd, sparse": (
        lambda: opt.Adam(0.1, epsilon=0.01, weight_decay=0.1),
        True,
        [-0.2563963, -0.1648939, -0.07849803, 0.01315909, 0.06798677, 0],
    ),
    "adamw_wd, dense": (
        lambda: opt.AdamW(0.1, epsilon=0.01, weight_decay=0.2, apply_decay_param_fun=lambda name: name == "w"),
        False,
        [-0.1949273, -0.1028558, -0.01084707, 0.06934939, 0.1572644, 0.2239047],
    ),
    "adadelta, dense": (
        lambda: opt.Adadelta(0.1),
        False,
        [-0.4985896, -0.3985255, -0.2984626, -0.1991294, -0.09917951, 0.0007327209],
    ),
    "lamb, dense": (
        lambda: opt.Lamb(0.1),
        False,
        [-0.3984681, -0.2988617, -0.1994863, -0.105069, -0.008593258, 0.08162839],
    ),
    "lamb, sparse": (lambda: opt.Lamb(0.1), True, [-0.4666131, -0.3667687, -0.2669243, -0.07767394, 0.01627211, 0]),
    "lamb_ex, dense": (
        lambda: opt.Lamb(0.1, exclude_from_weight_decay_fn=lambda param: True),
        False,
        [-0.2086851, -0.1098521, -0.01020565, 0.07360563, 0.1732396, 0.2505908],
    ),
}
"""An optimizer, whether the gradient is sparse, and the weights that Paddle 2.6.2 has then."""


@pytest.mark.parametrize("name", MEASURED)
def test_three_steps_are_those_of_paddle(name: str) -> None:
    make, sparse, expected = MEASURED[name]
    assert trained(make, sparse) == pytest.approx(expected, rel=3e-5, abs=1e-6)


def test_epsilon_counts_as_much_in_the_first_step_as_later() -> None:
    """At gradients near epsilon the formulas of the two versions are far apart."""
    later, before = (trained(make, False, 1e-6) for make in (lambda: opt.Adam(0.1), lambda: older.Adam(0.1)))
    assert later == pytest.approx([-0.2186378, -0.120699, -0.02295905, 0.0634226, 0.1566059, 0.2281864], rel=3e-5)
    assert np.max(np.abs(np.subtract(later, before))) > 0.1


def test_the_strategy_that_takes_lamb_takes_that_of_the_interface() -> None:
    strategy = paddle.distributed.fleet.DistributedStrategy()
    setattr(strategy, "lamb", True)  # noqa: B010
    assert strategy._replace_optimizer(opt.Adam(0.1)).settings["later"]
    assert not strategy._replace_optimizer(older.Adam(0.1)).settings["later"]


NUMBERS = np.array([-7, 7, -8], "int64"), np.array([2, -2, 3], "int64")
SIGNED = np.array([[-2.5, -0.5, 1.5, 2.5]], "float32")
F = paddle.nn.functional
EXPRESSIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    "//": (lambda x, y: x // y, NUMBERS, np.array([-4, -4, -3])),
    "floor_divide": (lambda x, y: paddle.floor_divide(x, y), NUMBERS, np.array([-4, -4, -3])),
    "%": (lambda x, y: x % y, NUMBERS, np.array([1, -1, 1])),
    "mod": (lambda x, y: paddle.mod(x, y), NUMBERS, np.array([1, -1, 1])),
    "/": (lambda x, y: x / y, NUMBERS, np.float32([-3.5, -3.5, -8 / 3])),
    "divide": (lambda x, y: paddle.divide(x, y), NUMBERS, np.float32([-3.5, -3.5, -8 / 3])),
    "/ 2": (lambda x, y: x / 2, NUMBERS, np.float32([-3.5, 3.5, -4])),
    "* 1.5": (lambda x, y: x * 1.5, NUMBERS, np.float32([-10.5, 10.5, -12])),
    "0.5 +": (lambda x, y: 0.5 + x, NUMBERS, np.float32([-6.5, 7.5, -7.5])),
    "* 2": (lambda x, y: x * 2, NUMBERS, np.array([-14, 14, -16])),
    "sum of int32": (lambda x: paddle.sum(x), (np.array([7, 2], "int32"),), np.array([9])),
    "dropout that scales later": (lambda x: F.dropout(x, 0.25, training=False), (SIGNED,), SIGNED),
    "dropout that scales first": (
        lambda x: F.dropout(x, 0.25, training=False, mode="downscale_in_infer"),
        (SIGNED,),
        SIGNED * np.float32(0.75),
    ),
    "images by a scale": (
        lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear", align_corners=False),
        (np.arange(5, dtype="float32").reshape(1, 1, 1, 5),),
        np.float32([0, 0.5, 7 / 6, 11 / 6, 2.5, 19 / 6, 23 / 6]).reshape(1, 1, 1, 7),
    ),
}
"""Expressions whose meaning has changed since Fluid 1.8.5, and what Paddle 2.6.2 gives."""


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions_are_those_of_paddle(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, given, expected = EXPRESSIONS[name]
    monkeypatch.setattr(Variable, "later", False)
    with fresh():
        paddle.enable_static()
        read = [paddle.static.data(f"x{at}", array.shape, str(array.dtype)) for at, array in enumerate(given)]
        made = make(*read)
        exe = paddle.static.Executor(paddle.CPUPlace())
        (value,) = exe.run(feed={var.name: array for var, array in zip(read, given, strict=True)}, fetch_list=[made])
    assert value.dtype == expected.dtype
    np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_expressions_of_fluid_keep_their_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Variable, "later", False)
    with fresh():
        x, y = (fluid.data(name, [3], "int64") for name in "xy")
        made = [x // y, x % y, x / y, x * 1.5]
        values = fluid.Executor(fluid.CPUPlace()).run(feed=dict(zip("xy", NUMBERS, strict=True)), fetch_list=made)
    assert [value.tolist() for value in values] == [[-3, -3, -2], [-1, 1, -2], [-3, -3, -2], [-7, 7, -8]]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x: paddle.topk(x, 2)[0], [0, 0, 1, 1]),
        (lambda x: paddle.topk(x, 2, largest=False)[0], [1, 1, 0, 0]),
        (lambda x: paddle.sort(x), [1, 1, 1, 1]),
        (lambda x: paddle.median(x), [0, 0.5, 0.5, 0]),
        (lambda x: F.dropout(x, 0.5, training=False), [1, 1, 1, 1]),
        (lambda x: F.softplus(x, beta=2, threshold=3), [*(1 / (1 + np.exp(-2 * SIGNED[0, :3]))), 1]),
    ],
)
def test_gradients_go_where_those_of_paddle_go(make: Callable[[Any], Any], expected: list[float]) -> None:
    with fresh():
        x = paddle.static.data("x", [1, 4], "float32")
        x.stop_gradient = False
        (gradient,) = paddle.static.gradients([paddle.sum(make(x))], [x])
        (value,) = paddle.static.Executor(paddle.CPUPlace()).run(feed={"x": SIGNED}, fetch_list=[gradient])
    assert value[0].tolist() == pytest.approx(expected)


def module(optimizer: Any) -> ps.Module:
    """A line fitted with this optimizer."""
    model = L.Draft(seed=3)
    x, y = L.data(model, "x", [-1, 4]), L.data(model, "y", [-1, 1])
    minimize(L.mean(L.square_error_cost(L.fc(x, 1), y)), optimizer)
    return model.module()


@pytest.mark.parametrize(("kind", "name"), [(Adam, "scaled_epsilon"), (Lamb, "corrected"), (Adadelta, "scaled")])
def test_the_formula_stands_in_the_text_and_moves_to_the_servers(kind: Any, name: str) -> None:
    later, before = module(kind(0.1, later=True)), module(kind(0.1))
    assert f"{name}=true" in ps.dumps(later)
    assert f"{name}=" not in ps.dumps(before)
    assert ps.loads(ps.dumps(later)) == later
    random = np.random.default_rng(0)
    fed = {"x": random.normal(size=(3, 4, 4)).astype("float32"), "y": random.normal(size=(3, 4, 1)).astype("float32")}
    job = ps.Job(pservers=["a:1", "b:1"], trainers=2, min_block_size=2)
    assert not check(later, job, feeds=fed).different
    with_rules, without = (ps.simulate(ps.compile(made, job), fed).parameters for made in (later, before))
    assert any(not np.array_equal(with_rules[param], without[param]) for param in with_rules)


@pytest.mark.parametrize("verb", ["export --to pb", "compile --pservers a:1 --trainers 1 --emit pb"])
def test_what_fluid_does_not_know_is_told_when_it_is_exported(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *options = verb.split()
    for optimizer, told in ((Adam(0.1, later=True), True), (Adam(0.1), False)):
        made = module(optimizer)
        (tmp_path / "net.ir").write_text(ps.dumps(made))
        assert main([command, str(tmp_path / "net.ir"), *options, "-o", str(tmp_path / f"out{told}")]) == 0
        error = capsys.readouterr().err
        assert ("warning[desc-newer]: adam: scaled_epsilon is a formula of Paddle 2.x" in error) == told
    with pytest.warns(UserWarning, match="desc-newer"):
        ps.export(module(Adam(0.1, later=True)), tmp_path / "exported")
    assert ps.load(tmp_path / "exported/main.pb").main.blocks[0].ops[-1].attrs["scaled_epsilon"] is True


DOUBLE = """ir 1
program @main {
  block ^0 {
    temp %x : f32[-1, 3] feed
    temp %y : f32[-1, 3]
    scale(X=%x) -> Out=%y {scaleVALUE}
  }
}
"""


@pytest.mark.parametrize(
    ("optimizer", "told"),
    [
        (Momentum(0.1, dampening=0.5), "momentum: GradShare is an input that Fluid 1.8.5 does not have"),
        (Adagrad(0.1, rate_decay=0.5), "adagrad: Updates is an input that Fluid 1.8.5 does not have"),
        (Momentum(0.1), ""),
        (Adagrad(0.1), ""),
    ],
)
def test_inputs_that_fluid_lacks_are_told_when_they_are_exported(
    optimizer: Any, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.ir").write_text(ps.dumps(module(optimizer)))
    assert main(["export", str(tmp_path / "net.ir"), "--to", "pb", "-o", str(tmp_path / "out")]) == 0
    error = capsys.readouterr().err
    assert (f"warning[desc-newer]: {told}" in error) if told else ("desc-newer" not in error)


@pytest.mark.parametrize("verb", ["export --to pb", "export --to inference --fetch y"])
def test_attributes_of_a_kind_that_fluid_can_not_read_are_told_when_they_are_exported(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *options = verb.split()
    for value, told in ((":double=0.1", True), ("=0.1", False)):
        (tmp_path / "net.ir").write_text(DOUBLE.replace("VALUE", value))
        assert main([command, str(tmp_path / "net.ir"), *options, "-o", str(tmp_path / f"out{told}")]) == 0
        error = capsys.readouterr().err
        said = "warning[desc-newer]: scale: scale is a FLOAT64, a kind of attribute of Paddle 2.x; Fluid 1.8.5"
        assert (said in error) == told
    with pytest.warns(UserWarning, match="scale is a FLOAT64"):
        ps.export(ps.loads(DOUBLE.replace("VALUE", ":double=0.1")), tmp_path / "exported")


def test_parts_of_numbers_and_steps_between_them() -> None:
    x = np.array([[-1.75, -0.5, 0.0], [0.25, 2.5, 7.0]], "float32")
    (whole, rest, line, lines), _ = computed(
        lambda x: [paddle.trunc(x), paddle.frac(x), paddle.lerp(x, x * 2.0, 0.25), paddle.lerp(x, x * 2.0, x)], x
    )
    for made, wanted in ((whole, np.trunc(x)), (rest, x - np.trunc(x)), (line, x * 1.25), (lines, x + x * x)):
        np.testing.assert_array_equal(made, wanted)
    (once, twice, down, around), _ = computed(
        lambda x: [paddle.diff(x), paddle.diff(x, 2), paddle.diff(x, axis=0), paddle.diff(x, prepend=x, append=x)], x
    )
    np.testing.assert_array_equal(once, np.diff(x))
    np.testing.assert_array_equal(twice, np.diff(x, 2))
    np.testing.assert_array_equal(down, np.diff(x, axis=0))
    np.testing.assert_array_equal(around, np.diff(x, prepend=x, append=x))


def test_instances_are_normalised_without_a_scale() -> None:
    x = (np.arange(24, dtype="float32").reshape(2, 3, 2, 2) - 11) ** 3 / 100
    (made, plain, static), _ = computed(
        lambda x: [
            paddle.nn.InstanceNorm2D(3, weight_attr=False, bias_attr=False)(x),
            paddle.nn.functional.instance_norm(x),
            paddle.static.nn.instance_norm(x, param_attr=False, bias_attr=False),
        ],
        x,
    )
    wanted = (x - x.mean((2, 3), keepdims=True)) / np.sqrt(x.var((2, 3), keepdims=True) + 1e-5)
    np.testing.assert_allclose(made, wanted, rtol=1e-5)
    np.testing.assert_array_equal(made, plain)
    np.testing.assert_array_equal(made, static)
    for which in ("param_attr", "bias_attr"):
        with pytest.raises(ValueError, match="can't do without this parameter"):
            computed(lambda x, which=which: paddle.static.nn.instance_norm(x, **{which: False}), x)
