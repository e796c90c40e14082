"""A YOLOv3 with one grid: its loss, and what it finds."""

import numpy as np
import paddle.fluid as fluid

layers = fluid.layers
ANCHORS = [6, 7, 12, 10, 15, 21]


def filters(seed, *shape):
    values = np.random.RandomState(seed).uniform(-0.2, 0.2, shape).astype("float32")
    return fluid.ParamAttr(initializer=fluid.initializer.NumpyArrayInitializer(values))


image = fluid.data("image", [2, 3, 32, 32])
boxes, labels = fluid.data("boxes", [2, 4, 4]), fluid.data("labels", [2, 4], "int32")
size = fluid.data("size", [2, 2], "int32")
feature = layers.conv2d(image, 6, 3, stride=8, padding=1, act="leaky_relu", param_attr=filters(1, 6, 3, 3, 3))
grid = layers.conv2d(feature, 3 * (5 + 2), 1, param_attr=filters(2, 21, 6, 1, 1))
loss = layers.mean(layers.yolov3_loss(grid, boxes, labels, ANCHORS, [0, 1, 2], 2, 0.6, 8))
places, scores = layers.yolo_box(grid, size, ANCHORS, 2, 0.1, 8)
found = layers.multiclass_nms(places, layers.transpose(scores, [0, 2, 1]), 0.05, 20, 6, 0.45, False, 1.0, -1)
fluid.optimizer.SGD(0.01).minimize(loss)

exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
draw = np.random.RandomState(0)
for step in range(6):
    corners = np.concatenate([draw.uniform(0, 1, (2, 4, 2)), draw.uniform(0.1, 0.6, (2, 4, 2))], axis=2)
    corners[1, 3] = 0
    feed = {
        "image": draw.uniform(0, 1, (2, 3, 32, 32)).astype("float32"),
        "boxes": corners.astype("float32"),
        "labels": draw.randint(0, 2, (2, 4)).astype("int32"),
        "size": np.array([[32, 40], [60, 30]], "int32"),
    }
    value, rows = exe.run(feed=feed, fetch_list=[loss, found], return_numpy=False)
    print("loss", float(np.array(value)[0]))
    print("found", float(np.array(rows)[:, :2].sum()))
