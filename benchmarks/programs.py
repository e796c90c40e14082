"""Training programs of any size, as Fluid's layers and Adam would write them."""

from __future__ import annotations

import sys

from pstranspile.ir.attributes import Longs, float32
from pstranspile.ir.model import MAIN, STARTUP, Block, FrozenMap, Module, Op, ParameterInfo, Program, TensorType, Var
from pstranspile.ir.types import DType, OpRole, VarKind
from pstranspile.ops.build import make_op

F32 = DType.FP32
BACKWARD, OPTIMIZE, LOSS = OpRole.BACKWARD, OpRole.OPTIMIZE, OpRole.LOSS


def interned(op: Op) -> Op:
    """The op with one object per name, as the readers of programs give it."""
    inputs, outputs = (
        FrozenMap({slot: tuple(sys.intern(name) for name in names) for slot, names in side.items()})
        for side in (op.inputs, op.outputs)
    )
    return op._replace(inputs=inputs, outputs=outputs, role_vars=tuple(sys.intern(name) for name in op.role_vars or ()))


class Training:
    """A main and a start-up program being written."""

    def __init__(self) -> None:
        self.vars: dict[str, Var] = {}
        self.forward: list[Op] = []
        self.backward: list[Op] = []  # in reverse order
        self.updates: list[tuple[str, str, Op]] = []
        self.startup_vars: dict[str, Var] = {}
        self.startup: list[Op] = []

    def temp(self, name: str, *shape: int, dtype: DType = F32) -> str:
        name = sys.intern(name)
        self.vars[name] = Var(name, VarKind.LOD_TENSOR, TensorType(dtype, shape))
        return name

    def state(self, name: str, shape: tuple[int, ...], value: float, info: ParameterInfo | None = None) -> str:
        name = sys.intern(name)
        var = Var(name, VarKind.LOD_TENSOR, TensorType(F32, shape), persistable=True, parameter=info)
        self.vars[name] = self.startup_vars[name] = var
        attrs = {"shape": Longs(shape), "dtype": F32.value, "value": float32(value)}
        self.startup.append(make_op("fill_constant", {}, {"Out": [name]}, attrs))
        return name

    def parameter(self, name: str, *shape: int) -> str:
        self.state(name, shape, 0.0, ParameterInfo())
        if len(shape) > 1:
            bound = float32((6.0 / sum(shape)) ** 0.5)
            attrs = {"shape": Longs(shape), "dtype": F32.value, "min": -bound, "max": bound, "seed": 1}
            self.startup[-1] = make_op("uniform_random", {}, {"Out": [name]}, attrs)
        self.temp(f"{name}@GRAD", *shape)
        self._adam(name, shape)
        return name

    def _adam(self, name: str, shape: tuple[int, ...]) -> None:
        if "learning_rate_0" not in self.vars:
            self.state("learning_rate_0", (1,), 0.001)
        moments = [self.state(f"{name}_moment{i}_0", shape, 0.0) for i in (1, 2)]
        powers = [self.state(f"{name}_beta{i}_pow_acc_0", (1,), b) for i, b in ((1, 0.9), (2, 0.999))]
        inputs = {
            "Param": [name],
            "Grad": [f"{name}@GRAD"],
            "LearningRate": ["learning_rate_0"],
            "Moment1": moments[:1],
            "Moment2": moments[1:],
            "Beta1Pow": powers[:1],
            "Beta2Pow": powers[1:],
        }
        outputs = {
            "ParamOut": [name],
            "Moment1Out": moments[:1],
            "Moment2Out": moments[1:],
            "Beta1PowOut": powers[:1],
            "Beta2PowOut": powers[1:],
        }
        attrs = {"lazy_mode": False, "op_namescope": "/optimizer/"}
        pair = (name, f"{name}@GRAD")
        self.updates.append((*pair, make_op("adam", inputs, outputs, attrs, role=OPTIMIZE, role_vars=pair)))

    def fc(self, layer: int, x: str, inner: int, width: int, act: str = "") -> str:
        w, b = self.parameter(f"fc_{layer}.w_0", inner, width), self.parameter(f"fc_{layer}.b_0", width)
        mul, add = self.temp(f"fc_{layer}.tmp_0", -1, width), self.temp(f"fc_{layer}.tmp_1", -1, width)
        self.forward.append(make_op("mul", {"X": [x], "Y": [w]}, {"Out": [mul]}))
        self.forward.append(make_op("elementwise_add", {"X": [mul], "Y": [b]}, {"Out": [add]}, {"axis": 1}))
        for name in (mul, add):
            self.temp(f"{name}@GRAD", -1, width)
        out = add
        needs_x = f"{x}@GRAD" in self.vars
        x_grad = {"X@GRAD": [f"{x}@GRAD"]} if needs_x else {"X@GRAD": []}
        backward = [
            make_op(
                "mul_grad",
                {"X": [x], "Y": [w], "Out@GRAD": [f"{mul}@GRAD"]},
                {**x_grad, "Y@GRAD": [f"{w}@GRAD"]},
                role=BACKWARD,
                role_vars=(w, f"{w}@GRAD"),
            ),
            make_op(
                "elementwise_add_grad",
                {"X": [mul], "Y": [b], "Out@GRAD": [f"{add}@GRAD"]},
                {"X@GRAD": [f"{mul}@GRAD"], "Y@GRAD": [f"{b}@GRAD"]},
                {"axis": 1},
                role=BACKWARD,
                role_vars=(b, f"{b}@GRAD"),
            ),
        ]
        if act:
            out = self.temp(f"fc_{layer}.tmp_2", -1, width)
            self.temp(f"{out}@GRAD", -1, width)
            self.forward.append(make_op(act, {"X": [add]}, {"Out": [out]}))
            grad = {"Out": [out], "Out@GRAD": [f"{out}@GRAD"]}
            backward.append(make_op(f"{act}_grad", grad, {"X@GRAD": [f"{add}@GRAD"]}, role=BACKWARD))
        self.backward += backward
        return out

    def embedding(self, table: int, rows: int, width: int) -> str:
        ids = self.temp(f"ids_{table}", -1, 1, dtype=DType.INT64)
        w = self.parameter(f"embedding_{table}.w_0", rows, width)
        out = self.temp(f"embedding_{table}.tmp_0", -1, width)
        self.temp(f"{out}@GRAD", -1, width)
        self.forward.append(make_op("lookup_table", {"W": [w], "Ids": [ids]}, {"Out": [out]}))
        self.backward.append(
            make_op(
                "lookup_table_grad",
                {"W": [w], "Ids": [ids], "Out@GRAD": [f"{out}@GRAD"]},
                {"W@GRAD": [f"{w}@GRAD"]},
                role=BACKWARD,
                role_vars=(w, f"{w}@GRAD"),
            )
        )
        return out

    def add_up(self, names: list[str], width: int) -> str:
        out = self.temp("sum_0.tmp_0", -1, width)
        self.temp(f"{out}@GRAD", -1, width)
        self.forward.append(make_op("sum", {"X": names}, {"Out": [out]}))
        for name in reversed(names):
            grads = {"X": [f"{out}@GRAD"]}, {"Out": [f"{name}@GRAD"]}
            self.backward.append(make_op("scale", *grads, role=BACKWARD))
        return out

    def finish(self, prediction: str) -> Module:
        """Adds a squared-error loss; updates come in order of parameter names, as `minimize` sorts them."""
        label, cost, square, loss = "y", "cost.tmp_0", "cost.tmp_1", "mean_0.tmp_0"
        for name, shape in ((label, (-1, 1)), (cost, (-1, 1)), (square, (-1, 1)), (loss, (1,))):
            self.temp(name, *shape)
            self.temp(f"{name}@GRAD", *shape)
        head = [
            make_op("elementwise_sub", {"X": [prediction], "Y": [label]}, {"Out": [cost]}),
            make_op("square", {"X": [cost]}, {"Out": [square]}),
            make_op("mean", {"X": [square]}, {"Out": [loss]}, role=LOSS),
            make_op(
                "fill_constant",
                {},
                {"Out": [f"{loss}@GRAD"]},
                {"shape": Longs([1]), "dtype": F32.value, "value": 1.0},
                role=LOSS | BACKWARD,
            ),
            make_op(
                "mean_grad",
                {"X": [square], "Out@GRAD": [f"{loss}@GRAD"]},
                {"X@GRAD": [f"{square}@GRAD"]},
                role=BACKWARD,
            ),
            make_op(
                "square_grad",
                {"X": [cost], "Out@GRAD": [f"{square}@GRAD"]},
                {"X@GRAD": [f"{cost}@GRAD"]},
                role=BACKWARD,
            ),
            make_op(
                "elementwise_sub_grad",
                {"X": [prediction], "Y": [label], "Out@GRAD": [f"{cost}@GRAD"]},
                {"X@GRAD": [f"{prediction}@GRAD"], "Y@GRAD": []},
                role=BACKWARD,
            ),
        ]
        updates = [op for _, _, op in sorted(self.updates, key=lambda row: row[0])]
        ops = tuple(interned(op) for op in (*self.forward, *head, *reversed(self.backward), *updates))
        main = Program((Block(FrozenMap(self.vars), ops),), random_seed=1)
        startup = Program((Block(FrozenMap(self.startup_vars), tuple(map(interned, self.startup))),), random_seed=1)
        return Module(FrozenMap({MAIN: main, STARTUP: startup}))


def mlp(layers: int, width: int = 64) -> Module:
    """`layers` fully connected layers with relu, and one to the prediction; Adam."""
    net = Training()
    x = net.temp("x", -1, width)
    for layer in range(layers):
        last = layer == layers - 1
        x = net.fc(layer, x, width, 1 if last else width, "" if last else "relu")
    return net.finish(x)


def embeddings(tables: int, rows: int = 1000, width: int = 16) -> Module:
    """So many dense embedding tables, summed, and one fully connected layer; Adam."""
    net = Training()
    total = net.add_up([net.embedding(table, rows, width) for table in range(tables)], width)
    return net.finish(net.fc(0, total, width, 1))


__all__ = ["Training", "embeddings", "mlp"]
