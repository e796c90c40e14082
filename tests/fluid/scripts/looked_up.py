"""A script whose trainers test with copies of their program, which look up rows that are on the servers."""

import sys

import numpy as np
import paddle.fluid as fluid

role, number, endpoints, trainers, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5]
ids = fluid.layers.data(name="ids", shape=[1], dtype="int64", lod_level=1)
y = fluid.layers.data(name="y", shape=[1], dtype="float32")
emb = fluid.layers.embedding(
    ids,
    size=[20, 3],
    is_sparse=True,
    is_distributed=True,
    param_attr=fluid.ParamAttr(name="table", initializer=fluid.initializer.Constant(0.1)),
)
pooled = fluid.layers.sequence_pool(emb, "sum")
predict = fluid.layers.fc(pooled, 1, param_attr=fluid.ParamAttr(name="w", initializer=fluid.initializer.Constant(0.1)))
loss = fluid.layers.mean(fluid.layers.square_error_cost(predict, y))
fluid.optimizer.SGD(learning_rate=0.05).minimize(loss)
exe = fluid.Executor(fluid.CPUPlace())
t = fluid.DistributeTranspiler()
t.transpile(number, pservers=endpoints, trainers=trainers, sync_mode=mode == "sync")
if role == "PSERVER":
    s, st = t.get_pserver_programs(endpoints.split(",")[number])
    exe.run(st)
    exe.run(s)
    print("served")
else:
    prog = t.get_trainer_program()
    test = prog.clone(for_test=True)
    exe.run(fluid.default_startup_program())
    for step in range(3):
        feed = {
            "ids": fluid.create_lod_tensor(np.array([[1], [2], [3]], "int64"), [[1, 2]], fluid.CPUPlace()),
            "y": np.ones((2, 1), "float32"),
        }
        print("loss %.7f" % exe.run(prog, feed=feed, fetch_list=[loss])[0][0])
        print("loss %.7f" % exe.run(test, feed=feed, fetch_list=[loss.name])[0][0])
    exe.close()
