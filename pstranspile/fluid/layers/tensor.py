"""Fluid's `layers.tensor`."""

from __future__ import annotations

from typing import Any

import numpy as np

from pstranspile.fluid.graph.values import VarType, dtype_of, numpy_name, several
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.initializer import Initializer
from pstranspile.fluid.layer_helper import LayerHelper
from pstranspile.fluid.layers.adapt import (
    adapt,
    check_element_type,
    check_kind,
    live,
    made_by,
    one_op,
    to_core,
    with_argument_checks,
    wrap,
)
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.param_attr import ParamAttr, attr_of
from pstranspile.frontends.layers import basic, loss, parameters, tensor
from pstranspile.frontends.layers.draft import whole_dim
from pstranspile.frontends.layers.tensor import constants_of, mixed_numbers
from pstranspile.ir.attributes import Floats, Ints
from pstranspile.ir.model import TensorType, Var
from pstranspile.ir.types import DType

_concat = adapt(tensor.concat, "input, axis=0, name=None", values="input")
cast = adapt(basic.cast, "x, dtype")
argmax = adapt(loss.arg_max, "x, axis=0", called="argmax")
argmin = adapt(tensor.arg_min, "x, axis=0", called="argmin")
argsort = adapt(tensor.argsort, "input, axis=-1, descending=False, name=None", x="input")
reverse = adapt(tensor.reverse, "x, axis")
_diag = one_op("diag", "diagonal", "Diagonal=diagonal")
isfinite = one_op("isfinite", "x", "X=x", "Out:bool")
has_inf = one_op("isinf", "x", "X=x", "Out:bool", called="has_inf")
has_nan = one_op("isnan", "x", "X=x", "Out:bool", called="has_nan")
zeros_like = one_op("fill_zeros_like", "x, out=None", "X=x", key="zeros_like")
ones_like = one_op("fill_any_like", "x, out=None", "X=x", key="ones_like", value=1.0)
kron = one_op("kron", "x, y, out=None, name=None", "X=x Y=y")
trace = one_op("trace", "input, offset=0, dim1=0, dim2=1, out=None, name=None", "Input=input", attrs="offset dim1 dim2")
tril = one_op("tril_triu", "input, diagonal=0, name=None", "X=input", attrs="diagonal", key="tril", lower=True)
triu = one_op("tril_triu", "input, diagonal=0, name=None", "X=input", attrs="diagonal", key="triu", lower=False)
tensor_array_to_tensor = one_op(
    "tensor_array_to_tensor",
    "input, axis=1, name=None, use_stack=False",
    "X=input",
    "Out OutIndex:int32*",
    "axis use_stack",
)
fill_constant_batch_size_like = adapt(
    tensor.fill_constant_batch_size_like,
    "input, shape, dtype, value, input_dim_idx=0, output_dim_idx=0, force_cpu=False",
    like="input",
    input_dim="input_dim_idx",
    output_dim="output_dim_idx",
)


@with_argument_checks
def create_tensor(dtype: Any, name: str | None = None, persistable: bool = False) -> Any:
    """A variable that no op has written yet."""
    draft = live()
    minted = name or draft.names.mint("create_tensor")
    return wrap(draft.declare(Var(minted, tensor=TensorType(dtype_of(dtype), ()), persistable=persistable)))


@with_argument_checks
def create_parameter(
    shape: Any,
    dtype: Any,
    name: str | None = None,
    attr: Any = None,
    is_bias: bool = False,
    default_initializer: Any = None,
) -> Any:
    """A parameter outside of a layer. Raises TypeError for dims that are not whole numbers, and for an initializer of
    another type.
    """
    dims, draft = _whole_dims(shape), live()
    if not isinstance(default_initializer, Initializer | None):
        raise TypeError(f"a parameter starts by an initializer, not by a {type(default_initializer).__name__}")
    chosen = ParamAttr(name=name) if attr is None else attr_of(attr)
    layer = draft.names.mint("create_parameter")
    start = None if default_initializer is None else default_initializer.core()
    return wrap(
        parameters.create_parameter(
            draft, layer, chosen.core(draft), dims, dtype_of(dtype), is_bias=is_bias, default=start
        )
    )


def _whole_dims(shape: Any) -> list[int]:
    if not several(shape) or not all(isinstance(dim, int | np.integer) for dim in shape):
        raise TypeError(f"dims are a list of whole numbers, not {shape!r}")
    return [whole_dim(dim) for dim in shape]


