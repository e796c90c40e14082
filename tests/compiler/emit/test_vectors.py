"""The conformance vectors of the family: figures and op sequences that its own tests and papers state.

Where the 1.3 and 1.8.5 releases differ, the vector is 1.8.5's. The model is one fully connected layer of 1000x1000 with
square error and SGD, on two trainers and two servers, except where a test says otherwise.
"""

from __future__ import annotations

from math import prod

import pytest

from pstranspile.compiler.compile import Compiled, compile
from pstranspile.compiler.job import Job
from pstranspile.compiler.plan.plan import cut_rows, slice_shape
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import (
    L2,
    SGD,
    Adam,
    ClipByValue,
    Exponential,
    Momentum,
    Optimizer,
    Piecewise,
    RMSProp,
    minimize,
    set_gradient_clip,
)
from pstranspile.ir.model import Module, Program
from pstranspile.ir.types import VarKind

SERVERS = ["127.0.0.1:6174", "127.0.0.1:6175"]
ON_THE_TRAINER = [
    "mul", "elementwise_add", "elementwise_sub", "square", "mean",
    "fill_constant", "mean_grad", "square_grad", "elementwise_sub_grad", "elementwise_add_grad",
]  # fmt: skip
"""Forward and backward, up to the gradient of the bias; that of the weight follows the bias's send."""


def layer(optimizer: Optimizer, *, clip: bool = False, bias: bool = True) -> Module:
    model = L.Draft(seed=1)
    x, y = L.data(model, "x", [-1, 1000], "f32"), L.data(model, "y", [-1, 1], "f32")
    prediction = L.fc(x, 1000, param_attr="fc_w", bias_attr="fc_b" if bias else False)
    if clip:
        set_gradient_clip(model, ClipByValue(1.0))
    minimize(L.mean(L.square_error_cost(prediction, y)), optimizer)
    return model.module()


def job(**settings: object) -> Job:
    return Job(SERVERS, 2, **settings)  # pyright: ignore[reportArgumentType]


def kinds(program: Program, block: int = 0) -> list[str]:
    return [op.type for op in program.blocks[block].ops]


def blocks(compiled: Compiled, server: int = 0) -> list[list[str]]:
    main = compiled.pserver(SERVERS[server]).main
    return [kinds(main, index) for index in range(len(main.blocks))]


