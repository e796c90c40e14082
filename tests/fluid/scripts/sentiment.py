"""Two stacked LSTMs over sentences, trained through a py_reader until it has no more data."""

import numpy as np
import paddle.fluid as fluid

DICT, EMBED, HIDDEN = 30, 6, 8


def weights(*shape):
    values = np.sin(np.arange(np.prod(shape)) * 1.3).reshape(shape) * 0.3
    return fluid.ParamAttr(initializer=fluid.initializer.NumpyArrayInitializer(values.astype("float32")))


reader = fluid.layers.py_reader(
    capacity=4, shapes=[[-1, 1], [-1, 1]], dtypes=["int64", "int64"], lod_levels=[1, 0], use_double_buffer=False
)
data, label = fluid.layers.read_file(reader)
emb = fluid.layers.embedding(input=data, size=[DICT, EMBED], param_attr=weights(DICT, EMBED))
fc1 = fluid.layers.fc(input=emb, size=HIDDEN, param_attr=weights(EMBED, HIDDEN))
lstm1, cell1 = fluid.layers.dynamic_lstm(input=fc1, size=HIDDEN, param_attr=weights(HIDDEN // 4, HIDDEN))
fc2 = fluid.layers.fc(input=[fc1, lstm1], size=HIDDEN, param_attr=[weights(HIDDEN, HIDDEN), weights(2, HIDDEN)])
lstm2, cell2 = fluid.layers.dynamic_lstm(
    input=fc2, size=HIDDEN, is_reverse=True, use_peepholes=False, param_attr=weights(HIDDEN // 4, HIDDEN)
)
pooled = [fluid.layers.sequence_pool(fc2, "max"), fluid.layers.sequence_pool(lstm2, "max")]
prediction = fluid.layers.fc(input=pooled, size=2, act="softmax", param_attr=[weights(HIDDEN, 2), weights(2, 2)])
avg_cost = fluid.layers.mean(fluid.layers.cross_entropy(input=prediction, label=label))
fluid.optimizer.Adam(learning_rate=0.02).minimize(avg_cost)


def sentences():
    rng = np.random.RandomState(7)
    for _ in range(3):
        yield [(rng.randint(0, DICT, (rng.randint(2, 6), 1)).tolist(), [n % 2]) for n in range(6)]


reader.decorate_paddle_reader(sentences)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
for epoch in range(2):
    reader.start()
    try:
        while True:
            (loss,) = exe.run(fetch_list=[avg_cost])
            print("loss %.7f" % loss[0])
    except fluid.core.EOFException:
        reader.reset()