@with_argument_checks
def create_global_var(
    shape: Any, value: float, dtype: Any, persistable: bool = False, force_cpu: bool = False, name: str | None = None
) -> Any:
    """A variable that the start-up program fills with `value`. Raises TypeError for dims that are not whole numbers."""
    dims, draft = _whole_dims(shape), live()
    draft.names.mint("global_var")
    made = name or draft.names.mint("_generated_var")
    kind = TensorType(dtype_of(dtype), tuple(dims))
    draft.stop_gradient.add(made)
    basic.declare_initialised(draft, made, kind, value, force_cpu=force_cpu)
    if not persistable:
        block = draft.blocks[0]  # the start-up program's stays persistable, as in Fluid
        block.vars[made] = block.vars[made]._replace(persistable=False)
    return draft.program.global_block().var(made)


@with_argument_checks
def fill_constant(shape: Any, dtype: Any, value: Any, force_cpu: bool = False, out: Any = None) -> Any:
    """A tensor with the dims `shape`, whose elements are all `value`."""
    kind, draft = dtype_of(dtype), live()
    if any(isinstance(part, Variable) for part in (shape, value, *(shape if several(shape) else ()))):
        return _filled_at_run_time(shape, kind, value, force_cpu, out)
    if out is None:
        return wrap(
            basic.fill_constant(
                draft, [whole_dim(dim, truncated=True) for dim in shape], kind, value, force_cpu=force_cpu
            )
        )
    draft.names.mint("fill_constant")
    text = str(int(value)) if kind in (DType.INT64, DType.INT32) else str(float(value))
    attrs = {
        "shape": [whole_dim(dim, truncated=True) for dim in shape],
        "dtype": kind,
        "value": float(value),
        "str_value": text,
        "force_cpu": force_cpu,
    }
    draft.op("fill_constant", {}, {"Out": to_core(out)}, attrs)
    out.stop_gradient = True
    return out


def _filled_at_run_time(shape: Any, kind: DType, value: Any, force_cpu: bool, out: Any) -> Any:
    draft = live()
    layer = draft.names.mint("fill_constant")
    dims = mixed_numbers(to_core(shape), constants_of(draft), narrow=True, truncated=True)
    inputs: dict[str, Any] = dims.inputs("ShapeTensor", "ShapeTensorList")
    attrs: dict[str, Any] = {"dtype": kind, "force_cpu": force_cpu}
    if dims.attribute is not None:
        attrs["shape"] = dims.attribute
    if isinstance(value, Variable):
        inputs["ValueTensor"] = to_core(value)
    else:
        whole = kind in (DType.INT64, DType.INT32)
        attrs |= {"value": float(value), "str_value": str(int(value)) if whole else str(float(value))}
    made = draft.temporary(layer, kind) if out is None else to_core(out)
    draft.op("fill_constant", inputs, {"Out": made}, attrs)
    return wrap(made.stopped())


@with_argument_checks
def concat(input: Any, axis: Any = 0, name: str | None = None) -> Any:
    """Several tensors, or the tensors of an array, joined along `axis`, which is a number or a variable."""
    values: list[Any] = to_core(input if several(input) else [input])
    if isinstance(input, Variable) and input.type == VarType.LOD_TENSOR_ARRAY:
        attrs = {"axis": axis, "use_stack": False}
        return made_by("tensor_array_to_tensor", {"X": input}, "Out OutIndex:int32", attrs, key="concat")[0]
    if not isinstance(axis, Variable):
        return _concat([input] if isinstance(input, Variable) else input, axis, name)
    inputs = {"X": values, "AxisTensor": to_core(axis).stopped()}
    return wrap(basic.layer("concat", inputs, values[0].dtype, name=name))


@with_argument_checks
def zeros(shape: Any, dtype: Any, force_cpu: bool = False) -> Any:
    """A tensor of zeros."""
    return fill_constant(shape, dtype, 0.0, force_cpu)


@with_argument_checks
def ones(shape: Any, dtype: Any, force_cpu: bool = False) -> Any:
    """A tensor of ones."""
    return fill_constant(shape, dtype, 1.0, force_cpu)


@with_argument_checks
def sums(input: Any, out: Any = None) -> Any:
    """The sum of several tensors of one shape, written to `out` if given."""
    return made_by("sum", {"X": input if several(input) else [input]}, into={"Out": out})[0]


@with_argument_checks
def assign(input: Any, output: Any = None) -> Any:
    """A copy of a variable or an array, written to `output` if given."""
    target = None if output is None else to_core(output)
    if isinstance(input, Variable):
        return wrap(basic.assign(to_core(input), target))
    array = np.asarray(input)
    kinds = {
        "b": ("bool_values", "bool", Ints),
        "f": ("fp32_values", "float32", Floats),
        "i": ("int32_values", "int32", Ints),
    }
    if array.dtype.kind not in kinds:
        raise TypeError(f"assign takes arrays of floats, integers and truth values, not of {array.dtype}")
    slot, dtype, made = kinds[array.dtype.kind]
    if array.dtype == np.int64:
        slot, dtype = "int64_values", "int64"
    draft = live()
    layer = draft.names.mint("assign")
    out = target or draft.temporary(layer, dtype_of(dtype))
    elements = made(array.astype(dtype).ravel().tolist())
    draft.op("assign_value", None, {"Out": out}, {"shape": array.shape, "dtype": dtype_of(dtype), slot: elements})
    return wrap(out)


