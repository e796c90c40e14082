"""Loops, branches, a StaticRNN, operators of variables, and name scopes."""

import numpy as np
import paddle.fluid as fluid

layers = fluid.layers
x = layers.data(name="x", shape=[4], dtype="float32")
y = layers.data(name="y", shape=[1], dtype="float32")
steps = layers.data(name="steps", shape=[3, 2, 4], dtype="float32", append_batch_size=False)
steps.stop_gradient = False
weight = layers.create_parameter([4, 1], "float32", default_initializer=fluid.initializer.Constant(0.3))
rnn = layers.StaticRNN()
with rnn.step():
    word = rnn.step_input(steps)
    before = rnn.memory(shape=[-1, 4], batch_ref=word)
    after = layers.tanh(word * 0.5 + before)
    rnn.update_memory(before, after)
    rnn.step_output(after)
recurrent = rnn()
i = layers.fill_constant(shape=[1], dtype="int64", value=0)
limit = layers.fill_constant(shape=[1], dtype="int64", value=3)
total = layers.fill_constant(shape=[1], dtype="float32", value=0.0)
condition = layers.less_than(x=i, y=limit)
loop = layers.While(cond=condition)
with loop.block():
    layers.sums([total, layers.cast(i, "float32") * 1.5], out=total)
    layers.increment(i, value=1, in_place=True)
    layers.less_than(x=i, y=limit, cond=condition)
with fluid.name_scope("net"):
    prediction = layers.matmul(x, weight)
difference = prediction - y
loss = layers.mean(layers.square(difference)) + layers.reduce_mean(recurrent) / 2.0
chosen = layers.cond(total > 4.0, lambda: total * 2.0, lambda: total - 1.0)
counter = layers.while_loop(lambda a: a < 10.0, lambda a: [a + 4.0], [layers.fill_constant([1], "float32", 1.0)])[0]
rate = layers.create_global_var([1], 0.5, "float32", persistable=True, name="rate")
with layers.Switch() as switch:
    with switch.case(total > 100.0):
        layers.assign(layers.fill_constant([1], "float32", 0.9), rate)
    with switch.default():
        layers.assign(layers.fill_constant([1], "float32", 0.25), rate)
part = x[:, 1:3]
fluid.optimizer.SGD(learning_rate=0.1).minimize(loss)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
rng = np.random.RandomState(2)
for step in range(2):
    feed = {
        "x": rng.rand(5, 4).astype("float32"),
        "y": rng.rand(5, 1).astype("float32"),
        "steps": rng.rand(3, 2, 4).astype("float32"),
    }
    fetched = exe.run(feed=feed, fetch_list=[loss, total, chosen, counter, rate, part])
    for value in fetched:
        print("loss %.7f" % np.ravel(value)[-1])
