"""Servers and a trainer whose ops the script writes itself: it sends, fetches, looks up, and has a table saved."""

import sys

import numpy as np
import paddle.fluid as fluid
from paddle.fluid.layers.io import ListenAndServ, Recv, Send
from paddle.fluid.transpiler.details import VarsDistributed, VarStruct

exe = fluid.Executor(fluid.CPUPlace())
FLOATS = fluid.core.VarDesc.VarType.FP32


def serve(endpoint, first):
    rows = np.arange(first, first + 4, dtype="float32")[:, None] * np.ones((4, 2), "float32")
    fluid.global_scope().var("table").get_tensor().set(rows, fluid.CPUPlace())
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        block = main.global_block()
        block.create_var(name="table", shape=[4, 2], dtype="float32", persistable=True)
        scaled = block.create_var(name="scaled", shape=[2, 3], dtype="float32")
        server = ListenAndServ(endpoint, ["x"], optimizer_mode=False)
        with server.do():
            x = block.create_var(name="x", shape=[2, 3], dtype="float32", persistable=True)
            fluid.layers.ops._scale(x=x, scale=float(10 + first), out=scaled)
    exe.run(main)


def train(endpoints):
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        block = main.global_block()
        block.append_op(type="fetch_barrier", inputs={}, outputs={"Out": []}, attrs={"endpoints": endpoints})
        x = block.create_var(name="x", shape=[2, 3], dtype="float32", persistable=True)
        fluid.initializer.Constant(2.0)(x, block)
        scaled = block.create_var(name="scaled", shape=[2, 3], dtype="float32", persistable=True)
        for endpoint in endpoints:
            Send(endpoint, [x])
        totals = []
        for endpoint in endpoints:
            Recv(endpoint, [scaled])
            totals.append(fluid.layers.reduce_sum(scaled))
    for value in exe.run(main, fetch_list=totals):
        print("total", float(value[0]))


def look_up(endpoints):
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        block = main.global_block()
        ids = fluid.layers.data("ids", [1], dtype="int64")
        table = block.create_var(name="W", shape=[8, 2], dtype="float32", persistable=True)
        attrs = {"remote_prefetch": True, "epmap": endpoints, "table_names": ["table"] * 2, "height_sections": [4, 4]}
        out = block.create_var(name="out", dtype="float32", shape=[-1, 2])
        block.append_op(type="lookup_table", inputs={"W": table, "Ids": ids}, outputs={"Out": out}, attrs=attrs)
    fluid.global_scope().var("W").get_tensor().set(np.zeros((8, 2), "float32"), fluid.CPUPlace())
    (rows,) = exe.run(main, feed={"ids": np.array([[6], [1], [6], [3]], "int64")}, fetch_list=[out])
    print("rows", np.asarray(rows).reshape(-1, 2)[:, 0].astype(int).tolist())


def save(endpoints, folder):
    def struct(rows):
        kind = fluid.core.VarDesc.VarType.LOD_TENSOR
        return VarStruct(name="table", shape=[rows, 2], dtype=FLOATS, type=kind, lod_level=0, persistable=True)

    overview = VarsDistributed()
    for place, endpoint in enumerate(endpoints):
        overview.add_distributed_var(struct(8), struct(4), True, place, 8 * place, "RemotePrefetch", endpoint)
    main = fluid.Program()
    main._is_distributed = main._is_chief = True
    main._parameters_on_pservers = overview
    fluid.io.save_persistables(exe, folder, main)


if sys.argv[1] == "PSERVER":
    serve(sys.argv[2], int(sys.argv[3]))
else:
    places = sys.argv[2].split(",")
    look_up(places)
    save(places, sys.argv[3])
    train(places)
    exe.close()
