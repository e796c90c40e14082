"""Layers of one op each, without parameters: arithmetic, constants, copies, counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pstranspile.ir.model import TensorType, Var
from pstranspile.ir.types import DType, VarKind, element_type
from pstranspile.layers.draft import Draft, Value
from pstranspile.ops import schema_of


def unary(op_type: str, x: Value, **attrs: object) -> Value:
    """`<op_type>(X=x)`: one tensor in, one out."""
    return layer(op_type, {"X": x}, x.dtype, attrs)


def layer(
    op_type: str,
    inputs: Mapping[str, Value | Sequence[Value]],
    dtype: DType,
    attrs: Mapping[str, object] | None = None,
    *,
    out: str = "Out",
    key: str = "",
    name: str | None = None,
) -> Value:
    """An op with one output, in the slot `out`; its layer is called as `layer_outputs` says."""
    return layer_outputs(op_type, inputs, {out: dtype}, attrs, key=key, name=name)[0]


def layer_outputs(
    op_type: str,
    inputs: Mapping[str, Value | Sequence[Value]],
    outputs: Mapping[str, DType | Value],
    attrs: Mapping[str, object] | None = None,
    *,
    key: str = "",
    name: str | None = None,
) -> list[Value]:
    """An op and what it writes, in the order of `outputs`: for each slot a variable, or the element type of a new one.

    New variables are called after the layer: after `name`, or the next name of `key` (by default the op type).
    """
    draft = draft_of(inputs)
    made = name or draft.names.mint(key or op_type)
    written = {slot: held if isinstance(held, Value) else draft.temporary(made, held) for slot, held in outputs.items()}
    draft.op(op_type, inputs, written, attrs)
    return list(written.values())


def draft_of(inputs: Mapping[str, Value | Sequence[Value]]) -> Draft:
    """The draft that the inputs are part of. Raises ValueError when there are none."""
    for held in inputs.values():
        for value in (held,) if isinstance(held, Value) else held:
            return value.draft
    raise ValueError("a layer needs at least one input")


def square(x: Value) -> Value:
    """Element by element x * x."""
    return unary("square", x)


def sqrt(x: Value) -> Value:
    """Element by element the square root."""
    return unary("sqrt", x)


def exp(x: Value) -> Value:
    """Element by element e to the power of x."""
    return unary("exp", x)


def log(x: Value) -> Value:
    """Element by element the natural logarithm."""
    return unary("log", x)


def cos(x: Value) -> Value:
    """Element by element the cosine."""
    return unary("cos", x)


def sin(x: Value) -> Value:
    """Element by element the sine."""
    return unary("sin", x)


def floor(x: Value) -> Value:
    """Element by element the next integer below."""
    return unary("floor", x)


def ceil(x: Value) -> Value:
    """Element by element the next integer above."""
    return unary("ceil", x)


def absolute(x: Value) -> Value:
    """Element by element the absolute value (Fluid's `abs`)."""
    return unary("abs", x)


def cast(x: Value, dtype: DType | str) -> Value:
    """x converted to another element type. Raises ValueError for what is none."""
    kind = element_type(dtype)
    return layer("cast", {"X": x}, kind, {"in_dtype": x.dtype, "out_dtype": kind})


def scale(x: Value, factor: float = 1.0, bias: float = 0.0, *, bias_after_scale: bool = True) -> Value:
    """factor * x + bias, or factor * (x + bias)."""
    return unary("scale", x, scale=factor, bias=bias, bias_after_scale=bias_after_scale)


def elementwise(op_type: str, x: Value, y: Value, *, axis: int = -1, act: str | None = None) -> Value:
    """`elementwise_<...>(x, y)`; the dims of y lie on those of x from `axis` on (-1: on the last ones)."""
    draft = x.draft
    name = draft.names.mint(op_type)
    out = draft.temporary(name, x.dtype)
    draft.op(op_type, {"X": x, "Y": y}, {"Out": out}, {"axis": axis})
    x_var = x.var
    if x_var.kind is VarKind.SELECTED_ROWS:
        draft.declare(out.var._replace(kind=VarKind.SELECTED_ROWS, tensor=x_var.tensor))
    return activation(name, out, act)


def elementwise_add(x: Value, y: Value, *, axis: int = -1, act: str | None = None) -> Value:
    """x + y."""
    return elementwise("elementwise_add", x, y, axis=axis, act=act)


def elementwise_sub(x: Value, y: Value, *, axis: int = -1, act: str | None = None) -> Value:
    """x - y."""
    return elementwise("elementwise_sub", x, y, axis=axis, act=act)


def elementwise_mul(x: Value, y: Value, *, axis: int = -1, act: str | None = None) -> Value:
    """x * y."""
    return elementwise("elementwise_mul", x, y, axis=axis, act=act)


def elementwise_div(x: Value, y: Value, *, axis: int = -1, act: str | None = None) -> Value:
    """x / y."""
    return elementwise("elementwise_div", x, y, axis=axis, act=act)


def elementwise_max(x: Value, y: Value, *, axis: int = -1, act: str | None = None) -> Value:
    """The larger of x and y."""
    return elementwise("elementwise_max", x, y, axis=axis, act=act)


def elementwise_min(x: Value, y: Value, *, axis: int = -1, act: str | None = None) -> Value:
    """The smaller of x and y."""
    return elementwise("elementwise_min", x, y, axis=axis, act=act)


def elementwise_pow(x: Value, y: Value, *, axis: int = -1, act: str | None = None) -> Value:
    """x to the power of y."""
    return elementwise("elementwise_pow", x, y, axis=axis, act=act)


def elementwise_floordiv(x: Value, y: Value, *, axis: int = -1) -> Value:
    """x / y, rounded down."""
    return elementwise("elementwise_floordiv", x, y, axis=axis)


def elementwise_mod(x: Value, y: Value, *, axis: int = -1) -> Value:
    """The remainder of x / y."""
    return elementwise("elementwise_mod", x, y, axis=axis)


def activation(name: str, x: Value, act: str | None, *, use_cudnn: bool = False) -> Value:
    """The activation `act` (an op type) of a layer called `name`; None gives x itself."""
    if act is None:
        return x
    out = x.draft.temporary(name, x.dtype)
    schema = schema_of(act)
    attrs = {"use_cudnn": True} if use_cudnn and schema is not None and "use_cudnn" in schema.attrs else {}
    x.draft.op(act, {"X": x}, {"Out": out}, attrs)
    return out


def sums(values: Sequence[Value]) -> Value:
    """The sum of several tensors of one shape."""
    return layer("sum", {"X": values}, values[0].dtype)


def reduction(op_type: str, x: Value, dim: int | Sequence[int] | None = None, *, keep_dim: bool = False) -> Value:
    """`reduce_<...>(x)` over one dim, several, or (None) all of them."""
    dims = [dim] if isinstance(dim, int) else list(dim or ())
    return unary(op_type, x, dim=dims or [0], keep_dim=keep_dim, reduce_all=not dims)


def reduce_sum(x: Value, dim: int | Sequence[int] | None = None, *, keep_dim: bool = False) -> Value:
    """The sum over dims (None: all)."""
    return reduction("reduce_sum", x, dim, keep_dim=keep_dim)


def reduce_mean(x: Value, dim: int | Sequence[int] | None = None, *, keep_dim: bool = False) -> Value:
    """The mean over dims (None: all)."""
    return reduction("reduce_mean", x, dim, keep_dim=keep_dim)


def reduce_max(x: Value, dim: int | Sequence[int] | None = None, *, keep_dim: bool = False) -> Value:
    """The largest element over dims (None: all)."""
    return reduction("reduce_max", x, dim, keep_dim=keep_dim)


def reduce_min(x: Value, dim: int | Sequence[int] | None = None, *, keep_dim: bool = False) -> Value:
    """The smallest element over dims (None: all)."""
    return reduction("reduce_min", x, dim, keep_dim=keep_dim)


def reduce_prod(x: Value, dim: int | Sequence[int] | None = None, *, keep_dim: bool = False) -> Value:
    """The product over dims (None: all)."""
    return reduction("reduce_prod", x, dim, keep_dim=keep_dim)


def reduce_all(x: Value, dim: int | Sequence[int] | None = None, *, keep_dim: bool = False) -> Value:
    """Whether all are true, over dims (None: all)."""
    return reduction("reduce_all", x, dim, keep_dim=keep_dim)


def reduce_any(x: Value, dim: int | Sequence[int] | None = None, *, keep_dim: bool = False) -> Value:
    """Whether any is true, over dims (None: all)."""
    return reduction("reduce_any", x, dim, keep_dim=keep_dim)


def fill_constant(
    draft: Draft, shape: Sequence[int], dtype: DType | str, value: float, *, force_cpu: bool = False
) -> Value:
    """A tensor of dims `shape`, every element `value`. Raises ValueError for what is no element type."""
    dtype = element_type(dtype)
    out = draft.temporary(draft.names.mint("fill_constant"), dtype, stop_gradient=True)
    text = str(int(value)) if dtype is DType.INT64 else str(float(value))
    attrs = {"shape": shape, "dtype": dtype, "value": value, "str_value": text, "force_cpu": force_cpu}
    draft.op("fill_constant", {}, {"Out": out}, attrs)
    return out


def assign(x: Value, out: Value | None = None) -> Value:
    """Copies x, into `out` if given."""
    return layer_outputs("assign", {"X": x}, {"Out": out or x.dtype})[0]


def increment(x: Value, step: float = 1.0) -> Value:
    """Adds `step` to x in place."""
    x.draft.names.mint("increment")
    x.draft.op("increment", {"X": x}, {"Out": x}, {"step": step})
    return x


def clip(x: Value, low: float, high: float) -> Value:
    """x limited to [low, high]."""
    return _like("clip", x, min=low, max=high)


def clip_by_norm(x: Value, max_norm: float) -> Value:
    """x scaled down to the L2 norm `max_norm` if its norm is larger."""
    return _like("clip_by_norm", x, max_norm=max_norm)


def _like(op_type: str, x: Value, **attrs: object) -> Value:
    """An op whose output is the same kind of variable as x."""
    draft = x.draft
    out = draft.temporary(draft.names.mint(op_type), x.dtype)
    draft.declare(x.var._replace(name=out.name, persistable=False, parameter=None))
    draft.op(op_type, {"X": x}, {"Out": out}, attrs)
    return out


def merge_selected_rows(x: Value) -> Value:
    """SelectedRows with the values of equal rows added up."""
    return _like("merge_selected_rows", x)


def get_tensor_from_selected_rows(x: Value) -> Value:
    """The values of SelectedRows as a tensor."""
    return layer("get_tensor_from_selected_rows", {"X": x}, x.dtype)


def global_var(
    draft: Draft, name: str, shape: Sequence[int], dtype: DType, value: float, *, force_cpu: bool = False
) -> Value:
    """A persistable variable that the startup program fills with `value`; the one that is there already if it is."""
    if name not in draft.blocks[0].vars:
        initialised(draft, name, TensorType(dtype, tuple(shape)), value, force_cpu=force_cpu)
    draft.stop_gradient.add(name)
    return Value(draft, name)


def initialised(
    draft: Draft, name: str, tensor: TensorType, value: float, *, force_cpu: bool = False, device: str = ""
) -> None:
    """Declares a persistable variable in both programs and fills it with `value` in the startup program."""
    var = Var(name, tensor=tensor, persistable=True)
    draft.declare(var, 0)
    draft.startup.vars[name] = var
    shape, dtype = tensor.shape, tensor.dtype
    draft.startup_op(
        "fill_constant", None, name, shape=shape, dtype=dtype, value=value, force_cpu=force_cpu, op_device=device
    )


def step_counter(draft: Draft, name: str, begin: int = 1, step: int = 1) -> Value:
    """A counter (i64[1]) that goes up by `step` at the start of every run and holds `begin` in the first one."""
    known = name in draft.blocks[0].vars
    counter = global_var(draft, name, (1,), DType.INT64, begin - 1, force_cpu=True)
    if not known:
        draft.names.mint("global_step_counter")
        with draft.inside(0):
            draft.op("increment", {"X": counter}, {"Out": counter}, {"step": step}, front=True)
    return counter
