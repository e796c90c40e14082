"""Fluid's `nets`: common combinations of layers."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid import layers
from pstranspile.fluid.graph.values import several
from pstranspile.fluid.layers.adapt import adapt
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends.layers import sequence

L: Any = layers

sequence_conv_pool = adapt(
    sequence.sequence_conv_pool,
    "input, num_filters, filter_size, param_attr=None, act='sigmoid', pool_type='max', bias_attr=None",
    x="input",
)


def simple_img_conv_pool(
    input: Any,
    num_filters: int,
    filter_size: Any,
    pool_size: Any,
    pool_stride: Any,
    pool_padding: Any = 0,
    pool_type: str = "max",
    global_pooling: bool = False,
    conv_stride: Any = 1,
    conv_padding: Any = 0,
    conv_dilation: Any = 1,
    conv_groups: int = 1,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
    use_cudnn: bool = True,
) -> Any:
    """A convolution followed by a pooling."""
    features = L.conv2d(
        input,
        num_filters,
        filter_size,
        conv_stride,
        conv_padding,
        conv_dilation,
        conv_groups,
        param_attr,
        bias_attr,
        use_cudnn,
        act,
    )
    return L.pool2d(features, pool_size, pool_type, pool_stride, pool_padding, global_pooling, use_cudnn)


def img_conv_group(
    input: Any,
    conv_num_filter: Any,
    pool_size: Any,
    conv_padding: Any = 1,
    conv_filter_size: Any = 3,
    conv_act: str | None = None,
    param_attr: Any = None,
    conv_with_batchnorm: Any = False,
    conv_batchnorm_drop_rate: Any = 0.0,
    pool_stride: Any = 1,
    pool_type: str = "max",
    use_cudnn: bool = True,
) -> Any:
    """Convolutions, each with a batch norm and a dropout if asked for, followed by a pooling."""
    count = len(conv_num_filter)

    def of(given: Any, index: int) -> Any:
        if several(given):
            if len(given) != count:  # pyright: ignore[reportUnknownArgumentType]
                raise ValueError(f"there are {count} convolutions, and {len(given)} values for one of their arguments")  # pyright: ignore[reportUnknownArgumentType]
            return given[index]  # pyright: ignore[reportUnknownVariableType]
        return given

    features = input
    for index in range(count):
        normed = of(conv_with_batchnorm, index)
        features = L.conv2d(
            features,
            num_filters=conv_num_filter[index],
            filter_size=of(conv_filter_size, index),
            padding=of(conv_padding, index),
            param_attr=of(param_attr, index),
            act=None if normed else conv_act,
            use_cudnn=use_cudnn,
        )
        if normed:
            features = L.batch_norm(features, act=conv_act)
            rate = of(conv_batchnorm_drop_rate, index)
            if abs(rate) > 1e-5:
                features = L.dropout(features, dropout_prob=rate)
    return L.pool2d(features, pool_size, pool_type, pool_stride, use_cudnn=use_cudnn)


def glu(input: Any, dim: int = -1) -> Any:
    """Splits the input in two halves along `dim`, and multiplies the first by the sigmoid of the second."""
    first, second = L.split(input, num_or_sections=2, dim=dim)
    return L.elementwise_mul(first, L.sigmoid(second))


def scaled_dot_product_attention(
    queries: Any, keys: Any, values: Any, num_heads: int = 1, dropout_rate: float = 0.0
) -> Any:
    """Scaled dot-product attention of queries [batch, n, d] to keys and values, with `num_heads` heads.

    Raises TypeError where the element types differ, ValueError where the dims don't fit, or can't be divided by the
    number of heads.
    """
    if not queries.dtype == keys.dtype == values.dtype:
        raise TypeError(f"queries, keys and values are of {queries.dtype}, {keys.dtype} and {values.dtype}, not of one")
    if keys.shape[-2:-1] != values.shape[-2:-1]:
        raise ValueError("there are as many keys as values")
    if len(queries.shape) != 3 or queries.shape[-1] != keys.shape[-1]:
        raise ValueError("queries, keys and values have three dims, and queries as many columns as keys")
    if keys.shape[-1] % num_heads or values.shape[-1] % num_heads:
        raise ValueError(f"the columns can't be divided over {num_heads} heads")

    def fold(x: Any) -> Any:
        if num_heads == 1:
            return x
        parts = L.reshape(x, [0, 0, num_heads, x.shape[-1] // num_heads])
        return L.transpose(parts, [0, 2, 1, 3])

    if num_heads > 1:
        queries, keys, values = (L.fc(x, x.shape[-1], num_flatten_dims=2) for x in (queries, keys, values))
    q, k, v = fold(queries), fold(keys), fold(values)
    width = q.shape[-1]
    product = L.matmul(L.scale(q, scale=width**-0.5), k, transpose_y=True)
    weights = L.reshape(L.reshape(product, [-1, product.shape[-1]], act="softmax"), product.shape)
    if dropout_rate:
        weights = L.dropout(weights, dropout_prob=dropout_rate, is_test=False)
    context = L.matmul(weights, v)
    if num_heads == 1:
        return context
    merged = L.transpose(context, [0, 2, 1, 3])
    return L.reshape(merged, [0, 0, merged.shape[2] * merged.shape[3]])


__getattr__ = names_of_fluid(__name__, globals())
