"""Four shared embeddings, Adagrad with decay, and parameters saved in one file and loaded again."""

import sys

import numpy as np
import paddle.fluid as fluid

DICT, EMBED, HIDDEN = 50, 8, 16


def constant(value):
    return fluid.ParamAttr(initializer=fluid.initializer.Constant(value))


table = np.cos(np.arange(DICT * EMBED)).reshape(DICT, EMBED).astype("float32") * 0.2
words = [fluid.layers.data(name=name, shape=[1], dtype="int64") for name in ("first", "second", "third", "fourth")]
embeds = [
    fluid.layers.embedding(
        input=word,
        size=[DICT, EMBED],
        dtype="float32",
        is_sparse=True,
        param_attr=fluid.ParamAttr(name="shared_w", initializer=fluid.initializer.NumpyArrayInitializer(table)),
    )
    for word in words
]
hidden = fluid.layers.fc(fluid.layers.concat(embeds, axis=1), HIDDEN, act="sigmoid", param_attr=constant(0.1))
final = np.sin(np.arange(HIDDEN * DICT)).reshape(HIDDEN, DICT).astype("float32")
predict = fluid.layers.fc(
    hidden, DICT, act="softmax", param_attr=fluid.ParamAttr(initializer=fluid.initializer.NumpyArrayInitializer(final))
)
next_word = fluid.layers.data(name="nextw", shape=[1], dtype="int64")
avg_cost = fluid.layers.mean(fluid.layers.cross_entropy(input=predict, label=next_word))
fluid.optimizer.Adagrad(learning_rate=3e-2).minimize(avg_cost)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
rng = np.random.RandomState(3)
feeder = fluid.DataFeeder([*words, next_word], fluid.CPUPlace())
batch = [tuple(rng.randint(0, DICT, 5)) for _ in range(12)]
for step in range(4):
    (loss,) = exe.run(feed=feeder.feed(batch), fetch_list=[avg_cost])
    print("loss %.7f" % loss[0])
fluid.io.save_persistables(exe, sys.argv[1], filename="all")
before = np.array(fluid.global_scope().find_var("shared_w").get_tensor())
tensor = fluid.global_scope().find_var("shared_w").get_tensor()
tensor.set(np.zeros_like(before), fluid.CPUPlace())
(loss,) = exe.run(feed=feeder.feed(batch), fetch_list=[avg_cost])
print("loss %.7f" % loss[0])
fluid.io.load_persistables(exe, sys.argv[1], filename="all")
assert (np.array(tensor) == before).all()
(loss,) = exe.run(feed=feeder.feed(batch), fetch_list=[avg_cost])
print("loss %.7f" % loss[0])
