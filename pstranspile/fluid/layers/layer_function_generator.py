"""Fluid's `layers.layer_function_generator`: layers made of the declaration of an op."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.layer_helper import LayerHelper
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.ops import schema_of

_HUMP = re.compile(r"(?<=[^_])(?=[A-Z][a-z])|(?<=[a-z0-9])(?=[A-Z])")


def _convert_(name: str) -> str:
    """The name of a slot as that of an argument: `InScale` as `in_scale`."""
    return _HUMP.sub("_", name).lower()


def generate_layer_fn(op_type: str) -> Callable[..., Any]:
    """A layer of one op: inputs in the order of its slots or by name, attributes by name; `out` takes what it makes.

    Raises ValueError for a type that is no op, and for one that has not one output.
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
    """A layer `(x, name=None)` of an op with one input. Raises ValueError for a type that is no op."""
    made = generate_layer_fn(op_type)

    def activation(x: Any, name: str | None = None) -> Any:
        return made(x, name=name)

    activation.__name__, activation.__doc__ = op_type, made.__doc__
    return activation


__getattr__ = names_of_fluid(__name__, globals())
