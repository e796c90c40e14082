"""What scripts take from Fluid beside programs: checks of arguments, dealt readers, curves, images."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pstranspile.fluid.paddle.check_import_scipy import check_import_scipy

import pstranspile.fluid as fluid
from pstranspile.fluid import data_feeder, layers, paddle
from pstranspile.fluid.contrib import distributed_batch_reader
from pstranspile.fluid.paddle.dataset import image
from tests.fluid.running import fresh


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    with fresh():
        yield


def test_layers_of_scripts_check_their_arguments() -> None:
    x = fluid.data("x", [2], "float32")
    data_feeder.check_variable_and_dtype(x, "x", ["float32", "float64"], "mine")
    data_feeder.check_type([1], "sizes", (list, tuple), "mine")
    with pytest.raises(TypeError, match=r"mine: x must be of int32 or int64, not of float32$"):
        layers.nn.check_variable_and_dtype(x, "x", ("int32", "int64"), "mine")
    with pytest.raises(TypeError, match=r"mine: sizes must be list or tuple, not int\. Sizes are many$"):
        data_feeder.check_type(1, "sizes", (list, tuple), "mine", "Sizes are many.")


def test_batches_are_dealt_to_trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    def batches() -> Iterator[int]:
        return iter(range(8))

    assert list(distributed_batch_reader(batches)()) == list(range(8))
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "3")
    monkeypatch.setenv("PADDLE_TRAINER_ID", "1")
    assert list(distributed_batch_reader(batches)()) == [1, 4]
    monkeypatch.setenv("PADDLE_TRAINER_ID", "3")
    with pytest.raises(ValueError, match="trainer 3 is none of 3"):
        distributed_batch_reader(batches)


def test_weights_decay_beside_the_update() -> None:
    x = fluid.data("x", [None, 3], "float32")
    start = fluid.initializer.Constant(0.5)
    attrs = {f"{kind}_attr": fluid.ParamAttr(name=kind, initializer=start) for kind in ("param", "bias")}
    loss = layers.mean(layers.t(layers.fc(x, 1, **attrs)))
    adam = fluid.contrib.extend_with_decoupled_weight_decay(fluid.optimizer.Adam)
    optimizer = adam(learning_rate=0.1, weight_decay=0.01, apply_decay_param_fun=lambda name: name == "param")
    optimizer.minimize(loss)
    assert str(optimizer) == "Weight Decay, params: param"
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    for _ in range(3):
        executor.run(feed={"x": np.ones((2, 3), "float32")})
    held = [np.array(fluid.global_scope().find_var(name).get_tensor()).ravel() for name in ("param", "bias")]
    np.testing.assert_allclose(np.concatenate(held), [0.18814063] * 3 + [0.20000112], rtol=1e-6)
    with pytest.raises(TypeError, match="no class of optimizers"):
        fluid.contrib.extend_with_decoupled_weight_decay(3)
    with pytest.raises(TypeError, match="coeff is a float or a variable"):
        adam(learning_rate=0.1, weight_decay="much")


def test_matrices_and_vectors_are_transposed() -> None:
    matrix, vector = fluid.data("matrix", [2, 3]), fluid.data("vector", [3])
    assert (layers.t(matrix).shape, layers.t(matrix).name, layers.t(vector) is vector) == ((3, 2), "t_1.tmp_0", True)
    with pytest.raises(ValueError, match="use transpose"):
        layers.t(fluid.data("cube", [2, 2, 2]))


def test_curves_are_drawn_into_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "costs.png"
    for quiet in ("True", "False"):
        monkeypatch.setenv("DISABLE_PLOT", quiet)
        curves = paddle.utils.Ploter("train", "test")
        curves.append("train", 1, 0.5)
        curves.append("train", 2, 0.25)
        curves.plot(str(path))
        assert path.exists() == (quiet == "False")
        curves.reset()
    with pytest.raises(KeyError, match="other"):
        curves.append("other", 1, 1)


def test_images_are_made_ready_for_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.arange(6 * 4 * 3, dtype="uint8").reshape(6, 4, 3)
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ImportError, match="pip install opencv-python"):
        image.load_image("cat.jpg")

    def resize(im: Any, sides: tuple[int, int], interpolation: int) -> Any:
        assert (sides, interpolation) == ((4, 6), 2)
        return im

    monkeypatch.setitem(sys.modules, "cv2", SimpleNamespace(resize=resize, INTER_CUBIC=2))
    made = image.simple_transform(pixels, 4, 2, is_train=False, mean=[1.0, 2.0, 3.0])
    expected = pixels[2:4, 1:3].transpose(2, 0, 1) - np.float32([1, 2, 3])[:, None, None]
    np.testing.assert_array_equal(made, expected)
    assert image.simple_transform(pixels, 4, 3, is_train=True).shape == (3, 3, 3)
    np.testing.assert_array_equal(image.left_right_flip(pixels)[:, 0], pixels[:, -1])


def test_scipy_is_looked_for_on_windows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*_: object, **__: object) -> None:
        raise ImportError("DLL load failed while importing")

    with monkeypatch.context() as patched:
        patched.setattr("builtins.__import__", without)
        check_import_scipy("posix")
        with pytest.raises(ImportError, match="Visual C"):
            check_import_scipy("nt")


def test_a_script_says_which_version_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for least, most in (("1", None), ("1.8.5", None), ("1.8", "1.8.5.0"), ("0.1.0", "10")):
        fluid.require_version(least, most)
    with pytest.raises(RuntimeError, match=r"needs Fluid 1\.9 to any; this is 1\.8\.5's interface"):
        fluid.require_version("1.9")
    with pytest.raises(RuntimeError, match=r"to 1\.8"):
        fluid.require_version("1.5", "1.8")
    with pytest.raises(TypeError, match="a version is text"):
        fluid.require_version("1.8", 2)
    with pytest.raises(ValueError, match=r"not '1\.5\.2a\.0'"):
        fluid.require_version("1.5.2a.0")
    for part in ("major", "minor", "patch", "rc"):
        monkeypatch.setattr(paddle.version, part, "0")
    with pytest.warns(UserWarning, match="a version without a number"):
        fluid.require_version("1.8")


def test_samples_shuffled_in_stretches_of_none_stay_as_they_are() -> None:
    assert [*paddle.reader.shuffle(lambda: iter(range(4)), 0)()] == [0, 1, 2, 3]
