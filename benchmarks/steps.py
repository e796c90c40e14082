"""A training step of the interpreter against hand-written numpy of the same model, in one process and one thread.

    python benchmarks/steps.py [mlp] [chain] [ctr] [gru] [lstm] [tags] [gru-short] [lstm-short] [tags-short]

Goals, as ratios of the medians: MLP 784-128-64-10, batch 64, Adam <= 1.15; a chain of 100 elementwise ops on 32x32
<= 1.1; CTR with 8 sparse embeddings 100,000x16, batch 256, SGD on sparse rows <= 1.15; a gated recurrent unit, a long
short-term memory, and a chain of labels with its best path, each over 4 sentences of 44 to 60 words (`-short`: of 3 to
7), 32 wide (`recurrent_models.py`) <= 1.15. Both sides start from the same parameters and take the same batches, and
their losses are compared. Without names all run but the short ones, whose time is that of numpy's calls alone.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import gc
import statistics
import sys
from time import thread_time
from typing import Any

import numpy as np
import recurrent_models
from model import Model, Step

from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, Adam, minimize
from pstranspile.ir.types import DType
from pstranspile.runtime.run.frame import Execution, interpret
from pstranspile.runtime.run.prepared import Prepared, run
from pstranspile.runtime.run.scope import Scope


def mlp() -> Model:
    model = L.Draft(seed=1)
    image, label = L.data(model, "image", [-1, 784]), L.data(model, "label", [-1, 1], dtype=DType.INT64)
    hidden = L.fc(L.fc(image, 128, act="relu"), 64, act="relu")
    loss = L.mean(L.cross_entropy(L.fc(hidden, 10, act="softmax"), label))
    minimize(loss, Adam(0.001))
    rng = np.random.default_rng(0)
    feed = {
        "image": rng.normal(size=(64, 784)).astype("float32"),
        "label": rng.integers(0, 10, (64, 1)),
    }
    return Model(model.module(), loss.name, feed, mlp_by_hand, 1.15)


def mlp_by_hand(start: dict[str, Any], feed: dict[str, Any]) -> Step:
    w = [start[f"fc_{i}.w_0"].copy() for i in range(3)]
    b = [start[f"fc_{i}.b_0"].copy() for i in range(3)]
    params = [*w, *b]
    first = [np.zeros_like(p) for p in params]
    second = [np.zeros_like(p) for p in params]
    spare = [np.empty_like(p) for p in params]
    rows = np.arange(64)
    powers = [0.9, 0.999]
    x, y = feed["image"], feed["label"].ravel()

    def step() -> float:
        h1 = np.maximum(x @ w[0] + b[0], 0)
        h2 = np.maximum(h1 @ w[1] + b[1], 0)
        logits = h2 @ w[2] + b[2]
        logits -= logits.max(axis=1, keepdims=True)
        p = np.exp(logits)
        p /= p.sum(axis=1, keepdims=True)
        loss = -np.log(p[rows, y]).mean()
        g3 = p
        g3[rows, y] -= 1
        g3 /= 64
        g2 = (g3 @ w[2].T) * (h2 > 0)
        g1 = (g2 @ w[1].T) * (h1 > 0)
        grads = [x.T @ g1, h1.T @ g2, h2.T @ g3, g1.sum(axis=0), g2.sum(axis=0), g3.sum(axis=0)]
        rate = 0.001 * (1 - powers[1]) ** 0.5 / (1 - powers[0])
        for param, grad, m, v, t in zip(params, grads, first, second, spare, strict=True):
            np.multiply(grad, 0.1, out=t)
            m *= 0.9
            m += t
            np.multiply(grad, grad, out=t)
            t *= 0.001
            v *= 0.999
            v += t
            np.sqrt(v, out=t)
            t += 1e-8
            np.divide(m, t, out=t)
            t *= rate
            param -= t
        powers[0] *= 0.9
        powers[1] *= 0.999
        return float(loss)

    return step


def chain() -> Model:
    """x = tanh(x * a), x = max(x, b), x = x + a, ...: 100 ops, each on 32x32."""
    model = L.Draft(seed=1)
    x, a = L.data(model, "x", [32, 32]), L.data(model, "a", [32, 32])
    out = x
    for _ in range(20):
        out = L.elementwise_mul(out, a)
        out = L.elementwise_max(out, x)
        out = L.elementwise_add(out, a)
        out = L.relu(L.elementwise_sub(out, x))
    loss = L.mean(out)
    rng = np.random.default_rng(0)
    feed = {name: rng.normal(size=(32, 32)).astype("float32") for name in ("x", "a")}
    return Model(model.module(), loss.name, feed, chain_by_hand, 1.1)


def chain_by_hand(_start: dict[str, Any], feed: dict[str, Any]) -> Step:
    x, a = feed["x"], feed["a"]

    def step() -> float:
        out = x
        for _ in range(20):
            out = out * a
            out = np.maximum(out, x)
            out = out + a
            out = out - x
            out = np.maximum(out, 0)
        return float(out.mean())

    return step


SLOTS, ROWS, WIDTH, BATCH = 8, 100_000, 16, 256


def ctr() -> Model:
    model = L.Draft(seed=1)
    slots = [L.data(model, f"slot_{i}", [-1, 1], dtype=DType.INT64) for i in range(SLOTS)]
    label = L.data(model, "label", [-1, 1], dtype=DType.INT64)
    embedded = [L.embedding(slot, [ROWS, WIDTH], is_sparse=True) for slot in slots]
    hidden = L.fc(L.concat(embedded, axis=1), 64, act="relu")
    loss = L.mean(L.cross_entropy(L.fc(hidden, 2, act="softmax"), label))
    minimize(loss, SGD(0.01))
    rng = np.random.default_rng(0)
    feed = {slot.name: rng.integers(0, ROWS, (BATCH, 1)) for slot in slots}
    feed["label"] = rng.integers(0, 2, (BATCH, 1))
    return Model(model.module(), loss.name, feed, ctr_by_hand, 1.15)


def ctr_by_hand(start: dict[str, Any], feed: dict[str, Any]) -> Step:
    tables = [start[f"embedding_{i}.w_0"].copy() for i in range(SLOTS)]
    w1, b1, w2, b2 = (start[name].copy() for name in ("fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0"))
    ids = [feed[f"slot_{i}"].ravel() for i in range(SLOTS)]
    y, rows = feed["label"].ravel(), np.arange(BATCH)

    def step() -> float:
        x = np.concatenate([table[i] for table, i in zip(tables, ids, strict=True)], axis=1)
        h = np.maximum(x @ w1 + b1, 0)
        logits = h @ w2 + b2
        logits -= logits.max(axis=1, keepdims=True)
        p = np.exp(logits)
        p /= p.sum(axis=1, keepdims=True)
        loss = -np.log(p[rows, y]).mean()
        g2 = p
        g2[rows, y] -= 1
        g2 /= BATCH
        g1 = (g2 @ w2.T) * (h > 0)
        gx = g1 @ w1.T
        gw1, gb1, gw2, gb2 = x.T @ g1, g1.sum(axis=0), h.T @ g2, g2.sum(axis=0)
        for number, (table, i) in enumerate(zip(tables, ids, strict=True)):
            np.subtract.at(table, i, 0.01 * gx[:, number * WIDTH : (number + 1) * WIDTH])
        for param, grad in ((w1, gw1), (b1, gb1), (w2, gw2), (b2, gb2)):
            param -= 0.01 * grad
        return float(loss)

    return step


def seconds(steps: dict[str, Step], rounds: int = 15, least: float = 0.05) -> dict[str, float]:
    """Seconds of CPU time per step of each, in rounds of `least` seconds in turn; the median over the rounds."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    counts: dict[str, int] = {}
    for name, step in steps.items():
        for _ in range(5):
            step()
        start = thread_time()
        step()
        counts[name] = max(1, int(least / (thread_time() - start)))
    gc.disable()
    for _ in range(rounds):
        for name, step in steps.items():
            start = thread_time()
            for _ in range(counts[name]):
                step()
            found[name].append((thread_time() - start) / counts[name])
    gc.enable()
    return {name: statistics.median(times) for name, times in found.items()}


