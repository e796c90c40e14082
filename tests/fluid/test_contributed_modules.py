"""Small modules of Fluid's contributions and data sets that scripts import."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pstranspile.fluid.transpiler.memory_optimization_transpiler import memory_optimize, release_memory

import pstranspile.fluid as fluid
from pstranspile.fluid.contrib import op_freq_statistic, summary
from pstranspile.fluid.paddle import dataset, reader, sysconfig
from pstranspile.fluid.transpiler.details import UnionFind, delete_ops, find_op_by_input_arg, find_op_by_output_arg
from pstranspile.fluid.transpiler.distribute_transpiler import VarBlock, same_or_split_var
from tests.fluid.running import fresh


def network() -> fluid.Program:
    image = fluid.data("image", [None, 3, 8, 8])
    hidden = fluid.layers.conv2d(image, 4, 3, padding=1, bias_attr=False)
    hidden = fluid.layers.batch_norm(hidden, act="relu")
    fluid.layers.fc(fluid.layers.pool2d(hidden, 2, pool_stride=2), 10)
    return fluid.default_main_program()


def test_ops_and_pairs_of_ops_are_counted():
    with fresh():
        ops, pairs = op_freq_statistic(network())
    assert dict(ops) == dict.fromkeys(["conv2d", "batch_norm", "relu", "pool2d", "mul", "elementwise_add"], 1)
    assert dict(pairs)["conv2d->batch_norm"] == dict(pairs)["mul->elementwise_add"] == 1
    with pytest.raises(TypeError, match="takes a Program"):
        op_freq_statistic("program")  # type: ignore[arg-type]


def test_a_network_is_summed_up(capsys: pytest.CaptureFixture[str]):
    with fresh():
        summary(network())
    lines = capsys.readouterr().out.splitlines()
    assert "".join(lines[3].split()) == "|0|conv2d|(3,8,8)|(4,8,8)|108|13824|"
    assert [line.split("|")[2].strip() for line in lines[4:8]] == ["batch_norm", "relu", "pool2d", "mul"]
    assert lines[9:11] == ["Total PARAMs: 757(0.0008M)", "Total FLOPs: 15488(0.00G)"]


def test_small_helpers():
    sets = UnionFind("abc")
    sets.union("a", "b")
    assert (sets.is_connected("a", "b"), sets.is_connected("a", "c"), sets.find("z")) == (True, False, -1)
    assert (Path(sysconfig.get_include()).name, Path(sysconfig.get_lib()).name) == ("include", "libs")
    assert fluid.io.ComposeNotAligned is reader.ComposeNotAligned
    assert fluid.clip.ClipByValue is fluid.clip.GradientClipByValue
    assert (memory_optimize, release_memory) == (fluid.memory_optimize, fluid.release_memory)


def test_ops_of_a_block_are_found_and_taken_out():
    with fresh():
        program = network()
        block = program.global_block()
        assert (find_op_by_input_arg(block, "image"), find_op_by_output_arg(block, "none")) == (0, -1)
        place = find_op_by_output_arg(block, block.ops[2].output_arg_names[0], reverse=True)
        assert block.ops[place].type == "relu"
        delete_ops(block, [block.ops[place]])
        assert "relu" not in [op.type for op in block.ops]
        fluid.io.prepend_feed_ops(program, ["image"])
        fluid.io.append_fetch_ops(program, [block.ops[-1].output_arg_names[0]])
        assert [block.ops[at].type for at in (0, -1)] == ["feed", "fetch"]
        fluid.io.prepend_feed_ops(program, [])
    assert [same_or_split_var(name, "w") for name in ("w", "w.block0", "w0")] == [True, True, False]
    assert str(VarBlock("w", 1, 8)) == "w:1:8"


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bytes], None]:
    """Writes a file where data sets lie."""
    monkeypatch.setattr(dataset.common, "DATA_HOME", str(tmp_path))

    def write(name: str, content: bytes) -> None:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)

    return write


def archive(files: dict[str, bytes]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return held.getvalue()


def test_reviews_of_films(put: Callable[[str, bytes], None]):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as made:
        for kind in ("neg", "pos"):
            for number in range(2):
                made.writestr(f"movie_reviews/{kind}/cv{number}.txt", f"a {kind} film , it's a film {number}")
    put("corpora/movie_reviews.zip", held.getvalue())
    dataset.sentiment._reviews.cache_clear()
    assert dataset.sentiment.get_word_dict()[:2] == [("a", 0), ("film", 1)]
    ids = dict(dataset.sentiment.get_word_dict())
    samples = list(dataset.sentiment.train())
    assert [kind for _, kind in samples] == [0, 1, 0, 1]
    assert samples[1][0] == [ids[word] for word in ("a", "pos", "film", ",", "it", "'", "s", "a", "film", "0")]
    dataset.sentiment._reviews.cache_clear()


def test_flowers(put: Callable[[str, bytes], None], monkeypatch: pytest.MonkeyPatch):
    matrices = {"labels": [5, 7, 9], "trnid": [3, 1], "tstid": [2]}
    monkeypatch.setattr(dataset.flowers, "_matrix", lambda _path, name: np.array(matrices[name]))
    put("flowers/102flowers.tgz", archive({f"jpg/image_{n:05d}.jpg": bytes([n]) for n in (1, 2, 3)}))
    for name in ("imagelabels.mat", "setid.mat"):
        put(f"flowers/{name}", b"")
    seen: Callable[[Any], Any] = lambda sample: sample  # noqa: E731
    assert list(dataset.flowers.test(mapper=seen)()) == [(b"\1", 4), (b"\3", 8)]
    assert list(dataset.flowers.train(mapper=seen, use_xmap=False)()) == [(b"\2", 6)]


def test_outlines_of_objects(put: Callable[[str, bytes], None], monkeypatch: pytest.MonkeyPatch):
    class Image:
        open = staticmethod(lambda file: np.frombuffer(file.read(), "uint8"))

    monkeypatch.setattr(dataset.voc2012, "import_module", lambda _name: Image)
    inside = "VOCdevkit/VOC2012"
    files = {"ImageSets/Segmentation/val.txt": b"x\n", "JPEGImages/x.jpg": b"\1\2", "SegmentationClass/x.png": b"\3"}
    put("voc2012/VOCtrainval_11-May-2012.tar", archive({f"{inside}/{name}": held for name, held in files.items()}))
    ((image, classes),) = dataset.voc2012.val()()
    assert (image.tolist(), classes.tolist()) == ([1, 2], [3])
