"""The recurrent layers of `paddle.nn`: cells, and layers that run them over sequences."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid import layers
from pstranspile.fluid.layers.rnn import RNNCell
from pstranspile.fluid.paddle.nn import functional
from pstranspile.fluid.paddle.nn.layer import Layer, LayerList, uniform_start

L: Any = layers


class RNNCellBase(Layer):
    """The base class of cells, which compute an output and the next state from a step and a state."""

    def get_initial_states(
        self,
        batch_ref: Any,
        shape: Any = None,
        dtype: Any = None,
        init_value: float = 0.0,
        batch_dim_idx: int = 0,
    ) -> Any:
        """The state before the first step, with as many rows as `batch_ref` has samples."""
        own: Any = self
        wanted = self.state_shape if shape is None else shape
        return RNNCell.get_initial_states(own, batch_ref, wanted, dtype or "float32", init_value, batch_dim_idx)

    _constant_state = staticmethod(RNNCell._constant_state)  # pyright: ignore[reportPrivateUsage]
    _state_dtypes = RNNCell._state_dtypes  # pyright: ignore[reportPrivateUsage]

    @property
    def state_shape(self) -> Any:
        """The dims of the state, without the batch."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its state is: write state_shape")

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """The output of a step and the next state."""
        return self(inputs, states, **kwargs)


class _GatedCell(RNNCellBase):
    """A cell with `gates` rows of weights for each element of its state."""

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        weight_ih_attr: Any = None,
        weight_hh_attr: Any = None,
        bias_ih_attr: Any = None,
        bias_hh_attr: Any = None,
        name: Any = None,
    ):
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        rows, start = self.gates * hidden_size, uniform_start(hidden_size)
        self.weight_ih = self.create_parameter([rows, input_size], weight_ih_attr, default_initializer=start)
        self.weight_hh = self.create_parameter([rows, hidden_size], weight_hh_attr, default_initializer=start)
        self.bias_ih = self.create_parameter([rows], bias_ih_attr, is_bias=True, default_initializer=start)
        self.bias_hh = self.create_parameter([rows], bias_hh_attr, is_bias=True, default_initializer=start)

    def _of_input(self, inputs: Any) -> Any:
        made = L.matmul(inputs, self.weight_ih, transpose_y=True)
        return made if self.bias_ih is None else L.elementwise_add(made, self.bias_ih)

    def _of_state(self, state: Any) -> Any:
        made = L.matmul(state, self.weight_hh, transpose_y=True)
        return made if self.bias_hh is None else L.elementwise_add(made, self.bias_hh)

    @property
    def state_shape(self) -> Any:
        """The dims of the state, without the batch."""
        return (self.hidden_size,)


class SimpleRNNCell(_GatedCell):
    """A cell whose new state is the activation of a weighted sum of input and state."""

    def __init__(self, input_size: int, hidden_size: int, activation: str = "tanh", *args: Any, **options: Any):
        super().__init__(input_size, hidden_size, *args, **options)
        if activation not in ("tanh", "relu"):
            raise ValueError(f"activation of SimpleRNNCell is tanh or relu, not {activation!r}")
        self.activation = activation

    def forward(self, inputs: Any, states: Any = None) -> Any:
        """The output of a step twice: as the output and as the next state."""
        before = self.get_initial_states(inputs) if states is None else states
        made = getattr(L, self.activation)(L.elementwise_add(self._of_input(inputs), self._of_state(before)))
        return made, made


class GRUCell(_GatedCell):
    """A cell with a reset gate and an update gate."""

    gates = 3

    def forward(self, inputs: Any, states: Any = None) -> Any:
        """The output of a step twice: as the output and as the next state."""
        before = self.get_initial_states(inputs) if states is None else states
        read, kept = L.split(self._of_input(inputs), 3, -1), L.split(self._of_state(before), 3, -1)
        reset, update = (L.sigmoid(L.elementwise_add(x, h)) for x, h in zip(read[:2], kept[:2], strict=True))
        new = L.tanh(L.elementwise_add(read[2], L.elementwise_mul(reset, kept[2])))
        made = L.elementwise_add(L.elementwise_mul(L.elementwise_sub(before, new), update), new)
        return made, made


class LSTMCell(_GatedCell):
    """A cell with an input gate, a forget gate and an output gate; its state is the pair of output and cell."""

    gates = 4

    def forward(self, inputs: Any, states: Any = None) -> Any:
        """The output of a step, and the next state: the pair of output and cell."""
        before, cell = self.get_initial_states(inputs) if states is None else states
        gates = L.split(L.elementwise_add(self._of_input(inputs), self._of_state(before)), 4, -1)
        taken, kept, given = (L.sigmoid(gates[index]) for index in (0, 1, 3))
        cell = L.elementwise_add(L.elementwise_mul(kept, cell), L.elementwise_mul(taken, L.tanh(gates[2])))
        made = L.elementwise_mul(given, L.tanh(cell))
        return made, (made, cell)

    @property
    def state_shape(self) -> Any:
        """The dims of both parts of the state, without the batch."""
        return (self.hidden_size,), (self.hidden_size,)