def shapes(servers: int, least: int, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [slice_shape(shape, *cut) for cut in cut_rows(shape, servers, least)]


@pytest.mark.parametrize(
    ("servers", "least", "shape", "sizes"),
    [
        pytest.param(10, 1024, (3, 5), [15], id="V1.01 [3,5]"),
        pytest.param(10, 1024, (1024,), [1024], id="V1.01 [1024]"),
        pytest.param(10, 1024, (28, 784), [2352] * 9 + [784], id="V1.01 [28,784]"),
        pytest.param(10, 1024, (8, 1020), [2040] * 4, id="V1.01 [8,1020]"),
        pytest.param(10, 1024, (800, 10), [1150] * 6 + [1100], id="V1.01 [800,10]"),
        pytest.param(10, 8192, (3, 5), [15], id="V1.02 [3,5]"),
        pytest.param(10, 8192, (1024,), [1024], id="V1.02 [1024]"),
        pytest.param(10, 8192, (28, 784), [10976] * 2, id="V1.02 [28,784]"),
        pytest.param(10, 8192, (8, 1020), [8160], id="V1.02 [8,1020]"),
        pytest.param(10, 8192, (800, 10), [8000], id="V1.02 [800,10]"),
        pytest.param(10, 8192, (6, 33, 33, 33), [35937] * 6, id="V1.02 [6,33,33,33]"),
        pytest.param(2, 8192, (1000, 1000), [500000] * 2, id="V1.03 [1000,1000]"),
        pytest.param(2, 8192, (1000,), [1000], id="V1.03 [1000]"),
    ],
)
def test_slices(servers: int, least: int, shape: tuple[int, ...], sizes: list[int]) -> None:
    assert [prod(s) for s in shapes(servers, least, shape)] == sizes


def test_v1_03_rows() -> None:
    assert shapes(2, 8192, (1000, 1000)) == [(500, 1000)] * 2


def test_v1_04_the_bias_comes_first() -> None:
    servers = [f"ps{i}:6174" for i in range(4)]
    plan = compile(layer(SGD(0.1)), Job(servers, 2)).plan
    assert [[s.name for _, s in plan.slices_on(endpoint)] for endpoint in servers] == [
        ["fc_b", "fc_w.block3"],
        ["fc_w.block0"],
        ["fc_w.block1"],
        ["fc_w.block2"],
    ]


def test_v2_01_trainer() -> None:
    assert kinds(compile(layer(SGD(0.1)), job()).trainer(0).main) == [
        *ON_THE_TRAINER, "send", "mul_grad", "split_byref", "send",
        "send_barrier", "recv", "recv", "fetch_barrier", "concat",
    ]  # fmt: skip


def test_v2_02_trainer_without_slices() -> None:
    assert kinds(compile(layer(SGD(0.1)), job(min_block_size=1048576)).trainer(0).main) == [
        *ON_THE_TRAINER, "send", "mul_grad", "send", "send_barrier", "recv", "recv", "fetch_barrier",
    ]  # fmt: skip


def test_v2_03_trainer_with_run_time_split() -> None:
    compiled = compile(layer(SGD(0.1)), job(mode="async", runtime_split_send_recv=True))
    assert kinds(compiled.trainer(0).main) == [*ON_THE_TRAINER, "send", "mul_grad", "send", "recv", "recv"]


def test_v2_04_half_asynchronous_trainer_without_run_time_split() -> None:
    compiled = compile(layer(SGD(0.1)), job(sync_mode=False, half_async=True))
    assert kinds(compiled.trainer(0).main) == [
        *ON_THE_TRAINER, "send", "mul_grad", "split_byref", "send", "recv", "recv", "concat",
    ]  # fmt: skip


def test_v2_05_trainer_start_up() -> None:
    # 1.3 keeps the fill_constant of the rate.
    assert kinds(compile(layer(SGD(0.1)), job()).trainer(0).startup) == [
        "fill_constant", "uniform_random", "recv", "recv", "fetch_barrier", "concat",
    ]  # fmt: skip


def test_v2_06_server() -> None:
    compiled = compile(layer(SGD(0.1)), job())
    update = ["sum", "scale", "sgd"]
    assert blocks(compiled) == [["listen_and_serv"], update, update]
    assert blocks(compiled, 1) == [["listen_and_serv"], update]


@pytest.mark.parametrize(("runtime_split", "mode"), [(True, 1), (False, 2)])
def test_v2_07_asynchronous_server(runtime_split: bool, mode: int) -> None:
    compiled = compile(layer(SGD(0.1)), job(mode="async", runtime_split_send_recv=runtime_split))
    assert blocks(compiled) == [["listen_and_serv"], ["sgd"], ["sgd"]]
    assert compiled.pserver(SERVERS[0]).main.main_block.ops[0].attrs["distributed_mode"] == mode


def test_v2_08_server_start_up() -> None:
    startup = compile(layer(SGD(0.1)), job()).pserver(SERVERS[0]).startup
    assert sorted(kinds(startup)) == ["fill_constant", "fill_constant", "uniform_random"]
    assert startup.main_block.vars["fc_w.block1"].shape == (500, 1000)
    (drawn,) = [op for op in startup.main_block.ops if op.type == "uniform_random"]
    assert list(drawn.attrs["shape"]) == [500, 1000]  # pyright: ignore[reportArgumentType]


DECAY = Exponential(0.1, 100, 0.5, staircase=True)


def test_v2_09_exponential_decay() -> None:
    # 1.3 divides and multiplies by constants it makes; 1.8.5 scales.
    compiled = compile(layer(SGD(DECAY)), job())
    assert len(blocks(compiled)) == 4
    assert blocks(compiled)[1] == ["increment", "cast", "scale", "floor", "fill_constant", "elementwise_pow", "scale"]


def test_v2_10_exponential_decay_asynchronous() -> None:
    compiled = compile(layer(SGD(DECAY)), job(mode="async"))
    assert blocks(compiled)[1] == ["sum", "cast", "scale", "floor", "fill_constant", "elementwise_pow", "scale"]
    assert kinds(compiled.trainer(0).main)[-6:] == ["split_byref", "send", "send", "recv", "recv", "concat"]


def test_v2_11_piecewise_decay() -> None:
    compiled = compile(layer(SGD(Piecewise([100, 200], [0.1, 0.05, 0.01]))), job())
    found = blocks(compiled)
    assert len(found) == 7
    assert (len(found[1]), found[1][-1]) == (16, "conditional_block")
    assert found[2:5] == [["assign"]] * 3
    assert found[5:] == [["sum", "scale", "sgd"]] * 2


def test_v2_12_weight_decay_and_clip_by_value() -> None:
    # The vector is of 1.3, which clips on the server; 1.8.5 clips on the trainer, before the send.
    compiled = compile(layer(SGD(0.1, regularizer=L2(1e-3)), clip=True), job())
    decayed = ["sum", "scale", "scale", "sum", "sgd"]
    assert blocks(compiled) == [["listen_and_serv"], decayed, decayed]
    trainer = kinds(compiled.trainer(0).main)
    assert trainer[len(ON_THE_TRAINER) :] == [
        "mul_grad", "clip", "clip", "send", "split_byref", "send",
        "send_barrier", "recv", "recv", "fetch_barrier", "concat",
    ]  # fmt: skip


def test_v2_13_momentum_with_weight_decay_and_five_pieces() -> None:
    rate = Piecewise([10, 20, 30, 40], [1.0, 0.5, 0.25, 0.1, 0.05])
    found = blocks(compile(layer(Momentum(rate, 0.9, regularizer=L2(1e-4))), job()))
    assert len(found) == 9
    assert found[7:] == [["sum", "scale", "scale", "sum", "momentum"]] * 2


def test_v2_14_a_server_without_parameters() -> None:
    compiled = compile(layer(SGD(0.1), bias=False), job(slice_var_up=False))
    assert blocks(compiled, 1) == [["listen_and_serv"], []]


def test_v2_15_rmsprop() -> None:
    compiled = compile(layer(RMSProp(0.1)), job())
    assert blocks(compiled)[1:] == [["sum", "scale", "rmsprop"]] * 2
    held = compiled.pserver(SERVERS[0]).main.main_block.vars
    assert [held[f"fc_w_{state}_0"].shape for state in ("momentum", "mean_square")] == [(500, 1000)] * 2


def test_v2_16_adam_updates_its_powers_itself() -> None:
    # 1.3 has two scale ops after adam.
    assert blocks(compile(layer(Adam(0.1)), job()))[1:] == [["sum", "scale", "adam"]] * 2


def table(optimizer: Optimizer, *, is_distributed: bool = True) -> Module:
    """Two lookups of one table, joined, and one layer."""
    model = L.Draft(seed=1)
    ids = [L.data(model, name, [-1, 1], "i64") for name in ("a", "b")]
    rows = [L.embedding(i, (1000, 16), is_sparse=True, is_distributed=is_distributed, param_attr="table") for i in ids]
    prediction = L.fc(L.concat(rows, axis=1), 1, param_attr="fc_w", bias_attr="fc_b")
    loss = L.mean(L.square_error_cost(prediction, L.data(model, "y", [-1, 1], "f32")))
    minimize(loss, optimizer)
    return model.module()


def around(found: list[str], kind: str) -> list[str]:
    """The ops from the one after the last op that is not of the table, to the first that isn't."""
    return found[found.index(kind) :]


def test_v2_17_distributed_table() -> None:
    compiled = compile(table(Adam(0.1)), job())
    trainer = kinds(compiled.trainer(0).main)
    assert trainer[:4] == ["split_ids", "prefetch", "merge_ids", "concat"]
    last = len(trainer) - 1 - trainer[::-1].index("sum")
    assert trainer[last : last + 3] == ["sum", "split_ids", "send"]
    each = [compiled.pserver(endpoint).main for endpoint in SERVERS]
    updates = [[kinds(main, index) for index in range(1, len(main.blocks))] for main in each]
    dense, of_the_table = ["sum", "scale", "adam"], [["sum", "sgd"], ["lookup_sparse_table"], ["save"]]
    assert updates == [[dense, *of_the_table], [dense, *of_the_table]]
    assert [w.code for w in compiled.warnings] == ["table-update"]


def test_v2_18_distributed_table_asynchronous() -> None:
    compiled = compile(table(Adam(0.1)), job(mode="async"))
    of_the_table = [["sgd"], ["lookup_sparse_table"], ["save"]]
    for server in (0, 1):
        assert blocks(compiled, server) == [["listen_and_serv"], ["adam"], *of_the_table]


def test_v2_19_table_rows() -> None:
    for servers, rows in ((2, 500), (3, 334)):
        endpoints = [f"ps{i}:6174" for i in range(servers)]
        compiled = compile(table(SGD(0.1)), Job(endpoints, 2))
        for endpoint in endpoints:
            held = compiled.pserver(endpoint).main.main_block.vars["table"]
            assert (held.shape, held.kind) == ((rows, 16), VarKind.SELECTED_ROWS)


def test_v2_20_sparse_and_not_distributed() -> None:
    compiled = compile(table(SGD(0.1), is_distributed=False), job(min_block_size=1000))
    main = compiled.trainer(0).main
    trainer = kinds(main)
    assert trainer[:2] == ["distributed_lookup_table", "concat"]
    assert around(trainer, "split_selected_rows")[:2] == ["split_selected_rows", "send"]
    received = [op.outputs["Out"] for op in main.main_block.ops if op.type == "recv"]
    assert received == [("fc_b",), ("fc_w",)]


def test_v2_21_nccl2() -> None:
    compiled = compile(layer(SGD(0.1)), Job(trainers=["h0:1", "h1:2"], mode="nccl2"))
    startup = compiled.trainer(0).startup
    assert kinds(startup)[-1] == "gen_nccl_id"
    assert startup.main_block.vars["NCCLID"].kind is VarKind.RAW
