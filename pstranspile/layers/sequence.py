"""Layers over ragged sequences (variables with a LoD level)."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.ir.model import TensorType
from pstranspile.layers.basic import activation, layer, layer_outputs
from pstranspile.layers.draft import Value
from pstranspile.layers.nn import bias, name_layer
from pstranspile.layers.parameters import Attr, create_parameter


def sequence_pool(x: Value, pool_type: str, *, is_test: bool = False, pad_value: float = 0.0) -> Value:
    """One row of each sequence: its `sum`, `average`, `sqrt`, `max`, `first` or `last`."""
    attrs = {"pooltype": pool_type.upper(), "is_test": is_test, "pad_value": pad_value}
    out, index = layer_outputs("sequence_pool", {"X": x}, {"Out": x.dtype, "MaxIndex": x.dtype}, attrs)
    if pool_type == "max":
        x.draft.declare(index.stopped().var._replace(tensor=TensorType(x.dtype, out.shape)))
    return out


def sequence_conv(
    x: Value,
    num_filters: int,
    filter_size: int = 3,
    *,
    filter_stride: int = 1,
    padding_start: int | None = None,
    bias_attr: Attr = None,
    param_attr: Attr = None,
    act: str | None = None,
    name: str | None = None,
) -> Value:
    """The rows around each row of a sequence, `filter_size` of them, times a weight."""
    draft = x.draft
    minted = name_layer(draft, "sequence_conv", name)
    kernel = create_parameter(draft, minted, param_attr, (filter_size * x.shape[1], num_filters), x.dtype)
    start = -(filter_size // 2) if padding_start is None else padding_start
    attrs = {"contextStride": filter_stride, "contextStart": start, "contextLength": filter_size}
    out = layer("sequence_conv", {"X": x, "Filter": kernel}, x.dtype, attrs, name=minted)
    return activation(minted, bias(minted, out, bias_attr), act)


def sequence_conv_pool(
    x: Value,
    num_filters: int,
    filter_size: int,
    *,
    param_attr: Attr = None,
    act: str | None = "sigmoid",
    pool_type: str = "max",
    bias_attr: Attr = None,
) -> Value:
    """A sequence convolution and a pooling after it."""
    convolved = sequence_conv(x, num_filters, filter_size, param_attr=param_attr, act=act, bias_attr=bias_attr)
    return sequence_pool(convolved, pool_type)


def sequence_softmax(x: Value, *, use_cudnn: bool = False) -> Value:
    """softmax within each sequence."""
    return layer("sequence_softmax", {"X": x}, x.dtype, {"use_cudnn": use_cudnn})


def sequence_expand(x: Value, y: Value, *, ref_level: int = -1) -> Value:
    """Each sequence of x repeated as y's level `ref_level` says."""
    return layer("sequence_expand", {"X": x, "Y": y}, x.dtype, {"ref_level": ref_level})


def sequence_concat(values: Sequence[Value]) -> Value:
    """The sequences of all inputs, joined one by one."""
    return layer("sequence_concat", {"X": values}, values[0].dtype)
