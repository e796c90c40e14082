"""Nodes of ONNX models as Fluid's ops: what onnxruntime computes, for any number of rows."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from pstranspile import Scope, dumps, loads, run, verify
from pstranspile.ir.diagnostics import DiagnosticError
from tests.frontends.onnx.programs import floats, ids, played

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from pstranspile.frontends.onnx.importing import ImportedModel, from_onnx  # noqa: E402

helper, numpy_helper = onnx.helper, onnx.numpy_helper


def node(kind: str, inputs: str, outputs: str = "y", **attrs: Any) -> Any:
    """A node whose inputs and outputs are named in one text; `_` is a missing one."""
    names = [["" if name == "_" else name for name in text.split()] for text in (inputs, outputs)]
    return helper.make_node(kind, *names, **attrs)


class Net(NamedTuple):
    """Nodes, the constants that they read and what is fed as x, x2, ...; the first dim of this is not known before."""

    nodes: Sequence[Any]
    held: dict[str, Any]
    fed: Sequence[Any]
    version: int = 17
    free: Sequence[int] = (0,)


def model_of(net: Net) -> bytes:
    feeds = feeds_of(net)
    made = {name for held in net.nodes for name in held.output}
    outputs = [name for name in ("y", "y2", "y3") if name in made]

    def declared(name: str, value: Any) -> Any:
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        dims = [f"free{at}" if at in net.free else dim for at, dim in enumerate(value.shape)]
        return helper.make_tensor_value_info(name, kind, dims)

    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in net.held.items()]
    inputs = [declared(name, value) for name, value in feeds.items()]
    empty = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(net.nodes, "g", inputs, empty, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", net.version)], ir_version=8)
    model = onnx.shape_inference.infer_shapes(model)
    for made in model.graph.output:
        if not made.type.HasField("tensor_type"):  # ONNX infers nothing of some ops that are defined by others
            made.type.CopyFrom(helper.make_tensor_type_proto(1, [None] * net.fed[0].ndim))
    return model.SerializeToString()


def feeds_of(net: Net) -> dict[str, Any]:
    return {f"x{at + 1}" if at else "x": value for at, value in enumerate(net.fed)}


def computed(imported: ImportedModel, feed: dict[str, Any]) -> list[Any]:
    scope = Scope()
    assert imported.module.startup is not None
    run(imported.module.startup, scope=scope)
    for name, value in imported.values.items():
        scope[name] = value
    got = run(imported.module.main, feed, imported.outputs, scope)
    return [got[name] for name in imported.outputs]


def weight(*dims: int) -> Any:
    return np.random.default_rng(sum(dims)).normal(size=dims).astype("float32")


X = floats(3, 4)
SEQUENCE = floats(5, 3, 4)
IMAGE = floats(2, 4, 6, 6)
SIGNAL = floats(2, 4, 9)


def recurrent(kind: str, gates: int, extra: str = "", *, both: bool = False, **attrs: Any) -> Net:
    ways = 2 if both else 1
    held = {"w": weight(ways, gates * 6, 4), "r": weight(ways, gates * 6, 6), "b": weight(ways, gates * 12)}
    held |= {"h": weight(ways, 3, 6), "c": weight(ways, 3, 6), "p": weight(ways, 18), "lens": np.int32([5, 2, 4])}
    outputs = "y y2 y3" if kind == "LSTM" else "y y2"
    if both:
        attrs["direction"] = "bidirectional"
    made = node(kind, f"x w r {extra}", outputs, hidden_size=6, **attrs)
    return Net([made], held, [SEQUENCE], 17, (0,))


def shaped(*nodes: Any, **held: Any) -> Net:
    """Nodes after the shape s of x, whose first two dims are known when it runs only."""
    return Net([node("Shape", "x", "s"), *nodes], held, [floats(2, 3, 8)], 17, (0, 1))


I64 = np.int64
NETS: dict[str, Net] = {
    "conv of one dim": Net(
        [node("Conv", "x w b", strides=[2], pads=[2, 1], group=2)], {"w": weight(6, 2, 3), "b": weight(6)}, [SIGNAL]
    ),
    "conv that keeps dims": Net([node("Conv", "x w", auto_pad="SAME_LOWER")], {"w": weight(4, 4, 2, 2)}, [IMAGE]),
    "transposed of one dim": Net(
        [node("ConvTranspose", "x w", strides=[2], pads=[1, 1], output_padding=[1])], {"w": weight(4, 3, 3)}, [SIGNAL]
    ),
    "transposed": Net(
        [node("ConvTranspose", "x w b", strides=[2, 2], output_padding=[1, 0])],
        {"w": weight(4, 3, 3, 3), "b": weight(3)},
        [IMAGE],
    ),
    "pools of one dim": Net(
        [
            node("MaxPool", "x", "a", kernel_shape=[3], strides=[2], ceil_mode=1),
            node("AveragePool", "a", kernel_shape=[2]),
        ],
        {},
        [floats(2, 4, 10)],
    ),
    "global pool of one dim": Net([node("GlobalAveragePool", "x")], {}, [SIGNAL]),
    "batch norm of one dim": Net(
        [node("BatchNormalization", "x a b m v")],
        {"a": weight(4), "b": weight(4), "m": weight(4), "v": np.abs(weight(4))},
        [SIGNAL],
    ),
    "group norm": Net(
        [node("GroupNormalization", "x a b", num_groups=2)], {"a": weight(4), "b": weight(4)}, [IMAGE], 21
    ),
    "layer norm of scales that are broadcast": Net([node("LayerNormalization", "x a")], {"a": weight(1)}, [X]),
    "root mean square": Net([node("RMSNormalization", "x a")], {"a": weight(4)}, [X], 23),
    "slopes of elements": Net([node("PRelu", "x a")], {"a": weight(9)}, [SIGNAL]),
    "resized by cubics": Net([node("Resize", "x _ _ s", mode="cubic")], {"s": I64([2, 4, 12, 9])}, [IMAGE], 17, ()),
    "resized along axes": Net(
        [node("Resize", "x _ s", mode="linear", axes=[2, 3])], {"s": np.float32([2, 2])}, [IMAGE], 18
    ),
    "resized of one dim": Net(
        [node("Resize", "x _ s", coordinate_transformation_mode="asymmetric", nearest_mode="floor")],
        {"s": np.float32([1, 1, 2])},
        [SIGNAL],
    ),
    "depth and space": Net(
        [node("DepthToSpace", "x", "a", blocksize=2), node("SpaceToDepth", "a", blocksize=3)],
        {},
        [IMAGE],
        17,
        (0, 2, 3),
    ),
    "padded by reflection": Net([node("Pad", "x p", mode="reflect")], {"p": I64([0, 0, 1, 0, 0, 2])}, [SIGNAL]),
    "padded with the edge, and cropped": Net(
        [node("Pad", "x p _ a", mode="edge")], {"p": I64([-1, 2]), "a": I64([2])}, [SIGNAL], 18
    ),
    "padded around": Net([node("Pad", "x p", mode="wrap")], {"p": I64([0, 0, 2, 0, 0, 3])}, [SIGNAL], 19),
    "parts that differ": Net([node("Split", "x", "y y2", axis=2, num_outputs=2)], {}, [SIGNAL], 18),
    "backwards": Net(
        [node("Slice", "x a b c d")],
        {"a": I64([-1, 7]), "b": I64([-(1 << 63), 1]), "c": I64([0, 2]), "d": I64([-1, -2])},
        [SIGNAL],
    ),
    "sums up to each": Net([node("CumSum", "x a", reverse=1)], {"a": I64(1)}, [X]),
    "triangle": Net([node("Trilu", "x k", upper=0)], {"k": I64(1)}, [floats(2, 4, 4)]),
    "the least": Net([node("TopK", "x k", "y y2", axis=1, largest=0)], {"k": I64([2])}, [SIGNAL]),
    "hot": Net([node("OneHot", "x d v", axis=1)], {"d": I64(5), "v": np.float32([-1, 2])}, [ids(5, 3, 2)]),
    "columns": Net([node("Gather", "x i", axis=1)], {"i": I64([[2, -1], [0, 0]])}, [SIGNAL]),
    "elements of rows": Net([node("GatherElements", "x x2", axis=1)], {}, [SIGNAL, ids(4, 2, 3, 9)]),
    "positions": Net([node("GatherND", "x i")], {"i": I64([[0, 1], [1, -2]])}, [SIGNAL], 17, ()),
    "put at positions": Net([node("ScatterND", "x i u")], {"i": I64([[1], [0]]), "u": weight(2, 4)}, [X], 17, ()),
    "hot from the end": Net(
        [node("OneHot", "x d v", axis=1)], {"d": I64(5), "v": np.float32([-1, 2])}, [ids(13, 3, 2) - 6]
    ),
    "hot of fractions": Net(
        [node("OneHot", "x d v")], {"d": np.float32(4), "v": np.float32([0, 1])}, [np.float32([-1, 3, -4, 2])]
    ),
    "hot, whole numbers": Net([node("OneHot", "x d v")], {"d": I64([3]), "v": I64([7, 1 << 40])}, [ids(6, 4) - 3]),
    "columns from the end": Net([node("Gather", "x x2", axis=1)], {}, [SIGNAL, ids(8, 2, 2) - 4]),
    "rows of any number from the end": Net([node("Gather", "x x2")], {}, [X, np.int32([-1, 0, -3])]),
    "a column from the end": Net(
        [node("Squeeze", "x2", "s"), node("Gather", "x s", axis=1)], {}, [X, I64([-2])], 17, ()
    ),
    "table from the end": Net([node("Gather", "w x")], {"w": weight(5, 3)}, [ids(10, 3, 2) - 5]),
    "cube from the end": Net([node("Gather", "w x", axis=1)], {"w": weight(2, 5, 3)}, [ids(10, 3) - 5]),
    "elements from the end": Net([node("GatherElements", "x x2", axis=1)], {}, [SIGNAL, ids(8, 2, 3, 9) - 4]),
    "elements of any number": Net([node("GatherElements", "x x2", axis=0)], {}, [X, ids(6, 2, 4) - 3], 17, (0,)),
    "positions from the end": Net([node("GatherND", "x x2")], {}, [SIGNAL, I64([[-1, 1], [0, -4], [-2, -1]])]),
    "positions from the end, known": Net([node("GatherND", "x i")], {"i": I64([[-1, 1], [1, -4]])}, [SIGNAL]),
    "put from the end": Net([node("ScatterND", "x x2 u")], {"u": weight(2, 4)}, [X, I64([[-1], [0]])], 17, (1,)),
    "put from the end of any number": Net(
        [node("ScatterND", "x i u")], {"i": I64([[-3, -1], [1, 0]]), "u": weight(2)}, [X], 17, (0,)
    ),
    "added from the end": Net(
        [node("ScatterND", "x x2 u", reduction="add")], {"u": weight(2)}, [X, I64([[-1, -4], [-1, 0]])], 17, ()
    ),
    "elements put from the end": Net(
        [node("ScatterElements", "x x2 u")], {"u": weight(2)}, [floats(5), I64([-1, 1])], 17, ()
    ),
    "elements put, known": Net(
        [node("ScatterElements", "x i u")], {"i": I64([-5, -1]), "u": weight(2)}, [floats(5)], 17, ()
    ),
    "the last of the largest": Net(
        [node("ArgMax", "x", axis=-1, keepdims=0, select_last_index=1)], {}, [np.float32([[1, 3, 3, 0], [2, 2, 2, 2]])]
    ),
    "the last of the least of any number": Net(
        [node("ArgMin", "x", axis=-2, select_last_index=1)], {}, [np.float32([[1, 3], [1, 0], [2, 0]])]
    ),
    "the first of the largest": Net([node("ArgMax", "x", axis=-2)], {}, [np.float32([[1, 3], [1, 3], [0, 2]])]),
    "axes from the end": Net(
        [
            node("Unsqueeze", "x a", "b"),
            node("Squeeze", "b a", "c"),
            node("CumSum", "c d", "e"),
            node("ReduceSum", "e a", "f"),
            node("Split", "f", "g h", axis=-2),
            node("Concat", "g h", "k", axis=-1),
            node("Slice", "k g1 g2 a", "l"),
            node("Flatten", "l", axis=-1),
        ],
        {"a": I64([-1]), "d": I64(-2), "g1": I64([-2]), "g2": I64([-1])},
        [floats(2, 4, 3)],
        17,
        (),
    ),
    "where": Net([node("Greater", "x z", "c"), node("Where", "c x z")], {"z": np.float32(0.1)}, [X]),
    "limited whole numbers": Net([node("Clip", "x a b")], {"a": I64(1), "b": I64(3)}, [ids(9, 3, 4)]),
    "to even": Net([node("Round", "x")], {}, [np.float32([[0.5, 1.5, -2.5, 2.4]])]),
    "remainder": Net([node("Mod", "x d")], {"d": I64([3, -3, 2, 5])}, [ids(9, 3, 4) - 4]),
    "vectors": Net(
        [node("MatMul", "x v", "a"), node("MatMul", "w a")], {"v": weight(4), "w": weight(2, 3)}, [X], 17, ()
    ),
    "matrices for each": Net([node("MatMul", "w x")], {"w": weight(1, 2, 4)}, [floats(3, 4, 9)]),
    "einsum": Net([node("Einsum", "x w", equation="...bi,ijk->...bkj")], {"w": weight(4, 2, 3)}, [SEQUENCE]),
    "einsum of three": Net([node("Einsum", "x x w", equation="bi,bj,ij->b")], {"w": weight(4, 4)}, [X]),
    "logarithm of a sum": Net([node("ReduceLogSumExp", "x a", keepdims=0)], {"a": I64([1])}, [X * 90], 18),
    "norms of rows": Net(
        [node("ReduceL2", "x", "a", axes=[1]), node("LpNormalization", "x", "b", p=1), node("Mul", "a b")], {}, [X]
    ),
    "one number": Net(
        [node("ReduceMean", "x", "m", keepdims=0), node("Unsqueeze", "m z", "u"), node("Sub", "x u")],
        {"z": I64([0])},
        [X],
    ),
    "slopes below and above the line": Net(
        [node("LeakyRelu", "x", "a", alpha=1.5), node("LeakyRelu", "a", "b", alpha=-0.5), node("LeakyRelu", "b")],
        {},
        [X],
    ),
    "by its definition": Net([node("Celu", "x", "a", alpha=2.0), node("Shrink", "a", lambd=0.2)], {}, [X]),
    "repeated": Net([node("Expand", "x s")], {"s": I64([2, 1, 4])}, [X]),
    "tiled": Net([node("Tile", "x s")], {"s": I64([1, 3])}, [X]),
    "heads of any batch": shaped(
        node("Gather", "s zero", "n"),
        node("Mul", "n two", "n2"),
        node("Concat", "n2 rest", "t", axis=0),
        node("Reshape", "x t"),
        zero=I64([0]),
        two=I64([2]),
        rest=I64([-1, 4]),
    ),
    "rows times steps": shaped(
        node("Slice", "s zero two", "a"),
        node("ReduceProd", "a", "n", axes=[0]),
        node("Concat", "n eight", "t", axis=0),
        node("Reshape", "x t", "b"),
        node("Reshape", "b s"),
        zero=I64([0]),
        two=I64([2]),
        eight=I64([8]),
    ),
    "numbers of steps": shaped(
        node("Gather", "s one", "n"),
        node("Range", "z n one", "r"),
        node("Cast", "r", "f", to=1),
        node("Unsqueeze", "f one1", "u"),
        node("Add", "x u"),
        one=I64(1),
        z=I64(0),
        one1=I64([1]),
    ),
    "zeros of any dims": shaped(node("ConstantOfShape", "s", "z"), node("Concat", "x z", axis=2)),
    "up to the dims of another": Net(
        [node("Shape", "x2", "s"), node("Expand", "x s")],
        {},
        [floats(1, 4), floats(3, 4)],
        17,
        (),
    ),
    "a part up to a dim": shaped(
        node("Gather", "s one", "n"),
        node("Slice", "w z n one", "p"),
        node("Add", "x p"),
        one=I64([1]),
        z=I64([0]),
        w=weight(1, 9, 8),
    ),
    "taken once": Net([node("Identity", "x", "a"), node("Identity", "a")], {}, [X]),
    "rnn": recurrent("RNN", 1, activations=["Relu"]),
    "rnn of rows first": recurrent("RNN", 1, layout=0, clip=0.3, direction="reverse"),
    "gru": recurrent("GRU", 3, "b _ h", both=True),
    "gru of rows of their own lengths": recurrent("GRU", 3, "b lens h", both=True, linear_before_reset=1),
    "lstm": recurrent("LSTM", 4, "b _ h c", both=True),
    "lstm that sees its cell": recurrent("LSTM", 4, "b lens _ _ p", both=True),
    "hard gates": recurrent("LSTM", 4, activations=["HardSigmoid", "Tanh", "Softsign"], activation_alpha=[0.25]),
}


@pytest.mark.parametrize("name", NETS)
def test_nodes_compute_the_same(name: str):
    net = NETS[name]
    model, feed = model_of(net), feeds_of(net)
    imported = from_onnx(model)
    assert verify(loads(dumps(imported.module))) == ()
    for got, want in zip(computed(imported, feed), played(model, feed), strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape or (got.shape, want.shape) == ((1,), ())
        np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "made",
    [
        Net([node("Gather", "x i", axis=1)], {"i": I64([0, -5])}, [X]),
        Net([node("Gather", "x i", axis=1)], {"i": I64(4)}, [X]),
        Net([node("GatherElements", "x i", axis=1)], {"i": I64([[0, -5]])}, [X]),
        Net([node("GatherND", "x i")], {"i": I64([[0, 4]])}, [X], 17, ()),
        Net([node("ScatterND", "x i u")], {"i": I64([[-4]]), "u": weight(1, 4)}, [X], 17, ()),
        Net([node("ScatterElements", "x i u")], {"i": I64([5]), "u": weight(1)}, [floats(5)], 17, ()),
    ],
)
def test_known_positions_outside_are_refused(made: Net):
    with pytest.raises(DiagnosticError, match=r"node 0 .*its positions reach from"):
        from_onnx(model_of(made))


def test_positions_outside_that_come_at_run_time_end_the_run():
    net = Net([node("Gather", "w x")], {"w": weight(5, 3)}, [ids(5, 3)])
    imported = from_onnx(model_of(net))
    for outside in (5, -6):
        with pytest.raises(DiagnosticError, match="lookup_table_v2"):
            computed(imported, {"x": I64([outside, 0, 0])})
