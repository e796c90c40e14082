"""Random numbers go by the rows of the batch: a cluster draws those of one machine, and trains as it does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.machines.scenario import parse_scenario
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, Adam, minimize
from pstranspile.frontends.layers.parameters import create_parameter
from pstranspile.ir.attributes import Ints, Longs
from pstranspile.ir.model import Module
from pstranspile.ir.types import DType
from pstranspile.proof import check
from pstranspile.proof.report import DIFFERENT
from pstranspile.runtime.run.seeds import without_dropout
from pstranspile.tools.cli import main

Model = Callable[[L.Draft], L.Value]


def dense(draft: L.Draft) -> L.Value:
    return L.dropout(L.fc(L.data(draft, "x", [-1, 12]), 16, act="relu"), 0.4)


def upscaled(draft: L.Draft) -> L.Value:
    hidden = L.fc(L.data(draft, "x", [-1, 12]), 16, act="relu")
    return L.dropout(hidden, 0.4, implementation="upscale_in_train")


def reshaped(draft: L.Draft) -> L.Value:
    parts = L.reshape(L.data(draft, "x", [-1, 12]), [-1, 3, 4])
    rows = L.dropout(L.fc(L.reshape(L.dropout(parts, 0.3), [-1, 4]), 6), 0.4)
    return L.reshape(rows, [-1, 18])


def transposed(draft: L.Draft) -> L.Value:
    steps_first = L.transpose(L.reshape(L.data(draft, "x", [-1, 12]), [-1, 3, 4]), [1, 0, 2])
    dropped = L.dropout(L.scale(L.dropout(steps_first, 0.4), 2.0), 0.3)
    again = L.dropout(L.reshape(dropped, [-1, 4]), 0.2)
    return L.reshape(L.transpose(L.reshape(again, [3, -1, 4]), [1, 0, 2]), [-1, 12])


def ragged(draft: L.Draft) -> L.Value:
    words = L.embedding(L.data(draft, "ids", [-1, 1], "i64", lod_level=1), (30, 8), is_sparse=True)
    hidden, _ = L.dynamic_lstm(L.dropout(L.fc(words, 32), 0.4), 32)
    return L.dropout(L.sequence_pool(L.dropout(hidden, 0.3), "max"), 0.2)


def recurrent(draft: L.Draft) -> L.Value:
    steps = L.transpose(L.reshape(L.data(draft, "x", [-1, 12]), [-1, 3, 4]), [1, 0, 2])
    start = L.fc(L.data(draft, "start", [-1, 5]), 6)
    rnn = L.StaticRNN(draft)
    with rnn.step():
        before = rnn.memory(start)
        after = L.fc([rnn.step_input(steps), L.dropout(before, 0.3)], 6, act="tanh")
        rnn.update_memory(before, after)
        rnn.step_output(L.dropout(after, 0.4))
    return L.reshape(L.transpose(L.dropout(rnn(), 0.2), [1, 0, 2]), [-1, 18])


def of_weights(draft: L.Draft) -> L.Value:
    x = L.data(draft, "x", [-1, 12])
    weights = create_parameter(draft, "weights", None, [12, 4], "f32")
    return L.matmul(x, L.dropout(weights, 0.5))


def tree(draft: L.Draft) -> L.Value:
    """Nodes of two levels, sampled for every leaf: 3 of 4 that are not its own, then 2 of 6."""
    leaves = L.data(draft, "leaves", [-1, 1], "i64")
    constants = {
        "Travel": ([6, 2], [level for leaf in range(6) for level in (1 + leaf % 4, 5 + leaf)]),
        "Layer": ([10, 1], [*range(1, 11)]),
    }
    held = {slot: draft.fresh(slot.lower(), DType.INT64) for slot in constants}
    for slot, (dims, numbers) in constants.items():
        attrs = {"shape": Ints(dims), "dtype": DType.INT64.value, "int64_values": Longs(numbers)}
        draft.op("assign_value", {}, {"Out": held[slot].name}, attrs)
    nodes, *others = (draft.fresh(name, DType.INT64) for name in ("nodes", "labels", "mask"))
    names = {"Out": nodes.name, "Labels": others[0].name, "Mask": others[1].name}
    counts = {"neg_samples_num_list": Ints([3, 2]), "layer_offset_lod": Ints([0, 4, 10])}
    draft.op("tdm_sampler", {"X": leaves, **held}, names, {**counts, "output_positive": True, "seed": 0, "dtype": 3})
    return L.reshape(L.embedding(L.reshape(nodes, [-1, 7, 1]), (11, 4)), [-1, 28])


def padded(draft: L.Draft) -> L.Value:
    """Every share is padded to its own longest sequence."""
    words = L.embedding(L.data(draft, "ids", [-1, 1], "i64", lod_level=1), (30, 8))
    rows, lengths = L.sequence_pad(words, L.fill_constant(draft, [1], DType.FP32, 0.0))
    return L.sequence_pool(L.sequence_unpad(L.dropout(rows, 0.4), lengths), "sum")


MODELS = [dense, upscaled, reshaped, transposed, ragged, recurrent, of_weights, tree]


def made(model: Model, *, seeded: bool, optimizer: object = None) -> Module:
    """A module that trains a model; if `seeded`, dropout has the program's seed, as Fluid's layers give it."""
    draft = L.Draft(seed=3 if seeded else 0)
    out = model(draft)
    minimize(L.mean(L.square_error_cost(L.fc(out, 1), L.data(draft, "y", [-1, 1]))), optimizer or SGD(0.1))
    return draft.module()


@pytest.mark.parametrize("seeded", [False, True], ids=["anew", "seeded"])
@pytest.mark.parametrize("model", MODELS)
def test_clusters_drop_what_one_machine_drops(model: Model, seeded: bool):
    module = made(model, seeded=seeded)
    for trainers, servers in ((2, 2), (4, 3)):
        report = check(module, ps.Job(pservers=servers, trainers=trainers, min_block_size=20), steps=3, seed=5)
        assert report.holds, [verdict for verdict in report.verdicts if verdict.equality == DIFFERENT]


def test_what_a_seed_draws_for_padding_no_share_knows():
    """A seeded dropout draws Fluid's numbers, which go by how far the whole batch is padded; no share knows that."""
    job = ps.Job(pservers=2, trainers=2, min_block_size=20)
    assert check(made(padded, seeded=False), job, steps=3, seed=5).holds
    report = check(made(padded, seeded=True), job, steps=3, seed=5)
    assert not report.holds
    assert check(without_dropout(made(padded, seeded=True)), job, steps=3, seed=5).holds


