"""A convolutional network with a batch norm, momentum and weight decay, trained through an iterable DataLoader."""

import numpy as np
import paddle.fluid as fluid


def weights(*shape):
    values = np.sin(np.arange(np.prod(shape))).reshape(shape) * 0.1
    return fluid.ParamAttr(initializer=fluid.initializer.NumpyArrayInitializer(values.astype("float32")))


def convolutional_neural_network(img, label):
    first = fluid.nets.simple_img_conv_pool(
        img, num_filters=4, filter_size=5, pool_size=2, pool_stride=2, act="relu", param_attr=weights(4, 1, 5, 5)
    )
    first = fluid.layers.batch_norm(first)
    second = fluid.layers.conv2d(first, 6, 3, padding=1, act="relu", param_attr=weights(6, 4, 3, 3))
    second = fluid.layers.pool2d(second, pool_size=2, pool_stride=2, pool_type="avg")
    prediction = fluid.layers.fc(second, size=10, act="softmax", param_attr=weights(216, 10))
    loss = fluid.layers.cross_entropy(input=prediction, label=label)
    return prediction, fluid.layers.mean(loss), fluid.layers.accuracy(input=prediction, label=label)


def batches():
    rng = np.random.RandomState(0)
    for _ in range(4):
        yield rng.rand(8, 1, 28, 28).astype("float32"), rng.randint(0, 10, (8, 1)).astype("int64")


img = fluid.layers.data(name="img", shape=[1, 28, 28], dtype="float32")
label = fluid.layers.data(name="label", shape=[1], dtype="int64")
prediction, avg_loss, acc = convolutional_neural_network(img, label)
test_program = fluid.default_main_program().clone(for_test=True)
optimizer = fluid.optimizer.MomentumOptimizer(
    learning_rate=fluid.layers.piecewise_decay([2], [0.1, 0.05]),
    momentum=0.9,
    regularization=fluid.regularizer.L2Decay(1e-3),
)
optimizer.minimize(avg_loss)
place = fluid.CUDAPlace(0) if fluid.core.is_compiled_with_cuda() else fluid.CPUPlace()
exe = fluid.Executor(place)
exe.run(fluid.default_startup_program())
loader = fluid.io.DataLoader.from_generator(feed_list=[img, label], capacity=4, iterable=True)
loader.set_batch_generator(batches, places=place)
for data in loader():
    loss, accuracy = exe.run(fluid.default_main_program(), feed=data, fetch_list=[avg_loss, acc])
    print("loss %.7f" % float(loss[0]))
metric = fluid.metrics.Accuracy()
for image, target in batches():
    loss, accuracy = exe.run(test_program, feed={"img": image, "label": target}, fetch_list=[avg_loss.name, acc])
    metric.update(value=accuracy, weight=len(image))
    print("loss %.7f" % loss[0])
print("loss %.7f" % metric.eval())
