"""A generative adversarial network: @main trains the discriminator, @generator the generator, @evaluation looks.

The generator learns to make points of a normal distribution around (2, -1) of noise. Each program reads the parameters
that the other one trains; the steps of a round are twice @main, then @generator.
"""

import sys
from pathlib import Path

import numpy as np

import pstranspile as ps
from pstranspile import layers as L
from pstranspile.autodiff import SGD, minimize
from pstranspile.ir.model import FrozenMap

ROUNDS = 200
CENTRE = np.array([2.0, -1.0], "float32")
DISCRIMINATOR = ("d_hidden_w", "d_hidden_b", "d_out_w", "d_out_b")
GENERATOR = ("g_hidden_w", "g_hidden_b", "g_out_w", "g_out_b")


def dense(x: L.Value, size: int, name: str, act: str | None = None) -> L.Value:
    return L.fc(x, size, act=act, param_attr=f"{name}_w", bias_attr=f"{name}_b")


def generate(draft: L.Draft) -> L.Value:
    return dense(dense(L.data(draft, "noise", [-1, 4]), 16, "g_hidden", "tanh"), 2, "g_out")


def judge(points: L.Value, truth: float) -> L.Value:
    """How badly the discriminator takes the points for what they are (1 for real ones, 0 for made ones)."""
    score = dense(dense(points, 16, "d_hidden", "tanh"), 1, "d_out")
    label = L.fill_constant_batch_size_like(score, [-1, 1], "f32", truth)
    return L.mean(L.sigmoid_cross_entropy_with_logits(score, label))


def build() -> tuple[ps.Module, str]:
    """The module, and the name of what the evaluation measures: the mean square of made points' distance to CENTRE."""
    d = L.Draft(seed=1)
    minimize(judge(L.data(d, "real", [-1, 2]), 1.0) + judge(generate(d), 0.0), SGD(0.1), DISCRIMINATOR)
    g = d.sibling()
    minimize(judge(generate(g), 1.0), SGD(0.1), GENERATOR)
    e = d.sibling()
    distance = L.mean(L.square_error_cost(generate(e), L.data(e, "centre", [-1, 2])))
    programs = {**d.module().programs, "generator": g.main(), "evaluation": e.main()}
    return ps.Module(FrozenMap(programs)), distance.name


def feed(run: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(run)
    noise = random.normal(size=(32, 4)).astype("float32")
    return {"noise": noise, "real": (CENTRE + 0.5 * random.normal(size=(32, 2))).astype("float32")}


def train(module: ps.Module, distance: str, rounds: int, show: int = 10) -> list[float]:
    """The distance after every round; `show` of them are printed."""
    scope = ps.Scope()
    ps.run(module["startup"], scope=scope)
    found: list[float] = []
    for number in range(rounds):
        for batch in (feed(3 * number), feed(3 * number + 1)):
            ps.run(module["main"], feed=batch, scope=scope)
        noise = feed(3 * number + 2)["noise"]
        ps.run(module["generator"], feed={"noise": noise}, scope=scope)
        seen = {"noise": noise, "centre": np.tile(CENTRE, (32, 1))}
        out = ps.run(module["evaluation"], feed=seen, fetch=[distance], scope=scope)
        found.append(float(out[distance].reshape(-1)[0]))
        if number % max(rounds // show, 1) == 0 or number == rounds - 1:
            print(f"round {number:4d}  distance {found[-1]:.4f}", flush=True)
    return found


if __name__ == "__main__":
    module, distance = build()
    if sys.argv[1:] == ["--write"]:
        Path(__file__).with_suffix(".ir").write_text(ps.dumps(module), encoding="utf-8")
    else:
        train(module, distance, ROUNDS)
