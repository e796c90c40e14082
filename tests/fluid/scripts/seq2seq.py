"""An encoder, and a decoder written with DynamicRNN."""

import numpy as np
import paddle.fluid as fluid

DICT, WIDTH = 20, 8


def weights(*shape):
    values = np.cos(np.arange(np.prod(shape)) * 0.7).reshape(shape) * 0.3
    return fluid.ParamAttr(initializer=fluid.initializer.NumpyArrayInitializer(values.astype("float32")))


def encoder():
    src = fluid.layers.data(name="src", shape=[1], dtype="int64", lod_level=1)
    emb = fluid.layers.embedding(src, size=[DICT, WIDTH], is_sparse=True, param_attr=weights(DICT, WIDTH))
    projected = fluid.layers.fc(emb, size=WIDTH * 4, act="tanh", param_attr=weights(WIDTH, WIDTH * 4))
    hidden, _ = fluid.layers.dynamic_lstm(projected, size=WIDTH * 4, param_attr=weights(WIDTH, WIDTH * 4))
    return fluid.layers.sequence_last_step(hidden)


def decoder(context):
    trg = fluid.layers.data(name="trg", shape=[1], dtype="int64", lod_level=1)
    emb = fluid.layers.embedding(trg, size=[DICT, WIDTH], is_sparse=True, param_attr=weights(DICT, WIDTH))
    rnn = fluid.layers.DynamicRNN()
    with rnn.block():
        word = rnn.step_input(emb)
        pre_state = rnn.memory(init=context)
        extra = rnn.memory(shape=[WIDTH], value=0.1)
        state = fluid.layers.fc(
            [word, pre_state, extra], size=WIDTH, act="tanh", param_attr=[weights(WIDTH, WIDTH) for _ in range(3)]
        )
        score = fluid.layers.fc(state, size=DICT, act="softmax", param_attr=weights(WIDTH, DICT))
        rnn.update_memory(pre_state, state)
        rnn.update_memory(extra, state)
        rnn.output(score)
    return rnn()


context = encoder()
context.stop_gradient = True  # Fluid gives initial memories of a DynamicRNN no gradient
rnn_out = decoder(context)
label = fluid.layers.data(name="next", shape=[1], dtype="int64", lod_level=1)
avg_cost = fluid.layers.mean(fluid.layers.cross_entropy(input=rnn_out, label=label))
fluid.optimizer.Adagrad(
    learning_rate=0.1, regularization=fluid.regularizer.L2DecayRegularizer(regularization_coeff=0.1)
).minimize(avg_cost)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
rng = np.random.RandomState(11)
lengths = [[5, 3, 2]]
for step in range(4):
    feed = {
        name: fluid.create_lod_tensor(rng.randint(0, DICT, (10, 1)).astype("int64"), lengths, fluid.CPUPlace())
        for name in ("src", "trg", "next")
    }
    (loss,) = exe.run(fluid.default_main_program(), feed=feed, fetch_list=[avg_cost])
    print("loss %.7f" % np.array(loss)[0])
