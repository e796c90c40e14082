"""A script of Paddle 2.x with parameter servers: each trainer saves a model, and infers with it."""

import sys

import numpy as np
import paddle
import paddle.distributed.fleet as fleet

paddle.enable_static()
folder, kind = sys.argv[1:]
x = paddle.static.data("x", [None, 4], "float32")
ids = paddle.static.data("ids", [None, 2], "int64")
y = paddle.static.data("y", [None, 1], "float32")
named = paddle.ParamAttr(name="emb")
if kind == "rows":
    rows = paddle.static.nn.sparse_embedding(ids, [50, 4], param_attr=named)
else:
    rows = paddle.static.nn.embedding(ids, [50, 4], is_sparse=kind == "sparse", param_attr=named)
predicted = paddle.static.nn.fc(paddle.concat([x, paddle.reshape(rows, [-1, 8])], 1), 1, name="f")
loss = paddle.mean(paddle.nn.functional.square_error_cost(predicted, y))
fleet.init(is_collective=False)
strategy = fleet.DistributedStrategy()
strategy.a_sync = False
fleet.distributed_optimizer(paddle.optimizer.Adam(0.1), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    given = {"x": np.ones((4, 4), "float32"), "ids": np.arange(8).reshape(4, 2), "y": np.ones((4, 1), "float32")}
    for _ in range(3):
        exe.run(paddle.static.default_main_program(), feed=given, fetch_list=[loss])
    prefix = f"{folder}/of_{fleet.worker_index()}/model"
    try:
        paddle.static.save_inference_model(prefix, [x, ids], [predicted], exe)
    except ValueError as problem:
        print("refused", problem)
    else:
        scope = paddle.static.Scope()
        with paddle.static.scope_guard(scope):
            program, feeds, fetches = paddle.static.load_inference_model(prefix, exe)
            (out,) = exe.run(program, feed={name: given[name] for name in feeds}, fetch_list=fetches)
        (wanted,) = exe.run(paddle.static.default_main_program(), feed=given, fetch_list=[predicted])
        print("differs", float(np.abs(out - wanted).max()))
        print("types", sorted({op.type for op in program.global_block().ops}))
    fleet.stop_worker()
