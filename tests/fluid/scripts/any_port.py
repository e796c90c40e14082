"""A server on any free port, of two of which it may have no parameter."""

import paddle.fluid as fluid

x = fluid.layers.data(name="x", shape=[1], dtype="float32")
y = fluid.layers.data(name="y", shape=[1], dtype="float32")
loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, size=1, bias_attr=False), y))
fluid.optimizer.SGD(0.1).minimize(loss)
t = fluid.DistributeTranspiler()
t.transpile(0, pservers="127.0.0.1:1,127.0.0.1:0", trainers=1)
main = t.get_pserver_program("127.0.0.1:0")
exe = fluid.Executor(fluid.CPUPlace())
exe.run(t.get_startup_program("127.0.0.1:0", main))
exe.run(main)
