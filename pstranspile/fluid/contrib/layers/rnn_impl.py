"""Fluid's `contrib.layers.rnn_impl`: networks of several gated layers, forwards or both ways."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.layers import control_flow, nn, sequence_lod, tensor
from pstranspile.fluid.layers.units import BasicGRUUnit as BasicGRUUnit
from pstranspile.fluid.layers.units import BasicLSTMUnit as BasicLSTMUnit
from pstranspile.fluid.layers.units import kept_where, renamed
from pstranspile.fluid.missing import names_of_fluid


class _Network:
    """Several layers of units, of which each state has `states` parts (hidden; or hidden and cell)."""

    def __init__(self, input: Any, starts: list[Any], hidden_size: int, num_layers: int, dropout: dict[str, Any]):
        self.input, self.starts, self.size, self.layers, self.dropout = (
            input,
            starts,
            hidden_size,
            num_layers,
            dropout,
        )

    def one_way(self, steps: Any, units: list[Any], mask: Any, direction: int) -> tuple[Any, list[Any]]:
        """The outputs of the last layer over all steps, and the last state of every layer, part by part."""
        rnn = control_flow.StaticRNN()
        with rnn.step():
            step = rnn.step_input(steps)
            step_mask = rnn.step_input(mask) if mask is not None else None
            for layer, unit in enumerate(units):
                step = self._layer(rnn, steps, step, unit, step_mask, layer, direction)
            rnn.step_output(step)
        *states, outputs = rnn()
        parts = len(self.starts)
        last: list[list[Any]] = [[] for _ in range(parts)]
        for at, state in enumerate(states):
            last[at % parts].append(state[-1])
        shape = [self.layers, -1, self.size]
        return outputs, [nn.reshape(tensor.concat(part, axis=0), shape=shape) for part in last]

    def _layer(self, rnn: Any, steps: Any, step: Any, unit: Any, mask: Any, layer: int, direction: int) -> Any:
        if self.starts[0] is not None:
            before = [rnn.memory(init=start[layer, direction]) for start in self.starts]
        else:
            before = [rnn.memory(batch_ref=steps, shape=[-1, self.size], ref_batch_dim_idx=1) for _ in self.starts]
        made = unit(step, *before)
        after = [made] if len(before) == 1 else list(made)
        if mask is not None:
            after = [kept_where(new, old, mask) for new, old in zip(after, before, strict=True)]
        for old, new in zip(before, after, strict=True):
            rnn.update_memory(old, new)
        for new in after:
            rnn.step_output(new)
        return nn.dropout(after[0], **self.dropout) if self.dropout.get("dropout_prob") else after[0]


def _run(network: _Network, units: list[list[Any]], sequence_length: Any, batch_first: bool) -> tuple[Any, ...]:
    """The outputs, and the last states, of units forwards and perhaps backwards."""
    steps = nn.transpose(network.input, [1, 0, 2]) if batch_first else network.input
    mask = None
    if sequence_length is not None:
        longest = nn.shape(steps)[0]
        mask = nn.transpose(sequence_lod.sequence_mask(sequence_length, maxlen=longest, dtype="float32"), [1, 0])
    ways = len(units)
    if network.starts[0] is not None:
        shape = [network.layers, ways, -1, network.size]
        network.starts = [nn.reshape(start, shape=shape) for start in network.starts]
    outputs, last = network.one_way(steps, units[0], mask, 0)
    if ways == 2:
        turned = tensor.reverse(steps, axis=[0])
        turned_mask = None if mask is None else tensor.reverse(mask, axis=[0])
        other, other_last = network.one_way(turned, units[1], turned_mask, 1)
        outputs = tensor.concat([outputs, tensor.reverse(other, axis=[0])], axis=2)
        shape = [network.layers * ways, -1, network.size]
        last = [
            nn.reshape(tensor.concat([first, second], axis=1), shape=shape)
            for first, second in zip(last, other_last, strict=True)
        ]
    return (nn.transpose(outputs, [1, 0, 2]) if batch_first else outputs, *last)


def _units(kind: Any, name: str, layers: int, both: bool, attrs: tuple[Any, Any], *size: Any, **more: Any) -> Any:
    """The units of each layer, a list for each way."""
    weight, bias = attrs
    return [
        [
            kind(
                f"{name}{way}_layers_{layer}",
                *size,
                param_attr=renamed(weight, f"_{short}_w_{layer}"),
                bias_attr=renamed(bias, f"_{short}_b_{layer}"),
                **more,
            )
            for layer in range(layers)
        ]
        for way, short in (("", "fw"), ("_reverse", "bw"))[: 2 if both else 1]
    ]


def basic_gru(
    input: Any,
    init_hidden: Any,
    hidden_size: int,
    num_layers: int = 1,
    sequence_length: Any = None,
    dropout_prob: float | None = 0.0,
    bidirectional: bool = False,
    batch_first: bool = True,
    param_attr: Any = None,
    bias_attr: Any = None,
    gate_activation: Any = None,
    activation: Any = None,
    dtype: Any = "float32",
    name: str = "basic_gru",
) -> tuple[Any, ...]:
    """Layers of gated recurrent units: the outputs over all steps, and the last hidden state of every layer."""
    functions = {"gate_activation": gate_activation, "activation": activation, "dtype": dtype}
    attrs = param_attr, bias_attr
    units = _units(BasicGRUUnit, name, num_layers, bidirectional, attrs, hidden_size, **functions)
    network = _Network(input, [init_hidden], hidden_size, num_layers, {"dropout_prob": dropout_prob})
    return _run(network, units, sequence_length, batch_first)


def basic_lstm(
    input: Any,
    init_hidden: Any,
    init_cell: Any,
    hidden_size: int,
    num_layers: int = 1,
    sequence_length: Any = None,
    dropout_prob: float | None = 0.0,
    bidirectional: bool = False,
    batch_first: bool = True,
    param_attr: Any = None,
    bias_attr: Any = None,
    gate_activation: Any = None,
    activation: Any = None,
    forget_bias: float = 1.0,
    dtype: Any = "float32",
    name: str = "basic_lstm",
) -> tuple[Any, ...]:
    """Layers of LSTMs: the outputs over all steps, and the last hidden state and the last cell of every layer."""
    functions = {"gate_activation": gate_activation, "activation": activation, "dtype": dtype}
    attrs = param_attr, bias_attr
    units = _units(
        BasicLSTMUnit, name, num_layers, bidirectional, attrs, hidden_size, forget_bias=forget_bias, **functions
    )
    dropout = {"dropout_prob": dropout_prob, "dropout_implementation": "upscale_in_train"}
    network = _Network(input, [init_hidden, init_cell], hidden_size, num_layers, dropout)
    return _run(network, units, sequence_length, batch_first)


__getattr__ = names_of_fluid(__name__, globals())
