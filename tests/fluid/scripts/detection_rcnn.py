"""A Faster R-CNN: anchors, proposals, the regions that train it, and its four losses."""

import numpy as np
import paddle.fluid as fluid

layers = fluid.layers


def filters(seed, *shape):
    values = np.random.RandomState(seed).uniform(-0.2, 0.2, shape).astype("float32")
    return fluid.ParamAttr(initializer=fluid.initializer.NumpyArrayInitializer(values))


image, info = fluid.data("image", [2, 3, 64, 64]), fluid.data("info", [2, 3])
boxes = fluid.data("boxes", [-1, 4], lod_level=1)
labels = fluid.data("labels", [-1, 1], "int32", lod_level=1)
crowd = fluid.data("crowd", [-1, 1], "int32", lod_level=1)
feature = layers.conv2d(image, 8, 5, stride=8, padding=2, act="relu", param_attr=filters(1, 8, 3, 5, 5))
anchors, variances = layers.anchor_generator(feature, [16.0, 32.0], [0.5, 1.0, 2.0], stride=[8.0, 8.0])
scores = layers.conv2d(feature, 6, 1, param_attr=filters(2, 6, 8, 1, 1))
codes = layers.conv2d(feature, 24, 1, param_attr=filters(3, 24, 8, 1, 1))
rois, _ = layers.generate_proposals(layers.sigmoid(scores), codes, info, anchors, variances, 200, 30, 0.7, 2.0)
rows = layers.reshape(layers.transpose(scores, [0, 2, 3, 1]), [2, -1, 1])
moves = layers.reshape(layers.transpose(codes, [0, 2, 3, 1]), [2, -1, 4])
flat = [layers.reshape(value, [-1, 4]) for value in (anchors, variances)]
got, moved, wanted, targets, weights = layers.rpn_target_assign(
    moves, rows, flat[0], flat[1], boxes, crowd, info, 64, 0.0, 0.5, 0.6, 0.3, use_random=False
)
loss = layers.mean(layers.sigmoid_cross_entropy_with_logits(got, layers.cast(wanted, "float32")))
loss += layers.mean(layers.smooth_l1(moved, targets, weights, weights, sigma=3.0))
regions, classes, places, inside, outside = layers.generate_proposal_labels(
    rois, labels, crowd, boxes, info, 16, 0.5, 0.5, 0.5, 0.0, class_nums=3, use_random=False
)
pooled = layers.roi_align(feature, regions, 3, 3, 0.125, 2) + layers.roi_pool(feature, regions, 3, 3, 0.125)
hidden = layers.fc(pooled, 10, act="relu", param_attr=filters(4, 72, 10))
kind = layers.fc(hidden, 3, param_attr=filters(5, 10, 3))
place = layers.fc(hidden, 12, param_attr=filters(6, 10, 12))
loss += layers.mean(layers.softmax_with_cross_entropy(kind, layers.cast(classes, "int64")))
loss += layers.mean(layers.smooth_l1(place, places, inside, outside))
fluid.optimizer.SGD(0.02).minimize(loss)

cpu = fluid.CPUPlace()
exe = fluid.Executor(cpu)
exe.run(fluid.default_startup_program())
draw = np.random.RandomState(0)
for step in range(5):
    low = draw.uniform(0, 30, (5, 2))
    corners = np.concatenate([low, low + draw.uniform(10, 30, (5, 2))], axis=1).astype("float32")
    feed = {
        "image": draw.uniform(0, 1, (2, 3, 64, 64)).astype("float32"),
        "info": np.array([[64, 64, 1], [60, 64, 1]], "float32"),
        "boxes": fluid.create_lod_tensor(corners, [[2, 3]], cpu),
        "labels": fluid.create_lod_tensor(draw.randint(1, 3, (5, 1)).astype("int32"), [[2, 3]], cpu),
        "crowd": fluid.create_lod_tensor(np.zeros((5, 1), "int32"), [[2, 3]], cpu),
    }
    value, count = exe.run(feed=feed, fetch_list=[loss, regions], return_numpy=False)
    print("loss", float(np.array(value)[0]))
    print("rows", len(np.array(count)))
