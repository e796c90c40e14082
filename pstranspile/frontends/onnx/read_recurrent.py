"""Reads recurrent nodes as Fluid's static recurrence: the products with the input for all steps at once, the rest step
by step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from pstranspile.frontends.layers.basic import unary
from pstranspile.frontends.layers.draft import Refused, Value
from pstranspile.frontends.layers.loops import StaticRNN
from pstranspile.frontends.layers.tensor import matmul, split
from pstranspile.frontends.onnx.read_tensors import FAR, transpose, with_x_shape
from pstranspile.frontends.onnx.reading import GraphReading, attribute, onnx_reader
from pstranspile.ir.types import DType

Function: TypeAlias = "Callable[[Value], Value]"

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_USUAL = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
_INPUTS = ("x", "w", "r", "b", "lens", "h", "c", "p")


class _Net(NamedTuple):
    """A recurrent node: its kind, its inputs by name, its functions for each direction, and the Reading."""

    kind: str
    input_names: dict[str, str]
    functions: Sequence[Function]
    hidden: int
    directions: int
    clip: float
    node: Any
    reading: GraphReading

    def value(self, name: str) -> Value:
        return Value(self.reading.draft, self.reading.name(name))


class _DirectionResults(NamedTuple):
    """The results of one direction: all of its outputs, and its states after the last step."""

    outputs: str
    hidden: str
    cell: str


@onnx_reader("RNN", "GRU", "LSTM")
def _recurrent(node: Any, reading: GraphReading) -> None:
    inputs: dict[str, str] = dict(zip(_INPUTS, [*node.input, *[""] * len(_INPUTS)], strict=False))
    batch_first = bool(attribute(node, "layout", 0))
    if batch_first:
        for name in ("x", "h", "c"):
            if inputs[name]:
                inputs[name] = _swap_first_dims(inputs[name], reading)
    way = attribute(node, "direction", "forward")
    directions = 2 if way == "bidirectional" else 1
    net = _Net(
        node.op_type,
        inputs,
        _functions(node, directions),
        attribute(node, "hidden_size") or reading.dims(inputs["r"])[-1],
        directions,
        float(attribute(node, "clip", 0.0)),
        node,
        reading,
    )
    if attribute(node, "input_forget", 0):
        raise Refused("its input and forget gates are coupled (input_forget)")
    ways = [_direction(net, at, backwards=way == "reverse" or at == 1) for at in range(directions)]
    outs = [*node.output, "", "", ""]
    if outs[0]:
        _concat_directions([_with_dim(held.outputs, 1, reading) for held in ways], outs[0], 1, batch_first, reading)
    for at, part in ((1, "hidden"), (2, "cell")):
        if outs[at]:
            _concat_directions([getattr(held, part) for held in ways], outs[at], 0, batch_first, reading)


def _swap_first_dims(value: str, reading: GraphReading) -> str:
    transpose(value, made := reading.temp(value), [1, 0, 2], reading)
    return made


def _with_dim(value: str, axis: int, reading: GraphReading) -> str:
    with_x_shape("unsqueeze2", value, made := reading.temp(value), reading, axes=[axis])
    return made


def _concat_directions(parts: list[str], out: str, axis: int, batch_first: bool, reading: GraphReading) -> None:
    result = reading.temp(out) if batch_first else out
    if len(parts) > 1:
        reading.op("concat", {"X": parts}, {"Out": result}, axis=axis)
    else:
        reading.op("assign", {"X": parts[0]}, {"Out": result})
    if (
        batch_first
    ):  # [steps, directions, rows, ...] as [rows, steps, directions, ...], states as [rows, directions, ...]
        order = [2, 0, 1, 3] if axis else [1, 0, 2]
        transpose(result, out, order, reading)


# The functions of gates

_PLAIN = {"Relu": "relu", "Tanh": "tanh", "Sigmoid": "sigmoid", "Softsign": "softsign", "Softplus": "softplus"}


def _functions(node: Any, directions: int) -> list[Function]:
    names = [name.decode() if isinstance(name, bytes) else name for name in attribute(node, "activations", ())]
    names = names or [*_USUAL[node.op_type]] * directions
    alphas, betas = (list(attribute(node, f"activation_{name}", ())) for name in ("alpha", "beta"))
    result: list[Function] = []
    for name in names:
        if name in _PLAIN:
            result.append(_function(_PLAIN[name]))
        elif name == "HardSigmoid":
            result.append(
                _function("hard_sigmoid", slope=alphas.pop(0) if alphas else 0.2, offset=betas.pop(0) if betas else 0.5)
            )
        else:
            raise Refused(f"its activations have {name}")
    return result


def _function(op_type: str, **attrs: object) -> Function:
    return lambda x: unary(op_type, x, **attrs)


# One direction


def _direction(net: _Net, at: int, *, backwards: bool) -> _DirectionResults:
    reading, gates = net.reading, _GATES[net.kind]
    x = net.input_names["x"]
    if backwards:
        x = _reverse_steps(x, reading)
    weight, recurrent = (_of_direction(net.input_names[name], at, reading) for name in ("w", "r"))
    biases = _biases(net, at, gates)
    before_reset = net.kind == "GRU" and attribute(net.node, "linear_before_reset", 0)
    inside = biases[1] if biases and before_reset else None
    projected = _project_input(x, weight, biases, inside, reading)
    transpose(recurrent, turned := reading.temp(recurrent), [1, 0], reading)
    mask = _mask(net, x, backwards) if net.input_names["lens"] else None
    cell = _Cell(
        net,
        at,
        turned,
        bool(before_reset),
        inside,
        _of_direction(net.input_names["p"], at, reading) if net.input_names["p"] else "",
    )
    outputs, states = _steps(net, at, projected, mask, cell)
    if backwards:
        outputs = _reverse_steps(outputs, reading)
    return _DirectionResults(outputs, *[_last_step(state, reading) for state in states], *[""] * (2 - len(states)))


def _reverse_steps(value: str, reading: GraphReading) -> str:
    return reading.op_result("reverse", value, {"axis": [0]}, X=value)


def _last_step(value: str, reading: GraphReading) -> str:
    return reading.op_result("slice", value, {"axes": [0], "starts": [-1], "ends": [FAR]}, Input=value)


def _of_direction(value: str, at: int, reading: GraphReading) -> str:
    attrs = {"axes": [0], "decrease_axis": [0], "starts": [at], "ends": [at + 1]}
    return reading.op_result("slice", value, attrs, Input=value)


def _biases(net: _Net, at: int, gates: int) -> tuple[str, str] | None:
    """(biases of the input's products, biases of the previous state's products), None if the node has no biases."""
    if not net.input_names["b"]:
        return None
    reading, both = net.reading, _of_direction(net.input_names["b"], at, net.reading)
    parts = [reading.temp(both) for _ in range(2)]
    reading.op("split", {"X": both}, {"Out": parts}, axis=0, num=2)
    return parts[0], parts[1]


def _project_input(
    x: str, weight: str, biases: tuple[str, str] | None, inside: str | None, reading: GraphReading
) -> str:
    transpose(weight, turned := reading.temp(weight), [1, 0], reading)
    made = reading.op_result("mul", x, {"x_num_col_dims": 2, "y_num_col_dims": 1}, X=x, Y=turned)
    for bias in biases or ():
        if bias != inside:
            made = reading.op_result("elementwise_add", x, X=made, Y=bias)
    return made


def _mask(net: _Net, x: str, backwards: bool) -> str:
    """For each step and row, 1.0 if the row's sequence has not ended, else 0.0: [steps, rows, 1]."""
    reading, kind = net.reading, net.reading.tensor(x).dtype
    start, end, step = (reading.size_variable(number) for number in (0, reading.size(x, 0), 1))
    numbers = reading.op_result("range", x, Start=start, End=end, Step=step)
    if backwards:
        numbers = _reverse_steps(numbers, reading)
    steps = _with_dim(numbers, 1, reading)
    lens = reading.as_type(net.input_names["lens"], DType.INT32)
    shorter, mask = reading.op_result("less_than", x, X=steps, Y=_with_dim(lens, 0, reading)), reading.temp(x)
    reading.cast(shorter, mask, kind)
    wide = _with_dim(mask, 2, reading)
    reading.draft.stop_gradient.update((shorter, mask, wide))
    return wide


