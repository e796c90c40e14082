"""Names of 2.x that models of recommendation are written with: what they are, compute and accept."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
import pstranspile.fluid.paddle as paddle
from pstranspile.fluid import communicator as communicating
from pstranspile.fluid.missing import NotHere
from pstranspile.fluid.paddle.distributed import ShowClickEntry
from pstranspile.fluid.paddle.distributed.fleet.one_fleet import Fleet
from pstranspile.fluid.paddle.distributed.fleet.strategy import DistributedStrategy
from tests.fluid.later.computing import computed
from tests.fluid.running import fresh

P: Any = paddle
RNG = np.random.RandomState(0)


@pytest.fixture(autouse=True)
def said_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(communicating, "_WARNED", set())


def test_all_is_compiled_for_the_cpu_and_for_clusters() -> None:
    for module in (P, P.device):
        assert not module.is_compiled_with_custom_device("npu")
        kinds = ("cuda", "xpu", "rocm", "npu", "mlu", "ipu", "cinn")
        assert not any(getattr(module, f"is_compiled_with_{kind}")() for kind in kinds)
        assert module.is_compiled_with_distribute()


def test_element_types_are_names_of_paddle() -> None:
    assert (P.float32, P.int64, P.bool) == (P.dtype.FP32, P.dtype.INT64, P.dtype.BOOL)
    (got,), _ = computed(lambda x: P.cast(x, P.int64), np.array([1.5, 2.0], "float32"))
    assert got.dtype == np.int64


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bnk,kj->bnj", [(2, 3, 4), (4, 5)]),
        ("bnik,bnjk->bnij", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("ac, bc -> abc", [(2, 3), (4, 3)]),
        ("ajk,kl->aj", [(2, 3, 4), (4, 5)]),
        ("ij->ji", [(2, 3)]),
        ("ij->", [(2, 3)]),
        ("i,i->", [(3,), (3,)]),
        ("i,j", [(3,), (2,)]),
        ("ba,ac", [(2, 3), (3, 4)]),
        ("...ij,...jk->...ik", [(2, 3, 4, 5), (2, 3, 5, 2)]),
        ("i...->...", [(2, 3, 4)]),
        ("bij,bj,bk->ik", [(2, 3, 4), (2, 4), (2, 5)]),
        ("ab,cd->abcd", [(2, 3), (4, 5)]),
        ("ij...,jk...->ik...", [(2, 3, 6), (3, 4, 1)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("iiii->i", [(2, 2, 2, 2)]),
        ("ijij->ji", [(2, 3, 2, 3)]),
        ("iji,j->i", [(3, 2, 3), (2,)]),
        ("...ii->...i", [(4, 3, 3)]),
        ("ij,jj->i", [(2, 3), (3, 3)]),
    ],
)
def test_einsum_sums_as_numpy_does(equation: str, shapes: Any) -> None:
    arrays = [RNG.randn(*shape).astype("float32") for shape in shapes]
    (got,), _ = computed(lambda *given: P.einsum(equation, *given), *arrays)
    np.testing.assert_allclose(got, np.reshape(np.einsum(equation, *arrays), got.shape), atol=1e-5)


def test_einsum_fills_diagonals() -> None:
    x = RNG.randn(2, 3).astype("float32")
    made, _ = computed(lambda a: [P.einsum("ij->jij", a), P.einsum("ij->jjij", a), P.einsum("ij,ij->jj", a, a)], x)
    eye = np.eye(3, dtype="float32")
    np.testing.assert_array_equal(made[0], np.einsum("ij,jk->jik", x, eye))
    np.testing.assert_array_equal(made[1], np.einsum("ij,jk,jl->jkil", x, eye, eye))
    np.testing.assert_allclose(made[2], np.diag((x * x).sum(0)), rtol=1e-5)


def test_einsum_takes_diagonals_of_batches_and_their_gradients() -> None:
    x, w = RNG.randn(5, 3, 3).astype("float32"), RNG.randn(1, 3, 2).astype("float32")
    with fresh():
        held = paddle.static.data("x", [-1, 3, 3])
        right = paddle.static.data("w", [1, 3, 2])
        held.stop_gradient = False
        made = [P.einsum("bii->bi", held), P.einsum("...ij,...jk->...ik", held, right), P.einsum("bij->bijj", held)]
        grads = paddle.static.gradients([P.sum(made[0] * made[0])], [held])
        run = fluid.Executor(fluid.CPUPlace()).run
        found = run(feed={"x": x, "w": w}, fetch_list=[*made, *grads])
        with pytest.raises(ValueError, match="the size of b in 'bb', where it stands twice, must be known"):
            P.einsum("bb", paddle.static.data("square", [-1, -1]))
    diagonal = np.einsum("bii->bi", x)
    np.testing.assert_array_equal(found[0], diagonal)
    np.testing.assert_allclose(found[1], x @ w, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(found[2], np.einsum("bij,jk->bijk", x, np.eye(3, dtype="float32")))
    np.testing.assert_allclose(found[3], 2 * np.einsum("bi,ij->bij", diagonal, np.eye(3, dtype="float32")), rtol=1e-6)


def test_einsum_has_gradients() -> None:
    x, y = RNG.randn(2, 3).astype("float32"), RNG.randn(4, 3).astype("float32")
    with fresh():
        made = [paddle.static.data(name, list(held.shape)) for name, held in (("x", x), ("y", y))]
        for var in made:
            var.stop_gradient = False
        product = P.einsum("ac,bc->ab", *made)
        grads = paddle.static.gradients([P.sum(product * product)], made)
        found = fluid.Executor(fluid.CPUPlace()).run(feed={"x": x, "y": y}, fetch_list=grads)
    np.testing.assert_allclose(found[0], 2 * (x @ y.T) @ y, rtol=1e-4)
    np.testing.assert_allclose(found[1], 2 * (x @ y.T).T @ x, rtol=1e-4)


@pytest.mark.parametrize(
    ("equation", "message"),
    [
        ("ij,jk->ik", "describes 2 operands, not 1"),
        ("ijk->i", "does not describe x0, which has 2 dims"),
        ("ij->ik", "the result of 'ij->ik'"),
        ("i...->i", "does not have the dims without letters"),
    ],
)
def test_einsum_names_what_is_wrong(equation: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        computed(lambda x: P.einsum(equation, x), np.ones((2, 2), "float32"))


def test_multinomial_draws_places_by_their_shares() -> None:
    shares = np.array([[0.1, 0, 0.3, 0.6], [1, 1, 2, 0]], "float32")
    (often,), _ = computed(lambda x: P.multinomial(x, 4000, True), shares)
    for row, share in zip(often, shares, strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=4) / 4000, share / share.sum(), atol=0.05)
    (once,), _ = computed(lambda x: P.multinomial(x, 3), shares)
    assert [sorted(row) for row in once.tolist()] == [[0, 2, 3], [0, 1, 2]]


def test_bits_are_combined() -> None:
    x, y = np.array([[5, 6], [-1, 8]]), np.array([3, 4])
    made, _ = computed(lambda a, b: [P.bitwise_and(a, b), P.bitwise_or(a, b), a.bitwise_xor(b), a.bitwise_not()], x, y)
    for got, expected in zip(made, (x & y, x | y, x ^ y, ~x), strict=True):
        assert got.tolist() == expected.tolist()


def test_where_repeats_what_is_smaller() -> None:
    condition, x, y = np.array([[True], [False]]), np.arange(6, dtype="float32").reshape(2, 3), np.float32(9)
    (got,), _ = computed(lambda c, a: P.where(c, a, P.full([1], 9.0)), condition, x)
    assert got.tolist() == np.where(condition, x, y).tolist()
    (scalar,), _ = computed(lambda a: P.where(a > 2.0, a, 0.0), x)
    assert scalar.tolist() == np.where(x > 2, x, 0).tolist()


def test_shape_is_that_of_any_element_type() -> None:
    for kind in ("bool", "int8", "uint8"):
        (got,), _ = computed(lambda x: P.shape(x), np.ones((2, 3), kind))
        assert got.tolist() == [2, 3]


def test_what_is_fed_may_have_the_first_dims_alone() -> None:
    with fresh():
        x = paddle.static.data("x", [-1, 1])
        double = paddle.scale(x, 2.0)
        run = fluid.Executor(fluid.CPUPlace()).run
        assert run(feed={"x": np.ones(3, "float32")}, fetch_list=[double])[0].tolist() == [2.0, 2.0, 2.0]
        assert run(feed={"x": np.ones((3, 1), "float32")}, fetch_list=[double])[0].shape == (3, 1)
        for wrong in (np.ones((3, 1, 1), "float32"), np.ones((), "float32")):
            with pytest.raises(ValueError, match="should have dimensions = 2"):
                run(feed={"x": wrong}, fetch_list=[double])
        fixed = paddle.scale(paddle.static.data("y", [2, 1]), 2.0)
        with pytest.raises(ValueError, match="should have dimensions = 2"):
            run(feed={"y": np.ones(3, "float32")}, fetch_list=[fixed])


def test_sums_of_click_models_are_added_up() -> None:
    with fresh():
        made, label, weight = (paddle.static.data(name, [-1, 1]) for name in ("made", "label", "weight"))
        sums = [*P.static.ctr_metric_bundle(made, label, weight), *P.static.ctr_metric_bundle(made, label)]
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        batches = [(RNG.rand(4, 1), RNG.randint(0, 2, (4, 1)), number % 2) for number in range(3)]
        for given, clicks, share in batches:
            feed = {"made": given, "label": clicks, "weight": np.full((4, 1), share)}
            feed = {name: value.astype("float32") for name, value in feed.items()}
            found = exe.run(feed=feed, fetch_list=sums)
        with pytest.raises(AssertionError, match="ctr_metric_bundle"):
            P.static.ctr_metric_bundle(made, paddle.static.data("other", [-1, 2]))
    x, y, kept = (np.array([batch[index] for batch in batches]) for index in range(3))
    sigmoids = (1 / (1 + np.exp(-x))).sum((1, 2))
    same = [((x - y) ** 2).sum(), abs(x - y).sum(), x.sum()]
    expected = [*same, (sigmoids * kept).sum(), y.sum(), 4.0, *same, sigmoids.sum(), y.sum(), 12.0]
    np.testing.assert_allclose([value.item() for value in found], expected, rtol=1e-5)
    assert [var.name for var in sums[:2]] == ["_generated_var_1", "_generated_var_0"]


def test_files_of_later_versions_have_numbers_without_dims(tmp_path: Path) -> None:
    with fresh():
        loss = paddle.mean(paddle.static.nn.fc(paddle.static.data("x", [-1, 2]), 1))
        paddle.optimizer.SGD(0.5).minimize(loss)
        program = paddle.static.default_main_program()
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        prefix = str(tmp_path / "model")
        paddle.static.save(program, prefix)
        state = pickle.loads((tmp_path / "model.pdopt").read_bytes())
        assert [held.shape for held in state.values()] == [(1,)]
        later = {name: np.array(0.25, "float32") for name in state}
        (tmp_path / "model.pdopt").write_bytes(pickle.dumps(later, protocol=4))
        paddle.static.load(program, prefix)
        (name,) = later
        assert np.array(fluid.global_scope().find_var(name).get_tensor()).tolist() == [0.25]
        with pytest.raises(ValueError, match=r"fc_0\.w_0 has the dims"):
            paddle.static.set_program_state(program, {"fc_0.w_0": np.ones((3, 1), "float32")})


def test_counts_of_an_area_are_loaded_with_the_dims_that_they_begin_with(tmp_path: Path) -> None:
    with fresh():
        x, y = paddle.static.data("x", [-1, 2]), paddle.static.data("y", [-1, 1], "int64")
        paddle.static.auc(x, y, slide_steps=0)
        program = paddle.static.default_main_program()
        fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
        paddle.static.save(program, str(tmp_path / "model"))
        paddle.static.set_program_state(program, paddle.static.load_program_state(str(tmp_path / "model")))


def test_strategies_have_the_settings_of_later_versions(capsys: pytest.CaptureFixture[str]) -> None:
    strategy: Any = DistributedStrategy()
    strategy.trainer_desc_configs = {"dump_fields": [], "stat_var_names": ["a"]}
    strategy.sparse_table_configs = {}
    assert strategy.trainer_desc_configs["stat_var_names"] == ["a"]
    assert strategy.trainer_desc_configs["dump_fields_path"] == ""
    assert (strategy.fs_client_param, strategy.adam_d2sum) == ({}, False)
    assert capsys.readouterr().err == ""
    strategy.adam_d2sum = True
    strategy.fs_client_param = {"uri": "afs://a"}
    strategy.sparse_table_configs = {"t": {"table_parameters.t.shard_num": 10, "accessor.embedx_threshold": 0}}
    said = capsys.readouterr().err.splitlines()
    assert "adam_d2sum = True is not followed: servers update dense parameters with the script's Adam" in said[0]
    assert all("changes nothing" in line for line in said[1:])
    assert [line.partition(" = ")[0] for line in said] == [
        "DistributedStrategy.adam_d2sum",
        "DistributedStrategy.fs_client_param",
        "sparse_table_configs['t']['shard_num']",
    ]
    for wrong in ({"accessor.embed_sgd_param.adagrad.initial_range": 1e-4}, {"accessor.accessor_class": "CtrAccessor"}):
        with pytest.raises(NotHere, match=r"sparse_table_configs\['t'\]"):
            strategy.sparse_table_configs = {"t": wrong}
    with pytest.raises(ValueError, match="no 'shard_nun'; did you mean shard_num"):
        strategy.sparse_table_configs = {"t": {"shard_nun": 1}}
    with pytest.raises(TypeError, match="a dict with a dict for each table"):
        strategy.sparse_table_configs = ["t"]
    with pytest.raises(ValueError, match="did you mean dump_fields"):
        strategy.trainer_desc_configs = {"dump_field": []}
    for refused in ("is_with_coordinator", "is_fl_ps_mode", "tensor_parallel"):
        with pytest.raises(NotHere, match=refused):
            setattr(strategy, refused, True)


def test_an_entry_of_shows_and_clicks_says_that_rows_leave_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    entry = ShowClickEntry("show", "click")
    assert entry.to_attr() == "show_click_entry:show:click"
    assert entry.rules.at_once
    assert "ShowClickEntry(show_name, click_name) = show, click changes nothing" in capsys.readouterr().err
    with pytest.raises(ValueError, match="names of variables"):
        ShowClickEntry("show", 3)  # pyright: ignore[reportArgumentType]


def test_layers_name_their_parameters_after_their_classes() -> None:
    with fresh():
        for kind in ("BatchNorm1D", "BatchNorm2D", "BatchNorm3D", "InstanceNorm1D", "InstanceNorm3D", "SyncBatchNorm"):
            getattr(P.nn, kind)(3)
        names = [param.name for param in paddle.static.default_main_program().all_parameters()]
    layers = ["batch_norm1d", "batch_norm2d", "batch_norm3d", "instance_norm1d", "instance_norm3d", "sync_batch_norm"]
    assert names == [f"{layer}_0.{part}" for layer in layers for part in ("w_0", "b_0")]


def test_names_of_layers_are_not_those_of_parameters() -> None:
    with fresh():
        nn = P.nn
        nn.Linear(2, 2, name="own")
        nn.Embedding(3, 2, name="own")
        nn.LayerNorm(2, name="own")
        nn.LSTMCell(2, 2, name="own")
        nn.GroupNorm(num_channels=2, num_groups=1, name="own")
        images = paddle.static.data("x", [-1, 2, 3, 3])
        nn.BatchNorm2D(2, name="own")(images)
        names = {param.name.partition(".")[0] for param in paddle.static.default_main_program().all_parameters()}
    layers = {"linear_0", "embedding_0", "layer_norm_0", "lstm_cell_0", "group_norm_0", "batch_norm2d_0"}
    assert names == layers | {"own_mean", "own_variance"}


def test_calls_of_layers_take_names_too() -> None:
    with fresh():
        x, ids = paddle.static.data("x", [-1, 2, 4, 4]), paddle.static.data("ids", [-1, 2], "int64")
        flat = P.reshape(x, [-1, 32])
        made = [layer(given) for layer, given in ((P.nn.Linear(32, 2), flat), (P.nn.Embedding(3, 2), ids))]
        for kind in ("BatchNorm", "BatchNorm2D"):
            getattr(P.nn, kind)(2)(x)
        P.nn.GroupNorm(num_channels=2, num_groups=1)(x)
        P.nn.Linear(32, 2)(flat)
        P.nn.Embedding(3, 2)(ids)
        P.nn.BatchNorm(2)
        P.nn.GroupNorm(num_channels=2, num_groups=1)
        names = [param.name for param in paddle.static.default_main_program().all_parameters()]
    assert [var.name for var in made] == ["linear_1.tmp_1", "embedding_1.tmp_0"]
    later = {"linear_2.w_0", "embedding_2.w_0", "batch_norm_2.w_0", "group_norm_1.w_0"}  # 2D took batch_norm_1
    assert later <= set(names)


def test_values_of_variables_are_read_and_set() -> None:
    with fresh():
        layer = P.nn.Embedding(3, 2)
        assert (layer._num_embeddings, layer._embedding_dim) == (3, 2)
        with pytest.raises(ValueError, match="has no value in the scope"):
            layer.weight.get_value()
        fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
        layer.weight.set_value(np.arange(6, dtype="float64").reshape(3, 2))
        held = np.array(layer.weight.get_value())
        assert (held.dtype, held.tolist()) == (np.float32, [[0, 1], [2, 3], [4, 5]])
        layer.weight.set_value(layer.weight.get_value())
        with pytest.raises(ValueError, match=r"has the dims \[3, 2\], the value \[2, 3\]"):
            layer.weight.set_value(np.ones((2, 3), "float32"))
        with pytest.raises(TypeError, match="to an array or a tensor, not to a list"):
            layer.weight.set_value([1.0])


def test_programs_say_what_trainers_of_fleet_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TRAINING_ROLE", "TRAINER")
    monkeypatch.setenv("PADDLE_PSERVERS_IP_PORT_LIST", "127.0.0.1:1")
    monkeypatch.setenv("PADDLE_TRAINER_ENDPOINTS", "127.0.0.1:2,127.0.0.1:3")
    with fresh():
        main: Any = P.static.default_main_program()
        assert main._fleet_opt is None
        main._fleet_opt = {"worker_skipemb": True, "mpi_rank": 7}  # scripts assign before and after
        fleet, strategy = Fleet(), DistributedStrategy()
        strategy.trainer_desc_configs = {"dump_fields": ["x"], "dump_fields_path": str(tmp_path / "dumped")}
        fleet.init(is_collective=False)
        x = P.static.data("x", [None, 2])
        fleet.distributed_optimizer(P.optimizer.SGD(0.1), strategy).minimize(P.mean(P.static.nn.fc(x, 1)))
        told = main._fleet_opt
        assert (told["mpi_size"], told["mpi_rank"], told["worker_skipemb"]) == (2, 1, True)
        assert (told["dump_fields"], told["dump_param"]) == (["x"], [])
        assert P.static.Program()._fleet_opt is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("kind", ["QueueDataset", "InMemoryDataset"])
def test_training_on_a_data_set_prints_a_line(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "part").write_text("".join(f"2 {number}.5 1.0\n" for number in range(8)))
    with fresh():
        x = P.static.data("x", [None, 2])
        y = P.static.nn.fc(x, 1, weight_attr=P.ParamAttr(initializer=P.nn.initializer.Constant(0.5)))
        exe = P.static.Executor(P.CPUPlace())
        exe.run(P.static.default_startup_program())
        dataset = getattr(P.distributed, kind)()
        dataset.init(batch_size=2, use_var=[x])
        dataset.set_filelist([str(tmp_path / "part")])
        if kind == "InMemoryDataset":
            dataset.load_into_memory()
        capsys.readouterr()
        exe.infer_from_dataset(
            P.static.default_main_program(), dataset, fetch_list=[y], fetch_info=["y"], print_period=2
        )
    said = capsys.readouterr().out.splitlines()
    assert [line.split("], ", 1)[1] for line in said] == [
        "batch: [2], y[2]:[1.75 2.25]",
        "batch: [4], y[2]:[3.75 4.25]",
    ]


def test_what_a_program_would_have_dumped_is_named_when_it_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "part").write_text("2 1.0 2.0\n2 3.0 4.0\n")
    with fresh():
        x = fluid.data("x", [None, 2])
        loss = fluid.layers.mean(fluid.layers.fc(x, 1))
        fluid.optimizer.SGD(0.1).minimize(loss)
        main: Any = fluid.default_main_program()
        main._fleet_opt = {"dump_fields": ["x"], "dump_param": [], "mpi_rank": 0, "own": 1}
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        dataset: Any = fluid.DatasetFactory().create_dataset("QueueDataset")
        dataset.set_use_var([x])
        dataset.set_batch_size(2)
        dataset.set_filelist([str(tmp_path / "part")])
        capsys.readouterr()
        for _ in range(2):
            exe.train_from_dataset(main, dataset)
    said = [line for line in capsys.readouterr().err.splitlines() if "_fleet_opt" in line]
    assert said == [
        "_fleet_opt['dump_fields'] = ['x'] changes nothing: nothing is written while a program trains; fetch it"
    ]


def test_files_of_parameters_are_pickles_of_plain_bytes(tmp_path: Path) -> None:
    with fresh():
        held = paddle.static.nn.fc(paddle.static.data("x", [-1, 64]), 64)
        paddle.optimizer.Adam(0.5).minimize(paddle.mean(held))
        program = paddle.static.default_main_program()
        fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
        sizes = dict[int, int]()
        for protocol in (2, 3, 4):
            prefix = tmp_path / str(protocol)
            paddle.static.save(program, str(prefix), protocol)
            data = prefix.with_suffix(".pdparams").read_bytes()
            assert data[:2] == bytes([0x80, protocol])
            assert b"numpy.core.multiarray" in data
            assert b"numpy._core" not in data
            state = pickle.loads(data)
            again = paddle.static.load_program_state(str(prefix))
            assert [again[name].tobytes() for name in state] == [value.tobytes() for value in state.values()]
            sizes[protocol] = len(data)
        paddle.static.save(program, str(tmp_path / "default"))
        assert (tmp_path / "default.pdparams").read_bytes() == (tmp_path / "4.pdparams").read_bytes()
        arrays = 64 * 65 * 4
        assert sizes[4] < arrays + 1000
        assert sizes[2] > arrays * 1.2
        fluid.save(program, str(tmp_path / "old"))
        assert (tmp_path / "old.pdparams").read_bytes() == (tmp_path / "2.pdparams").read_bytes()
        with pytest.warns(UserWarning, match="older name of protocol"):
            paddle.static.save(program, str(tmp_path / "older"), pickle_protocol=3)
        assert (tmp_path / "older.pdparams").read_bytes() == (tmp_path / "3.pdparams").read_bytes()
        for wrong in (1, 5, "4", None):
            with pytest.raises(ValueError, match="protocol is that of a pickle, a whole number from 2 to 4"):
                paddle.static.save(program, str(tmp_path / "model"), wrong)


def test_tables_with_a_row_for_every_id_are_saved_as_high_as_declared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fresh():
        ids = paddle.static.data("ids", [-1, 1], "int64")
        rows = paddle.static.nn.sparse_embedding(ids, [10, 4], param_attr=paddle.ParamAttr(name="table"))
        loss = paddle.mean(paddle.square(rows))
        paddle.optimizer.Adam(0.1).minimize(loss)
        program, exe = paddle.static.default_main_program(), fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        batches = [np.array([[1], [3]]), np.array([[3], [2**40], [7]])]

        def train() -> list[float]:
            return [exe.run(program, {"ids": batch}, [loss])[0].item() for batch in batches]

        train()
        prefix = str(tmp_path / "model")
        paddle.static.save(program, prefix)
        assert "the 1 rows of ids from 10 on" in capsys.readouterr().err
        state = paddle.static.load_program_state(prefix)
        assert {value.shape for name, value in state.items() if name.startswith("table") and "pow" not in name} == {
            (10, 4)
        }
        moved = {at for at in range(10) if state["table_moment1_0"][at].any()}
        assert moved == {1, 3, 7}
        exe.run(program, {"ids": np.array([[2**40]])}, [loss])
        paddle.static.load(program, prefix)
        first = train()
        paddle.static.load(program, prefix)
        assert train() == first
        paddle.static.save(program, str(tmp_path / "again"))
        with pytest.raises(ValueError, match=r"table has the dims \[10, 4\], the file \[10, 5\]"):
            paddle.static.set_program_state(program, {"table": np.ones((10, 5), "float32")})
        with pytest.raises(ValueError, match="table_moment1_0 is what rows of table keep, which is not set with it"):
            paddle.static.set_program_state(program, {"table_moment1_0": state["table_moment1_0"]})