class RNN(Layer):
    """Runs a cell over all steps of sequences."""

    def __init__(self, cell: Any, is_reverse: bool = False, time_major: bool = False):
        super().__init__()
        self.cell, self.is_reverse, self.time_major = cell, is_reverse, time_major

    def forward(self, inputs: Any, initial_states: Any = None, sequence_length: Any = None, **kwargs: Any) -> Any:
        """The outputs of all steps, and the last state."""
        if initial_states is None:
            initial_states = self.cell.get_initial_states(inputs, batch_dim_idx=1 if self.time_major else 0)
        settings = self.time_major, self.is_reverse
        return L.rnn(self.cell, inputs, initial_states, sequence_length, *settings, **kwargs)


class BiRNN(Layer):
    """Runs one cell forward over the steps of sequences, and another backward."""

    def __init__(self, cell_fw: Any, cell_bw: Any, time_major: bool = False):
        super().__init__()
        self.forward_rnn, self.backward_rnn = RNN(cell_fw, False, time_major), RNN(cell_bw, True, time_major)

    def forward(self, inputs: Any, initial_states: Any = None, sequence_length: Any = None, **kwargs: Any) -> Any:
        """The outputs of both directions, joined along the last dim, and both last states."""
        states = (None, None) if initial_states is None else initial_states
        made = [
            rnn(inputs, state, sequence_length, **kwargs)
            for rnn, state in zip((self.forward_rnn, self.backward_rnn), states, strict=True)
        ]
        return L.concat([outputs for outputs, _ in made], -1), tuple(state for _, state in made)


class _StackedLayers(LayerList):
    """Stacked recurrent layers, each with one direction or two."""

    cell: Any = None
    parts = 1
    """The number of tensors in a state."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        direction: str = "forward",
        time_major: bool = False,
        dropout: float = 0.0,
        *args: Any,
        **attrs: Any,
    ):
        super().__init__()
        if direction not in ("forward", "bidirect", "bidirectional"):
            raise ValueError(f"direction is forward, bidirect or bidirectional, not {direction!r}")
        attrs.pop("name", None)
        self.num_directions = ways = 1 if direction == "forward" else 2
        self.hidden_size, self.num_layers, self.dropout, self.time_major = hidden_size, num_layers, dropout, time_major
        for layer in range(num_layers):
            size = input_size if layer == 0 else ways * hidden_size
            cells = [type(self).cell(size, hidden_size, *args, **attrs) for _ in range(ways)]
            self.append(RNN(cells[0], False, time_major) if ways == 1 else BiRNN(cells[0], cells[1], time_major))

    def _initial_layer_states(self, initial_states: Any) -> list[Any]:
        """The state of each layer, from tensors with a slice for each layer and direction."""
        if initial_states is None:
            return [None] * self.num_layers
        held = [initial_states] if self.parts == 1 else list(initial_states)
        slices = [L.unstack(tensor, 0, self.num_layers * self.num_directions) for tensor in held]
        states = slices[0] if self.parts == 1 else list(zip(*slices, strict=True))
        return states if self.num_directions == 1 else list(zip(states[::2], states[1::2], strict=True))

    def forward(self, inputs: Any, initial_states: Any = None, sequence_length: Any = None) -> Any:
        """The outputs of the last layer, and the last states, with a slice for each layer and direction."""
        ends: list[Any] = []
        for number, (layer, state) in enumerate(
            zip([*self.children()], self._initial_layer_states(initial_states), strict=True)
        ):
            if number and self.dropout:
                inputs = functional.dropout(inputs, self.dropout, training=self.training)
            inputs, end = layer(inputs, state, sequence_length)
            ends += [end] if self.num_directions == 1 else list(end)
        if self.parts == 1:
            return inputs, L.stack(ends, 0)
        return inputs, tuple(L.stack([end[part] for end in ends], 0) for part in range(self.parts))


class SimpleRNN(_StackedLayers):
    """Stacked layers of SimpleRNNCells."""

    cell = SimpleRNNCell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        direction: str = "forward",
        time_major: bool = False,
        dropout: float = 0.0,
        activation: str = "tanh",
        *args: Any,
        **attrs: Any,
    ):
        super().__init__(
            input_size, hidden_size, num_layers, direction, time_major, dropout, activation, *args, **attrs
        )


class LSTM(_StackedLayers):
    """Stacked layers of LSTMCells."""

    cell, parts = LSTMCell, 2


class GRU(_StackedLayers):
    """Stacked layers of GRUCells."""

    cell = GRUCell
