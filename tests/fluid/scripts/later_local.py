"""Trainers that average their parameters in some steps only; prints what each of them has after every step."""

import sys

import numpy as np
import paddle
import paddle.distributed.fleet as fleet

paddle.enable_static()
every, begin, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
strategy = fleet.DistributedStrategy()
strategy.localsgd = True
strategy.localsgd_configs = {"k_steps": every, "begin_step": begin}
fleet.init(is_collective=True, strategy=strategy)
x = paddle.static.data("x", [None, 4])
start = paddle.ParamAttr(name="w", initializer=paddle.nn.initializer.Constant(0.2))
out = paddle.static.nn.fc(x, 1, weight_attr=start, bias_attr=False)
loss = paddle.mean(paddle.square(out - 1.0))
fleet.distributed_optimizer(getattr(paddle.optimizer, kind)(0.1)).minimize(loss)
main = paddle.static.default_main_program()
if "edited" in sys.argv:
    with paddle.static.program_guard(main):
        loss = loss + 0.0
exe = paddle.static.Executor(paddle.CPUPlace())
exe.run(paddle.static.default_startup_program())
test = main.clone(for_test=True)
rng, number, count = np.random.RandomState(0), fleet.worker_index(), fleet.worker_num()
for _ in range(8):
    rows = rng.rand(8, 4).astype("float32")[number::count]
    exe.run(main, feed={"x": rows}, fetch_list=[loss])
    exe.run(test, feed={"x": rows}, fetch_list=[out])
    held = paddle.static.global_scope().find_var("w").get_tensor()
    print("w", *np.array(held).ravel().tolist(), flush=True)
fleet.stop_worker()
