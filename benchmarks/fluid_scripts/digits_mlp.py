"""Handwritten digits: three fully connected layers, Adam, batches of 64."""

import numpy as np
import paddle.fluid as fluid
from timing import measure

image = fluid.data("image", [None, 784])
label = fluid.data("label", [None, 1], dtype="int64")
hidden = fluid.layers.fc(fluid.layers.fc(image, 200, act="tanh"), 200, act="tanh")
loss = fluid.layers.mean(fluid.layers.cross_entropy(fluid.layers.fc(hidden, 10, act="softmax"), label))
fluid.optimizer.Adam(0.001).minimize(loss)

random = np.random.RandomState(0)
batch = {"image": random.rand(64, 784).astype("float32"), "label": random.randint(0, 10, (64, 1)).astype("int64")}
measure(loss, [batch])
