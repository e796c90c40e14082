"""The transformer of `paddle.nn`: multi-head attention, and stacked layers that use it."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np

from pstranspile.fluid import layers
from pstranspile.fluid.graph.values import several
from pstranspile.fluid.missing import unsupported_error
from pstranspile.fluid.paddle.nn import functional
from pstranspile.fluid.paddle.nn.layer import Dropout, Layer, LayerList, LayerNorm, Linear
from pstranspile.fluid.param_attr import attr_of

L: Any = layers


def _no_cache(cache: Any) -> None:
    if cache is not None:
        raise unsupported_error("attention with a cache", "give all steps in each call")


class MultiHeadAttention(Layer):
    """Attention with `num_heads` heads: means of values, weighted for each query by its similarity to the keys."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        kdim: int | None = None,
        vdim: int | None = None,
        need_weights: bool = False,
        weight_attr: Any = None,
        bias_attr: Any = None,
    ):
        super().__init__()
        if embed_dim % num_heads:
            raise AssertionError(f"{num_heads} heads can't share {embed_dim} numbers")
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.dropout, self.need_weights = dropout, need_weights
        self.q_proj = Linear(embed_dim, embed_dim, weight_attr, bias_attr)
        self.k_proj = Linear(kdim or embed_dim, embed_dim, weight_attr, bias_attr)
        self.v_proj = Linear(vdim or embed_dim, embed_dim, weight_attr, bias_attr)
        self.out_proj = Linear(embed_dim, embed_dim, weight_attr, bias_attr)

    def _heads(self, x: Any) -> Any:
        return L.transpose(L.reshape(x, [0, 0, self.num_heads, self.head_dim]), [0, 2, 1, 3])

    def forward(self, query: Any, key: Any = None, value: Any = None, attn_mask: Any = None, cache: Any = None) -> Any:
        """The attention of the queries; `attn_mask` is added before the softmax. The weights are returned too if the
        layer is set to do so.
        """
        _no_cache(cache)
        key, value = query if key is None else key, query if value is None else value
        q, k, v = (
            self._heads(project(x)) for project, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        product = L.matmul(q, k, transpose_y=True, alpha=self.head_dim**-0.5)
        weights = L.softmax(product if attn_mask is None else L.elementwise_add(product, attn_mask))
        if self.dropout:
            weights = functional.dropout(weights, self.dropout, training=self.training)
        made = L.transpose(L.matmul(weights, v), [0, 2, 1, 3])
        made = self.out_proj(L.reshape(made, [0, 0, self.num_heads * self.head_dim]))
        return (made, weights) if self.need_weights else made


def _attrs(given: Any, count: int) -> list[Any]:
    """The attributes of `count` parts: one for each, or one for all, to whose name the part's number is appended."""
    if several(given):
        listed: list[Any] = [*given]
        if len(listed) != count:
            raise AssertionError(f"there are {len(listed)} attributes for {count} parts")
        return [None if attr is True else attr for attr in listed]
    if given is None or isinstance(given, bool):
        return [False if given is False else None] * count
    held: list[Any] = [copy(attr_of(given)) for _ in range(count)]
    for number, attr in enumerate(held):
        attr.name = attr.name and f"{attr.name}_{number}"
    return held


class _Block(Layer):
    """The base class of transformer layers: attentions and a network of two layers, each with a residual connection and
    a norm before or after it.
    """

    attentions: tuple[str, ...] = ("self_attn",)

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int,
        dropout: float = 0.1,
        activation: str = "relu",
        attn_dropout: float | None = None,
        act_dropout: float | None = None,
        normalize_before: bool = False,
        weight_attr: Any = None,
        bias_attr: Any = None,
    ):
        self._config: tuple[Any, ...] = (
            d_model,
            nhead,
            dim_feedforward,
            dropout,
            activation,
            attn_dropout,
            act_dropout,
        )
        self._config += (normalize_before, weight_attr, bias_attr)
        super().__init__()
        count = len(self.attentions) + 1
        weights, biases = _attrs(weight_attr, count), _attrs(bias_attr, count)
        for number, name in enumerate(self.attentions):
            inner = dropout if attn_dropout is None else attn_dropout
            attention = MultiHeadAttention(d_model, nhead, inner, weight_attr=weights[number], bias_attr=biases[number])
            setattr(self, name, attention)
        self.linear1 = Linear(d_model, dim_feedforward, weights[-1], biases[-1])
        self.dropout = Dropout(dropout if act_dropout is None else act_dropout)
        self.linear2 = Linear(dim_feedforward, d_model, weights[-1], biases[-1])
        self.activation, self.normalize_before = getattr(functional, activation), normalize_before
        for number in range(1, count + 1):
            setattr(self, f"norm{number}", LayerNorm(d_model))
            setattr(self, f"dropout{number}", Dropout(dropout))

    def another(self) -> _Block:
        """A new layer with the same settings, and parameters of its own."""
        return type(self)(*self._config)

    def _around(self, number: int, x: Any, part: Callable[[Any], Any]) -> Any:
        norm, dropout = self._sub_layers[f"norm{number}"], self._sub_layers[f"dropout{number}"]
        made = L.elementwise_add(x, dropout(part(norm(x) if self.normalize_before else x)))
        return made if self.normalize_before else norm(made)

    def _network(self, x: Any) -> Any:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(_Block):
    """A layer of an encoder: self-attention, then a network."""

    def forward(self, src: Any, src_mask: Any = None, cache: Any = None) -> Any:
        """The new values of the steps."""
        _no_cache(cache)
        attend: Any = self._sub_layers["self_attn"]
        return self._around(2, self._around(1, src, lambda x: attend(x, x, x, src_mask)), self._network)


