"""A table with a row for every id, a strategy of 2.x, and figures over all trainers."""

import sys

import numpy as np
import paddle
import paddle.distributed.fleet as fleet

paddle.enable_static()
what = sys.argv[1]
IDS = np.array([[3], [1000000007], [(1 << 62) + 5], [-1], [-(1 << 63)], [3]])


def net():
    if what == "tables":
        ids = paddle.static.data("x", [None, 1], "int64")
        start = paddle.ParamAttr(name="rows", initializer=paddle.nn.initializer.Constant(0.1))
        x = paddle.static.nn.sparse_embedding(ids, [10, 4], param_attr=start)
    else:
        x = paddle.static.data("x", [None, 4])
    start = paddle.ParamAttr(name="w", initializer=paddle.nn.initializer.Constant(0.2))
    return paddle.mean(paddle.square(paddle.static.nn.fc(x, 1, weight_attr=start, bias_attr=False) - 1.0))


def main():
    strategy = fleet.DistributedStrategy()
    rate = 0.1
    if what == "merged":
        strategy.gradient_merge = True
        strategy.gradient_merge_configs = {"k_steps": 2}
        rate = paddle.optimizer.lr.StepDecay(0.5, 2)
    fleet.init(is_collective=what != "tables", strategy=strategy)
    loss = net()
    kind = paddle.optimizer.Adagrad if what == "tables" else paddle.optimizer.SGD
    fleet.distributed_optimizer(kind(learning_rate=rate)).minimize(loss)
    if fleet.is_server():
        fleet.init_server(*sys.argv[3:])
        fleet.run_server()
        return
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    rng, number, count = np.random.RandomState(0), fleet.worker_index(), fleet.worker_num()
    for _ in range(4):
        x = IDS if what == "tables" else rng.rand(8, 4).astype("float32")[number::count]
        print("loss", exe.run(paddle.static.default_main_program(), feed={"x": x}, fetch_list=[loss])[0].item())
        if what == "merged":
            rate.step()
    fleet.barrier_worker()
    print(
        "all", fleet.util.all_gather(number), fleet.util.all_reduce(np.array([number, 1.0])), fleet.metrics.max(number)
    )
    if what == "tables":
        if fleet.is_first_worker():
            fleet.save_persistables(exe, sys.argv[2])
        fleet.shrink(2)
        exe.run(paddle.static.default_main_program(), feed={"x": IDS[:2]})
        fleet.shrink(2)
        if fleet.is_first_worker():
            fleet.save_persistables(exe, sys.argv[2] + "_shrunk")
    fleet.stop_worker()


main()
