"""What is drawn for each op type, so that its gradient can be checked: dims by hypothesis, values away from kinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

import pstranspile as ps
from tests.frontends.autodiff.numeric import Case

Draw = Callable[[Any], Any]
CASES: dict[str, Callable[[Draw, np.random.Generator], Case]] = {}

NOT_CHECKED = {
    "increment": "its gradient counts a loop's counter back, it is no derivative",
    "shuffle_batch": "draws another order in every run",
    "split_selected_rows": "splits rows of a gradient; there is nothing to differentiate",
    "torch_step": "multiplies gradients that torch has computed, which are held against torch's own",
    "while": "checked below, in a program",
    "recurrent": "checked below, in a program",
    "conditional_block": "checked below, in a program",
    "read_from_array": "checked below, in a program with while",
    "write_to_array": "checked below, in a program with while",
    "rnn_memory_helper": "checked below, in a program with recurrent",
    "lod_tensor_to_array": "checked below, in a program with a rank table",
    "array_to_lod_tensor": "checked below, in a program with a rank table",
    "reorder_lod_tensor_by_rank": "checked below, in a program with a rank table",
    "shrink_rnn_memory": "checked below, in a program with a rank table",
    "select_input": "checked below, in a program with two branches",
    "select_output": "checked below, in a program with two branches",
    "tensor_array_to_tensor": "checked below, in a program with an array",
    "c_allreduce_sum": "needs several machines",
    "c_allgather": "needs several machines",
    "pull_sparse": "needs a server of tables",
    "pull_sparse_v2": "needs a server of tables",
    "py_func": "its gradient is what a function of the script gives",
}
"""Op types with a gradient that central differences of one op can't check, and why."""


def case(*op_types: str) -> Callable[..., Any]:
    def register(made: Callable[..., Case]) -> Callable[..., Case]:
        for op_type in op_types:
            CASES[op_type] = lambda draw, random, op_type=op_type: made(op_type, draw, random)
        return made

    return register


def dims(draw: Draw, least: int = 1, most: int = 3, upper: int = 4) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.integers(1, upper), min_size=least, max_size=most)))


def smooth(random: np.random.Generator, shape: tuple[int, ...], low: float = -1.5, high: float = 1.5) -> np.ndarray:
    return random.uniform(low, high, size=shape)


