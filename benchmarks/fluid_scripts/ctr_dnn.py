"""Clicks: 26 sparse slots of ragged ids and 13 numbers, three layers, an AUC, Adam, batches of 64."""

import numpy as np
import paddle.fluid as fluid
from timing import measure

SLOTS, IDS, ROWS = 26, 10001, 64
dense = fluid.data("dense", [None, 13])
slots = [fluid.data(f"slot_{at}", [None, 1], dtype="int64", lod_level=1) for at in range(SLOTS)]
label = fluid.data("click", [None, 1], dtype="int64")
table = fluid.ParamAttr(name="table", initializer=fluid.initializer.Uniform(-0.1, 0.1))
embedded = [
    fluid.layers.sequence_pool(fluid.layers.embedding(slot, [IDS, 10], is_sparse=True, param_attr=table), "sum")
    for slot in slots
]
hidden = fluid.layers.concat([*embedded, dense], axis=1)
for width in (400, 400, 400):
    hidden = fluid.layers.fc(hidden, width, act="relu")
predicted = fluid.layers.fc(hidden, 2, act="softmax")
loss = fluid.layers.mean(fluid.layers.cross_entropy(predicted, label))
fluid.layers.auc(predicted, label, num_thresholds=2**12, slide_steps=20)
fluid.optimizer.SGD(0.0001).minimize(loss)

random = np.random.RandomState(0)


def batch():
    """Between one and three ids for every row of a slot."""
    feed = {"dense": random.rand(ROWS, 13).astype("float32")}
    feed["click"] = random.randint(0, 2, (ROWS, 1)).astype("int64")
    for slot in slots:
        lengths = random.randint(1, 4, ROWS).tolist()
        ids = random.randint(0, IDS, (sum(lengths), 1)).astype("int64")
        feed[slot.name] = fluid.create_lod_tensor(ids, [lengths], fluid.CPUPlace())
    return feed


measure(loss, [batch() for _ in range(4)])
