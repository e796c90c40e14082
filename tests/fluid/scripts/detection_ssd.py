"""An SSD: prior boxes of two feature maps, its loss, and what it finds."""

import numpy as np
import paddle.fluid as fluid

layers = fluid.layers


def filters(seed, *shape):
    values = np.random.RandomState(seed).uniform(-0.3, 0.3, shape).astype("float32")
    return fluid.ParamAttr(initializer=fluid.initializer.NumpyArrayInitializer(values))


image = fluid.data("image", [2, 3, 32, 32])
boxes = fluid.data("boxes", [-1, 4], lod_level=1)
labels = fluid.data("labels", [-1, 1], "int32", lod_level=1)
first = layers.conv2d(image, 4, 3, stride=4, padding=1, act="relu", param_attr=filters(1, 4, 3, 3, 3))
second = layers.conv2d(first, 4, 3, stride=2, padding=1, act="relu", param_attr=filters(2, 4, 4, 3, 3))
codes, scores, priors, variances = [], [], [], []
for number, feature in enumerate((first, second)):
    size = 8.0 * (number + 1)
    box, variance = layers.prior_box(feature, image, [size], [1.5 * size], [2.0], flip=True, clip=True)
    count = box.shape[2]
    for rows, width, seed in ((codes, 4, 3), (scores, 3, 5)):
        found = layers.conv2d(feature, count * width, 1, param_attr=filters(seed + number, count * width, 4, 1, 1))
        rows.append(layers.reshape(layers.transpose(found, [0, 2, 3, 1]), [2, -1, width]))
    priors.append(layers.reshape(box, [-1, 4]))
    variances.append(layers.reshape(variance, [-1, 4]))
codes, scores = layers.concat(codes, axis=1), layers.concat(scores, axis=1)
priors, variances = layers.concat(priors), layers.concat(variances)
priors.stop_gradient = variances.stop_gradient = True
loss = layers.reduce_sum(layers.ssd_loss(codes, scores, boxes, labels, priors, variances))
found = layers.detection_output(codes, scores, priors, variances, nms_threshold=0.45, keep_top_k=5)
fluid.optimizer.Momentum(0.02, 0.9).minimize(loss)

place = fluid.CPUPlace()
exe = fluid.Executor(place)
exe.run(fluid.default_startup_program())
draw = np.random.RandomState(0)
for step in range(6):
    low = draw.uniform(0, 0.5, (5, 2))
    corners = np.concatenate([low, low + draw.uniform(0.15, 0.5, (5, 2))], axis=1).astype("float32")
    feed = {
        "image": draw.uniform(0, 1, (2, 3, 32, 32)).astype("float32"),
        "boxes": fluid.create_lod_tensor(corners, [[2, 3]], place),
        "labels": fluid.create_lod_tensor(draw.randint(1, 3, (5, 1)).astype("int32"), [[2, 3]], place),
    }
    value, rows = exe.run(feed=feed, fetch_list=[loss, found], return_numpy=False)
    print("loss", float(np.array(value)[0]))
    print("found", float(np.array(rows)[:, 1:].sum()))
