"""The next of five words: shared sparse embeddings and two layers, SGD, batches of 32 of 2,000 words."""

import numpy as np
import paddle.fluid as fluid
from timing import measure

words = [fluid.data(f"word_{at}", [None, 1], dtype="int64") for at in range(5)]
shared = fluid.ParamAttr(name="shared_w")
embedded = [
    fluid.layers.reshape(fluid.embedding(word, [2000, 32], is_sparse=True, param_attr=shared), [-1, 32])
    for word in words[:4]
]
hidden = fluid.layers.fc(fluid.layers.concat(embedded, axis=1), 256, act="sigmoid")
loss = fluid.layers.mean(fluid.layers.cross_entropy(fluid.layers.fc(hidden, 2000, act="softmax"), words[4]))
fluid.optimizer.SGD(0.001).minimize(loss)

random = np.random.RandomState(0)
feeds = [{word.name: random.randint(0, 2000, (32, 1)).astype("int64") for word in words} for _ in range(4)]
measure(loss, feeds)
