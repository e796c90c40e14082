"""Gradients of several steps as one update, with servers; prints what the trainer has after every step."""

import sys

import numpy as np
import paddle
import paddle.distributed.fleet as fleet

paddle.enable_static()
strategy = fleet.DistributedStrategy()
strategy.a_sync = "async" in sys.argv
strategy.gradient_merge = True
strategy.gradient_merge_configs = {"k_steps": 3, "avg": "sum" not in sys.argv}
fleet.init(strategy=strategy)
x = paddle.static.data("x", [None, 4])
start = paddle.ParamAttr(name="w", initializer=paddle.nn.initializer.Constant(0.2))
out = paddle.static.nn.fc(x, 1, weight_attr=start, bias_attr=None if "adam" in sys.argv else False)
loss = paddle.mean(paddle.square(out - 1.0))
rate = paddle.optimizer.lr.ExponentialDecay(0.1, 0.5) if "decay" in sys.argv else 0.1
if "decay" in sys.argv:
    strategy.a_sync_configs = {"lr_decay_steps": 1}
made = paddle.optimizer.Adam(rate) if "adam" in sys.argv else paddle.optimizer.SGD(rate)
fleet.distributed_optimizer(made, strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    sys.exit()
exe = paddle.static.Executor(paddle.CPUPlace())
main = paddle.static.default_main_program()
exe.run(paddle.static.default_startup_program())
fleet.init_worker()
rng, number, count = np.random.RandomState(0), fleet.worker_index(), fleet.worker_num()
for _ in range(8):
    rows = rng.rand(8, 4).astype("float32")[number::count]
    exe.run(main, feed={"x": rows}, fetch_list=[loss])
    held = paddle.static.global_scope().find_var("w").get_tensor()
    print("w", *np.array(held).ravel().tolist(), flush=True)
fleet.stop_worker()
