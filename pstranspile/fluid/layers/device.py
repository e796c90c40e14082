"""Fluid's `layers.device`."""

from __future__ import annotations

from pstranspile.fluid import unique_name
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.graph.vartype import VarType
from pstranspile.fluid.layer_helper import LayerHelper
from pstranspile.fluid.missing import names_of_fluid


def get_places(device_count: int | None = None, device_type: str | None = None) -> Variable:
    """A list of devices: as many as are asked for (default: all there are)."""
    helper = LayerHelper("get_places")
    name = unique_name.generate_with_ignorable_key(f"{helper.name}.out")
    out = helper.create_variable(name=name, type=VarType.PLACE_LIST)
    attrs = {"device_count": device_count, "device_type": device_type}
    helper.append_op(type="get_places", outputs={"Out": [out]}, attrs=attrs)
    return out


__getattr__ = names_of_fluid(__name__, globals())
