"""Layers of detection make the ops and variables that those of Fluid 1.8.5 make (tests/data/fluid/detection_layers)."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile import fluid
from tests.fluid.detection_models import MODELS
from tests.fluid.running import fresh

RECORDED = json.loads(
    lzma.decompress((Path(__file__).parent.parent / "data" / "fluid" / "detection_layers.json.xz").read_bytes())
)
"""By model what it gives, its ops (with the attributes of those of detection), and the variables that they write."""


def names(made: Any) -> Any:
    return [names(item) for item in made] if isinstance(made, list | tuple) else made.name


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return [plain(item) for item in value]
    return round(value, 5) if isinstance(value, float) else value


def slots(op: Any, side: str) -> dict[str, list[str]]:
    held = {slot: getattr(op, side)(slot) for slot in getattr(op, f"{side}_names")}
    return {slot: names for slot, names in held.items() if names}


def right_dims(held: list[int], wanted: list[int]) -> bool:
    """Fluid multiplies an unknown dim like a number: what it declares as -10 is unknown."""
    return len(held) == len(wanted) and all(
        a == b or (a < 0 and (b < 0 or b == 1)) for a, b in zip(held, wanted, strict=True)
    )


def test_every_model_is_recorded() -> None:
    assert sorted(MODELS) == sorted(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_layers_make_what_fluid_makes(name: str) -> None:
    wanted = RECORDED[name]
    with fresh():
        assert names(MODELS[name]()) == wanted["result"]
        block = fluid.default_main_program().global_block()
        ops = [[op.type, slots(op, "input"), slots(op, "output")] for op in block.ops]
        assert ops == [op[:3] for op in wanted["ops"]]
        for op, (_, _, _, attrs) in zip(block.ops, wanted["ops"], strict=True):
            assert {attr: plain(op.attr(attr)) for attr in attrs} == attrs, op.type
        for variable, (dims, dtype, lod_level, stopped) in wanted["vars"].items():
            held = block.var(variable)
            assert right_dims(list(held.shape), dims), variable
            assert (held.dtype.name, held.lod_level, held.stop_gradient) == (dtype, lod_level, stopped), variable


def test_the_precision_of_all_batches_is_counted_until_a_reset() -> None:
    with fresh():
        found, label, box = (
            fluid.data(n, [None, w], "float32", lod_level=1) for n, w in (("f", 6), ("l", 1), ("b", 4))
        )
        metric = fluid.metrics.DetectionMAP(found, label, box, class_num=3)
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(fluid.default_startup_program())

        def step(right: bool) -> list[float]:
            at = [0.1, 0.1, 0.5, 0.5]
            rows = {"f": [1, 0.9, *(at if right else [0.6, 0.6, 0.9, 0.9])], "l": [1], "b": at}
            feed = {n: fluid.create_lod_tensor(np.float32([row]), [[1]], fluid.CPUPlace()) for n, row in rows.items()}
            return [float(np.ravel(value)[0]) for value in executor.run(feed=feed, fetch_list=[*metric.get_map_var()])]

        assert [step(True), step(False)] == [[1.0, 1.0], [0.0, 0.5]]
        metric.reset(executor)
        assert step(True) == [1.0, 1.0]


def test_declarations_of_boxes_that_fluid_makes() -> None:
    """The LoD of decoded boxes is that of what they are decoded along; unknown places of a grid are multiplied."""
    layers: Any = fluid.layers
    with fresh():
        prior, target = fluid.data("p", [5, 4], lod_level=1), fluid.data("t", [5, 5, 4])
        made = [layers.box_coder(prior, [0.1] * 4, target, "decode_center_size", axis=axis) for axis in (0, 1)]
        assert [box.lod_level for box in made] == [0, 1]
        grid, size = fluid.data("g", [None, 21, None, None]), fluid.data("s", [None, 2], "int32")
        boxes, _ = layers.yolo_box(grid, size, [10, 13, 16, 30, 33, 23], 2, 0.01, 32)
        assert boxes.shape == (-1, 3, 4)
        levels = [fluid.data(f"l{at}", [-1, 4]) for at in range(2)]
        rois = layers.collect_fpn_proposals(levels, [fluid.data(f"c{at}", [-1, 1]) for at in range(2)], 2, 3, 9)
        assert (rois.lod_level, [part.lod_level for part in layers.distribute_fpn_proposals(rois, 2, 3, 2, 8)[0]]) == (
            0,
            [0, 0],
        )


def test_the_gradient_of_a_yolo_loss_names_what_has_none() -> None:
    with fresh():
        grid, boxes, labels = (
            fluid.data("g", [2, 21, 4, 4]),
            fluid.data("b", [2, 3, 4]),
            fluid.data("l", [2, 3], "int32"),
        )
        grid.stop_gradient = False
        loss = fluid.layers.yolov3_loss(grid, boxes, labels, [10, 13, 16, 30, 33, 23], [0, 1, 2], 2, 0.7, 32)
        fluid.backward.append_backward(fluid.layers.mean(loss))
        (op,) = [op for op in fluid.default_main_program().global_block().ops if op.type == "yolov3_loss_grad"]
        assert {slot: op.output(slot) for slot in op.output_names} == {
            "X@GRAD": ["g@GRAD"],
            "GTBox@GRAD": [],
            "GTLabel@GRAD": [],
            "GTScore@GRAD": [],
        }


def test_bounds_of_another_type_are_converted() -> None:
    with fresh():
        end = fluid.layers.shape(fluid.data("x", [None, 3]))
        made = fluid.layers.range(0, fluid.layers.reduce_sum(end), 1, "float32")
        types = [op.type for op in fluid.default_main_program().global_block().ops]
        assert types == ["shape", "reduce_sum", "fill_constant", "cast", "fill_constant", "range"]
        (found,) = fluid.Executor().run(feed={"x": np.ones((1, 3), "float32")}, fetch_list=[made])
        np.testing.assert_array_equal(found, np.arange(4, dtype="float32"))
