"""Attributes with values that their ops can't compute with: found by `verify`, and before a kernel runs."""

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.compiler.verify import verify
from pstranspile.ir.diagnostics import DiagnosticError, Severity
from pstranspile.ops import all_schemas
from pstranspile.ops.attributes import Limits, refusals
from pstranspile.ops.textual import parse

HEAD = """ir 1
program @main {
  block ^0 {
    temp %x : f32[-1, 6] feed
    temp %many : f32[-1, 4, 2, 3] feed
    temp %label : i64[-1, 1] feed
    temp %y : f32[]
    temp %z : f32[]
    temp %more : f32[]
"""

WRONG = [
    ("softmax(X=%x) -> Out=%y {axis=7}", "axis is 7, but X is f32[-1, 6]"),
    ("softmax(X=%x) -> Out=%y {axis=-4}", "axis is -4, but X is f32[-1, 6]"),
    ("cumsum(X=%x) -> Out=%y {axis=6}", "axis is 6, but X is f32[-1, 6]"),
    ("reverse(X=%x) -> Out=%y {axis=[8]}", "axis has 8, but X is f32[-1, 6]"),
    ("roll(X=%x) -> Out=%y {shifts=[1], dims=[8]}", "dims has 8, but X is f32[-1, 6]"),
    ("flip(X=%x) -> Out=%y {dims=[0, 2]}", "dims has 2, but X is f32[-1, 6]"),
    (
        "softmax_with_cross_entropy(Logits=%x, Label=%label) -> Softmax=%y, Loss=%z {axis=5}",
        "axis is 5, but Logits is f32[-1, 6]",
    ),
    (
        "layer_norm(X=%x) -> Y=%y, Mean=%z, Variance=%more {begin_norm_axis=7}",
        "begin_norm_axis is 7, but X is f32[-1, 6]",
    ),
    (
        "layer_norm(X=%x) -> Y=%y, Mean=%z, Variance=%more {epsilon=-500.0}",
        "epsilon is -500, it must be at least 0",
    ),
    ("flatten2(X=%x) -> Out=%y, XShape=%z {axis=9}", "axis is 9, but X is f32[-1, 6]"),
    ("flatten2(X=%x) -> Out=%y, XShape=%z {axis=-1}", "axis is -1, but X is f32[-1, 6]"),
    (
        "reshape2(X=%x) -> Out=%y, XShape=%z {shape=[-1, -1]}",
        "shape is [-1, -1]: one dim at most is -1, which stands for the rest",
    ),
    (
        "reshape2(X=%x) -> Out=%y, XShape=%z {shape=[-1, -7]}",
        "shape is [-1, -7], no dim is below -1",
    ),
    ("cast(X=%x) -> Out=%y {in_dtype=5, out_dtype=99}", "out_dtype is 99, which is the number of no element type"),
    ("fill_constant -> Out=%y {shape=[2], dtype=77}", "dtype is 77, which is the number of no element type"),
    ("fill_constant -> Out=%y {shape=[2, -3]}", "shape is [2, -3], no dim is below 0"),
    ("fill_any_like(X=%x) -> Out=%y {dtype=77}", "dtype is 77, which is the number of no element type"),
    ("reduce_sum(X=%x) -> Out=%y {out_dtype=99}", "out_dtype is 99, which is the number of no element type"),
    ("uniform_random -> Out=%y {shape=[2], min=0.1, max=-0.1}", "min is 0.1, it must be at most max, which is -0.1"),
    ("uniform_random -> Out=%y {shape=[2], min=3.0}", "min is 3, it must be at most max, which is 1"),
    ("uniform_random -> Out=%y {shape=[2], max=-3.0}", "min is -1, it must be at most max, which is -3"),
    ("dropout(X=%x) -> Out=%y, Mask=%z {dropout_prob=1.5}", "dropout_prob is 1.5, it must be from 0 to 1"),
    ("dropout(X=%x) -> Out=%y, Mask=%z {dropout_prob=nan}", "dropout_prob is nan, it must be from 0 to 1"),
    ("clip(X=%x) -> Out=%y {min=5.0, max=1.0}", "min is 5, it must be at most max, which is 1"),
    ("clip(X=%x) -> Out=%y {min=nan, max=1.0}", "min is nan, it must be at most max, which is 1"),
    (
        "slice(Input=%x) -> Out=%y {axes=[0, 1], starts=[0], ends=[1, 1]}",
        "starts is [0], axes is [0, 1]: there is one number for each axis",
    ),
    (
        "strided_slice(Input=%x) -> Out=%y {axes=[1], starts=[0], ends=[1, 1], strides=[1]}",
        "ends is [1, 1], axes is [1]: there is one number for each axis",
    ),
    (
        "roll(X=%x) -> Out=%y {shifts=[1, 2], dims=[1]}",
        "shifts is [1, 2], dims is [1]: there is one shift for each dim, or one for all without dims",
    ),
    ("reshape2(X=%x) -> Out=%y, XShape=%z", "shape is empty, and no variable gives the dims"),
    (
        'pool2d(X=%many) -> Out=%y {ksize=[1], pooling_type="max", adaptive=true}',
        "ksize is [1], but there are 2 spatial dims",
    ),
    ("maxout(X=%many) -> Out=%y {groups=2, axis=9}", "axis is 9, but X is f32[-1, 4, 2, 3]"),
    ('prelu(X=%x, Alpha=%z) -> Out=%y {mode="foo"}', "mode is 'foo', it must be one of 'all', 'channel', 'element'"),
    ("clip_by_norm(X=%x) -> Out=%y {max_norm=-1.0}", "max_norm is -1, it must be above 0"),
    ("mul(X=%x, Y=%x) -> Out=%y {x_num_col_dims=0}", "x_num_col_dims is 0, it must be at least 1"),
    ("top_k(X=%x) -> Out=%y, Indices=%z {k=0}", "k is 0, but X is f32[-1, 6]"),
    ("lrn(X=%many) -> Out=%y, MidOut=%z {n=0}", "n is 0, it must be at least 1"),
    (
        "unfold(X=%many) -> Y=%y {kernel_sizes=[1], strides=[1, 1], paddings=[0, 0, 0, 0], dilations=[1, 1]}",
        "kernel_sizes is [1], it must have 2 numbers",
    ),
    (
        "unfold(X=%many) -> Y=%y {kernel_sizes=[1, 1], strides=[1, 0], paddings=[0, 0, 0, 0], dilations=[1, 1]}",
        "strides has 0, it must be at least 1",
    ),
    ("bilinear_interp(X=%many) -> Out=%y {scale=inf}", "scale is inf, it must be finite"),
    (
        "pad2d(X=%many) -> Out=%y {paddings=[1, 1]}",
        "paddings is [1, 1], not top, bottom, left and right",
    ),
    (
        'pad2d(X=%many) -> Out=%y {paddings=[0, 0, 0, 0], data_format="nhwc"}',
        "data_format is 'nhwc', it must be one of 'NCHW', 'NHWC'",
    ),
    (
        'pool2d(X=%many) -> Out=%y {ksize=[2, 2], pooling_type="max", data_format="nhwc"}',
        "data_format is 'nhwc', it must be one of 'NCHW', 'NHWC', 'AnyLayout'",
    ),
    (
        'pool2d(X=%many) -> Out=%y {ksize=[2, 2], pooling_type="max", padding_algorithm="same"}',
        "padding_algorithm is 'same', it must be one of 'EXPLICIT', 'SAME', 'VALID'",
    ),
    (
        'conv2d(Input=%many, Filter=%many) -> Output=%y {data_format="nchw"}',
        "data_format is 'nchw', it must be one of 'NCHW', 'NHWC', 'AnyLayout'",
    ),
]


