"""A script that edits what DistributeTranspiler gave it: ops of a trainer, of its start-up program, and of servers."""

import sys

import numpy as np
import paddle.fluid as fluid

role, number, endpoints, trainers, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5]
folder = sys.argv[6]
x = fluid.layers.data(name="x", shape=[4], dtype="float32")
y = fluid.layers.data(name="y", shape=[1], dtype="float32")
w = fluid.ParamAttr(name="w", initializer=fluid.initializer.Constant(0.1))
predict = fluid.layers.fc(x, size=1, param_attr=w, bias_attr=fluid.ParamAttr(name="b"))
loss = fluid.layers.mean(fluid.layers.square_error_cost(predict, y))
fluid.optimizer.SGD(learning_rate=0.05).minimize(loss)
exe = fluid.Executor(fluid.CPUPlace())
startup = fluid.default_startup_program()
t = fluid.DistributeTranspiler()
t.transpile(number, pservers=endpoints, trainers=trainers, sync_mode=mode == "sync")


def value(name):
    return np.array(fluid.global_scope().find_var(name).get_tensor())


def serve():
    server, start = t.get_pserver_programs(endpoints.split(",")[number])
    block = server.global_block()
    listening = block.ops[-1]
    for index in listening._blocks_attr_ids("optimize_blocks"):
        update = server.block(index)
        (name,) = [op.input("Param")[0] for op in update.ops if op.type == "sgd"]
        param = block.var(name)
        update.append_op(
            type="clip", inputs={"X": [param]}, outputs={"Out": [param]}, attrs={"min": -0.12, "max": 0.12}
        )
    count = block.create_var(name="count", shape=[1], dtype="float32", persistable=True)
    made = start.global_block().create_var(name="count", shape=[1], dtype="float32", persistable=True)
    start.global_block().append_op(
        type="fill_constant", outputs={"Out": [made]}, attrs={"shape": [1], "value": 5.0, "dtype": 5}
    )
    block.append_op(type="increment", inputs={"X": [count]}, outputs={"Out": [count]}, attrs={"step": 2.0})
    block._prepend_op(type="increment", inputs={"X": [count]}, outputs={"Out": [count]}, attrs={"step": 10.0})
    exe.run(start)
    exe.run(server)
    print("served", value("count")[0])


def train():
    program = t.get_trainer_program()
    with fluid.program_guard(program, startup):
        counter = fluid.layers.create_global_var([1], 3.0, "float32", persistable=True, name="counter")
        fluid.layers.increment(counter, value=1.5)
        error = fluid.layers.mean(fluid.layers.abs(predict - y))
    exe.run(startup)
    copy = program.clone()
    with fluid.program_guard(copy, startup):
        twice = fluid.layers.scale(copy.global_block().var(loss.name), 2.0)
    test = program.clone(for_test=True)
    rng = np.random.RandomState(4)
    for step in range(6):
        rows = rng.rand(4, 4).astype("float32")
        feed = {"x": rows, "y": rows.sum(1, keepdims=True)}
        if step == 3:
            with fluid.program_guard(program, startup):
                late = fluid.layers.reduce_max(predict)
        chosen, more = (copy, [twice.name]) if step in (2, 5) else (program, [late] if step > 2 else [])
        fetched = exe.run(chosen, feed=feed, fetch_list=[loss.name, counter.name, error.name, *more])
        print("loss", *("%.6f" % item[0] for item in fetched))
    print("loss %.6f" % exe.run(test, feed=feed, fetch_list=[loss.name])[0][0])
    print("w %.6f %.6f" % (value("w")[0, 0], value("counter")[0]))
    if number == 0:
        fluid.io.save_persistables(exe, folder, program)
    never = program.global_block().create_var(name="never", shape=[1], dtype="float32")
    fluid.layers.increment(counter)
    with fluid.program_guard(program, startup):
        bad = fluid.layers.scale(never, 2.0)  # its line is named
    try:
        exe.run(program, feed=feed, fetch_list=[bad])
    except fluid.core.EnforceNotMet as problem:
        print("refused", problem)
    exe.close()


if role == "PSERVER":
    serve()
else:
    train()