def measure(name: str, model: Model) -> bool:
    """Prints the seconds per step of each form and their ratios; whether the goal is met."""
    scopes = [Scope() for _ in range(3)]
    for scope in scopes:
        run(model.module["startup"], scope=scope)
    start = {key: scopes[0][key].copy() for key in scopes[0]}
    main, fetch = model.module.main, (model.loss,)
    prepared = Prepared(Execution(main, scopes[0]), tuple(model.feed), fetch)
    plain = Execution(main, scopes[1])

    def value(found: dict[str, Any]) -> float:
        return float(found[model.loss].item())

    steps: dict[str, Step] = {
        "by hand": model.by_hand(start, model.feed),
        "prepared": lambda: value(prepared.step(model.feed)),
        "run()": lambda: value(run(main, model.feed, fetch, scopes[2])),
        "op by op": lambda: value(interpret(plain, model.feed, fetch)),
    }
    losses = {key: [step() for _ in range(3)] for key, step in steps.items()}
    for key, found in losses.items():
        if not np.allclose(found, losses["by hand"], rtol=1e-4):
            raise SystemExit(f"{name}: {key} gives the losses {found}, by hand they are {losses['by hand']}")
    times = seconds(steps)
    hand = times["by hand"]
    for key, time in times.items():
        print(f"{name:<10} {key:<9} {1e6 * time:>10.1f} us/step  {time / hand:>6.2f}x")
    return times["prepared"] <= model.goal * hand


MODELS = {"mlp": mlp, "chain": chain, "ctr": ctr, **recurrent_models.MODELS}


def main(names: list[str]) -> int:
    met = [measure(name, MODELS[name]()) for name in names or [name for name in MODELS if not name.endswith("-short")]]
    print("all goals met" if all(met) else "goals missed")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
