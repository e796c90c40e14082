"""Fluid's `contrib.quantize`: trains programs as if they computed with integers of a few bits, and converts them to do
so.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pstranspile.fluid import unique_name
from pstranspile.fluid.executor import global_scope
from pstranspile.fluid.framework import default_main_program, default_startup_program, program_guard
from pstranspile.fluid.graph.values import VarType
from pstranspile.fluid.initializer import Constant
from pstranspile.fluid.layer_helper import LayerHelper
from pstranspile.fluid.layers.nn import autoincreased_step_counter
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.param_attr import ParamAttr

_QUANTISED = ("conv2d", "depthwise_conv2d", "mul")
_KINDS = ("abs_max", "range_abs_max", "moving_average_abs_max")
_FAKES = {f"fake_quantize_{kind}" for kind in _KINDS}
_BACK = "fake_dequantize_max_abs"
_ENDINGS = (".quantized.dequantized", ".quantized", ".dequantized", ".scale")


def _original_var_name(var_name: str) -> str:
    """The name of the original variable, from the name of its quantised variable or scale."""
    ending = next((ending for ending in _ENDINGS if var_name.endswith(ending)), "")
    return var_name.removesuffix(ending)


def _largest(bits: int) -> int:
    """The largest signed integer with `bits` bits."""
    return (1 << (bits - 1)) - 1


def quant(x: Any, scale: Any, num_bits: int) -> Any:
    """x as integers with `num_bits` bits; the largest integer stands for the scale."""
    return np.round(x / scale * _largest(num_bits))


class QuantizeTranspiler:
    """Makes convolutions and products compute with integers of `weight_bits` and `activation_bits`.

    A scale is the greatest absolute value in this step (`abs_max`), in the last `window_size` steps (`range_abs_max`),
    or a moving average of these values (`moving_average_abs_max`). Raises ValueError for another kind.
    """

    def __init__(
        self,
        weight_bits: int = 8,
        activation_bits: int = 8,
        activation_quantize_type: str = "abs_max",
        weight_quantize_type: str = "abs_max",
        window_size: int = 10000,
        moving_rate: float = 0.9,
    ):
        for kind in (weight_quantize_type, activation_quantize_type):
            if kind not in _KINDS:
                raise ValueError(f"{kind!r} is no kind of scale; they are {', '.join(_KINDS)}")
        self.weight_bits, self.activation_bits = weight_bits, activation_bits
        self.weight_quantize_type, self.activation_quantize_type = weight_quantize_type, activation_quantize_type
        self.window_size, self.moving_rate = window_size, moving_rate
        self.is_test: bool | None = None
        self.global_step: Any = None
        self.helper = LayerHelper(type(self).__name__)

    def training_transpile(self, program: Any = None, startup_program: Any = None) -> None:
        """Inserts ops before convolutions and products that round their inputs as integers of a few bits would be.

        Their gradient ops read the rounded inputs too. Raises ValueError for a gradient op whose inputs are not
        rounded.
        """
        self.is_test = False
        program = program or default_main_program()
        parameters = {parameter.name for parameter in program.global_block().all_parameters()}
        with program_guard(program, startup_program or default_startup_program()):
            if "range_abs_max" in (self.weight_quantize_type, self.activation_quantize_type):
                self.global_step = autoincreased_step_counter()
            for block in program.blocks:
                rounded: dict[str, str] = {}
                for op in list(block.ops):
                    if op.type in _QUANTISED:
                        self._round(block, op, rounded, parameters)
                    elif op.type.removesuffix("_grad") in _QUANTISED:
                        _read_rounded(op, rounded)

    def _round(self, block: Any, op: Any, rounded: dict[str, str], parameters: set[str]) -> None:
        place = _place(block, op)
        for name in op.input_arg_names:
            if name not in rounded:
                weight = name in parameters
                bits = self.weight_bits if weight else self.activation_bits
                kind = self.weight_quantize_type if weight else self.activation_quantize_type
                quantised, scale = self._quantise(block, place, block.var(name), bits, kind)
                inputs = {"X": quantised, "Scale": scale}
                rounded[name] = _back(block, place + 1, quantised, inputs, float(_largest(bits))).name
            op._rename_input(name, rounded[name])

    def _quantise(self, block: Any, place: int, var: Any, bits: int, kind: str) -> tuple[Any, Any]:
        """Inserts the op that converts a variable to integers; returns the integers, and their scale."""
        quantised = _like(block, f"{var.name}.quantized", var)
        inputs, outputs, attrs = {"X": var}, {"Out": quantised}, dict[str, Any](bit_length=bits)
        if kind == "abs_max":
            scale = _like(block, f"{var.name}.scale", var)
        else:
            attr = ParamAttr(name=f"{var.name}.scale", initializer=Constant(0.001), trainable=False)
            scale = self.helper.create_parameter(attr=attr, shape=[1], dtype=var.dtype)
            scale.stop_gradient = True
            inputs["InScale"], attrs["is_test"] = scale, self.is_test
        outputs["OutScale"] = scale
        if kind == "range_abs_max":
            attrs["window_size"], inputs["Iter"] = self.window_size, self.global_step
            outputs["OutScales"] = self._state("scales", var, [self.window_size], 0)
        elif kind == "moving_average_abs_max":
            attrs["moving_rate"] = self.moving_rate
            for slot in ("State", "Accum"):
                state = self._state(slot.lower(), var, [1], 1)
                inputs[f"In{slot}"] = outputs[f"Out{slot}"] = state
        block._insert_op(place, f"fake_quantize_{kind}", inputs, outputs, attrs)
        return quantised, scale

    def _state(self, name: str, var: Any, dims: list[int], value: float) -> Any:
        made = self.helper.create_global_variable(
            name=unique_name.generate(name), persistable=True, dtype=var.dtype, shape=dims
        )
        self.helper.set_variable_initializer(made, initializer=Constant(value=value))
        return made

    def freeze_program(self, program: Any, place: Any, scope: Any = None) -> None:
        """Converts the parameters of a trained program to integers, and multiplies results by their scales.

        The integers are stored as floats in the scope until `convert_to_int8`.
        """
        self.is_test = True
        scope, program = scope or global_scope(), program or default_main_program()
        held = {var.name for var in program.list_vars() if var.persistable}
        for block in program.blocks:
            self._freeze(block, place, scope, held)
        _remove_unused(program)

    def _freeze(self, block: Any, place: Any, scope: Any, held: set[str]) -> None:
        sources: dict[str, str] = {}
        results: dict[str, str] = {}
        scales: dict[str, Any] = {}
        for op in list(block.ops):
            for name in op.input_arg_names:
                if name in results:
                    op._rename_input(name, results[name])
            if op.type in _FAKES or op.type == _BACK:
                name, made = str(op.input("X")[0]), str(op.output("Out")[0])
                weight = name in held
                if op.type in _FAKES:
                    scale = op.output("OutScale")[0]
                    scales[name] = self._frozen(name, scale, place, scope) if weight else block.var(scale)
                if op.type == _BACK or weight:
                    sources[made] = sources.get(name, name)
                    block._remove_op(_place(block, op))
            elif op.type in _QUANTISED:
                self._scale_result(block, op, sources, results, scales, held)

    def _frozen(self, name: str, scale: str, place: Any, scope: Any) -> float:
        """Converts a parameter to integers, and returns their scale."""
        tensor = scope.find_var(name).get_tensor()
        values = np.array(tensor)
        if self.weight_quantize_type == "abs_max":
            number = float(np.abs(values).max())
        else:
            number = float(np.array(scope.find_var(scale).get_tensor()).reshape(-1)[0])
        tensor.set(quant(values, np.float32(number), self.weight_bits).astype(values.dtype), place)
        return number

    def _scale_result(
        self,
        block: Any,
        op: Any,
        sources: dict[str, str],
        results: dict[str, str],
        scales: dict[str, Any],
        held: set[str],
    ) -> None:
        """Makes an op read integers, and inserts an op after it that multiplies its result by both scales."""
        weight, activation = 1.0, None
        for name in op.input_arg_names:
            original = _original_var_name(name)
            if name in sources:
                op._rename_input(name, sources[name])
            if original in held:
                weight = scales[original]
            else:
                activation = scales[original]
        if len(op.output_arg_names) != 1:
            raise ValueError(f"an op {op.type} of {len(op.output_arg_names)} results can't be frozen")
        out = block.var(op.output_arg_names[0])
        range_of_both = _largest(self.weight_bits) * _largest(self.activation_bits) / weight
        made = _back(block, _place(block, op) + 1, out, {"X": out, "Scale": activation}, float(range_of_both))
        results[out.name] = made.name

    def convert_to_int8(self, program: Any, place: Any, scope: Any = None) -> None:
        """Converts the parameters of a frozen program to the element type int8."""
        scope, program = scope or global_scope(), program or default_main_program()
        int8_names: dict[str, str] = {}
        for block in program.blocks:
            for op in block.ops:
                for name in op.input_arg_names if op.type in _QUANTISED else ():
                    var = block.var(name)
                    if not var.persistable:
                        continue
                    if name not in int8_names:
                        int8_names[name] = f"{name}.int8"
                        program.global_block().create_parameter(
                            name=int8_names[name], dtype=VarType.INT8, shape=var.shape
                        )
                        values = np.array(scope.find_var(name).get_tensor())
                        scope.var(int8_names[name]).get_tensor().set(values.astype(np.int8), place)
                    op._rename_input(name, int8_names[name])
        _remove_unused(program)


def _place(block: Any, op: Any) -> int:
    return next(place for place, other in enumerate(block.ops) if other is op)


def _like(block: Any, name: str, var: Any) -> Any:
    return block.create_var(name=name, type=var.type, shape=var.shape, dtype=var.dtype)


def _back(block: Any, place: int, var: Any, inputs: dict[str, Any], largest: float) -> Any:
    """Inserts the op that converts integers back to numbers; returns these."""
    made = _like(block, f"{var.name}.dequantized", var)
    block._insert_op(place, _BACK, inputs, {"Out": made}, {"max_range": largest})
    return made


def _read_rounded(op: Any, rounded: dict[str, str]) -> None:
    names = [name for name in op.input_arg_names if name in rounded]
    if not names:
        raise ValueError(f"the gradient op {op.type} reads nothing that is rounded")
    for name in names:
        op._rename_input(name, rounded[name])


def _remove_unused(program: Any) -> None:
    """Removes from blocks the declarations of variables that no op uses."""
    for block in program.blocks:
        used = {name for op in block.ops for name in (*op.input_arg_names, *op.output_arg_names)}
        for name in [name for name in block.vars if name not in used]:
            block._remove_var(name)


__getattr__ = names_of_fluid(__name__, globals())
