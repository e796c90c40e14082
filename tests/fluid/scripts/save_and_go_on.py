"""Trains alone or in a cluster with servers from step FIRST on; arguments: ROLE NUMBER ENDPOINTS FIRST FOLDER.

Saves into FOLDER after three steps; begins from what lies there unless FIRST is 0.
"""

import sys

import numpy as np
import paddle.fluid as fluid

role, number, endpoints, first, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5]
x = fluid.layers.data(name="x", shape=[30], dtype="float32")
y = fluid.layers.data(name="y", shape=[1], dtype="float32")
constant = fluid.initializer.Constant
hidden = fluid.layers.fc(x, size=40, act="tanh", param_attr=fluid.ParamAttr("w", constant(0.05)))
predict = fluid.layers.fc(hidden, size=1, param_attr=fluid.ParamAttr("v", constant(0.1)))
loss = fluid.layers.mean(fluid.layers.square_error_cost(predict, y))
fluid.optimizer.Momentum(0.02, 0.9).minimize(loss)
exe = fluid.Executor(fluid.CPUPlace())
program = fluid.default_main_program()
if role != "LOCAL":
    config = fluid.DistributeTranspilerConfig()
    config.min_block_size = 100
    t = fluid.DistributeTranspiler(config)
    t.transpile(number, pservers=endpoints, trainers=2)
if role == "PSERVER":
    here = endpoints.split(",")[number]
    server = t.get_pserver_program(here)
    exe.run(t.get_startup_program(here, server))
    if first:
        fluid.io.load_persistables(exe, folder, server)
    exe.run(server)
    print("served")
    sys.exit(0)
exe.run(fluid.default_startup_program())
if first and role == "LOCAL":
    fluid.io.load_persistables(exe, folder, program)
rng = np.random.RandomState(4)
for step in range(6):
    features = rng.rand(8, 30).astype("float32")
    if step < first:
        continue
    rows = slice(None) if role == "LOCAL" else slice(number, None, 2)
    feed = {"x": features[rows], "y": features[:, :5].sum(axis=1, keepdims=True)[rows]}
    (value,) = exe.run(program, feed=feed, fetch_list=[loss])
    print("loss %.7f" % value[0])
    if step == 2:
        fluid.io.save_persistables(exe, folder, program)
exe.close()
