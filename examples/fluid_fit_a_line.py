"""A script for Fluid 1.8: linear regression. Run it with `pstranspile fluid fluid_fit_a_line.py`."""

import numpy as np
import paddle
import paddle.fluid as fluid

STEPS = 3


def samples():
    """Features, and their sum."""
    rng = np.random.RandomState(1)
    for _ in range(32 * STEPS):
        row = rng.rand(13).astype("float32")
        yield row, row.sum(keepdims=True)


x = fluid.data(name="x", shape=[None, 13], dtype="float32")
y = fluid.data(name="y", shape=[None, 1], dtype="float32")
start = fluid.ParamAttr(initializer=fluid.initializer.Constant(0.0))
y_predict = fluid.layers.fc(input=x, size=1, param_attr=start)
avg_loss = fluid.layers.mean(fluid.layers.square_error_cost(input=y_predict, label=y))
fluid.optimizer.SGD(learning_rate=0.05).minimize(avg_loss)

exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
feeder = fluid.DataFeeder(place=fluid.CPUPlace(), feed_list=[x, y])
for data in paddle.batch(samples, batch_size=32)():
    loss = exe.run(feed=feeder.feed(data), fetch_list=[avg_loss])[0]
    print(f"loss {loss[0]:.4f}")
