"""Samples, files and images under the names of 2.x."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid.paddle as paddle
from tests.fluid.running import fresh

data: Any = paddle.io
T: Any = paddle.vision.transforms


class Squares(data.Dataset):
    def __getitem__(self, idx: int) -> Any:
        return np.full(2, idx, "float32"), idx * idx

    def __len__(self) -> int:
        return 10


def test_every_trainer_takes_its_batches_in_turn() -> None:
    batches = [list(data.DistributedBatchSampler(Squares(), 2, 3, rank)) for rank in range(3)]
    assert batches == [[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], [0, 1]]]
    drawn = [data.DistributedBatchSampler(Squares(), 2, 2, rank, shuffle=True) for rank in (0, 1)]
    assert sorted(number for sampler in drawn for batch in sampler for number in batch) == list(range(10))
    assert (len(drawn[0]), drawn[0].epoch) == (3, 1)


def test_samplers_say_which_samples_come() -> None:
    assert list(data.BatchSampler(sampler=data.SequenceSampler(Squares()), batch_size=4))[-1] == [8, 9]
    assert sorted(n for batch in data.BatchSampler(Squares(), shuffle=True, batch_size=3) for n in batch) == list(
        range(10)
    )
    assert len(list(data.RandomSampler(Squares(), replacement=True, num_samples=30))) == 30
    assert set(data.WeightedRandomSampler([0.0, 1.0, 0.0], 4)) == {1}
    for make, error in (
        (lambda: data.BatchSampler(sampler=[1]), AssertionError),
        (lambda: data.RandomSampler(Squares(), num_samples=3), ValueError),
        (lambda: list(data.WeightedRandomSampler([0.0, 0.0], 1)), AssertionError),
        (lambda: data.random_split(Squares(), [1, 2]), ValueError),
        (lambda: list(data.Sampler()), NotImplementedError),
    ):
        with pytest.raises(error):
            make()


def test_data_sets_are_made_of_others() -> None:
    rows = data.TensorDataset([np.arange(6).reshape(3, 2), np.arange(3)])
    both = data.ComposeDataset([rows, data.Subset(Squares(), [5, 6, 7])])
    assert len(both[1]) == 4
    assert both[1][3] == 36
    parts = data.random_split(Squares(), [3, 7])
    assert sorted(sample[1] for part in parts for sample in (part[n] for n in range(len(part)))) == [
        n * n for n in range(10)
    ]
    whole = list(data.DataLoader(rows, batch_size=None))
    assert [np.array(item).tolist() for item in whole[2]] == [[4, 5], 2]
    alone = list(data.DataLoader(data.Subset([np.ones(2), np.zeros(2)], [1, 0]), batch_size=2))
    assert np.array(alone[0][0]).tolist() == [[0, 0], [1, 1]]


def test_models_are_bytes_too(tmp_path: Path) -> None:
    with fresh():
        x = paddle.static.data("x", [None, 3])
        out = paddle.static.nn.fc(x, 2)
        exe = paddle.static.Executor(paddle.CPUPlace())
        exe.run(paddle.static.default_startup_program())
        feed = {"x": np.ones((2, 3), "float32")}
        (expected,) = exe.run(feed=feed, fetch_list=[out])
        paddle.static.save_to_file(str(tmp_path / "net"), paddle.static.serialize_program([x], [out]))
        kept = paddle.static.serialize_persistables([x], [out], exe)
        program = paddle.static.deserialize_program(paddle.static.load_from_file(str(tmp_path / "net")))
        with paddle.static.scope_guard(paddle.static.Scope()):
            paddle.static.deserialize_persistables(program, kept, exe)
            (target,) = [op.input("X")[0] for op in program.global_block().ops if op.type == "fetch"]
            np.testing.assert_array_equal(exe.run(program, feed, [target])[0], expected)
        spec = paddle.static.InputSpec.from_tensor(x)
        assert spec == paddle.static.InputSpec([None, 3], "float32", "x")
        assert spec.batch(4).shape == (4, -1, 3)
        assert paddle.static.normalize_program(paddle.static.default_main_program(), [x], [out]).num_blocks == 1


def test_digits_are_read_from_files_that_are_there(tmp_path: Path) -> None:
    pixels = np.arange(2 * 784, dtype="uint32").astype("uint8")
    images, labels = tmp_path / "images.gz", tmp_path / "labels.gz"
    images.write_bytes(gzip.compress(bytes(16) + pixels.tobytes()))
    labels.write_bytes(gzip.compress(bytes(8) + bytes([7, 1])))
    made = paddle.vision.datasets.MNIST(
        str(images), str(labels), transform=T.Compose([T.Transpose(), T.Normalize([127.5], [127.5])]), backend="cv2"
    )
    image, label = made[1]
    np.testing.assert_allclose(image, pixels[784:].reshape(1, 28, 28) / 127.5 - 1, rtol=1e-5)
    assert (len(made), label.tolist()) == (2, [1])
    assert T.ToTensor()(pixels[:784].reshape(28, 28)).max() == 1.0
    assert T.CenterCrop(2)(np.arange(16).reshape(4, 4)).tolist() == [[5, 6], [9, 10]]
    with pytest.raises(AttributeError, match="nearest name that is there: MNIST"):
        _ = paddle.vision.datasets.MNISTT
    for name in ("Model", "jit", "amp", "grad"):
        with pytest.raises(NotImplementedError, match=name):
            getattr(paddle, name)()


def test_data_sets_take_settings_again(capsys: pytest.CaptureFixture[str]) -> None:
    files = paddle.distributed.InMemoryDataset()
    files.init(batch_size=2, thread_num=1, pipe_command="cat", use_var=[])
    files._init_distributed_settings(fleet_send_batch_size=10, parse_ins_id=False)
    files.update_settings(batch_size=4)
    assert (files.batch_size, files.parse_ins_id, files.fea_eval) == (4, False, False)
    files.update_settings(parse_ins_id=True, parse_content=True, fea_eval=True, fs_name="hdfs://a", fs_ugi="me")
    assert (files.parse_ins_id, files.parse_content, files.fea_eval) == (True, True, True)
    assert files.get_hdfs_config() == ("hdfs://a", "me")
    files._init_distributed_settings(merge_size=2)
    files._set_use_ps_gpu(False)
    assert capsys.readouterr().err == ""
    files._set_use_ps_gpu(True)
    assert "_set_use_ps_gpu = True changes nothing" in capsys.readouterr().err
    for change in (
        lambda: files.update_settings(input_type=1),
        lambda: paddle.distributed.QueueDataset().update_settings(parse_ins_id=True),
    ):
        with pytest.raises(NotImplementedError, match=r"settings\((input_type|parse_ins_id)\)"):
            change()
