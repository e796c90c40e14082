"""Ops over devices: Fluid's `layers.collective`, which all trainers of a ring run together, and `layers.device`."""

# pyright: reportUnusedFunction=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pstranspile.fluid import unique_name
from pstranspile.fluid.graph.values import VarType
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.layer_helper import LayerHelper
from pstranspile.fluid.missing import names_of_fluid

_REDUCTIONS = ("sum", "prod", "max", "min")


def _op(op_type: str, x: Variable, out: Variable, attrs: Mapping[str, Any]) -> Variable:
    helper = LayerHelper(op_type)
    helper.append_op(type=op_type, inputs={"X": [x]}, outputs={"Out": [out]}, attrs=dict(attrs))
    return out


def _create_output(x: Variable, ending: str, rows: int | None = None, stop_gradient: bool = False) -> Variable:
    shape = list(x.shape) if rows is None else [rows, *x.shape[1:]]
    name = unique_name.generate_with_ignorable_key(f"{x.name}.{ending}")
    return x.block.program.current_block().create_var(
        name=name, shape=shape, dtype=x.dtype, type=x.type, persistable=x.persistable, stop_gradient=stop_gradient
    )


def _reduction(reduce_type: str) -> int:
    if reduce_type not in _REDUCTIONS:
        raise TypeError(f"reduce_type is one of {', '.join(_REDUCTIONS)}, not {reduce_type!r}")
    return _REDUCTIONS.index(reduce_type)


def _allreduce(x: Variable, out: Variable | None = None, reduce_type: str = "sum", sync_mode: bool = False) -> Variable:
    """The variable reduced over all devices of a process."""
    attrs = {"reduce_type": _reduction(reduce_type), "sync_mode": sync_mode}
    return _op("allreduce", x, out or _create_output(x, "tmp", stop_gradient=True), attrs)


def _broadcast(x: Variable, root: int, sync_mode: bool = False) -> Variable:
    """Overwrites the variable on every device with its value on device `root`, and returns it."""
    return _op("broadcast", x, x, {"sync_mode": sync_mode, "root": root})


def _c_allreduce(
    x: Variable,
    out: Variable | None = None,
    reduce_type: str = "sum",
    ring_id: int = 0,
    use_calc_stream: bool = False,
) -> Variable:
    """The variable reduced over all trainers. Raises TypeError for other reductions than sum, prod, max, min."""
    _reduction(reduce_type)
    op_type = f"c_allreduce_{reduce_type}"
    return _op(op_type, x, out or _create_output(x, op_type), {"ring_id": ring_id, "use_calc_stream": use_calc_stream})


def _c_broadcast(x: Variable, root: int = 0, ring_id: int = 0, use_calc_stream: bool = False) -> Variable:
    """Overwrites the variable on every trainer with its value on trainer `root`, and returns it."""
    return _op("c_broadcast", x, x, {"root": root, "ring_id": ring_id, "use_calc_stream": use_calc_stream})


def _c_allgather(x: Variable, nranks: int, ring_id: int = 0, use_calc_stream: bool = False) -> Variable:
    """The rows of all trainers, one trainer after the other."""
    rows = x.shape[0] * nranks if x.shape[0] > 0 else x.shape[0]
    attrs = {"nranks": nranks, "ring_id": ring_id, "use_calc_stream": use_calc_stream}
    return _op("c_allgather", x, _create_output(x, "c_allgather", rows), attrs)


def _c_reducescatter(x: Variable, nranks: int, ring_id: int = 0, use_calc_stream: bool = False) -> Variable:
    """This trainer's rows of the sum over all trainers. Raises ValueError where `nranks` does not divide the rows."""
    if not isinstance(x, Variable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"x is a Variable, not a value of type {type(x).__name__}")
    if x.shape[0] > 0 and x.shape[0] % nranks:
        raise ValueError(f"{x.shape[0]} rows of {x.name} can't be cut evenly for {nranks} trainers")
    rows = x.shape[0] // nranks if x.shape[0] > 0 else x.shape[0]
    attrs = {"nranks": nranks, "ring_id": ring_id, "use_calc_stream": use_calc_stream}
    return _op("c_reducescatter", x, _create_output(x, "c_reducescatter", rows), attrs)


def _c_sync_calc_stream(x: Variable) -> Variable:
    """The same variable, after all earlier computations are done."""
    return _op("c_sync_calc_stream", x, x, {})


def _c_sync_comm_stream(x: Variable, ring_id: int) -> Variable:
    """The same variable, after all earlier communications of the ring are done."""
    return _op("c_sync_comm_stream", x, x, {"ring_id": ring_id})


def get_places(device_count: int | None = None, device_type: str | None = None) -> Variable:
    """A variable with a list of `device_count` devices (default: all devices)."""
    helper = LayerHelper("get_places")
    name = unique_name.generate_with_ignorable_key(f"{helper.name}.out")
    out = helper.create_variable(name=name, type=VarType.PLACE_LIST)
    attrs = {"device_count": device_count, "device_type": device_type}
    helper.append_op(type="get_places", outputs={"Out": [out]}, attrs=attrs)
    return out


__getattr__ = names_of_fluid(__name__, globals())