@pytest.mark.parametrize("mode", ["grad-allreduce", "fleet-sync", "async"])
def test_other_modes_drop_alike(mode: str):
    trainers = 1 if mode == "async" else 2
    places = {} if mode == "grad-allreduce" else {"pservers": 2}
    given: object = ["127.0.0.1:7164", "127.0.0.1:7165"] if mode == "grad-allreduce" else trainers
    report = check(made(recurrent, seeded=False), ps.Job(trainers=given, mode=mode, **places), steps=3, seed=5)
    assert report.holds
    assert not report.different


def test_an_amplifying_optimizer_is_allowed_what_rounding_makes():
    report = check(made(dense, seeded=False, optimizer=Adam(0.01)), ps.Job(pservers=2, trainers=4), steps=6, seed=5)
    assert report.holds


def test_a_trainer_that_comes_back_drops_what_it_would_have_dropped():
    scenario = parse_scenario("crash trainer_1 step 1\nrejoin trainer_1 step 3\ncrash pserver_0 step 2 restart 40\n")
    job = ps.Job(pservers=2, trainers=2, min_block_size=20)
    report = check(made(ragged, seeded=False), job, steps=6, seed=5, faults=scenario)
    assert report.holds
    assert report.faulty is not None
    assert not report.faulty.not_compared
    assert report.faulty.equality != DIFFERENT


@pytest.mark.parametrize("command", ["check", "run"])
def test_dropout_is_left_out_on_request(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = ps.dumps(made(dense, seeded=False))
    path, plain = tmp_path / "net.ir", tmp_path / "plain.ir"
    path.write_text(text)
    plain.write_text(text.replace("dropout_prob=0.4", "dropout_prob=0.0"))
    assert plain.read_text() != text
    feeds = {"x": np.ones((2, 4, 12), "float32"), "y": np.ones((2, 4, 1), "float32")}
    np.savez(tmp_path / "feed.npz", **feeds)
    options = [] if command == "run" else ["--pservers", "2", "--trainers", "2", "--json"]
    told: list[str] = []
    for given in ([str(path), "--no-dropout"], [str(plain)], [str(path)]):
        assert (
            main([command, *given, *options, "--feed", str(tmp_path / "feed.npz"), "--steps", "2", "--seed", "1"]) == 0
        )
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]
    assert command == "check" or told[2] != told[0]