def off_zero(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return random.uniform(0.2, 1.5, size=shape) * random.choice([-1.0, 1.0], size=shape)


def distinct(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Values of which no two are near each other, so that maxima stay where they are."""
    size = int(np.prod(shape))
    return (random.permutation(size).reshape(shape) - size / 2 + 0.25) / 4


def ragged(draw: Draw, random: np.random.Generator, width: int) -> ps.LoDTensor:
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    ends = [0, *map(int, np.cumsum(lengths))]
    return ps.LoDTensor(distinct(random, (ends[-1], width)), [ends])


def unary(op_type: str, values: Callable[..., np.ndarray], **attrs: object) -> None:
    CASES[op_type] = lambda draw, random: Case(op_type, {"X": values(random, dims(draw))}, attrs)


for smooth_type in ("cos", "exp", "gelu", "logsigmoid", "sigmoid", "sin", "softplus", "softsign", "square", "tanh"):
    unary(smooth_type, smooth)
for kinked in ("abs", "relu", "reciprocal", "sign"):
    unary(kinked, off_zero)
for positive in ("log", "sqrt", "rsqrt"):
    unary(positive, lambda random, shape: random.uniform(0.3, 2.0, size=shape))
for stepped in ("ceil", "floor", "round"):
    unary(stepped, lambda random, shape: random.integers(-3, 3, size=shape) + random.uniform(0.1, 0.4, size=shape))
unary("leaky_relu", off_zero, alpha=0.1)
for smooth_type in ("atan", "erf", "stanh", "swish", "tanh_shrink", "soft_relu"):
    unary(smooth_type, smooth)
for kinked in ("elu", "relu6", "selu", "thresholded_relu"):
    unary(kinked, off_zero)
for inside in ("acos", "asin", "log1p"):
    unary(inside, lambda random, shape: random.uniform(-0.9, 0.9, size=shape))
unary("brelu", off_zero, t_min=0.0, t_max=2.0)
unary("hard_sigmoid", smooth, slope=0.2, offset=0.5)
unary("hard_swish", lambda random, shape: random.choice([-5.0, -1.3, 0.4, 2.2, 4.0], size=shape), threshold=5.0)
unary("hard_shrink", lambda random, shape: random.choice([-1.3, -0.2, 0.4, 2.2], size=shape))
unary("softshrink", lambda random, shape: random.choice([-1.3, -0.2, 0.4, 2.2], size=shape))
unary("assign", smooth)
unary("mean", smooth)
unary("squared_l2_norm", smooth)
unary("scale", smooth, scale=2.5, bias=0.5)
unary("pow", lambda random, shape: random.uniform(0.3, 2.0, size=shape), factor=1.7)
unary("clip", lambda random, shape: random.choice([-2.0, -0.4, 0.3, 1.9], size=shape), min=-1.0, max=1.0)
unary("cast", smooth, in_dtype=6, out_dtype=6)


@case("elementwise_add", "elementwise_sub", "elementwise_mul", "elementwise_div", "elementwise_pow")
def _arithmetic(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    x, y, axis = _broadcast(draw)
    low = 0.5 if op_type in ("elementwise_div", "elementwise_pow") else -1.5
    inputs = {"X": smooth(random, x, low, 2.0), "Y": smooth(random, y, low, 2.0)}
    return Case(op_type, inputs, {"axis": axis}, wrt=("X", "Y"))


@case("cumsum")
def _cumsum(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    attrs = {"exclusive": draw(st.booleans()), "reverse": draw(st.booleans())}
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    return Case(op_type, {"X": smooth(random, shape)}, {"axis": axis, **attrs})


@case("elementwise_max", "elementwise_min")
def _larger(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    x, y, axis = _broadcast(draw)
    inputs = {"X": distinct(random, x), "Y": distinct(random, y) + 0.11}
    return Case(op_type, inputs, {"axis": axis}, wrt=("X", "Y"))


def _broadcast(draw: Draw) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    x = dims(draw)
    start = draw(st.integers(0, len(x) - 1))
    stop = draw(st.integers(start + 1, len(x)))
    return x, x[start:stop], start if stop < len(x) else draw(st.sampled_from([-1, start]))


@case("softmax")
def _softmax(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    return Case(op_type, {"X": smooth(random, shape)}, {"axis": draw(st.integers(-len(shape), len(shape) - 1))})


@case("reduce_sum", "reduce_mean", "reduce_prod", "reduce_max", "reduce_min")
def _reduction(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    chosen = draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, max_size=len(shape), unique=True))
    values = distinct(random, shape) if op_type in ("reduce_max", "reduce_min") else off_zero(random, shape)
    whole = len(chosen) == len(shape)
    attrs = {"dim": sorted(chosen), "keep_dim": draw(st.booleans()) and not whole, "reduce_all": whole}
    return Case(op_type, {"X": values}, attrs)


@case("sum")
def _sum(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    return Case(op_type, {"X": [smooth(random, shape) for _ in range(draw(st.integers(1, 3)))]})


@case("mul")
def _mul(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    left, inner, right = dims(draw, 1, 2), dims(draw, 1, 2), dims(draw, 1, 2)
    inputs = {"X": smooth(random, (*left, *inner)), "Y": smooth(random, (*inner, *right))}
    return Case(op_type, inputs, {"x_num_col_dims": len(left), "y_num_col_dims": len(inner)}, wrt=("X", "Y"))


@case("matmul")
def _matmul(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    batch = dims(draw, 0, 2, 3)
    rows, inner, columns = dims(draw, 3, 3)
    x_turned, y_turned = draw(st.booleans()), draw(st.booleans())
    x = (*batch, inner, rows) if x_turned else (*batch, rows, inner)
    y = (*batch, columns, inner) if y_turned else (*batch, inner, columns)
    attrs = {"transpose_X": x_turned, "transpose_Y": y_turned, "alpha": 1.5}
    return Case(op_type, {"X": smooth(random, x), "Y": smooth(random, y)}, attrs, wrt=("X", "Y"))


@case("squared_l2_distance")
def _distance(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw, 2, 2)
    inputs = {"X": smooth(random, shape), "Y": smooth(random, shape)}
    return Case(op_type, inputs, wrt=("X", "Y"), others=("sub_result",))


@case("cos_sim")
def _cos_sim(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw, 2, 2)
    inputs = {"X": off_zero(random, shape), "Y": off_zero(random, shape)}
    return Case(op_type, inputs, wrt=("X", "Y"), others=("XNorm", "YNorm"))


# Shapes and parts


@case("reshape", "reshape2")
def _reshape(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    others = ("XShape",) if op_type == "reshape2" else ()
    return Case(op_type, {"X": smooth(random, shape)}, {"shape": [-1, shape[-1]]}, others=others)


@case("transpose", "transpose2")
def _transpose(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    order = draw(st.permutations(range(len(shape))))
    others = ("XShape",) if op_type == "transpose2" else ()
    return Case(op_type, {"X": smooth(random, shape)}, {"axis": order}, others=others)


@case("squeeze", "squeeze2", "unsqueeze", "unsqueeze2", "flatten", "flatten2")
def _other_dims(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    others = ("XShape",) if op_type.endswith("2") else ()
    if op_type.startswith("flatten"):
        return Case(op_type, {"X": smooth(random, shape)}, {"axis": draw(st.integers(0, len(shape)))}, others=others)
    if op_type.startswith("squeeze"):
        return Case(op_type, {"X": smooth(random, (shape[0], 1, *shape[1:]))}, {"axes": [1]}, others=others)
    return Case(op_type, {"X": smooth(random, shape)}, {"axes": [draw(st.integers(0, len(shape)))]}, others=others)


@case("concat", "stack")
def _joined(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    axis = draw(st.integers(0, len(shape) - 1))
    parts = [smooth(random, shape) for _ in range(draw(st.integers(1, 3)))]
    return Case(op_type, {"X": parts}, {"axis": axis}, outputs={"Y" if op_type == "stack" else "Out": 1})


@case("split", "split_byref")
def _split(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    axis = draw(st.integers(0, len(shape) - 1)) if op_type == "split" else 0
    sections = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    whole = (*shape[:axis], sum(sections), *shape[axis + 1 :])
    attrs: dict[str, object] = {"sections": sections, **({"axis": axis} if op_type == "split" else {})}
    return Case(op_type, {"X": smooth(random, whole)}, attrs, outputs={"Out": len(sections)})


@case("slice")
def _slice(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    axis = draw(st.integers(0, len(shape) - 1))
    start = draw(st.integers(0, shape[axis] - 1))
    end = draw(st.integers(start + 1, shape[axis]))
    attrs = {"axes": [axis], "starts": [start], "ends": [end], "infer_flags": [1]}
    return Case(op_type, {"Input": smooth(random, shape)}, attrs, wrt=("Input",))


@case("expand")
def _expand(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    times = [draw(st.integers(1, 3)) for _ in shape]
    return Case(op_type, {"X": smooth(random, shape)}, {"expand_times": times})


@case("gather")
def _gather(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw, 2, 3)
    index = random.integers(shape[0], size=draw(st.integers(1, 5)))
    return Case(op_type, {"X": smooth(random, shape), "Index": index}, {"overwrite": False})


@case("scatter")
def _scatter(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw, 2, 3)
    ids = random.permutation(shape[0])[: draw(st.integers(1, shape[0]))]
    updates = smooth(random, (len(ids), *shape[1:]))
    return Case(op_type, {"X": smooth(random, shape), "Ids": ids, "Updates": updates}, wrt=("X", "Updates"))


@case("top_k")
def _top_k(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw)
    return Case(op_type, {"X": distinct(random, shape)}, {"k": draw(st.integers(1, shape[-1]))}, others=("Indices",))


# Losses


def _rows(draw: Draw, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows of probabilities, and a label for each."""
    rows, classes = dims(draw, 2, 2, 5)
    x = random.uniform(0.2, 1.0, size=(rows, classes))
    return x / x.sum(axis=1, keepdims=True), random.integers(classes, size=(rows, 1))


@case("cross_entropy")
def _cross_entropy(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    x, label = _rows(draw, random)
    soft = draw(st.booleans())
    held = random.uniform(0.1, 1.0, size=x.shape) if soft else label
    return Case(op_type, {"X": x, "Label": held}, {"soft_label": soft}, outputs={"Y": 1})


@case("cross_entropy2")
def _cross_entropy2(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    x, label = _rows(draw, random)
    return Case(op_type, {"X": x, "Label": label}, outputs={"Y": 1}, others=("XShape", "MatchX"))


@case("softmax_with_cross_entropy")
def _softmax_loss(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    x, label = _rows(draw, random)
    soft = draw(st.booleans())
    inputs = {"Logits": smooth(random, x.shape), "Label": x if soft else label}
    return Case(op_type, inputs, {"soft_label": soft}, wrt=("Logits",), outputs={"Loss": 1}, others=("Softmax",))


@case("sigmoid_cross_entropy_with_logits")
def _sigmoid_loss(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = dims(draw, 2, 2)
    inputs = {"X": smooth(random, shape), "Label": random.integers(2, size=shape).astype("float64")}
    return Case(op_type, inputs, {"normalize": draw(st.booleans())})


@case("log_loss")
def _log_loss(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    rows = (draw(st.integers(1, 5)), 1)
    inputs = {"Predicted": random.uniform(0.1, 0.9, size=rows), "Labels": random.integers(2, size=rows) * 1.0}
    return Case(op_type, inputs, {"epsilon": 1e-4}, wrt=("Predicted",), outputs={"Loss": 1})


@case("huber_loss")
def _huber(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    rows = (draw(st.integers(1, 5)), 1)
    y = smooth(random, rows)
    inputs = {"X": y + random.choice([-2.0, -0.4, 0.3, 1.7], size=rows), "Y": y}
    return Case(op_type, inputs, {"delta": 1.0}, wrt=("X", "Y"), others=("Residual",))


@case("hierarchical_sigmoid")
def _hsigmoid(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    rows, width = dims(draw, 2, 2)
    classes = draw(st.integers(2, 6))
    inputs = {
        "X": smooth(random, (rows, width)),
        "W": smooth(random, (classes - 1, width)),
        "Label": random.integers(classes, size=(rows, 1)),
        "Bias": smooth(random, (classes - 1, 1)),
    }
    attrs = {"num_classes": classes}
    return Case(op_type, inputs, attrs, wrt=("X", "W", "Bias"), others=("PreOut",), same={"W_Out": "W"})


@case("nce")
def _nce(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    rows, width = dims(draw, 2, 2)
    classes = draw(st.integers(3, 7))
    inputs = {
        "Input": smooth(random, (rows, width)),
        "Label": random.integers(classes, size=(rows, 1)),
        "Weight": smooth(random, (classes, width)),
        "Bias": smooth(random, (classes, 1)),
    }
    attrs = {"num_total_classes": classes, "num_neg_samples": 2, "custom_neg_classes": [0, 2]}
    others = ("SampleLogits", "SampleLabels")
    return Case(op_type, inputs, attrs, wrt=("Input", "Weight", "Bias"), outputs={"Cost": 1}, others=others)


# Networks


@case("lookup_table", "lookup_table_v2")
def _lookup(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    rows, width = dims(draw, 2, 2)
    shape = (draw(st.integers(1, 5)), 1) if op_type == "lookup_table" else dims(draw, 1, 2)
    inputs = {"W": smooth(random, (rows, width)), "Ids": random.integers(rows, size=shape)}
    return Case(op_type, inputs, {"is_sparse": draw(st.booleans())}, wrt=("W",))


@case("fused_embedding_seq_pool")
def _pooled_lookup(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    words = ragged(draw, random, draw(st.integers(1, 2)))
    inputs = {"W": smooth(random, (4, 3)), "Ids": words._replace(data=random.integers(4, size=words.data.shape))}
    return Case(op_type, inputs, {"is_sparse": draw(st.booleans())}, wrt=("W",))


@case("conv2d", "depthwise_conv2d")
def _conv(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    batch, groups, per_group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    if op_type == "depthwise_conv2d":
        per_group = 1
    size, stride, padding, dilation = (draw(st.integers(low, 2)) for low in (1, 1, 0, 1))
    image = draw(st.integers(4, 6))
    filters = groups * draw(st.integers(1, 2))
    inputs = {
        "Input": smooth(random, (batch, groups * per_group, image, image)),
        "Filter": smooth(random, (filters, per_group, size, size)),
    }
    attrs = {"strides": [stride] * 2, "paddings": [padding] * 2, "dilations": [dilation] * 2, "groups": groups}
    return Case(op_type, inputs, attrs, wrt=("Input", "Filter"), outputs={"Output": 1})


@case("pool2d")
def _pool(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(3, 5)), draw(st.integers(3, 5)))
    kind = draw(st.sampled_from(["max", "avg"]))
    attrs = {
        "pooling_type": kind,
        "ksize": [2, 2],
        "strides": [draw(st.integers(1, 2))] * 2,
        "paddings": [draw(st.integers(0, 1))] * 2,
        "exclusive": draw(st.booleans()),
    }
    return Case(op_type, {"X": distinct(random, shape)}, attrs)


@case("batch_norm")
def _batch_norm(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    channels = draw(st.integers(1, 3))
    shape = (3, channels, 2, 2)
    fixed = draw(st.booleans())
    inputs = {
        "X": smooth(random, shape),
        "Scale": off_zero(random, (channels,)),
        "Bias": smooth(random, (channels,)),
        "Mean": smooth(random, (channels,)),
        "Variance": random.uniform(0.5, 1.5, size=channels),
    }
    same = {"MeanOut": "Mean", "VarianceOut": "Variance"}
    attrs = {"epsilon": 1e-5, "use_global_stats": fixed}
    saved = ("SavedMean", "SavedVariance")
    return Case(op_type, inputs, attrs, ("X", "Scale", "Bias"), {"Y": 1}, saved, same)


@case("layer_norm")
def _layer_norm(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    shape = (*dims(draw, 1, 2), draw(st.integers(2, 5)))
    axis = draw(st.integers(1, len(shape) - 1))
    width = (int(np.prod(shape[axis:])),)
    inputs = {"X": smooth(random, shape), "Scale": off_zero(random, width), "Bias": smooth(random, width)}
    attrs = {"begin_norm_axis": axis, "epsilon": 1e-5}
    return Case(op_type, inputs, attrs, ("X", "Scale", "Bias"), {"Y": 1}, ("Mean", "Variance"))


@case("dropout")
def _dropout(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    attrs = {
        "dropout_prob": 0.4,
        "fix_seed": True,
        "seed": draw(st.integers(1, 1000)),
        "dropout_implementation": draw(st.sampled_from(["downgrade_in_infer", "upscale_in_train"])),
    }
    return Case(op_type, {"X": smooth(random, dims(draw, 2, 3))}, attrs, others=("Mask",))


@case("print")
def _print(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    words = ("print_tensor_name", "print_tensor_type", "print_tensor_shape", "print_tensor_lod")
    attrs: dict[str, object] = {"first_n": 1, "message": "", "summarize": 1, **dict.fromkeys(words, False)}
    return Case(op_type, {"In": smooth(random, dims(draw))}, attrs, wrt=("In",))


# Sequences


@case("sequence_pool")
def _sequence_pool(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    kind = draw(st.sampled_from(["SUM", "AVERAGE", "SQRT", "MAX", "FIRST", "LAST"]))
    x = ragged(draw, random, draw(st.integers(1, 3)))
    return Case(op_type, {"X": x}, {"pooltype": kind}, others=("MaxIndex",))


@case("sequence_softmax")
def _sequence_softmax(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    return Case(op_type, {"X": ragged(draw, random, 1)})


@case("sequence_expand")
def _sequence_expand(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    y = ragged(draw, random, 1)
    x = smooth(random, (len(y.lod[0]) - 1, draw(st.integers(1, 3))))
    return Case(op_type, {"X": x, "Y": y})


@case("sequence_concat")
def _sequence_concat(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    first = ragged(draw, random, 2)
    return Case(op_type, {"X": [first, first._replace(data=smooth(random, first.data.shape))]})


@case("sequence_conv")
def _sequence_conv(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    length, width = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    inputs = {"X": ragged(draw, random, width), "Filter": smooth(random, (length * width, 2))}
    attrs = {"contextLength": length, "contextStart": -(length // 2), "contextStride": 1}
    return Case(op_type, inputs, attrs, wrt=("X", "Filter"))


@case("lod_reset")
def _lod_reset(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    x = ragged(draw, random, 2)
    return Case(op_type, {"X": x}, {"target_lod": [0, len(x.data)]})


@case("sequence_reverse")
def _sequence_reverse(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    return Case(op_type, {"X": ragged(draw, random, 2)}, outputs={"Y": 1})


@case("row_conv")
def _row_conv(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    width = draw(st.integers(1, 3))
    inputs = {"X": ragged(draw, random, width), "Filter": smooth(random, (draw(st.integers(1, 3)), width))}
    return Case(op_type, inputs, wrt=("X", "Filter"))


@case("sequence_expand_as")
def _sequence_expand_as(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    y = ragged(draw, random, 1)
    return Case(op_type, {"X": smooth(random, (len(y.lod[0]) - 1, 2)), "Y": y})


@case("sequence_reshape")
def _sequence_reshape(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    return Case(op_type, {"X": ragged(draw, random, 4)}, {"new_dim": draw(st.sampled_from([1, 2, 4]))})


@case("sequence_pad")
def _sequence_pad(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    inputs = {"X": ragged(draw, random, 2), "PadValue": np.zeros(1)}
    return Case(op_type, inputs, {"padded_length": draw(st.sampled_from([-1, 5]))}, others=("Length",))


@case("sequence_unpad")
def _sequence_unpad(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    rows, longest = dims(draw, 2, 2)
    inputs = {"X": smooth(random, (rows, longest, 2)), "Length": random.integers(1, longest + 1, size=rows)}
    return Case(op_type, inputs)


@case("sequence_slice")
def _sequence_slice(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    x = ragged(draw, random, 2)
    lengths = np.diff(x.lod[0])
    offset = random.integers(0, lengths)[:, None]
    length = random.integers(1, lengths - offset[:, 0] + 1)[:, None]
    return Case(op_type, {"X": x, "Offset": offset, "Length": length})


@case("sequence_scatter")
def _sequence_scatter(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    updates = ragged(draw, random, 1)
    rows, width = len(updates.lod[0]) - 1, 5
    ids = updates._replace(data=random.integers(width, size=(len(updates.data), 1)))
    return Case(op_type, {"X": smooth(random, (rows, width)), "Ids": ids, "Updates": updates}, wrt=("X", "Updates"))


def _both(random: np.random.Generator, rows: int) -> np.ndarray:
    """A truth value for each row, of both kinds."""
    mask = random.random((rows, 1)) < 0.5
    mask[0], mask[1] = True, False
    return mask


@case("split_lod_tensor")
def _split_lod_tensor(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    rows = draw(st.integers(2, 5))
    inputs = {"X": smooth(random, (rows, 2)), "Mask": _both(random, rows)}
    return Case(op_type, inputs, outputs={"OutTrue": 1, "OutFalse": 1})


@case("merge_lod_tensor")
def _merge_lod_tensor(op_type: str, draw: Draw, random: np.random.Generator) -> Case:
    rows = draw(st.integers(2, 5))
    mask = _both(random, rows)
    chosen = int(mask.sum())
    parts = {"InTrue": smooth(random, (chosen, 2)), "InFalse": smooth(random, (rows - chosen, 2))}
    return Case(op_type, {"X": smooth(random, (rows, 2)), "Mask": mask, **parts}, wrt=("InTrue", "InFalse"))
