"""Handwritten digits: two convolutions with pools, Adam, batches of 64."""

import numpy as np
import paddle.fluid as fluid
from timing import measure

image = fluid.data("image", [None, 1, 28, 28])
label = fluid.data("label", [None, 1], dtype="int64")
pooled = fluid.nets.simple_img_conv_pool(image, 20, 5, pool_size=2, pool_stride=2, act="relu")
pooled = fluid.nets.simple_img_conv_pool(fluid.layers.batch_norm(pooled), 50, 5, pool_size=2, pool_stride=2, act="relu")
loss = fluid.layers.mean(fluid.layers.cross_entropy(fluid.layers.fc(pooled, 10, act="softmax"), label))
fluid.optimizer.Adam(0.001).minimize(loss)

random = np.random.RandomState(0)
images = random.rand(64, 1, 28, 28).astype("float32")
measure(loss, [{"image": images, "label": random.randint(0, 10, (64, 1)).astype("int64")}])
