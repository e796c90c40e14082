"""A script with layer objects of the first 2.x versions and a table; its role comes from the environment."""

import numpy as np
import paddle
import paddle.distributed.fleet as fleet
import paddle.nn.functional as F
from paddle.distributed.fleet.utils.ps_util import DistributedInfer

paddle.enable_static()


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        table = paddle.ParamAttr(name="table", initializer=paddle.nn.initializer.Constant(0.1))
        self.rows = paddle.nn.Embedding(10, 4, sparse=True, weight_attr=table)
        start = paddle.ParamAttr(initializer=paddle.nn.initializer.Constant(0.2))
        self.first = paddle.nn.Linear(8, 4, weight_attr=start)
        self.last = paddle.nn.Sequential(paddle.nn.ReLU(), paddle.nn.Linear(4, 1, weight_attr=start))

    def forward(self, ids):
        rows = [paddle.reshape(self.rows(item), shape=[-1, 4]) for item in ids]
        return F.sigmoid(self.last(self.first(paddle.concat(x=rows, axis=1))))


def build():
    ids = [paddle.static.data("id%d" % number, [None, 1], "int64") for number in range(2)]
    label = paddle.static.data("label", [None, 1], "float32")
    predict = Net()(ids)
    right = paddle.cast(paddle.equal(paddle.cast(predict > 0.5, "float32"), label), "float32")
    counts = [paddle.static.create_global_var([1], 0.0, "float32", persistable=True) for _ in range(2)]
    for count, batch in zip(counts, (paddle.sum(right), paddle.sum(paddle.full_like(label, 1.0))), strict=True):
        paddle.assign(paddle.add(count, batch), count)
    return paddle.mean(F.log_loss(predict, label)), counts


fleet.init()
loss, counts = build()
strategy = fleet.DistributedStrategy()
strategy.a_sync = False
fleet.distributed_optimizer(paddle.optimizer.SGD(learning_rate=0.5), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    rng = np.random.RandomState(3)
    feeds = []
    for _ in range(6):
        ids = rng.randint(0, 10, (8, 2))
        label = (ids.sum(axis=1, keepdims=True) > 9).astype("float32")
        feeds.append({"id0": ids[:, :1], "id1": ids[:, 1:], "label": label})
        print("loss %.6f" % exe.run(feed=feeds[-1], fetch_list=[loss])[0][0])
    infer, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(infer, startup), paddle.utils.unique_name.guard():
        tested, counts = build()
    for count in counts:
        paddle.static.global_scope().var(count.name).get_tensor().set(np.zeros(1, "float32"), paddle.CPUPlace())
    infer = DistributedInfer(main_program=infer, startup_program=startup).get_dist_infer_program()
    print("loss %.6f" % exe.run(infer, feed=feeds[0], fetch_list=[tested.name])[0][0])
    print("right %.6f" % fleet.metrics.acc(counts[0].name, counts[1]))
    fleet.stop_worker()