def _number(value: Any, dtype: DType, *, converted: bool = False) -> Any:
    if not isinstance(value, Variable):
        return basic.fill_constant(live(), [1], dtype, value)
    return to_core(cast(value, dtype) if converted and dtype_of(value.dtype) is not dtype else value)


@with_argument_checks
def range(start: Any, end: Any, step: Any, dtype: Any) -> Any:
    """Numbers from start up to end, without end itself, at intervals of `step`; variables of another element type are
    converted.
    """
    kind = dtype_of(dtype)
    given = (("Start", start), ("End", end), ("Step", step))
    inputs = {slot: _number(value, kind, converted=True) for slot, value in given}
    return wrap(basic.layer("range", inputs, kind).stopped())


@with_argument_checks
def linspace(start: Any, stop: Any, num: Any, dtype: Any) -> Any:
    """`num` evenly spaced numbers from start to stop."""
    kind = dtype_of(dtype)
    inputs = {"Start": _number(start, kind), "Stop": _number(stop, kind), "Num": _number(num, DType.INT32)}
    return wrap(basic.layer("linspace", inputs, kind))


def eye(num_rows: int, num_columns: int | None = None, batch_shape: Any = None, dtype: Any = "float32") -> Any:
    """The identity matrix; with `batch_shape` a batch of it. Raises TypeError for counts that are not whole numbers."""
    kind, draft = dtype_of(dtype), live()
    rows, columns = whole_dim(num_rows), whole_dim(num_rows if num_columns is None else num_columns)
    if rows < 0 or columns < 0:
        raise TypeError(f"eye: a matrix has 0 rows and columns or more, not {rows} and {columns}")
    out = draft.temporary(draft.names.mint("eye"), kind, stop_gradient=True)
    attrs = {"num_rows": rows, "num_columns": columns, "dtype": kind}
    draft.op("eye", {}, {"Out": out}, attrs)
    for count in reversed(batch_shape or []):
        if not isinstance(count, int) or count <= 0:
            raise TypeError(f"eye: batch_shape has whole numbers above 0, not {count!r}")
        out = tensor.stack([out] * count)
    return wrap(out)


@with_argument_checks
def diag(diagonal: Any) -> Any:
    """The matrix with the elements of a variable or an array on its diagonal."""
    return _diag(assign(diagonal) if isinstance(diagonal, np.ndarray) else diagonal)


def full(
    shape: Any,
    fill_value: Any,
    out: Any = None,
    dtype: Any = None,
    device: Any = None,
    stop_gradient: bool = True,
    name: Any = None,
) -> Any:
    """A tensor whose elements are all `fill_value`."""
    check_element_type("full", "dtype", dtype or "float32", ("bool", "float16", "float32", "float64", "int32", "int64"))
    check_kind("full", "shape", shape, ("Variable", "list", "tuple"))
    target = LayerHelper("full").create_variable_for_type_inference(dtype or "float32") if out is None else out
    made = fill_constant(shape, dtype or "float32", fill_value, out=target)
    made.stop_gradient = stop_gradient
    return made


def full_like(
    input: Any,
    fill_value: Any,
    out: Any = None,
    dtype: Any = None,
    device: Any = None,
    stop_gradient: bool = True,
    name: Any = None,
) -> Any:
    """A tensor with the dims of another one, whose elements are all `fill_value`."""
    kinds = ("bool", "float16", "float32", "float64", "int32", "int64")
    check_element_type("full_like", "dtype", input.dtype if dtype is None else dtype, kinds)
    kind = dtype_of(input.dtype if dtype is None else dtype)
    attrs = {"value": float(fill_value), "dtype": kind}
    outputs, into = f"Out:{numpy_name(kind)}", {"Out": out}
    made = made_by("fill_any_like", {"X": input}, outputs, attrs, key="full_like", into=into)[0]
    made.stop_gradient = stop_gradient
    return made


def arange(start: Any, end: Any, step: Any = 1, dtype: Any = None, name: Any = None) -> Any:
    """Numbers from start up to end, without end itself, at intervals of `step`."""
    return range(start, end, step, dtype or "float32")


__getattr__ = names_of_fluid(__name__, globals())
