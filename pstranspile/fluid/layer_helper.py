"""Fluid's `layer_helper`, with which scripts write their own layers."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from pstranspile.fluid import unique_name
from pstranspile.fluid.framework import default_main_program, default_startup_program
from pstranspile.fluid.graph.program import Program
from pstranspile.fluid.graph.values import dtype_of, several
from pstranspile.fluid.graph.variable import Parameter, Variable
from pstranspile.fluid.layers.adapt import to_core, wrap
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.param_attr import attr_of
from pstranspile.frontends.layers import basic, nn
from pstranspile.frontends.layers.draft import whole_dim
from pstranspile.frontends.layers.parameters import create_parameter


class LayerHelperBase:
    """The base of helpers for layers and layer objects: makes names, variables and parameters."""

    def __init__(self, name: str, layer_type: str):
        self.name, self.layer_type = name, layer_type

    @property
    def main_program(self) -> Program:
        """The main program in use, to which layers add ops."""
        return default_main_program()

    @property
    def startup_program(self) -> Program:
        """The start-up program in use, which initialises parameters."""
        return default_startup_program()

    def to_variable(self, value: Any, name: str | None = None) -> Variable:
        """The given variable. Raises TypeError for anything else, because arrays only become variables when they are
        fed.
        """
        if not isinstance(value, Variable):
            raise TypeError(f"to_variable takes a variable of a program, not a value of type {type(value).__name__}")
        return value

    def create_parameter(
        self,
        attr: Any,
        shape: Any,
        dtype: Any = None,
        is_bias: bool = False,
        default_initializer: Any = None,
        **_: Any,
    ) -> Any:
        """Makes a parameter of the layer; returns None where `attr` is False."""
        draft, chosen = self.main_program.live(), attr_of(attr)
        if chosen is False:
            return None
        start = None if default_initializer is None else default_initializer.core()
        dims, kind = [whole_dim(dim) for dim in shape], dtype_of(dtype or "float32")
        return wrap(create_parameter(draft, self.name, chosen.core(draft), dims, kind, is_bias=is_bias, default=start))

    def create_variable_for_type_inference(self, dtype: Any, stop_gradient: bool = False, **_: Any) -> Any:
        """Declares a variable whose dims follow from the op that writes it."""
        draft = self.main_program.live()
        kind = None if dtype is None else dtype_of(dtype)
        return wrap(draft.temporary(self.name, kind, stop_gradient=stop_gradient))

    create_tmp_variable = create_variable_for_type_inference

    def create_variable(self, *args: Any, **kwargs: Any) -> Any:
        """Declares a variable in the current block."""
        return self.main_program.current_block().create_var(*args, **kwargs)

    def create_global_variable(self, persistable: bool = False, *args: Any, **kwargs: Any) -> Any:
        """Declares a variable in block 0."""
        return self.main_program.global_block().create_var(*args, persistable=persistable, **kwargs)

    def create_or_get_global_variable(self, name: str, *args: Any, **kwargs: Any) -> tuple[Variable, bool]:
        """The variable of block 0 with a name, and whether it was declared by this call."""
        block = self.main_program.global_block()
        if block.has_var(name):
            return block.var(name), False
        return self.create_global_variable(*args, name=name, **kwargs), True

    def set_variable_initializer(self, var: Variable, initializer: Any) -> Any:
        """Makes the start-up program fill a variable; returns the start-up program's variable."""
        block = self.startup_program.global_block()
        block.draft.vars[var.name] = var.var._replace(persistable=True)
        initializer(block.var(var.name), block)
        return var


class LayerHelper(LayerHelperBase):
    """A helper for one layer with its arguments (`kwargs`): makes its ops, bias and activation."""

    def __init__(self, layer_type: str, **kwargs: Any):
        super().__init__(kwargs.get("name") or unique_name.generate(layer_type), layer_type)
        self.kwargs = kwargs

    @property
    def param_attr(self) -> Any:
        """The argument `param_attr` as a ParamAttr."""
        return attr_of(self.kwargs.get("param_attr"))

    @property
    def bias_attr(self) -> Any:
        """The argument `bias_attr` as a ParamAttr; False for no bias."""
        return attr_of(self.kwargs.get("bias_attr"))

    def multiple_input(self, input_param_name: str = "input") -> list[Variable]:
        """The inputs of the layer as a list, even if there is only one."""
        given = self.kwargs.get(input_param_name, [])
        return list(given) if several(given) else [given]

    def input(self, input_param_name: str = "input") -> Variable:
        """The only input of the layer. Raises ValueError where there are several."""
        inputs = self.multiple_input(input_param_name)
        if len(inputs) != 1:
            raise ValueError(f"{self.layer_type} takes one input, not {len(inputs)}")
        return inputs[0]

    def multiple_param_attr(self, length: int) -> list[Any]:
        """The attributes of `length` parameters: one for each, or copies of one. Raises ValueError for
        another number.
        """
        given = self.kwargs.get("param_attr")
        attrs = list(given) if several(given) else [given]
        if len(attrs) not in (1, length):
            raise ValueError(f"{self.layer_type} has {len(attrs)} param_attr for {length} inputs")
        return [attr_of(deepcopy(attr)) for attr in (attrs * length if len(attrs) == 1 else attrs)]

    def iter_inputs_and_params(self, input_param_name: str = "input") -> Iterator[tuple[Variable, Any]]:
        """Pairs of an input and the attributes of its parameter."""
        inputs = self.multiple_input(input_param_name)
        return zip(inputs, self.multiple_param_attr(len(inputs)), strict=True)

    def is_instance(self, param_name: str, cls: Any) -> None:
        """Raises TypeError where an argument of the layer is not of type `cls`."""
        if not isinstance(self.kwargs.get(param_name), cls):
            raise TypeError(f"{param_name} of {self.layer_type} must be of type {cls.__name__}")

    def get_parameter(self, name: str) -> Parameter:
        """The parameter with a name. Raises ValueError for another variable, and for an unknown name."""
        var = self.main_program.global_block().var(name)
        if not isinstance(var, Parameter):
            raise ValueError(f"{name} is no parameter")
        return var

    def input_dtype(self, input_param_name: str = "input") -> Any:
        """The common element type of the inputs. Raises ValueError where they differ."""
        kinds = list(dict.fromkeys(var.dtype for var in self.multiple_input(input_param_name)))
        if len(kinds) > 1:
            raise ValueError(f"the inputs of {self.layer_type} hold {kinds[0]!r} and {kinds[1]!r}")
        return kinds[0] if kinds else None

    def append_op(self, *args: Any, **kwargs: Any) -> Any:
        """Adds an op to the current block."""
        return self.main_program.current_block().append_op(*args, **kwargs)

    def append_bias_op(self, input_var: Variable, dim_start: int = 1, dim_end: int | None = None) -> Any:
        """A variable plus the layer's bias."""
        draft = self.main_program.live()
        attr = self.bias_attr
        given = False if attr is False else attr.core(draft)
        return wrap(nn.bias(self.name, to_core(input_var), given, dim_start, dim_end))

    def append_activation(self, input_var: Variable, act: str | None = None) -> Any:
        """The activation of a variable; `act` (default: the layer's argument) is the op's type."""
        act = act or self.kwargs.get("act")
        return wrap(basic.activation(self.name, to_core(input_var), act))


__getattr__ = names_of_fluid(__name__, globals())
