"""Wrong settings of layers are refused; what the layers make verifies."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.frontends import layers as L
from tests.frontends.layers import sequence_models as sequence_models
from tests.frontends.layers.layer_models import MODELS


def image() -> L.Value:
    return L.data(L.Draft(), "image", [-1, 4, 6, 6])


def row() -> L.Value:
    return L.data(L.Draft(), "row", [-1, 6])


REFUSED: dict[str, Callable[[], object]] = {
    "mode of prelu is 'each', it must be 'all', 'channel' or 'element'": lambda: L.prelu(row(), "each"),
    "the axis is 2, it must be 1, 3 or -1": lambda: L.maxout(image(), 2, axis=2),
    "mode of pad2d is 'wrap', it must be": lambda: L.pad2d(image(), mode="wrap"),
    "resample is 'TRILINEAR', it must be": lambda: L.image_resize(image(), [3, 3], resample="TRILINEAR"),
    "image_resize takes out_shape or scale": lambda: L.image_resize(image()),
    "conv2d_transpose takes output_size or filter_size": lambda: L.conv2d_transpose(image(), 3),
    "data_layout is 'CHWN', it must be": lambda: L.group_norm(image(), 2, data_layout="CHWN"),
    "epsilon is 1.5, it must be from 0 to 1": lambda: L.label_smooth(row(), epsilon=1.5),
    "slices of %row along dim 0 is not known": lambda: L.unstack(row()),
    "lod_reset takes y or target_lod": lambda: L.lod_reset(row()),
    "parameter of a linear_chain_crf by name, 'crfw' is none": lambda: L.crf_decoding(row(), "crfw"),
    "parameter of a linear_chain_crf by name, None is none": lambda: L.crf_decoding(row(), None),
}


NO_ACTIVATIONS = {
    "mul": "it needs the input Y too",
    "sgd": "it has no input X",
    "dropout": "it needs the output Mask too",
    "top_k": "it has no output|it needs the output",
    "cast": "it needs the attributes",
    "reshape": "the dims of its output do not follow from X alone",
    "crop": "the dims of its output do not follow from X alone",
    "one_hot": "the dims of its output do not follow from X alone",
    "split": "the dims of its output do not follow from X alone",
    "send": "it talks to other machines",
    "c_allreduce_sum": "it talks to other machines",
}
"""Op types that are no activations, each with the reason that is given."""


@pytest.mark.parametrize("act", NO_ACTIVATIONS)
@pytest.mark.parametrize("layer", ["fc", "conv2d", "batch_norm", "elementwise_add"])
def test_ops_that_need_more_than_x_are_no_activations(act: str, layer: str):
    made: dict[str, Callable[[], object]] = {
        "fc": lambda: L.fc(row(), 3, act=act),
        "conv2d": lambda: L.conv2d(image(), 3, 3, act=act),
        "batch_norm": lambda: L.batch_norm(image(), act=act),
        "elementwise_add": lambda: L.elementwise_add(x := row(), x, act=act),
    }
    with pytest.raises(ValueError, match=f"the op {act} is no activation: ({NO_ACTIVATIONS[act]})"):
        made[layer]()


@pytest.mark.parametrize("dim", [3.5, np.float32(3.5), np.float16(0.5), np.array([2.5]), np.float32("nan")], ids=repr)
def test_a_size_with_a_fraction_is_refused(dim: Any):
    for made in (lambda: L.fc(row(), dim), lambda: L.reshape(row(), [-1, dim]), lambda: L.conv2d(image(), dim, 3)):
        with pytest.raises((TypeError, ValueError), match=r"whole number|list of integers"):
            made()


def test_a_whole_number_of_numpy_is_a_size():
    for dim in (np.float32(3), np.int8(3), np.array([3])):
        made = L.fc(row(), dim)  # pyright: ignore[reportArgumentType]
        assert made.shape == (-1, 3)


def test_ops_of_x_alone_are_activations():
    for act in ("mean", "softmax", "sum", "concat", "relu6"):
        L.fc(row(), 3, act=act)


@pytest.mark.parametrize("message", REFUSED)
def test_wrong_settings(message: str):
    with pytest.raises(ValueError, match=message):
        REFUSED[message]()


def test_given_samples_come_with_their_probabilities():
    logits = row()
    label = L.data(logits.draft, "label", [-1, 1], "i64")
    with pytest.raises(ValueError, match="takes samples and their probabilities together"):
        L.sampled_softmax_with_cross_entropy(logits, label, 3, customized_samples=label)


NOT_VERIFIED = {"sampled_given"}
"""As Fluid's layer makes it, this one writes the samples that it is fed: a verifier can't tell that they are fed."""

WARNED = {"lstm_starts": ["parameter-not-updated"]}
"""The loss of this one comes from the cells alone, through which Fluid passes no gradient to the weights."""


@pytest.mark.parametrize("name", [name for name in MODELS if name not in NOT_VERIFIED])
def test_models_verify(name: str):
    draft = L.Draft(seed=5)
    MODELS[name](draft)
    assert [found.code for found in ps.verify(draft.module())] == WARNED.get(name, [])


WRONG_KINDS: dict[str, tuple[type[Exception], Callable[[], object]]] = {
    "there is no activation 'reluu'; did you mean relu?": (ValueError, lambda: L.fc(row(), 8, act="reluu")),
    "there is no activation 'Tanh'; did you mean tanh?": (ValueError, lambda: L.conv2d(image(), 4, 3, act="Tanh")),
    "an activation is a text, such as 'relu', not 3": (TypeError, lambda: L.fc(row(), 8, act=3)),  # type: ignore[arg-type]
    "%fc_0.w_0 would be of dims [6, '8']: each is a whole number, not the text '8'": (
        TypeError,
        lambda: L.fc(row(), "8"),  # type: ignore[arg-type]
    ),
    "%fc_0.w_0 would be of dims [6, 8.5]: each is a whole number, not 8.5": (
        TypeError,
        lambda: L.fc(row(), 8.5),  # type: ignore[arg-type]
    ),
    "%row would be of dims [-1, '6']: each is a whole number, not the text '6'": (
        TypeError,
        lambda: L.data(L.Draft(), "row", [-1, "6"]),  # type: ignore[list-item]
    ),
    "dropout: the attribute dropout_prob is a number, not the text '0.5'": (
        TypeError,
        lambda: L.dropout(row(), "0.5"),  # type: ignore[arg-type]
    ),
    "transpose2: the attribute axis is a list of integers, not the text '1'": (
        TypeError,
        lambda: L.transpose(row(), ["1", "0"]),  # type: ignore[list-item]
    ),
    "reduce_sum: the attribute keep_dim is True or False, not the text 'False'": (
        TypeError,
        lambda: L.reduce_sum(row(), 0, keep_dim="False"),  # type: ignore[arg-type]
    ),
    "a dim is a whole number, not the text '2'": (TypeError, lambda: L.reshape(row(), ["2", 3])),  # type: ignore[list-item]
    "fill_constant: 'one' is no value of a f32": (
        ValueError,
        lambda: L.fill_constant(L.Draft(), [2], "f32", "one"),  # type: ignore[arg-type]
    ),
    "1.5 is no whole number, and not 2 of them": (ValueError, lambda: L.conv2d(image(), 4, 3, stride=1.5)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("message", WRONG_KINDS)
def test_settings_of_another_kind(message: str):
    kind, call = WRONG_KINDS[message]
    with pytest.raises(kind) as raised:
        call()
    assert str(raised.value) == message
