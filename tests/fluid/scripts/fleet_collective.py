"""A Fleet script without servers; started by launch."""

import numpy as np
import paddle.fluid as fluid
from paddle.fluid.incubate.fleet.base import role_maker
from paddle.fluid.incubate.fleet.collective import DistributedStrategy, fleet

x = fluid.data(name="x", shape=[None, 4], dtype="float32")
y = fluid.data(name="y", shape=[None, 1], dtype="float32")
constant = fluid.ParamAttr(name="w", initializer=fluid.initializer.Constant(0.1))
predict = fluid.layers.fc(x, size=1, param_attr=constant)
loss = fluid.layers.mean(fluid.layers.square_error_cost(predict, y))
fleet.init(role_maker.PaddleCloudRoleMaker(is_collective=True))
strategy = DistributedStrategy()
strategy.nccl_comm_num = 1
optimizer = fleet.distributed_optimizer(fluid.optimizer.Momentum(0.1, momentum=0.9), strategy=strategy)
optimizer.minimize(loss)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fleet.startup_program)
rng = np.random.RandomState(4)
for step in range(4):
    features = rng.rand(8, 4).astype("float32")
    rows = slice(fleet.worker_index(), None, fleet.worker_num())
    feed = {"x": features[rows], "y": features.sum(axis=1, keepdims=True)[rows]}
    (value,) = exe.run(fleet.main_program, feed=feed, fetch_list=[loss.name])
    print("loss %.7f" % value[0])
print("w %.7f" % np.array(fluid.global_scope().find_var("w").get_tensor()).sum())
