"""Layers, losses and functions of 2.x compute what their names say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pstranspile.fluid.paddle as paddle
from tests.fluid.later.computing import computed

nn: Any = paddle.nn
F: Any = paddle.nn.functional
X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]], "float32")
RNG = np.random.RandomState(0)
STEPS = RNG.randn(2, 5, 4).astype("float32")
ROWS = RNG.randn(2, 3, 8).astype("float32")
IMAGES = RNG.randn(2, 3, 6, 6).astype("float32")


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x: paddle.expand(x, [2, -1, 3]), np.broadcast_to(X, (2, 2, 3))),
        (lambda x: paddle.expand_as(x.sum(axis=1, keepdim=True), x), np.repeat(X.sum(1, keepdims=True), 3, 1)),
        (
            lambda x: paddle.expand(x.sum(1, keepdim=True), [paddle.shape(x)[0], 3]),
            np.repeat(X.sum(1, keepdims=True), 3, 1),
        ),
        (lambda x: paddle.norm(x, axis=1), np.linalg.norm(X, axis=1)),
        (lambda x: paddle.norm(x, p=3, axis=1), (np.abs(X) ** 3).sum(1) ** (1 / 3)),
        (lambda x: paddle.norm(x, p=np.inf), [np.abs(X).max()]),
        (lambda x: paddle.std(x, axis=1), X.std(1, ddof=1)),
        (lambda x: paddle.var(x), [X.var(ddof=1)]),
        (lambda x: paddle.median(x, axis=1), np.median(X, axis=1)),
        (lambda x: paddle.masked_select(x, x > 0), X[X > 0]),
        (lambda x: paddle.log2(paddle.abs(x)), np.log2(np.abs(X))),
        (lambda x: paddle.sinh(x), np.sinh(X)),
        (lambda x: paddle.isinf(x / paddle.zeros_like(x)), np.ones((2, 3), bool)),
        (lambda x: paddle.diag(paddle.to_tensor([1.0, 2.0]), padding_value=3), [[1, 3], [3, 2]]),
        (lambda x: paddle.cumsum(x), X.cumsum()),
        (lambda x: paddle.roll(x, shifts=1), np.roll(X, 1)),
        (lambda x: paddle.topk(x, 1, axis=0)[0], X.max(0, keepdims=True)),
        (lambda x: paddle.topk(x, 2, largest=False)[0], np.sort(X, 1)[:, :2]),
        (lambda x: paddle.unique(paddle.to_tensor([3, 1, 3]), return_counts=True)[1], [1, 2]),
        (lambda x: paddle.prod(x, axis=1, dtype="float64"), X.prod(1)),
        (lambda x: paddle.gather(x, paddle.to_tensor([2, 0]), axis=1), X[:, [2, 0]]),
        (lambda x: x.squeeze(1), X),
        (lambda x: paddle.squeeze(x.unsqueeze(0), [0, 2]), X),
        (lambda x: paddle.reshape(x, paddle.shape(x)).squeeze([0, -1]), X),
        (lambda x: x.reshape([3, 2]).unsqueeze(0).squeeze(0).transpose([1, 0]), X.reshape(3, 2).T),
        (lambda x: x @ paddle.t(x), X @ X.T),
        (lambda x: x.exp().log().clip(0.0, 1.0), X.clip(0, 1)),
        (lambda x: paddle.reshape_(x, [3, 2]), X.reshape(3, 2)),
        (lambda x: F.log_softmax(x), X - np.log(np.exp(X).sum(1, keepdims=True))),
        (lambda x: F.softplus(x, 2.0, 1.0), np.where(2 * X > 1, X, np.log1p(np.exp(2 * X)) / 2)),
        (lambda x: F.normalize(x), X / np.linalg.norm(X, axis=1, keepdims=True)),
    ],
)
def test_functions(make: Any, expected: Any) -> None:
    (made,), _ = computed(make, X)
    np.testing.assert_allclose(made, expected, rtol=2e-5, atol=1e-6)


def test_variables_have_only_the_methods_of_later_versions() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sums'"):
        computed(lambda x: x.sums(), X)
    with pytest.raises(AttributeError, match="no attribute 'zeros'"):
        computed(lambda x: x.zeros(), X)


def states(made: Any) -> Any:
    outputs, last = made
    return [outputs, *(last if isinstance(last, tuple) else [last])]


def test_an_lstm_and_a_gru_are_those_of_their_formulas() -> None:
    (outputs, last, cells), held = computed(lambda x: states(nn.LSTM(4, 3)(x)), STEPS)
    of_input, of_state, bias, more = held.values()
    h = c = np.zeros((2, 3))
    for t in range(5):
        i, f, z, o = np.split(STEPS[:, t] @ of_input.T + bias + h @ of_state.T + more, 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(z)
        h = sigmoid(o) * np.tanh(c)
        np.testing.assert_allclose(outputs[:, t], h, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(last[0], h, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(cells[0], c, rtol=1e-4, atol=1e-6)
    assert list(held) == ["lstm_cell_0.w_0", "lstm_cell_0.w_1", "lstm_cell_0.b_0", "lstm_cell_0.b_1"]
    (turned, _), held = computed(lambda x: states(nn.RNN(nn.GRUCell(4, 3), is_reverse=True)(x)), STEPS)
    of_input, of_state, bias, more = held.values()
    h = np.zeros((2, 3))
    for t in reversed(range(5)):
        read, kept = (np.split(each, 3, -1) for each in (STEPS[:, t] @ of_input.T + bias, h @ of_state.T + more))
        r, z = (sigmoid(read[gate] + kept[gate]) for gate in (0, 1))
        n = np.tanh(read[2] + r * kept[2])
        h = (h - n) * z + n
        np.testing.assert_allclose(turned[:, t], h, rtol=1e-4, atol=1e-6)


def test_recurrent_layers_stand_upon_one_another_in_both_directions() -> None:
    made, held = computed(lambda x: states(nn.LSTM(4, 3, 2, direction="bidirect")(x)), STEPS)
    assert [value.shape for value in made] == [(2, 5, 6), (4, 2, 3), (4, 2, 3)]
    assert len(held) == 16
    lengths = np.array([2, 5])
    made, _ = computed(lambda x, n: states(nn.SimpleRNN(4, 3)(x, sequence_length=n)), STEPS, lengths)
    np.testing.assert_allclose(made[1][0][1], made[0][1, -1], rtol=1e-5)
    np.testing.assert_allclose(made[1][0][0], made[0][0, 1], rtol=1e-5)


def test_attention_is_that_of_its_formula_and_transformers_are_made_of_it() -> None:
    (made,), held = computed(lambda x: nn.MultiHeadAttention(4, 2)(x), STEPS)
    p = list(held.values())
    q, k, v = ((STEPS @ p[2 * n] + p[2 * n + 1]).reshape(2, 5, 2, 2).transpose(0, 2, 1, 3) for n in range(3))
    weights = np.exp(q @ k.transpose(0, 1, 3, 2) * 2**-0.5)
    heads = weights / weights.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(made, heads.transpose(0, 2, 1, 3).reshape(2, 5, 4) @ p[6] + p[7], rtol=1e-4, atol=1e-6)

    def whole(x: Any) -> Any:
        net = nn.Transformer(4, 2, 1, 1, 8, dropout=0.0, normalize_before=True)
        return net(x, x, tgt_mask=net.generate_square_subsequent_mask(5))

    (made,), held = computed(whole, STEPS)
    assert made.shape == (2, 5, 4)
    assert len(held) == 16 + 26 + 4


def test_filters_of_sequences() -> None:
    (made,), held = computed(lambda x: nn.Conv1D(3, 2, 3, padding=1)(x), ROWS)
    weight, bias = held.values()
    wide = np.pad(ROWS, ((0, 0), (0, 0), (1, 1)))
    steps = [np.einsum("nck,ock->no", wide[:, :, t : t + 3], weight) for t in range(8)]
    np.testing.assert_allclose(made, np.stack(steps, -1) + bias[:, None], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "dims"),
    [
        (lambda x: nn.Conv2DTranspose(3, 2, 3, stride=2, padding=1, output_padding=1)(x), (2, 2, 12, 12)),
        (lambda x: nn.Conv2D(3, 6, 3, padding="SAME", groups=3)(x), (2, 6, 6, 6)),
        (lambda x: nn.BatchNorm(3, act="relu", param_attr=paddle.ParamAttr(name="scale"))(x), (2, 3, 6, 6)),
        (lambda x: nn.GroupNorm(3, 3)(x), (2, 3, 6, 6)),
        (lambda x: nn.InstanceNorm2D(3)(x), (2, 3, 6, 6)),
        (lambda x: nn.PReLU(3)(x), (2, 3, 6, 6)),
        (lambda x: nn.Dropout2D(0.5)(x), (2, 3, 6, 6)),
        (lambda x: nn.AlphaDropout(0.5)(x), (2, 3, 6, 6)),
        (lambda x: nn.LocalResponseNorm(3)(x), (2, 3, 6, 6)),
        (lambda x: nn.Upsample(scale_factor=2)(x), (2, 3, 12, 12)),
        (lambda x: nn.UpsamplingBilinear2D(size=[4, 4])(x), (2, 3, 4, 4)),
        (lambda x: nn.MaxPool1D(2)(x.reshape([-1, 3, 36])), (2, 3, 18)),
        (lambda x: nn.AdaptiveAvgPool1D(4)(x.reshape([-1, 3, 36])), (2, 3, 4)),
        (lambda x: nn.Bilinear(6, 6, 2)(x.reshape([-1, 6]), x.reshape([-1, 6])), (36, 2)),
    ],
)
def test_dims_of_layers(make: Any, dims: tuple[int, ...]) -> None:
    (made,), _ = computed(make, IMAGES)
    assert made.shape == dims


def test_pads_go_from_the_last_dim_on() -> None:
    around = ((0, 0), (0, 0), (3, 4), (1, 2))
    for mode, kind in (("constant", "constant"), ("reflect", "reflect"), ("replicate", "edge")):
        (made,), _ = computed(lambda x, mode=mode: nn.Pad2D([1, 2, 3, 4], mode=mode)(x), IMAGES)
        np.testing.assert_array_equal(made, np.pad(IMAGES, around, mode=kind))  # type: ignore[call-overload]


LOGITS = RNG.randn(4, 3).astype("float32")
LABELS = np.array([0, 2, 1, 2])
WEIGHTS = np.array([0.2, 0.5, 0.3], "float32")
ENTROPIES = -(LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True)))[np.arange(4), LABELS]
COUNTED = WEIGHTS[LABELS]


def weights() -> Any:
    return paddle.to_tensor(WEIGHTS)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x, y: F.cross_entropy(x, y, weight=weights()), (ENTROPIES * COUNTED).sum() / COUNTED.sum()),
        (lambda x, y: F.cross_entropy(x, y, weight=weights(), reduction="sum"), (ENTROPIES * COUNTED).sum()),
        (
            lambda x, y: nn.CrossEntropyLoss(weights(), ignore_index=1)(x, y),
            (ENTROPIES * COUNTED)[LABELS != 1].sum() / COUNTED[LABELS != 1].sum(),
        ),
        (
            lambda x, y: F.nll_loss(F.log_softmax(x), y, weight=weights()),
            (ENTROPIES * COUNTED).sum() / COUNTED.sum(),
        ),
        (lambda x, y: nn.NLLLoss(ignore_index=2)(F.log_softmax(x), y), ENTROPIES[LABELS != 2].mean()),
        (lambda x, y: F.margin_ranking_loss(x, x, paddle.ones_like(x), 0.1), 0.1),
    ],
)
def test_losses(make: Any, expected: float) -> None:
    (made,), _ = computed(make, LOGITS, LABELS)
    np.testing.assert_allclose(made.ravel(), [expected], rtol=1e-5)


def test_figures_of_batches() -> None:
    accuracy = paddle.metric.Accuracy(topk=(1, 2))
    (hits,), _ = computed(lambda x, y: accuracy.compute(x, y), LOGITS, LABELS[:, None])
    order = np.argsort(-LOGITS, 1)
    first, second = (order[:, :1] == LABELS[:, None]).mean(), (order[:, :2] == LABELS[:, None]).any(1).mean()
    assert accuracy.update(hits) == accuracy.accumulate() == pytest.approx([first, second])
    assert accuracy.name() == ["acc_top1", "acc_top2"]
    precision, recall, area = paddle.metric.Precision(), paddle.metric.Recall(), paddle.metric.Auc()
    guesses, right = np.array([0.9, 0.8, 0.3, 0.6]), np.array([1, 0, 1, 1])
    for metric in (precision, recall):
        metric.update(guesses, right)
    area.update(np.stack([1 - guesses, guesses], 1), right)
    assert (precision.accumulate(), recall.accumulate()) == pytest.approx((2 / 3, 2 / 3))
    assert area.accumulate() == pytest.approx(1 / 3)