def _start(net: _Net, name: str, at: int, projected: str) -> Value:
    reading = net.reading
    if net.input_names[name]:
        return net.value(_of_direction(net.input_names[name], at, reading))
    kind = reading.tensor(projected).dtype.value
    attrs = {"shape": [-1, net.hidden], "input_dim_idx": 1, "output_dim_idx": 0, "dtype": kind, "value": 0.0}
    made = reading.op_result("fill_constant_batch_size_like", projected, attrs, Input=projected)
    reading.draft.stop_gradient.add(made)
    return net.value(made)


def _steps(net: _Net, at: int, projected: str, mask: str | None, cell: _Cell) -> tuple[str, list[str]]:
    """(outputs of all steps of a recurrence, its states after each step)."""
    names = ("h", "c") if net.kind == "LSTM" else ("h",)
    starts = [_start(net, name, at, projected) for name in names]
    rnn = StaticRNN(net.reading.draft)
    with rnn.step():
        x = rnn.step_input(net.value(projected))
        going = rnn.step_input(net.value(mask)) if mask else None
        before = [rnn.memory(start) for start in starts]
        after = cell.step(x, before)
        if going is not None:
            after = [going * new + (1.0 - going) * old for new, old in zip(after, before, strict=True)]
        for old, new in zip(before, after, strict=True):
            rnn.update_memory(old, new)
        rnn.step_output(after[0])
        shown = len(starts) > 1 and len(net.node.output) > 2 and bool(net.node.output[2])
        if shown:
            rnn.step_output(after[1])
        if going is not None:
            rnn.step_output(going * after[0])
    made = [value.name for value in rnn.outputs()]
    return made[-1 if mask else 0], made[: 1 + shown]