class TransformerDecoderLayer(_Block):
    """A layer of a decoder: self-attention, attention to the steps of an encoder, then a network."""

    attentions = ("self_attn", "cross_attn")

    def forward(self, tgt: Any, memory: Any, tgt_mask: Any = None, memory_mask: Any = None, cache: Any = None) -> Any:
        """The new values of the steps."""
        _no_cache(cache)
        attend, look = self._sub_layers["self_attn"], self._sub_layers["cross_attn"]
        tgt = self._around(1, tgt, lambda x: attend(x, x, x, tgt_mask))
        tgt = self._around(2, tgt, lambda x: look(x, memory, memory, memory_mask))
        return self._around(3, tgt, self._network)


class _Stack(Layer):
    """Stacked layers with the same settings, followed by a norm."""

    def __init__(self, first: Any, num_layers: int, norm: Any = None):
        super().__init__()
        self.layers = LayerList([first, *(first.another() for _ in range(num_layers - 1))])
        self.norm = norm

    def _over(self, x: Any, *args: Any) -> Any:
        for layer in self.layers:
            x = layer(x, *args)
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """Stacked layers of an encoder."""

    def __init__(self, encoder_layer: Any, num_layers: int, norm: Any = None):
        super().__init__(encoder_layer, num_layers, norm)

    def forward(self, src: Any, src_mask: Any = None, cache: Any = None) -> Any:
        """The new values of the steps."""
        return self._over(src, src_mask, cache)


class TransformerDecoder(_Stack):
    """Stacked layers of a decoder."""

    def __init__(self, decoder_layer: Any, num_layers: int, norm: Any = None):
        super().__init__(decoder_layer, num_layers, norm)

    def forward(self, tgt: Any, memory: Any, tgt_mask: Any = None, memory_mask: Any = None, cache: Any = None) -> Any:
        """The new values of the steps."""
        return self._over(tgt, memory, tgt_mask, memory_mask, cache)


class Transformer(Layer):
    """An encoder, and a decoder that attends to the encoder's results."""

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str = "relu",
        attn_dropout: float | None = None,
        act_dropout: float | None = None,
        normalize_before: bool = False,
        weight_attr: Any = None,
        bias_attr: Any = None,
        custom_encoder: Any = None,
        custom_decoder: Any = None,
    ):
        super().__init__()
        self.d_model, self.nhead = d_model, nhead
        settings = (d_model, nhead, dim_feedforward, dropout, activation, attn_dropout, act_dropout, normalize_before)

        def some(given: Any, count: int) -> Any:
            if not several(given):
                return given
            listed: list[Any] = [*given]
            return [listed[0], *[listed[len(listed) // 3]] * (count - 2), listed[-1]]

        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*settings, some(weight_attr, 2), some(bias_attr, 2)),
            num_encoder_layers,
            LayerNorm(d_model),
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*settings, some(weight_attr, 3), some(bias_attr, 3)),
            num_decoder_layers,
            LayerNorm(d_model),
        )

    def forward(self, src: Any, tgt: Any, src_mask: Any = None, tgt_mask: Any = None, memory_mask: Any = None) -> Any:
        """The results of the decoder for its steps."""
        return self.decoder(tgt, self.encoder(src, src_mask), tgt_mask, memory_mask)

    def generate_square_subsequent_mask(self, length: int) -> Any:
        """The mask that keeps every step from attending to later ones."""
        return L.assign(np.triu(np.full((length, length), -np.inf, "float32"), 1))
