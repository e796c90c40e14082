"""A script with the names of the first 2.x versions; its role comes from the environment. Arguments: MODE FOLDER."""

import sys

import numpy as np
import paddle
import paddle.distributed.fleet as fleet
import paddle.distributed.fleet.base.role_maker as role_maker

paddle.enable_static()
mode, folder = sys.argv[1:]
x = paddle.static.data(name="x", shape=[None, 4], dtype="float32")
y = paddle.static.data(name="y", shape=[None, 1], dtype="float32")
constant = paddle.ParamAttr(name="w", initializer=paddle.fluid.initializer.Constant(0.1))
predict = paddle.static.nn.fc(x, 1, weight_attr=constant)
loss = paddle.static.nn.mean(paddle.static.nn.square_error_cost(predict, y))
optimizer = paddle.optimizer.Momentum(learning_rate=0.02, momentum=0.5, weight_decay=0.01)
role = role_maker.PaddleCloudRoleMaker(is_collective=mode == "collective")
fleet.init(role)
strategy = fleet.DistributedStrategy()
if mode != "collective":
    strategy.a_sync = mode != "sync"
if mode == "geo":
    strategy.a_sync_configs = {"k_steps": 2}
optimizer = fleet.distributed_optimizer(optimizer, strategy)
optimizer.minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
elif fleet.is_worker():
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    rng = np.random.RandomState(4)
    for _ in range(8):
        features = rng.rand(8, 4).astype("float32")
        rows = slice(fleet.worker_index(), None, fleet.worker_num())
        (value,) = exe.run(
            program=paddle.static.default_main_program(),
            feed={"x": features[rows], "y": features.sum(axis=1, keepdims=True)[rows]},
            fetch_list=[loss.name],
        )
        print("loss %.7f" % value[0])
    if fleet.is_first_worker():
        fleet.save_inference_model(exe, folder, ["x"], [predict])
    fleet.stop_worker()
    print("files", fleet.util.get_file_shard(["a", "b", "c"]))