@pytest.mark.parametrize(("op", "message"), WRONG, ids=[op for op, _ in WRONG])
def test_verify_finds_it_at_the_op(op: str, message: str):
    found = [one for one in verify(parse(f"{HEAD}    {op}\n  }}\n}}\n")) if one.severity is Severity.ERROR]
    assert [(one.message.partition(": ")[2], one.location and one.location.line) for one in found] == [(message, 10)]


UNDECLARED = """ir 1
program @main {
  block ^0 {
    temp %r : f32[-1, 6, 1] feed
    temp %x : f32[]
    temp %y : f32[]
    temp %z : f32[]
    temp %more : f32[]
    squeeze2(X=%r) -> Out=%x, XShape=%z
"""


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("softmax(X=%x) -> Out=%y {axis=7}", "axis is 7, but X is float32[2, 6]"),
        ("flatten2(X=%x) -> Out=%y, XShape=%z {axis=9}", "axis is 9, but X is float32[2, 6]"),
        (
            "layer_norm(X=%x) -> Y=%y, Mean=%z, Variance=%more {begin_norm_axis=7}",
            "begin_norm_axis is 7, but X is float32[2, 6]",
        ),
    ],
)
def test_a_rank_that_only_the_run_knows(op: str, message: str):
    module = parse(f"{UNDECLARED}    {op}\n  }}\n}}\n")
    assert [one for one in verify(module) if one.severity is Severity.ERROR] == []
    with pytest.raises(DiagnosticError) as raised:
        ps.run(module.main, feed={"r": np.zeros((2, 6, 1), "float32")}, fetch=["y"])
    assert message in str(raised.value)


def test_numbers_are_not_limited_where_fluid_takes_any():
    """A deviation below 0 mirrors the numbers; a range of one number, and an axis counted from the end, are sound."""
    ops = [
        "gaussian_random -> Out=%y {shape=[2], std=-1.0}",
        "uniform_random -> Out=%y {shape=[2], min=1.0, max=1.0}",
        "softmax(X=%x) -> Out=%y {axis=-2}",
        "flatten2(X=%x) -> Out=%y, XShape=%z {axis=2}",
        "dropout(X=%x) -> Out=%y, Mask=%z {dropout_prob=1.0}",
    ]
    for op in ops:
        assert [one for one in verify(parse(f"{HEAD}    {op}\n  }}\n}}\n")) if one.severity is Severity.ERROR] == [], op


def test_what_limits_admit():
    limits = Limits(0, 2)
    assert [limits.holds(number) for number in (-1, 0, 2, 3, float("nan"))] == [False, True, True, False, False]
    assert limits.range_text == "from 0 to 2"
    assert Limits(above=0, finite=True).range_text == "finite and above 0"


def test_defaults_are_admitted():
    for schema in all_schemas().values():
        assert list(refusals(schema.defaults, schema.attrs)) == [], schema.type


def test_an_attribute_that_names_a_dim_names_a_slot_of_the_op():
    for schema in all_schemas().values():
        for name, spec in schema.attrs.items():
            slot = getattr(spec.admitted, "slot", None)
            below = getattr(spec.admitted, "below", "")
            assert slot is None or schema.forward or slot in schema.inputs, (schema.type, name)
            assert not below or schema.forward or below in schema.attrs, (schema.type, name)
