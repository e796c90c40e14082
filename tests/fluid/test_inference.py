"""Models that are saved run with Fluid's predictors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.fluid import core
from tests.fluid.running import fresh

X = np.arange(6, dtype="float32").reshape(2, 3)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The folder of a model: `x` [-1, 3] and words `w` to the sum of x, and the sum of each sentence's numbers."""
    layers: Any = fluid.layers
    with fresh():
        x, w = fluid.data("x", [-1, 3]), fluid.data("w", [-1, 1], lod_level=1)
        targets = [layers.reduce_sum(x, dim=1), layers.sequence_pool(w, "sum")]
        executor = fluid.Executor()
        executor.run(fluid.default_startup_program())
        fluid.io.save_inference_model(str(tmp_path), ["x", "w"], targets, executor)
        fluid.io.save_inference_model(str(tmp_path / "one"), ["x", "w"], targets, executor, None, "model", "params")
    return tmp_path


def _words() -> Any:
    return core.PaddleTensor(np.ones((3, 1), "float32"), "w", [[0, 1, 3]])


def test_a_configuration_names_element_types_of_engines() -> None:
    precision = core.AnalysisConfig.Precision
    assert [precision.Float32, precision.Int8, precision.Half] == list(precision)


def test_a_predictor_takes_tensors_in_order(model: Path) -> None:
    config = core.NativeConfig()
    config.model_dir = str(model)
    predictor = core.create_paddle_predictor(config)
    sums, words = predictor.run([core.PaddleTensor(X), _words()])
    assert sums.as_ndarray().tolist() == [3.0, 12.0]
    assert (words.shape, words.dtype, words.data.float_data()) == ([2, 1], core.PaddleDType.FLOAT32, [1.0, 2.0])
    assert predictor.get_input_tensor_shape() == {"x": [-1, 3], "w": [-1, 1]}
    with pytest.raises(ValueError, match="takes 2 tensors, not 1: x, w"):
        predictor.run([core.PaddleTensor(X)])
    assert fluid.Program.parse_from_string(predictor.get_serialized_program()).num_blocks == 1


def test_a_predictor_takes_tensors_by_name(model: Path) -> None:
    config = core.AnalysisConfig(str(model))
    config.switch_specify_input_names()
    predictor = core.create_paddle_predictor(config).clone()
    assert predictor.run([_words(), core.PaddleTensor(X, "x")])[0].as_ndarray().tolist() == [3.0, 12.0]
    with pytest.raises(ValueError, match="no tensor 'y'; it has x, w"):
        predictor.run([_words(), core.PaddleTensor(X, "y")])


def test_places_of_a_predictor_are_filled_and_read(model: Path) -> None:
    config = core.AnalysisConfig(str(model / "one" / "model"), str(model / "one" / "params"))
    predictor = core.create_paddle_predictor(config)
    assert predictor.get_input_names() == ["x", "w"]
    x, w = (predictor.get_input_tensor(name) for name in predictor.get_input_names())
    x.reshape([2, 3])
    x.copy_from_cpu(X)
    w.set_lod([[0, 1, 3]])
    w.copy_from_cpu(np.ones((3, 1), "float32"))
    predictor.zero_copy_run()
    sums, words = (predictor.get_output_tensor(name) for name in predictor.get_output_names())
    assert sums.copy_to_cpu().tolist() == [3.0, 12.0]
    assert (words.shape(), words.type(), words.lod()) == ([2, 1], core.PaddleDType.FLOAT32, [])
    with pytest.raises(TypeError, match="float32, int64 and int32, not float64"):
        x.copy_from_cpu(X.astype("float64"))


def test_a_compiled_program_runs_a_model(model: Path) -> None:
    with fresh():
        compiled = fluid.CompiledProgram(fluid.Program())
        assert compiled._is_inference is False
        compiled._with_inference_optimize(core.AnalysisConfig(str(model)))
        assert compiled._is_inference is True
        made = fluid.Executor().run(compiled, feed=[core.PaddleTensor(X), _words()])
        assert made[0].data.float_data() == [3.0, 12.0]


def test_configurations_keep_what_they_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    config = core.AnalysisConfig("folder")
    config.switch_ir_optim(False)
    config.set_cpu_math_library_num_threads(4)
    config.disable_glog_info()
    config.enable_mkldnn()
    again = core.AnalysisConfig(config)
    config.set_model("here/program", "there/parameters")
    assert (again.model_dir(), again.ir_optim(), again.cpu_math_library_num_threads()) == ("folder", False, 4)
    assert (again.glog_info_disabled(), again.use_gpu(), again.mkldnn_enabled()) == (True, False, False)
    assert config.files() == ("here", "program", "../there/parameters")
    assert "AnalysisConfig.enable_mkldnn = () changes nothing" in capsys.readouterr().err
    with pytest.raises(NotImplementedError, match="enable_tensorrt_engine"):
        config.enable_tensorrt_engine(1 << 20)
    with pytest.raises(AttributeError, match="no 'enable_magic'"):
        config.enable_magic()
    with pytest.raises(ValueError, match="needs the folder of a model"):
        core.create_paddle_predictor(core.NativeConfig())


def test_elements_are_read_as_a_type() -> None:
    held = core.PaddleBuf([1.5, 2.0])
    assert (held.length(), held.float_data(), held.tolist("float32")) == (8, [1.5, 2.0], [1.5, 2.0])
    held.reset(np.array([3, 4], "int64"))
    assert (held.int64_data(), held.int32_data(), held.empty()) == ([3, 4], [3, 0, 4, 0], False)
    held.resize(8)
    assert held.int64_data() == [3]
    assert core.PaddleBuf(4).int32_data() == [0]
    assert str(core.PaddleTensor(np.zeros(1, "int32")).dtype) == "PaddleDType.INT32"
