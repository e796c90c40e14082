"""A Fleet script with parameter servers, whose role the environment gives; started by launch_ps."""

import os
import sys

import numpy as np
import paddle.fluid as fluid
from paddle.fluid.incubate.fleet.base import role_maker
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy import StrategyFactory

x = fluid.layers.data(name="x", shape=[4], dtype="float32")
y = fluid.layers.data(name="y", shape=[1], dtype="float32")
constant = fluid.ParamAttr(name="w", initializer=fluid.initializer.Constant(0.1))
predict = fluid.layers.fc(x, size=1, param_attr=constant)
loss = fluid.layers.mean(fluid.layers.square_error_cost(predict, y))
strategies = {
    "sync": StrategyFactory.create_sync_strategy,
    "async": StrategyFactory.create_async_strategy,
    "half_async": StrategyFactory.create_half_async_strategy,
    "geo": lambda: StrategyFactory.create_geo_strategy(2),
}
fleet.init(role_maker.PaddleCloudRoleMaker())
optimizer = (fluid.optimizer.Adagrad if sys.argv[1] == "half_async" else fluid.optimizer.SGD)(
    learning_rate=fluid.layers.exponential_decay(0.2, decay_steps=2, decay_rate=0.5, staircase=True)
    if sys.argv[1] == "sync"
    else 0.02
)
fleet.distributed_optimizer(optimizer, strategies[sys.argv[1]]()).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    print("served")
elif fleet.is_worker():
    exe = fluid.Executor(fluid.CPUPlace())
    fleet.init_worker()
    exe.run(fleet.startup_program)
    copied = fluid.CompiledProgram(fleet.main_program.clone()).with_data_parallel(loss_name=loss.name)
    rng = np.random.RandomState(4)
    for step in range(6):
        features = rng.rand(8, 4).astype("float32")
        rows = slice(fleet.worker_index(), None, fleet.worker_num())
        feed = {"x": features[rows], "y": features.sum(axis=1, keepdims=True)[rows]}
        (value,) = exe.run(copied if step % 2 else fleet.main_program, feed=feed, fetch_list=[loss])
        print("loss %.7f" % value[0])
    if fleet.is_first_worker():
        fleet.save_persistables(exe, sys.argv[2])
        fleet.save_inference_model(exe, os.path.join(sys.argv[2], "model"), ["x"], [predict])
    fleet.stop_worker()
    print("files", fleet.split_files(["a", "b", "c"]))