class _Cell(NamedTuple):
    """The computation of a step of one direction."""

    net: _Net
    at: int
    weight: str
    before_reset: bool
    bias: str | None
    peepholes: str

    def step(self, x: Value, before: list[Value]) -> list[Value]:
        """The states after a step, from the step's projected input x and the states before it."""
        functions = self.net.functions[self.at * len(_USUAL[self.net.kind]) :]
        step = {"RNN": self._rnn_step, "GRU": self._gru_step, "LSTM": self._lstm_step}[self.net.kind]
        return step(x, before, functions)

    def _clip_value(self, x: Value) -> Value:
        bound = self.net.clip
        return unary("clip", x, min=-bound, max=bound) if bound else x

    def _rnn_step(self, x: Value, before: list[Value], functions: Sequence[Function]) -> list[Value]:
        return [functions[0](self._clip_value(x + matmul(before[0], self.net.value(self.weight))))]

    def _gru_step(self, x: Value, before: list[Value], functions: Sequence[Function]) -> list[Value]:
        (hidden,), weight, width = before, self.net.value(self.weight), self.net.hidden
        update_x, reset_x, new_x = split(x, 3, dim=1)
        new_h = weight_new = hidden
        if self.before_reset:
            kept = matmul(hidden, weight)
            kept = kept if self.bias is None else kept + self.net.value(self.bias)
            update_h, reset_h, new_h = split(kept, 3, dim=1)
        else:
            weight_gates, weight_new = split(weight, [2 * width, width], dim=1)
            update_h, reset_h = split(matmul(hidden, weight_gates), 2, dim=1)
        update = functions[0](self._clip_value(update_x + update_h))
        reset = functions[0](self._clip_value(reset_x + reset_h))
        inner = reset * new_h if self.before_reset else matmul(reset * hidden, weight_new)
        new = functions[1](self._clip_value(new_x + inner))
        return [update * hidden + (1.0 - update) * new]

    def _lstm_step(self, x: Value, before: list[Value], functions: Sequence[Function]) -> list[Value]:
        hidden, cell = before
        gates = x + matmul(hidden, self.net.value(self.weight))
        enter, leave, forget, new = split(gates, 4, dim=1)
        seen = split(self.net.value(self.peepholes), 3, dim=0) if self.peepholes else []
        if seen:
            enter, forget = enter + cell * seen[0], forget + cell * seen[2]
        kept = functions[0](self._clip_value(forget)) * cell
        after = kept + functions[0](self._clip_value(enter)) * functions[1](self._clip_value(new))
        if seen:
            leave = leave + after * seen[1]
        return [functions[0](self._clip_value(leave)) * functions[2](after), after]
