"""A script of a cluster: its role and the mode come from the command line, its programs from DistributeTranspiler."""

import sys

import numpy as np
import paddle.fluid as fluid

role, number, endpoints, trainers, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5]
ids = fluid.layers.data(name="ids", shape=[1], dtype="int64", lod_level=1)
x = fluid.layers.data(name="x", shape=[4], dtype="float32")
y = fluid.layers.data(name="y", shape=[1], dtype="float32")
table = np.sin(np.arange(60)).reshape(20, 3).astype("float32")
emb = fluid.layers.embedding(
    ids,
    size=[20, 3],
    is_sparse=True,
    param_attr=fluid.ParamAttr(name="table", initializer=fluid.initializer.NumpyArrayInitializer(table)),
)
pooled = fluid.layers.sequence_pool(emb, "sum")
constant = fluid.ParamAttr(name="w", initializer=fluid.initializer.Constant(0.1))
predict = fluid.layers.fc(fluid.layers.concat([pooled, x], axis=1), size=1, param_attr=constant)
loss = fluid.layers.mean(fluid.layers.square_error_cost(predict, y))
fluid.optimizer.Adam(learning_rate=0.05).minimize(loss)


def batches():
    rng = np.random.RandomState(4)
    for _ in range(4):
        rows = []
        for index in range(4):
            row = (rng.randint(0, 20, (rng.randint(1, 4), 1)).tolist(), rng.rand(4), rng.rand(1))
            if trainers == 1 or index % 2 == number:
                rows.append(row)
        yield rows


exe = fluid.Executor(fluid.CPUPlace())
main, startup = fluid.default_main_program(), fluid.default_startup_program()
if role != "LOCAL":
    config = fluid.DistributeTranspilerConfig()
    if mode == "geo":
        config.geo_sgd_mode, config.geo_sgd_need_push_nums = True, 2
    t = fluid.DistributeTranspiler(config=config)
    t.transpile(number, program=main, pservers=endpoints, trainers=trainers, sync_mode=mode == "sync")
if role == "PSERVER":
    endpoint = endpoints.split(",")[number]
    server = t.get_pserver_program(endpoint)
    exe.run(t.get_startup_program(endpoint, server))
    exe.run(server)
    print("served")
else:
    if role == "TRAINER":
        main = t.get_trainer_program()
    exe.run(startup)
    feeder = fluid.DataFeeder([ids, x, y], fluid.CPUPlace())
    for batch in batches():
        (value,) = exe.run(main, feed=feeder.feed(batch), fetch_list=[loss.name])
        print("loss %.7f" % value[0])
    print("w %.7f" % np.array(fluid.global_scope().find_var("w").get_tensor()).sum())
    exe.close()
