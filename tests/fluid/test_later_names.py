"""The names of the first 2.x versions mean what Fluid's do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
import pstranspile.fluid.paddle as paddle
from pstranspile.fluid.paddle.distributed import InMemoryDataset, ParallelEnv, get_rank
from pstranspile.fluid.paddle.distributed.fleet.one_fleet import Fleet, PaddleCloudRoleMaker, Role, UserDefinedRoleMaker
from pstranspile.fluid.paddle.distributed.fleet.strategy import DistributedStrategy
from tests.fluid.running import SCRIPTS, fresh, printed
from tests.fluid.test_clusters import launched, numbers
from tests.ports import free_ports

F: Any = paddle.nn.functional
X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]], "float32")
SCRIPT = str(SCRIPTS / "later_names.py")


def alone(folder: Path) -> list[float]:
    return numbers(printed(SCRIPTS / "later_names.py", "sync", str(folder / "alone")))


def with_servers(mode: str, folder: Path) -> list[str]:
    endpoints = ",".join(f"127.0.0.1:{port}" for port in free_ports(1))
    return launched("launch_ps", "--worker_num", "2", "--endpoints", endpoints, SCRIPT, mode, "model", folder=folder)


def test_a_cluster_trains_as_the_script_alone(tmp_path: Path) -> None:
    first, second = with_servers("sync", tmp_path)
    np.testing.assert_allclose((np.array(numbers(first)) + numbers(second)) / 2, alone(tmp_path), rtol=1e-4)
    assert "files ['a', 'b']" in first
    assert "files ['c']" in second
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["dnn_plugin"]
    assert {path.name for path in (tmp_path / "model" / "dnn_plugin").iterdir()} >= {"__model__", "w"}


@pytest.mark.parametrize("mode", ["a_sync", "geo"])
def test_trainers_that_do_not_wait_for_each_other_learn(mode: str, tmp_path: Path) -> None:
    rng = np.random.RandomState(4)
    x = [rng.rand(8, 4).astype("float32") for _ in range(8)][-1]
    untrained = (x.sum(axis=1) * 0.9) ** 2
    for index, text in enumerate(with_servers(mode, tmp_path)):
        losses = numbers(text)
        assert len(losses) == 8
        assert losses[-1] < untrained[index::2].mean()


def test_trainers_without_servers_train_as_the_script_alone(tmp_path: Path) -> None:
    port = str(free_ports(1)[0])
    first, second = launched(
        "launch", "--nproc_per_node", "2", "--started_port", port, SCRIPT, "collective", "model", folder=tmp_path
    )
    np.testing.assert_allclose((np.array(numbers(first)) + numbers(second)) / 2, alone(tmp_path), rtol=1e-4)


def test_a_strategy_says_what_it_does_not_have() -> None:
    strategy = DistributedStrategy()
    with pytest.raises(AttributeError, match="did you mean a_sync"):
        setattr(strategy, "async", True)
    with pytest.raises(ValueError, match="did you mean k_steps"):
        setattr(strategy, "a_sync_configs", {"k_step": 1})  # noqa: B010
    with pytest.raises(NotImplementedError, match=r"DistributedStrategy\.dgc"):
        setattr(strategy, "dgc", True)  # noqa: B010
    with pytest.raises(NotImplementedError, match=r"save_persistables\(mode=1\)"):
        paddle.distributed.fleet.save_persistables(None, "folder", mode=1)
    setattr(strategy, "a_sync", True)  # noqa: B010
    setattr(strategy, "a_sync_configs", {"send_queue_size": 3})  # noqa: B010
    assert (strategy.a_sync_configs["k_steps"], strategy.a_sync_configs["send_queue_size"]) == (0, 3)
    flags = strategy.with_servers().get_trainer_runtime_config().get_communicator_flags()
    assert flags["communicator_send_queue_size"] == "3"


def test_roles_and_what_launchers_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PADDLE_PSERVERS_IP_PORT_LIST", raising=False)
    role = PaddleCloudRoleMaker()
    assert (role.is_first_worker(), role.worker_num(), role.alone) == (True, 1, True)
    endpoints = ["127.0.0.1:1", "127.0.0.1:2"]
    server = UserDefinedRoleMaker(
        current_id=1, role=Role.SERVER, worker_endpoints=endpoints, server_endpoints=endpoints
    )
    assert (server.is_server(), server.worker_num(), server.server_index()) == (True, 2, 1)
    worker = UserDefinedRoleMaker(is_collective=True, current_id=1, worker_endpoints=endpoints)
    fleet = Fleet()
    with pytest.raises(RuntimeError, match=r"fleet\.init"):
        fleet.worker_num()
    fleet.init(worker)
    assert (fleet.worker_index(), fleet.worker_num(), fleet.worker_endpoints(True)) == (1, 2, ",".join(endpoints))
    with pytest.raises(NotImplementedError, match="all_reduce"):
        fleet.util.all_reduce([1])
    monkeypatch.setenv("PADDLE_TRAINER_ID", "3")
    assert (get_rank(), ParallelEnv().rank) == (3, 3)


def test_models_and_data_sets(tmp_path: Path) -> None:
    with fresh():
        x = paddle.static.data("x", [None, 3])
        out = paddle.static.nn.fc(x, size=2, activation="tanh")
        exe = paddle.static.Executor(paddle.CPUPlace())
        exe.run(paddle.static.default_startup_program())
        prefix = str(tmp_path / "net")
        paddle.static.save_inference_model(prefix, [x], [out], exe)
        assert {path.name for path in tmp_path.iterdir()} == {"net.pdmodel", "net.pdiparams"}
        feed = {"x": np.ones((2, 3), "float32")}
        (kept,) = exe.run(feed=feed, fetch_list=[out])
        program, feeds, targets = paddle.static.load_inference_model(prefix, exe)
        np.testing.assert_array_equal(exe.run(program, dict.fromkeys(feeds, feed["x"]), targets)[0], kept)
        data = InMemoryDataset()
        data.init(batch_size=2, use_var=[x], pipe_command="cat")
        assert (data.batch_size, data.use_vars) == (2, [x])
        with pytest.raises(NotImplementedError, match="input_type"):
            data.init(input_type=1)
    with pytest.raises(AttributeError, match=r"paddle\.static\.Programm .* nearest name that is there: Program"):
        _ = paddle.static.Programm
    assert paddle.fluid is fluid


def computed(make: Any, **feed: np.ndarray) -> Any:
    """What `make` gives of the arrays, in a program that is run once."""
    with fresh():
        read = [paddle.static.data(name, [-1, *held.shape[1:]], str(held.dtype)) for name, held in feed.items()]
        made = make(*read)
        return paddle.static.Executor(paddle.CPUPlace()).run(feed=feed, fetch_list=[made])[0]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x: paddle.add(x, paddle.multiply(x, x)), X + X * X),
        (lambda x: paddle.sum(x, axis=1, keepdim=True), X.sum(axis=1, keepdims=True)),
        (lambda x: paddle.mean(x), [X.mean()]),
        (lambda x: paddle.mean(x, axis=0), X.mean(axis=0)),
        (lambda x: paddle.max(x, axis=-1), X.max(axis=-1)),
        (lambda x: paddle.pow(x, 2), X**2),
        (lambda x: paddle.clip(x, max=1.0), X.clip(max=1.0)),
        (lambda x: paddle.concat(x=[x, x], axis=1), np.concatenate([X, X], 1)),
        (lambda x: paddle.split(x, 3, axis=1)[1], X[:, 1:2]),
        (lambda x: paddle.squeeze(paddle.unsqueeze(x, axis=1), axis=1), X),
        (lambda x: paddle.tile(x, [1, 2]), np.tile(X, (1, 2))),
        (lambda x: paddle.flatten(paddle.reshape(x, [-1, 3, 1]), 1), X),
        (lambda x: paddle.where(x > 0, x, paddle.zeros_like(x)), X.clip(min=0)),
        (lambda x: paddle.argmax(x, axis=1), X.argmax(axis=1)),
        (lambda x: paddle.argmin(x, keepdim=True), [1]),
        (lambda x: paddle.sort(x, axis=1, descending=True), -np.sort(-X, axis=1)),
        (lambda x: paddle.topk(x, 2)[0], -np.sort(-X, axis=1)[:, :2]),
        (lambda x: paddle.matmul(x, x, transpose_y=True), X @ X.T),
        (lambda x: paddle.unbind(x, axis=1)[1], X[:, 1]),
        (lambda x: paddle.arange(3), [0, 1, 2]),
        (lambda x: paddle.full([2], 3, "int64"), [3, 3]),
        (lambda x: F.leaky_relu(x), np.where(X > 0, X, 0.01 * X)),
        (lambda x: F.hardtanh(x), X.clip(-1, 1)),
        (lambda x: F.mse_loss(x, paddle.full_like(x, 1.0)), [((X - 1) ** 2).mean()]),
        (lambda x: F.l1_loss(x, paddle.full_like(x, 1.0), reduction="sum"), [np.abs(X - 1).sum()]),
        (lambda x: F.cosine_similarity(x, paddle.scale(x, 2.0)), [1, 1]),
        (lambda x: F.dropout(x, 0.5, training=False), X),
    ],
)
def test_functions_compute_what_their_names_say(make: Any, expected: Any) -> None:
    np.testing.assert_allclose(computed(make, x=X), expected, rtol=1e-6)


@pytest.mark.parametrize("ignored", [-100, 2])
def test_the_cross_entropy_is_that_of_logits_and_leaves_ignored_labels_out(ignored: int) -> None:
    label = np.array([[0], [2]], "int64")
    shares = np.exp(X) / np.exp(X).sum(axis=1, keepdims=True)
    losses = -np.log(shares[[0, 1], label[:, 0]])
    made = computed(lambda x, y: F.cross_entropy(x, y, ignore_index=ignored), x=X, y=label)
    np.testing.assert_allclose(made, [losses.mean() if ignored < 0 else losses[0]], rtol=1e-6)


def test_cross_entropies_of_two_classes() -> None:
    label, shares = (X > 0).astype("float32"), 1 / (1 + np.exp(-X))
    expected = -(label * np.log(shares) + (1 - label) * np.log(1 - shares)).mean()
    for function, x in ((F.binary_cross_entropy, shares), (F.binary_cross_entropy_with_logits, X)):
        np.testing.assert_allclose(computed(function, x=x, y=label), [expected], rtol=1e-5)


def images(nn: Any) -> Any:
    return nn.Sequential(
        nn.Conv2D(1, 2, 3, padding=1, weight_attr=paddle.ParamAttr(learning_rate=2.0)),
        nn.BatchNorm2D(2),
        nn.ReLU(),
        nn.MaxPool2D(2),
        nn.Flatten(),
        nn.LayerNorm(8),
        nn.Dropout(0.1),
        nn.Linear(8, 3),
    )


def test_layers_share_their_parameters_between_calls_and_train() -> None:
    rng = np.random.RandomState(1)
    feed = {"x": rng.rand(6, 1, 4, 4).astype("float32"), "y": rng.randint(0, 3, (6, 1))}
    with fresh():
        paddle.seed(5)
        x = paddle.static.data("x", [None, 1, 4, 4])
        y = paddle.static.data("y", [None, 1], "int64")
        net = images(paddle.nn)
        loss = paddle.nn.CrossEntropyLoss()(net(x), y)
        parameters = {param.name for param in paddle.static.default_main_program().all_parameters()}
        net.eval()
        again = paddle.nn.CrossEntropyLoss()(net(x), y)
        assert {param.name for param in paddle.static.default_main_program().all_parameters()} == parameters
        assert {"conv2d_0.w_0", "batch_norm2d_0.b_0", "layer_norm_0.w_0", "linear_0.w_0"} <= parameters
        weight = dict(net.named_parameters())["0.weight"]
        assert weight.optimize_attr["learning_rate"] == 2.0
        paddle.optimizer.Adam(0.05, parameters=net.parameters()).minimize(loss)
        exe = paddle.static.Executor(paddle.CPUPlace())
        exe.run(paddle.static.default_startup_program())
        losses = [exe.run(feed=feed, fetch_list=[again])[0][0] for _ in range(60)]
        assert losses[-1] < 0.7 * losses[0]
        assert len(net) == 8
        assert net[7].weight.shape == (3, 8)[::-1]


def test_names_that_are_not_there_are_told_with_the_nearest_one() -> None:
    for get, near in (
        (lambda: paddle.nn.Linaer, "Linear"),
        (lambda: paddle.nn.functional.sofmax, "softmax"),
        (lambda: paddle.multipli, "multiply"),
        (lambda: paddle.nn.initializer.XavierUnifrom, "XavierUniform"),
        (lambda: paddle.distributed.fleet.utils.LocalFs, "LocalFS"),
    ):
        with pytest.raises(AttributeError, match=f"nearest name that is there: {near}"):
            get()
    with pytest.raises(TypeError, match=r"add\(x, y, name=None\)"):
        paddle.add(1)
    assert paddle.framework.ParamAttr is paddle.ParamAttr is paddle.nn.ParamAttr
    assert paddle.common_ops_import.core.EOFException is fluid.core.EOFException
    assert paddle.set_device("cpu") == paddle.CPUPlace()
    assert paddle.static.Scope is fluid.Scope
    assert paddle.ParamAttr(name="w", need_clip=True).name == "w"
    for attr in (paddle.ParamAttr, paddle.static.WeightNormParamAttr):
        with pytest.raises(NotImplementedError, match="need_clip=False"):
            attr(need_clip=False)


def test_the_check_of_an_installation_is_that_of_fluid() -> None:
    assert paddle.utils.run_check is fluid.install_check.run_check


def test_figures_over_all_trainers() -> None:
    paddle.distributed.fleet.init()
    metrics = paddle.distributed.fleet.metrics
    assert metrics.rmse(np.array([8.0]), np.array([2.0])) == 2.0
    right, wrong = np.array([[1, 0, 2, 3]]), np.array([[4, 1, 0, 1]])
    pairs = [(p, n) for p in np.repeat(range(4), right[0]) for n in np.repeat(range(4), wrong[0])]
    expected = np.mean([1.0 if p > n else 0.5 if p == n else 0.0 for p, n in pairs])
    assert metrics.auc(right, wrong) == pytest.approx(expected)
    assert metrics.auc(right, np.zeros(4)) == 0.5
    assert (metrics.max(right).tolist(), metrics.min(3.0)) == (right.tolist(), 3.0)
    with pytest.raises(ValueError, match="no variable missing"):
        metrics.sum("missing")


def test_a_cluster_trains_and_tests_as_the_script_alone(tmp_path: Path) -> None:
    script = SCRIPTS / "later_layers.py"
    servers = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    options = ("--run_mode", "ps", "--nnodes", "1", "--servers", servers, "--trainer_num", "1")
    (log,) = launched("launch", *options, str(script), folder=tmp_path)
    values = [[float(line.split()[1]) for line in text.splitlines()] for text in (log, printed(script))]
    np.testing.assert_allclose(*values, rtol=1e-4)
    assert len(values[0]) == 8
    assert values[0][5] < values[0][0]


class Counting(paddle.io.IterableDataset):
    def __iter__(self) -> Any:
        yield from ([np.full(2, number, "float32"), number] for number in range(5))


def test_samples_in_a_row_come_in_batches() -> None:
    loader = paddle.io.DataLoader(Counting(), batch_size=2)
    batches = [[np.array(item).tolist() for item in batch] for batch in loader()]
    assert batches == [[[[0, 0], [1, 1]], [0, 1]], [[[2, 2], [3, 3]], [2, 3]], [[[4, 4]], [4]]]
    assert len(list(paddle.io.DataLoader(Counting(), places=paddle.CPUPlace(), batch_size=2, drop_last=True))) == 2
    with pytest.raises(ValueError, match="leave out batch_sampler and shuffle"):
        paddle.io.DataLoader(Counting(), shuffle=True)
    with pytest.raises(TypeError, match="nobody knows how many"):
        len(loader)
    with pytest.raises(NotImplementedError, match="write __iter__"):
        list(paddle.io.DataLoader(paddle.io.IterableDataset()))


def test_a_prefix_that_names_a_folder_is_refused(tmp_path: Path) -> None:
    for prefix in (f"{tmp_path}/", str(tmp_path)):
        with pytest.raises(ValueError, match="names a folder: it takes folder/name, without an ending"):
            paddle.static.save_inference_model(prefix, [], [], None)
    assert not list(tmp_path.iterdir())
