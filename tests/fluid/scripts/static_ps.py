"""A script of Paddle 2.x with parameter servers: each trainer saves a model, and infers with it."""

import sys

import numpy as np
import paddle
import paddle.distributed.fleet as fleet

paddle.enable_static()
folder, kind = sys.argv[1:3]
how = sys.argv[3] if len(sys.argv) > 3 else "sync"
x = paddle.static.data("x", [None, 4], "float32")
ids = paddle.static.data("ids", [None, 2], "int64")
y = paddle.static.data("y", [None, 1], "float32")
named = paddle.ParamAttr(name="emb")
if kind in ("rows", "many"):
    rows = paddle.static.nn.sparse_embedding(ids, [50 if kind == "rows" else 2**40, 4], param_attr=named)
elif kind == "functional":
    held = paddle.static.create_parameter([50, 4], "float32", attr=named)
    rows = paddle.nn.functional.embedding(ids, held, sparse=True)
elif kind == "layer":
    rows = paddle.nn.Embedding(50, 4, sparse=True, weight_attr=named)(ids)
else:
    rows = paddle.static.nn.embedding(ids, [50, 4], is_sparse=kind == "sparse", param_attr=named)
predicted = paddle.static.nn.fc(paddle.concat([x, paddle.reshape(rows, [-1, 8])], 1), 1, name="f")
loss = paddle.mean(paddle.nn.functional.square_error_cost(predicted, y))
cloned = paddle.static.default_main_program().clone(for_test=True)
fleet.init(is_collective=False)
strategy = fleet.DistributedStrategy()
strategy.a_sync = how == "geo"
if how == "geo":
    strategy.a_sync_configs = {"k_steps": 2}
optimizer = {
    "decay": lambda: paddle.optimizer.SGD(0.1, weight_decay=paddle.regularizer.L2Decay(0.01)),
    "lamb": lambda: paddle.optimizer.Lamb(0.1),
    "geo": lambda: paddle.optimizer.SGD(0.1),
    "begun": lambda: paddle.optimizer.SGD(0.1),
    "beyond": lambda: paddle.optimizer.SGD(0.02),
}.get(how, lambda: paddle.optimizer.Adam(0.1))()
fleet.distributed_optimizer(optimizer, strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server(**({"dirname": f"{folder}/begun", "var_names": ["emb"]} if how == "begun" else {}))
    fleet.run_server()
else:
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    number = np.array([[0, 1], [2, 3], [4, 5], [6, 7]])
    given = {"x": np.ones((4, 4), "float32"), "ids": number, "y": np.ones((4, 1), "float32")}
    beyond = {**given, "ids": np.array([[50, 3], [2**40, 51], [-1, 60], [2**62, 3]])}
    if how == "begun":
        print("first", exe.run(feed=given, fetch_list=[rows])[0].ravel().tolist())
    for _ in range(3):
        exe.run(paddle.static.default_main_program(), feed=given, fetch_list=[loss])
    if how == "beyond":
        made = [exe.run(paddle.static.default_main_program(), feed=beyond, fetch_list=[loss, rows]) for _ in range(20)]
        print("losses", float(made[0][0]), float(made[-1][0]))
        print("moved", int((made[0][1] != made[-1][1]).all(-1).sum()), "rows")
    if how == "cloned":
        try:
            exe.run(cloned, feed=given, fetch_list=[predicted])
        except Exception as problem:
            print("cloned", problem)
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
