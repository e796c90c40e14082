"""Models of many short steps, whose time goes into numpy's calls more than into numbers: recurrent units and chains.

The steps by hand go through all sequences of the batch together, the longest first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from by_hand_recurrent import Gru, sigmoid, steps_of
from model import Model, Step

from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize
from pstranspile.ir.types import DType
from pstranspile.runtime.values import LoDTensor

LONG, SHORT = (60, 51, 48, 44), (7, 5, 4, 3)
"""The lengths of the sentences of a batch."""

WORDS, WIDTH, LABELS = 500, 32, 9
RATE = np.float32(0.01)


def words_of(model: L.Draft) -> Any:
    """The embedded words of ragged sentences."""
    return L.embedding(L.data(model, "words", [-1, 1], dtype=DType.INT64, lod_level=1), [WORDS, WIDTH])


def feed_of(lengths: Sequence[int], count: int, labels: int) -> dict[str, Any]:
    """Sentences, and a label for each of `count` rows."""
    rng, offsets = np.random.default_rng(0), [0, *np.cumsum(lengths).tolist()]
    label = rng.integers(0, labels, (count, 1))
    words = LoDTensor(rng.integers(0, WORDS, (offsets[-1], 1)), [offsets])
    return {"words": words, "label": label if count == len(lengths) else LoDTensor(label, [offsets])}


def of_sentences(unit: str, lengths: Sequence[int]) -> Model:
    """Whether a sentence is good or bad, from the last state of a recurrent unit."""
    model = L.Draft(seed=1)
    words, label = words_of(model), L.data(model, "label", [-1, 1], dtype=DType.INT64)
    if unit == "gru":
        hidden = L.dynamic_gru(L.fc(words, 3 * WIDTH), WIDTH)
    else:
        hidden, _ = L.dynamic_lstm(L.fc(words, 4 * WIDTH), 4 * WIDTH)
    good = L.fc(L.sequence_pool(hidden, "last"), 2, act="softmax")
    loss = L.mean(L.cross_entropy(good, label))
    minimize(loss, SGD(float(RATE)))
    return Model(model.module(), loss.name, feed_of(lengths, len(lengths), 2), sentences_by_hand, 1.15)


class Lstm:
    """A long short-term memory with peepholes."""

    def __init__(self, weight: Any, bias: Any):
        self.weight, self.bias, self.width = weight, bias, len(weight)

    def forward(self, x: Any, offsets: Any) -> Any:
        """The hidden states; x holds what goes to the candidate and the gates."""
        self.rows, self.starts, self.order = steps_of(offsets)
        w, n = self.width, len(self.order)
        wi, wf, wo = self.bias[0, 4 * w :].reshape(3, w)
        self.x = x = x[self.rows] + self.bias[0, : 4 * w]
        self.before, self.states, self.cells, self.active = (np.empty((len(x), w), "float32") for _ in range(4))
        hidden = np.empty((len(x), w), "float32")
        h = s = np.zeros((n, w), "float32")
        for start, stop in pairwise(self.starts):
            now, h, s = x[start:stop], h[: stop - start], s[: stop - start]
            self.before[start:stop], self.states[start:stop] = s, h
            now += h @ self.weight
            c = now[:, :w] = np.tanh(now[:, :w])
            i = now[:, w : 2 * w] = sigmoid(now[:, w : 2 * w] + s * wi)
            f = now[:, 2 * w : 3 * w] = sigmoid(now[:, 2 * w : 3 * w] + s * wf)
            s = self.cells[start:stop] = c * i + s * f
            o = now[:, 3 * w :] = sigmoid(now[:, 3 * w :] + s * wo)
            a = self.active[start:stop] = np.tanh(s)
            h = hidden[start:stop] = o * a
        found = np.empty_like(hidden)
        found[self.rows] = hidden
        return found

    def backward(self, grad: Any) -> tuple[Any, Any, Any]:
        """The gradients of x, of the weights and of the bias."""
        w, n, grad = self.width, len(self.order), grad[self.rows]
        wi, wf, wo = self.bias[0, 4 * w :].reshape(3, w)
        c, i, f, o = (self.x[:, k * w : (k + 1) * w] for k in range(4))
        to_o, to_s = self.active * o * (1 - o), o * (1 - self.active * self.active)
        to_c, to_i, to_f = i * (1 - c * c), c * i * (1 - i), self.before * f * (1 - f)
        found, dh, ds = np.empty_like(self.x), np.zeros((n, w), "float32"), np.zeros((n, w), "float32")
        for start, stop in reversed(list(pairwise(self.starts))):
            rows, count = slice(start, stop), stop - start
            now, of = grad[rows] + dh[:count], found[rows]
            of[:, 3 * w :] = now * to_o[rows]
            cell = ds[:count] + now * to_s[rows] + of[:, 3 * w :] * wo
            of[:, :w], of[:, w : 2 * w], of[:, 2 * w : 3 * w] = cell * to_c[rows], cell * to_i[rows], cell * to_f[rows]
            ds[:count] = cell * f[rows] + of[:, w : 2 * w] * wi + of[:, 2 * w : 3 * w] * wf
            dh[:count] = of @ self.weight.T
        peepholes = [
            (found[:, w : 2 * w] * self.before).sum(axis=0),
            (found[:, 2 * w : 3 * w] * self.before).sum(axis=0),
        ]
        peepholes.append((found[:, 3 * w :] * self.cells).sum(axis=0))
        x_grad = np.empty_like(found)
        x_grad[self.rows] = found
        return x_grad, self.states.T @ found, np.concatenate([found.sum(axis=0), *peepholes])[None]


def sentences_by_hand(start: dict[str, Any], feed: dict[str, Any]) -> Step:
    held = {name: value.copy() for name, value in start.items()}
    table, into, into_b, out, out_b = (
        held[name] for name in ("embedding_0.w_0", "fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0")
    )
    unit_name = next(name.split(".")[0] for name in held if name.startswith(("gru_", "lstm_")))
    weight, bias = held[f"{unit_name}.w_0"], held[f"{unit_name}.b_0"]
    ids, offsets, label = feed["words"].data.reshape(-1), feed["words"].lod[0], feed["label"].reshape(-1)
    last, rows = np.asarray(offsets[1:]) - 1, np.arange(len(label))
    unit: Any = Gru(weight) if weight.shape[1] == 3 * WIDTH else Lstm(weight, bias)

    def step() -> float:
        x = table[ids]
        to_unit = x @ into + into_b
        hidden = unit.forward(to_unit + bias if isinstance(unit, Gru) else to_unit, offsets)
        logits = hidden[last] @ out + out_b
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        loss = float(-np.log(p[rows, label]).mean())
        p[rows, label] -= 1
        p /= len(label)
        hidden_grad = np.zeros_like(hidden)
        hidden_grad[last] = p @ out.T
        out_grad = hidden[last].T @ p
        x_grad, weight_grad, more = unit.backward(hidden_grad)
        bias_grad = x_grad.sum(axis=0, keepdims=True) if isinstance(unit, Gru) else more
        table_grad = np.zeros_like(table)
        np.add.at(table_grad, ids, x_grad @ into.T)
        params = (table, into, into_b, weight, bias, out, out_b)
        grads = (table_grad, x.T @ x_grad, x_grad.sum(axis=0), weight_grad, bias_grad, out_grad, p.sum(axis=0))
        for param, grad in zip(params, grads, strict=True):
            param -= RATE * grad
        return loss

    return step


def tags(lengths: Sequence[int]) -> Model:
    """A label for every word, by a chain of labels, and the best path."""
    model = L.Draft(seed=1)
    words, label = words_of(model), L.data(model, "label", [-1, 1], dtype=DType.INT64, lod_level=1)
    emission = L.fc(words, LABELS)
    loss = L.mean(L.linear_chain_crf(emission, label, param_attr=L.ParamAttr(name="chain")))
    L.crf_decoding(emission, param_attr=L.ParamAttr(name="chain"))
    minimize(loss, SGD(float(RATE)))
    return Model(model.module(), loss.name, feed_of(lengths, sum(lengths), LABELS), tags_by_hand, 1.15)


def best_path(x: Any, w: Any, starts: list[int]) -> Any:
    """The best label of each row; the rows are in the order of `steps_of`."""
    track, path, spans = np.zeros(x.shape, int), np.empty(len(x), int), list(pairwise(starts))
    final = score = w[0] + x[: starts[1]]
    for start, stop in spans[1:]:
        to = score[: stop - start, :, None] + w[2:]
        track[start:stop] = to.argmax(axis=1)
        score = to.max(axis=1) + x[start:stop]
        final[: stop - start] = score
    label = (final + w[1]).argmax(axis=1)
    for start, stop in reversed(spans):
        path[start:stop] = label[: stop - start]
        label[: stop - start] = track[np.arange(start, stop), label[: stop - start]]
    return path


def tags_by_hand(start: dict[str, Any], feed: dict[str, Any]) -> Step:
    table, into, into_b, w = (start[name].copy() for name in ("embedding_0.w_0", "fc_0.w_0", "fc_0.b_0", "chain"))
    offsets = feed["words"].lod[0]
    rows, starts, order = steps_of(offsets)
    ids, label, spans = (
        feed["words"].data.reshape(-1)[rows],
        feed["label"].data.reshape(-1)[rows],
        list(pairwise(starts)),
    )
    counts = np.diff(starts)
    before = np.arange(starts[1], starts[-1]) - np.repeat(counts[:-1], counts[1:])  # the row before, of later steps
    later, every = np.arange(starts[1], starts[-1]), np.arange(starts[-1])
    ends = np.setdiff1d(every, before)

    def step() -> float:
        e = table[ids]
        x = e @ into + into_b
        largest = x.max(axis=1, keepdims=True)
        xe, we = np.exp(x - largest), np.exp(w)
        last = ahead = np.empty_like(xe)
        sums, behind = np.empty((len(xe), 1), "float32"), np.empty_like(xe)
        for first, stop in spans:
            now = xe[first:stop] * (last[: stop - first] @ we[2:] if first else we[0])
            sums[first:stop] = now.sum(axis=1, keepdims=True)
            last = ahead[first:stop] = now / sums[first:stop]
        after = behind[:0]
        for first, stop in reversed(spans):
            now = behind[first:stop]
            now[len(after) :] = we[1]
            now[: len(after)] = after @ we[2:].T
            now /= now.sum(axis=1, keepdims=True)
            after = now * xe[first:stop]
        total = np.log(sums).sum() + largest.sum() + np.log(ahead[ends] @ we[1]).sum()
        total -= x[every, label].sum() + w[0, label[: starts[1]]].sum() + w[1, label[ends]].sum()
        loss = float(total - w[2:][label[before], label[later]].sum()) / len(order)
        best_path(x, w, starts)
        grad = ahead * behind
        grad /= grad.sum(axis=1, keepdims=True)
        grad[every, label] -= 1
        grad /= len(order)
        given, taken = ahead[before], behind[later] * xe[later]
        given /= ((given @ we[2:]) * taken).sum(axis=1, keepdims=True) * len(order)
        w_grad = np.empty_like(w)
        w_grad[0], w_grad[1] = grad[: starts[1]].sum(axis=0), grad[ends].sum(axis=0)
        w_grad[2:] = (given.T @ taken) * we[2:]
        np.subtract.at(w_grad[2:], (label[before], label[later]), 1 / len(order))
        table_grad = np.zeros_like(table)
        np.add.at(table_grad, ids, grad @ into.T)
        grads = (table_grad, e.T @ grad, grad.sum(axis=0), w_grad)
        for param, gradient in zip((table, into, into_b, w), grads, strict=True):
            param -= RATE * gradient
        return loss

    return step


MODELS: dict[str, Callable[[], Model]] = {
    f"{name}{suffix}": partial(make, lengths=lengths)
    for suffix, lengths in (("", LONG), ("-short", SHORT))
    for name, make in (("gru", partial(of_sentences, "gru")), ("lstm", partial(of_sentences, "lstm")), ("tags", tags))
}
