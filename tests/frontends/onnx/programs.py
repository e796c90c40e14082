"""Inference programs that ONNX can express: those of the examples, and more kinds of networks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pstranspile import Module, Scope, load, run
from pstranspile.cluster.checkpoint.inference import inference_program
from pstranspile.frontends import layers as L
from pstranspile.frontends.layers import Draft

EXAMPLES = Path(__file__).parents[3] / "examples"


class Case(NamedTuple):
    """A program, the variable to infer, and what is fed."""

    module: Module
    target: str
    feed: dict[str, Any]


def floats(*dims: int) -> Any:
    return np.random.default_rng(0).normal(size=dims).astype("float32")


def ids(below: int, *dims: int) -> Any:
    return np.random.default_rng(0).integers(below, size=dims)


def regression() -> Case:
    return Case(load(EXAMPLES / "linear_regression.ir"), "fc_0.tmp_1", {"x": floats(5, 13)})


def dense() -> Case:
    return Case(load(EXAMPLES / "mnist_mlp.ir"), "fc_2.tmp_2", {"img": floats(3, 784)})


def convolutional() -> Case:
    return Case(load(EXAMPLES / "mnist_conv.ir"), "fc_0.tmp_2", {"img": floats(3, 1, 28, 28)})


def transformer() -> Case:
    return Case(load(EXAMPLES / "transformer_encoder.ir"), "fc_6.tmp_1", {"x": floats(3, 8, 32)})


def words() -> Case:
    module = load(EXAMPLES / "word2vec.ir")
    fed = [name for name, var in module.main.main_block.vars.items() if var.shape == (-1, 1) and "tmp" not in name]
    return Case(module, "fc_1.tmp_2", {name: ids(50, 4, 1) for name in fed if name != "nextw"})


def residual() -> Case:
    model = Draft(seed=1)
    image = L.data(model, "image", [-1, 3, 16, 16])

    def block(x: Any, channels: int, stride: int) -> Any:
        first = L.batch_norm(L.conv2d(x, channels, 3, stride=stride, padding=1, bias_attr=False), act="relu")
        second = L.batch_norm(L.conv2d(first, channels, 3, padding=1, bias_attr=False))
        short = L.batch_norm(L.conv2d(x, channels, 1, stride=stride, bias_attr=False)) if stride > 1 else x
        return L.elementwise_add(short, second, act="relu")

    hidden = L.conv2d(image, 8, 3, padding=1, act="relu")
    hidden = block(block(hidden, 8, 1), 16, 2)
    hidden = L.pool2d(hidden, 2, pool_type="avg", global_pooling=True)
    made = L.fc(hidden, 10, act="softmax")
    return Case(model.module(), made.name, {"image": floats(2, 3, 16, 16)})


def upsampling() -> Case:
    model = Draft(seed=2)
    image = L.data(model, "image", [-1, 2, 8, 8])
    down = L.pool2d(L.conv2d(image, 6, 3, padding=1, act="relu"), 2, pool_stride=2)
    up = L.conv2d_transpose(down, 4, filter_size=2, stride=2)
    wide = L.resize_bilinear(down, (8, 8), align_corners=False)
    both = L.concat([up, wide, L.resize_nearest(down, (8, 8), align_corners=False)], axis=1)
    made = L.conv2d(both, 1, 1)
    return Case(model.module(), made.name, {"image": floats(2, 2, 8, 8)})


def normed() -> Case:
    model = Draft(seed=3)
    image = L.data(model, "image", [-1, 4, 6, 6])
    hidden = L.group_norm(L.conv2d(image, 8, 3), 2)
    hidden = L.instance_norm(L.unary("leaky_relu", hidden, alpha=0.1))
    made = L.reduce_mean(L.layer_norm(hidden), [2, 3])
    return Case(model.module(), made.name, {"image": floats(2, 4, 6, 6)})


def factorised() -> Case:
    """Pairwise products of embeddings beside a dense part, as in a factorisation machine."""
    model = Draft(seed=4)
    fields, dense_part = L.data(model, "fields", [-1, 5, 1], "i64"), L.data(model, "dense", [-1, 3])
    rows = L.embedding(fields, (40, 8), padding_idx=0)
    square_of_sum = L.square(L.reduce_sum(rows, 1))
    sum_of_squares = L.reduce_sum(L.square(rows), 1)
    pairs = L.reduce_sum((square_of_sum - sum_of_squares) * 0.5, 1, keep_dim=True)
    deep = L.fc(L.concat([L.reshape(rows, [-1, 40]), dense_part], axis=1), 16, act="relu")
    score = L.sigmoid(L.fc(L.dropout(deep, 0.3), 1) + pairs)
    made = score
    return Case(model.module(), made.name, {"fields": ids(40, 6, 5, 1), "dense": floats(6, 3)})


def gated() -> Case:
    """Two steps of a recurrent cell, written out; parts, squeezes, comparisons and choices of elements."""
    model = Draft(seed=5)
    steps, hidden = L.data(model, "steps", [-1, 2, 6]), None
    for number in range(2):
        now = L.squeeze(L.slice_(steps, [1], [number], [number + 1]), [1])
        parts = L.split(L.fc([now] if hidden is None else [now, hidden], 24), 3, dim=1)
        update, reset, new = L.sigmoid(parts[0]), L.sigmoid(parts[1]), L.tanh(parts[2])
        hidden = update * new if hidden is None else update * hidden + (1.0 - update) * new * reset
    made = L.l2_normalize(L.stack([hidden, L.gelu(hidden)], axis=1), 2)
    return Case(model.module(), made.name, {"steps": floats(4, 2, 6)})


CASES: dict[str, Callable[[], Case]] = {
    made.__name__: made
    for made in (regression, dense, convolutional, transformer, words, residual, upsampling, normed, factorised, gated)
}
"""The programs by name."""


def inferred(case: Case, scope: Scope) -> Any:
    """What our interpreter computes of the program cut down for inference."""
    model = inference_program(case.module.main, [*case.feed], [case.target])
    return run(model.program, case.feed, [model.targets[0]], scope)[model.targets[0]]


def started(case: Case) -> Scope:
    """A scope after the startup program, with statistics and biases that are not zero."""
    scope, draw = Scope(), np.random.default_rng(1)
    assert case.module.startup is not None
    run(case.module.startup, scope=scope)
    for name, var in case.module.main.main_block.vars.items():
        if var.persistable and name in scope and any(part in name for part in (".b_", ".w_1", ".w_2")):
            scope[name] = draw.uniform(0.5, 1.5, scope[name].shape).astype("float32")
    return scope


def played(model: bytes, feed: dict[str, Any]) -> list[Any]:
    """What onnxruntime computes."""
    import onnxruntime

    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feed)
