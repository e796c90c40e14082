"""Training steps of some of the programs that `real.py` measures, written by hand with numpy.

They do what the programs do: predictions, losses, statistics of metrics, gradients and updates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Step = Callable[[dict[str, Any]], float]
Arrays = dict[str, Any]


class Adam:
    """Adam for parameters by name, from what the program's own state of it is."""

    def __init__(self, init: Arrays, names: Sequence[str]):
        self.state = [
            (init[name], init[f"{name}_moment1_0"], init[f"{name}_moment2_0"], np.empty_like(init[name]))
            for name in names
        ]
        self.powers = [float(init[f"{names[0]}_beta{number}_pow_acc_0"].item()) for number in (1, 2)]
        self.rate = float(init["learning_rate_0"].item())

    def update(self, gradients: Sequence[Any]) -> None:
        """Updates all parameters in place; the gradients come in the order of the names."""
        rate = self.rate * (1 - self.powers[1]) ** 0.5 / (1 - self.powers[0])
        for gradient, (param, first, second, spare) in zip(gradients, self.state, strict=True):
            np.multiply(gradient, 0.1, out=spare)
            first *= 0.9
            first += spare
            np.multiply(gradient, gradient, out=spare)
            spare *= 0.001
            second *= 0.999
            second += spare
            np.sqrt(second, out=spare)
            spare += 1e-8
            np.divide(first, spare, out=spare)
            spare *= rate
            param -= spare
        self.powers = [self.powers[0] * 0.9, self.powers[1] * 0.999]


def count(positive: Any, negative: Any, predicted: Any, label: Any) -> None:
    """Counts predictions in an AUC's histograms over all steps, in place."""
    bins = (predicted * np.float32(4095)).astype("int64")
    positive += np.bincount(bins[label > 0], minlength=4096)
    negative += np.bincount(bins[label == 0], minlength=4096)


def count_step(positive: Any, negative: Any, predicted: Any, label: Any) -> None:
    """The same for an AUC of the last step alone: its histograms, their sum, and the number of steps."""
    bins = (predicted * np.float32(4095)).astype("int64")
    for stat, which in ((positive, label > 0), (negative, label == 0)):
        stat[:4096] = stat[4096:8192] = np.bincount(bins[which], minlength=4096)
        stat[8192] += 1


def share_bottom(init: Arrays) -> Step:
    """Two tasks over one hidden layer, each with a hidden layer of its own, and two AUCs a task."""
    layers = ["bottom_output", "task_layer_0", "output_layer_0", "task_layer_1", "output_layer_1"]
    names = [f"{layer}.{part}_0" for layer in layers for part in "wb"]
    w0, b0, w1, b1, w2, b2, w3, b3, w4, b4 = (init[name] for name in names)
    adam = Adam(init, names)
    stats = [init[f"_generated_var_{number}"].copy() for number in range(8)]
    all_steps = [stat.reshape(-1)[:4096] for stat in stats]

    def shares(x: Any) -> Any:
        x -= x.max(axis=1, keepdims=True)
        np.exp(x, out=x)
        x /= x.sum(axis=1, keepdims=True)
        return x

    def step(feed: Arrays) -> float:
        x, labels = feed["input"], (feed["label_income"], feed["label_marital"])
        h = np.maximum(x @ w0 + b0, 0)
        gh = np.zeros_like(h)
        gradients: list[Any] = []
        loss = 0.0
        for task, (u, a, v, c, y) in enumerate(((w1, b1, w2, b2, labels[0]), (w3, b3, w4, b4, labels[1]))):
            t = np.maximum(h @ u + a, 0)
            p = np.clip(shares(t @ v + c), 1e-15, 1)
            label = y[:, 1].astype("int64")
            count_step(stats[4 * task], stats[4 * task + 1], p[:, 1], label)
            count(all_steps[4 * task + 2], all_steps[4 * task + 3], p[:, 1], label)
            loss += float(-(y * np.log(p)).sum(axis=1).mean())
            g = -y / p / len(x)
            g *= (p > 1e-15) & (p < 1)
            g = (g - (g * p).sum(axis=1, keepdims=True)) * p
            gt = (g @ v.T) * (t > 0)
            gradients += [h.T @ gt, gt.sum(axis=0), t.T @ g, g.sum(axis=0)]
            gh += gt @ u.T
        gh *= h > 0
        adam.update([x.T @ gh, gh.sum(axis=0), *gradients])
        return loss

    return step


def logistic_regression(init: Arrays) -> Step:
    """A weight for each of a million features, all of which decay by their sign, and two AUCs."""
    table, bias = init["embedding_0.w_0"], init["create_parameter_0.w_0"]
    adam = Adam(init, ["embedding_0.w_0", "create_parameter_0.w_0"])
    stats = [init[f"_generated_var_{number}"].reshape(-1)[:4096].copy() for number in range(4)]

    def step(feed: Arrays) -> float:
        values, y = feed["feat_value"], feed["label"].data
        ids = feed["feat_idx"].data.reshape(values.shape)
        p = (table[:, 0][ids] * values).sum(axis=1, keepdims=True) + bias
        p = 1 / (1 + np.exp(-p))
        above, below = p + np.float32(1e-4), 1 - p + np.float32(1e-4)
        loss = -(y * np.log(above) + (1 - y) * np.log(below)).sum()
        for number in (0, 2):
            count(stats[number], stats[number + 1], p[:, 0], y[:, 0])
        g = ((1 - y) / below - y / above).astype("float32") * p * (1 - p)
        decay = np.sign(table)
        decay *= np.float32(1e-3)
        np.add.at(decay[:, 0], ids.reshape(-1), (g * values).reshape(-1))
        adam.update([decay, g.sum(axis=0)])
        return float(loss)

    return step


STEPS: dict[str, Callable[[Arrays], Step]] = {
    "rec_multitask_share_bottom": share_bottom,
    "rec_rank_logistic_regression": logistic_regression,
}
"""By the name of the program: from the persistable variables, which it may change, to a step from feeds to the loss."""
