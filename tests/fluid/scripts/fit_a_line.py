"""A linear regression, tested by a clone, saved and loaded for inference."""

import sys

import numpy as np
import paddle
import paddle.fluid as fluid

rng = np.random.RandomState(1)
X = rng.rand(60, 13).astype("float32")
Y = (X.sum(axis=1, keepdims=True) + 0.5).astype("float32")


def samples():
    for row in range(len(X)):
        yield X[row], Y[row]


x = fluid.data(name="x", shape=[None, 13], dtype="float32")
y = fluid.data(name="y", shape=[None, 1], dtype="float32")
start = fluid.initializer.NumpyArrayInitializer(np.linspace(-0.5, 0.5, 13).astype("float32").reshape(13, 1))
y_predict = fluid.layers.fc(input=x, size=1, act=None, param_attr=fluid.ParamAttr(initializer=start))
cost = fluid.layers.square_error_cost(input=y_predict, label=y)
avg_loss = fluid.layers.mean(cost)
main, startup = fluid.default_main_program(), fluid.default_startup_program()
test_program = main.clone(for_test=True)
fluid.optimizer.SGD(learning_rate=0.01).minimize(avg_loss)

place = fluid.CPUPlace()
exe = fluid.Executor(place)
exe.run(startup)
feeder = fluid.DataFeeder(place=place, feed_list=[x, y])
reader = paddle.batch(samples, batch_size=20)
for epoch in range(2):
    for data in reader():
        (loss,) = exe.run(main, feed=feeder.feed(data), fetch_list=[avg_loss])
        print("loss %.7f" % loss[0])
accumulated = [exe.run(test_program, feed=feeder.feed(data), fetch_list=[avg_loss])[0] for data in reader()]
print("loss %.7f" % np.mean(accumulated))
fluid.io.save_inference_model(sys.argv[1], ["x"], [y_predict], exe)
with fluid.scope_guard(fluid.core.Scope()):
    program, feeds, fetches = fluid.io.load_inference_model(sys.argv[1], exe)
    assert feeds == ["x"]
    results = exe.run(program, feed={feeds[0]: X[:2]}, fetch_list=fetches)
    print("loss %.7f" % results[0][1][0])
