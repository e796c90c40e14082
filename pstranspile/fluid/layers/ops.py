"""Fluid's `layers.ops`, and activations: layers from one tensor to another with the same dims.

Layers generated from the declaration of an op are those of Fluid's `layers.layer_function_generator`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pstranspile.fluid.graph.values import several
from pstranspile.fluid.layer_helper import LayerHelper
from pstranspile.fluid.layers.adapt import adapt, one_op
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends import layers as L
from pstranspile.frontends.layers import basic, nn, tensor
from pstranspile.ir.patterns import Pattern
from pstranspile.ops import schema_of

_HUMP = Pattern(r"(?<=[^_])(?=[A-Z][a-z])|(?<=[a-z0-9])(?=[A-Z])")


def _convert_(name: str) -> str:
    """The name of a slot in the form of an argument's name: `InScale` as `in_scale`."""
    return _HUMP.sub("_", name).lower()


def generate_layer_fn(op_type: str) -> Callable[..., Any]:
    """A layer of one op: inputs are passed in the order of its slots or by name, attributes by name; `out` is an
    existing variable for the result.

    Raises ValueError for a type that is not an op, and for an op that does not have exactly one output.
    """
    schema = schema_of(op_type)
    if schema is None:
        raise ValueError(f'Operator "{op_type}" has not been registered.')
    results = [slot for slot in schema.outputs.values() if not slot.intermediate]
    if len(results) != 1 or results[0].duplicable:
        raise ValueError(f"{op_type} has not one output, but {', '.join(slot.name for slot in results) or 'none'}")
    result = results[0].name

    def layer(*args: Any, **kwargs: Any) -> Any:
        helper = LayerHelper(op_type, **kwargs)
        rest = list(args)
        inputs: dict[str, list[Any]] = {}
        for slot in schema.inputs.values():
            given = kwargs.pop(_convert_(slot.name), None)
            given = rest.pop(0) if given is None and rest else given
            inputs[slot.name] = [] if given is None else [*given] if several(given) else [given]
        dtype = next((var.dtype for given in inputs.values() for var in given), None)
        made = kwargs.pop(_convert_(result), None)
        made = helper.create_variable_for_type_inference(dtype) if made is None else made
        attrs = {name: value for name, value in kwargs.items() if name not in ("name", "act")}
        outputs = {
            slot.name: [made] if slot.name == result else [helper.create_variable_for_type_inference(dtype)]
            for slot in schema.outputs.values()
        }
        helper.append_op(type=op_type, inputs=inputs, outputs=outputs, attrs=attrs)
        return helper.append_activation(made)

    layer.__name__ = op_type
    layer.__doc__ = schema.doc
    return layer


def generate_activation_fn(op_type: str) -> Callable[..., Any]:
    """A layer `(x, name=None)` of an op with one input. Raises ValueError for a type that is not an op."""
    made = generate_layer_fn(op_type)

    def activation(x: Any, name: str | None = None) -> Any:
        return made(x, name=name)

    activation.__name__, activation.__doc__ = op_type, made.__doc__
    return activation


relu = adapt(L.relu, "x, name=None")
sigmoid = adapt(L.sigmoid, "x, name=None")
tanh = adapt(L.tanh, "x, name=None")
log = adapt(basic.log, "x, name=None")
abs = adapt(basic.absolute, "x, name=None")
round = adapt(nn.round_, "x, name=None")
softshrink = adapt(nn.softshrink, "x, alpha=0.5")
hard_shrink = adapt(nn.hard_shrink, "x, threshold=0.5")
thresholded_relu = adapt(nn.thresholded_relu, "x, threshold=1.0")
cumsum = adapt(tensor.cumsum, "x, axis=None, exclusive=None, reverse=None")
gelu = one_op("gelu", "x, approximate=False", "X=x", attrs="approximate")
erf = adapt(nn.erf, "x")
selu = adapt(nn.selu, "x, scale=None, alpha=None, name=None")
elu = adapt(nn.elu, "x, alpha=1.0, name=None")
relu6 = adapt(nn.relu6, "x, threshold=6.0, name=None")
pow = adapt(nn.power, "x, factor=1.0, name=None", called="pow")
stanh = adapt(nn.stanh, "x, scale_a=0.67, scale_b=1.7159, name=None")
hard_sigmoid = adapt(nn.hard_sigmoid, "x, slope=0.2, offset=0.5, name=None")
swish = one_op("swish", "x, beta=1.0, name=None", "X=x", attrs="beta")
prelu = adapt(nn.prelu, "x, mode, param_attr=None, name=None")
brelu = adapt(nn.brelu, "x, t_min=0.0, t_max=24.0, name=None")
leaky_relu = adapt(nn.leaky_relu, "x, alpha=0.02, name=None")
soft_relu = adapt(nn.soft_relu, "x, threshold=40.0, name=None")
hard_swish = adapt(nn.hard_swish, "x, threshold=6.0, scale=6.0, offset=3.0, name=None")

exp = adapt(basic.exp, "x, name=None")
sqrt = adapt(basic.sqrt, "x, name=None")
ceil = adapt(basic.ceil, "x, name=None")
floor = adapt(basic.floor, "x, name=None")
cos = adapt(basic.cos, "x, name=None")
sin = adapt(basic.sin, "x, name=None")
square = adapt(basic.square, "x, name=None")
logsigmoid = adapt(nn.logsigmoid, "x, name=None")
atan = adapt(nn.atan, "x, name=None")
tanh_shrink = adapt(nn.tanh_shrink, "x, name=None")
rsqrt = adapt(nn.rsqrt, "x, name=None")
reciprocal = adapt(nn.reciprocal, "x, name=None")
softplus = adapt(nn.softplus, "x, name=None")
softsign = adapt(nn.softsign, "x, name=None")
acos = one_op("acos", "x, name=None", "X=x")
asin = one_op("asin", "x, name=None", "X=x")
_scale = generate_layer_fn("scale")  # scripts know it by this name
_elementwise_div = generate_layer_fn("elementwise_div")  # scripts know it by this name, too


__getattr__ = names_of_fluid(__name__, globals())
