"""Sparse slots and dense features, Adam in lazy mode, gradients clipped by their global norm, an AUC."""

import numpy as np
import paddle.fluid as fluid

SLOTS, WIDTH, ROWS = 3, 4, 40


def constant(value):
    return fluid.ParamAttr(initializer=fluid.initializer.Constant(value))


dense = fluid.layers.data(name="dense", shape=[5], dtype="float32")
slots = [fluid.layers.data(name="C%d" % i, shape=[1], lod_level=1, dtype="int64") for i in range(SLOTS)]
label = fluid.layers.data(name="click", shape=[1], dtype="int64")


def embedded(slot, number):
    start = np.sin(np.arange(ROWS * WIDTH) + number).reshape(ROWS, WIDTH).astype("float32")
    attr = fluid.ParamAttr(name="table_%d" % number, initializer=fluid.initializer.NumpyArrayInitializer(start))
    table = fluid.layers.embedding(slot, size=[ROWS, WIDTH], is_sparse=True, param_attr=attr)
    return fluid.layers.sequence_pool(table, pool_type="sum")


deep = fluid.layers.concat([embedded(slot, number) for number, slot in enumerate(slots)] + [dense], axis=1)
for width in (8, 6):
    deep = fluid.layers.fc(deep, size=width, act="relu", param_attr=constant(0.1))
predict = fluid.layers.fc([deep, dense], size=2, act="softmax", param_attr=[constant(0.3), constant(0.1)])
cost = fluid.layers.cross_entropy(input=predict, label=label)
avg_cost = fluid.layers.reduce_mean(cost)
auc, batch_auc, states = fluid.layers.auc(input=predict, label=label, num_thresholds=2**8)
optimizer = fluid.optimizer.Adam(
    learning_rate=0.05, lazy_mode=True, grad_clip=fluid.clip.GradientClipByGlobalNorm(clip_norm=0.5)
)
optimizer.minimize(avg_cost)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
rng = np.random.RandomState(5)
feeder = fluid.DataFeeder(feed_list=[dense] + slots + [label], place=fluid.CPUPlace())
for step in range(4):
    samples = [
        [rng.rand(5).tolist()] + [rng.randint(0, ROWS, rng.randint(1, 4)).tolist() for _ in range(SLOTS)] + [int(n % 2)]
        for n in range(10)
    ]
    loss, value = exe.run(feed=feeder.feed(samples), fetch_list=[avg_cost, auc])
    print("loss %.7f" % loss[0])
    print("loss %.7f" % value[0])
