"""Training steps of saved programs with gated recurrent units, written by hand with numpy (see `by_hand.py`).

Sequences go forward together, the longest first, so that the rows of a step continue the first rows of the step before.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from by_hand import Arrays, Step, count, count_step


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def steps_of(offsets: Any, reverse: bool = False) -> tuple[Any, list[int], Any]:
    """The rows step by step, where steps begin, and the sequences by length."""
    starts, lengths = np.asarray(offsets[:-1]), np.diff(offsets)
    order = np.argsort(-lengths, kind="stable")
    counts = [int((lengths > at).sum()) for at in range(int(lengths.max()))]
    first = starts + lengths - 1 if reverse else starts
    sign = -1 if reverse else 1
    rows = np.concatenate([first[order[:count]] + sign * at for at, count in enumerate(counts)])
    return rows, [0, *np.cumsum(counts).tolist()], order


class Gru:
    """A gated recurrent unit with the weights of an op `gru`."""

    def __init__(self, weight: Any):
        self.weight, self.width = weight, len(weight)
        flat = weight.reshape(-1)
        self.gates = flat[: 2 * self.width**2].reshape(self.width, -1)
        self.candidate = flat[2 * self.width**2 :].reshape(self.width, -1)

    def forward(self, x: Any, offsets: Any, state: Any | None = None, reverse: bool = False) -> Any:
        """The hidden states; x holds what goes to both gates and the candidate."""
        self.rows, self.starts, self.order = steps_of(offsets, reverse)
        w = self.width
        x, state = x[self.rows], np.zeros((len(self.order), w), "float32") if state is None else state[self.order]
        self.before, self.reset, hidden = (np.empty((len(x), w), "float32") for _ in range(3))
        for start, stop in pairwise(self.starts):
            now, last = x[start:stop], state[: stop - start]
            now[:, : 2 * w] = sigmoid(now[:, : 2 * w] + last @ self.gates)
            u, r = now[:, :w], now[:, w : 2 * w]
            self.before[start:stop] = last
            reset = self.reset[start:stop] = r * last
            c = now[:, 2 * w :] = np.tanh(now[:, 2 * w :] + reset @ self.candidate)
            state = hidden[start:stop] = last + u * (c - last)
        self.values = x
        found = np.empty_like(hidden)
        found[self.rows] = hidden
        return found

    def backward(self, grad: Any) -> tuple[Any, Any, Any]:
        """The gradients of x, of the weights and of the initial state."""
        w, grad = self.width, grad[self.rows]
        u, r, c = self.values[:, :w], self.values[:, w : 2 * w], self.values[:, 2 * w :]
        to_u, to_c, to_r = (c - self.before) * u * (1 - u), u * (1 - c * c), self.before * r * (1 - r)
        kept, found = 1 - u, np.empty_like(self.values)
        carried = np.zeros((len(self.order), w), "float32")
        for start, stop in reversed(list(pairwise(self.starts))):
            now, of = grad[start:stop] + carried[: stop - start], found[start:stop]
            of[:, 2 * w :] = now * to_c[start:stop]
            reset = of[:, 2 * w :] @ self.candidate.T
            of[:, :w] = now * to_u[start:stop]
            of[:, w : 2 * w] = reset * to_r[start:stop]
            through = now * kept[start:stop] + reset * r[start:stop] + of[:, : 2 * w] @ self.gates.T
            carried[: stop - start] = through
        weight = np.concatenate(
            [(self.before.T @ found[:, : 2 * w]).reshape(-1), (self.reset.T @ found[:, 2 * w :]).reshape(-1)]
        )
        x_grad, state_grad = np.empty_like(found), np.empty_like(carried)
        x_grad[self.rows], state_grad[self.order] = found, carried
        return x_grad, weight.reshape(self.weight.shape), state_grad


def ssr(init: Arrays) -> Step:
    """Sequences of items against a positive and a negative item by the cosine, with Adagrad."""
    names = ["emb.item", "grnn_fc.w", "grnn.param", "grnn.bias", "user.w", "user.b", "item.w", "item.b"]
    table, into, weight, bias, user_w, user_b, item_w, item_b = (init[name] for name in names)
    moments = [next(init[key] for key in init if key.startswith(f"{name}_moment")) for name in names]
    rate = next(init[key] for key in init if key.startswith("learning_rate")).item()
    unit = Gru(weight)

    def norms(x: Any) -> Any:
        return np.sqrt(np.maximum((x * x).sum(axis=1, keepdims=True), 1e-8))

    def cosine_grad(grad: Any, x: Any, y: Any, cosine: Any, x_norm: Any, y_norm: Any) -> Any:
        return grad * (y / (x_norm * y_norm) - cosine * x / (x_norm * x_norm))

    def step(feed: Arrays) -> float:
        ids = [feed[name].data.reshape(-1) for name in ("user", "p_item", "n_item")]
        offsets = feed["user"].lod[0]
        starts, lengths = np.asarray(offsets[:-1]), np.diff(offsets)
        x = table[ids[0]]
        hidden = unit.forward(x @ into + bias, offsets)
        pooled = np.maximum.reduceat(hidden, starts, axis=0)
        items = [np.add.reduceat(table[ids[at]], feed[name].lod[0][:-1]) for at, name in ((1, "p_item"), (2, "n_item"))]
        user, (good, bad) = pooled @ user_w + user_b, (item @ item_w + item_b for item in items)
        of_user, of_good, of_bad = norms(user), norms(good), norms(bad)
        near = (user * good).sum(axis=1, keepdims=True) / (of_user * of_good)
        far = (user * bad).sum(axis=1, keepdims=True) / (of_user * of_bad)
        margin = np.float32(0.8) - near + far
        grad = (margin > 0) / np.float32(len(margin))
        user_grad = cosine_grad(grad, user, bad, far, of_user, of_bad)
        user_grad -= cosine_grad(grad, user, good, near, of_user, of_good)
        good_grad = cosine_grad(-grad, good, user, near, of_good, of_user)
        bad_grad = cosine_grad(grad, bad, user, far, of_bad, of_user)
        is_largest = hidden == np.repeat(pooled, lengths, axis=0)
        rows = np.where(is_largest, np.arange(len(x))[:, None], len(x))
        hidden_grad = np.zeros_like(hidden)
        np.put_along_axis(hidden_grad, np.minimum.reduceat(rows, starts, axis=0), user_grad @ user_w.T, axis=0)
        x_grad, weight_grad, _ = unit.backward(hidden_grad)
        table_grad = np.zeros_like(table)
        np.add.at(table_grad, ids[0], x_grad @ into.T)
        for number, item_grad, name in ((1, good_grad, "p_item"), (2, bad_grad, "n_item")):
            np.add.at(table_grad, ids[number], np.repeat(item_grad @ item_w.T, np.diff(feed[name].lod[0]), axis=0))
        gradients = [table_grad, x.T @ x_grad, weight_grad, x_grad.sum(axis=0, keepdims=True)]
        gradients += [pooled.T @ user_grad, user_grad.sum(axis=0)]
        gradients += [items[0].T @ good_grad + items[1].T @ bad_grad, good_grad.sum(axis=0) + bad_grad.sum(axis=0)]
        for name, gradient, moment in zip(names, gradients, moments, strict=True):
            moment += gradient * gradient
            gradient *= rate
            gradient /= np.sqrt(moment) + np.float32(1e-6)
            param = init[name]
            param -= gradient
        return float(np.maximum(margin, 0).mean())

    return step


def listwise(init: Arrays) -> Step:
    """Clicks on lists of items by a unit in either direction, with a decay of the tables and two AUCs."""
    layers = [f"{name}.{part}_0" for name in ("user_feature_fc", "item_fc", "item_gru_fc") for part in "wb"]
    layers += [f"gru_{number}.{part}_0" for number in (0, 1) for part in "wb"]
    layers += [f"out_click_fc{number}.{part}_0" for number in (1, 2) for part in "wb"]
    tables = [init[f"embedding_{number}.w_0"] for number in range(3)]
    user_w, user_b, item_w, item_b, into, into_b, _, bias0, _, bias1, w1, b1, w2, b2 = (init[name] for name in layers)
    units = [Gru(init["gru_0.w_0"]), Gru(init["gru_1.w_0"])]
    stats = [init[f"_generated_var_{number}"].reshape(-1) for number in range(4)]
    rate = next(init[key] for key in init if key.startswith("learning_rate")).item()

    def step(feed: Arrays) -> float:
        lengths = feed["lens"].reshape(-1)
        offsets = [0, *np.cumsum(lengths).tolist()]
        within = np.arange(feed["item_slot_names"].data.shape[1]) < lengths[:, None]
        ids = [feed["user_slot_names"].data.reshape(-1), feed["item_slot_names"].data[within], np.nonzero(within)[1]]
        label = feed["labels"].data[within]
        rows = [table[each] for table, each in zip(tables, ids, strict=True)]
        user = np.maximum(rows[0] @ user_w + user_b, 0)
        item = np.maximum(rows[1] @ item_w + item_b, 0)
        both = np.concatenate([item, rows[2]], axis=1)
        x = both @ into + into_b
        hidden = np.concatenate(
            [units[0].forward(x + bias0, offsets, user), units[1].forward(x + bias1, offsets, user, reverse=True)],
            axis=1,
        )
        clicks = np.maximum(hidden @ w1 + b1, 0)
        p = clicks @ w2 + b2
        p = np.exp(p - p.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        count_step(stats[0], stats[1], p[:, 1], label)
        count(stats[2][:4096], stats[3][:4096], p[:, 1], label)
        of_label = p[np.arange(len(p)), label]
        loss = float(-np.log(of_label).mean())
        g = p.copy()
        g[np.arange(len(p)), label] -= 1
        g /= len(p)
        gradients = {"out_click_fc2.w_0": clicks.T @ g, "out_click_fc2.b_0": g.sum(axis=0)}
        g = (g @ w2.T) * (clicks > 0)
        gradients |= {"out_click_fc1.w_0": hidden.T @ g, "out_click_fc1.b_0": g.sum(axis=0)}
        g = g @ w1.T
        width = units[0].width
        (g0, weight0, user0), (g1, weight1, user1) = units[0].backward(g[:, :width]), units[1].backward(g[:, width:])
        gradients |= {"gru_0.w_0": weight0, "gru_0.b_0": g0.sum(axis=0, keepdims=True)}
        gradients |= {"gru_1.w_0": weight1, "gru_1.b_0": g1.sum(axis=0, keepdims=True)}
        g = g0 + g1
        gradients |= {"item_gru_fc.w_0": both.T @ g, "item_gru_fc.b_0": g.sum(axis=0)}
        g = g @ into.T
        item_grad = g[:, : item.shape[1]] * (item > 0)
        user_grad = (user0 + user1) * (user > 0)
        gradients |= {"item_fc.w_0": rows[1].T @ item_grad, "item_fc.b_0": item_grad.sum(axis=0)}
        gradients |= {"user_feature_fc.w_0": rows[0].T @ user_grad, "user_feature_fc.b_0": user_grad.sum(axis=0)}
        of_rows = [user_grad @ user_w.T, item_grad @ item_w.T, g[:, item.shape[1] :]]
        for number, (table, each, grad) in enumerate(zip(tables, ids, of_rows, strict=True)):
            total = gradients[f"embedding_{number}.w_0"] = np.zeros_like(table)
            np.add.at(total, each, grad)
        for name, gradient in gradients.items():
            param = init[name]
            if name.startswith("embedding"):
                gradient += param * np.float32(1e-5)
            gradient *= rate
            param -= gradient
        return loss

    return step


STEPS: dict[str, Callable[[Arrays], Step]] = {"rec_recall_ssr": ssr, "rec_rerank_listwise": listwise}
"""By the name of the program, as in `by_hand.py`."""
