"""Layers of one op each, without parameters: arithmetic, constants, copies, counters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, ParamSpec

from pstranspile.frontends.layers.draft import Draft, Value
from pstranspile.ir.diagnostics import did_you_mean, name_list
from pstranspile.ir.model import TensorType, Var
from pstranspile.ir.types import DType, VarKind, element_type
from pstranspile.ops import schema_of
from pstranspile.ops.schema import OpSchema, op_schemas
from pstranspile.ops.shapes import rule_of

P = ParamSpec("P")


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
    """Appends an op with one output, in the slot `out`, and returns the output. Names are those of `layer_outputs`."""
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
    """Appends an op and returns its outputs, in the order of `outputs`, which has for each slot a variable, or the
    dtype of a new one.

    New variables are named after the layer: after `name`, or the next name of `key` (by default the op type).
    """
    draft = draft_of(inputs)
    made = name or draft.names.mint(key or op_type)
    written = {slot: out if isinstance(out, Value) else draft.temporary(made, out) for slot, out in outputs.items()}
    draft.op(op_type, inputs, written, attrs)
    return list(written.values())


def draft_of(inputs: Mapping[str, Value | Sequence[Value]]) -> Draft:
    """The draft that the inputs belong to. Raises ValueError if there are none, TypeError for other values."""
    for values in inputs.values():
        for value in (values,) if isinstance(values, Value) else values:
            if not isinstance(value, Value):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"a layer takes variables, not a value of type {type(value).__name__}")
            return value.draft
    raise ValueError("a layer needs at least one input")


def layer_of(form: Callable[Concatenate[str, P], Value], op_type: str, doc: str) -> Callable[P, Value]:
    """A layer for one op type, from the function `form` that makes layers of several types, with a name and docstring
    of its own.
    """

    def layer_for_type(*args: P.args, **options: P.kwargs) -> Value:
        return form(op_type, *args, **options)

    signature = inspect.signature(form)
    layer_for_type.__name__, layer_for_type.__doc__ = op_type, doc
    vars(layer_for_type)["__signature__"] = signature.replace(parameters=[*signature.parameters.values()][1:])
    return layer_for_type


def bare(op_type: str, x: Value, *, name: str | None = None) -> Value:
    """The op without attributes on x. The layer is named `name`, or by the next name of its op type."""
    return layer(op_type, {"X": x}, x.dtype, name=name)


square = layer_of(bare, "square", "Element by element x * x.")
sqrt = layer_of(bare, "sqrt", "Element by element the square root.")
exp = layer_of(bare, "exp", "Element by element e to the power of x.")
log = layer_of(bare, "log", "Element by element the natural logarithm.")
cos = layer_of(bare, "cos", "Element by element the cosine.")
sin = layer_of(bare, "sin", "Element by element the sine.")
floor = layer_of(bare, "floor", "Element by element the next integer below.")
ceil = layer_of(bare, "ceil", "Element by element the next integer above.")
absolute = layer_of(bare, "abs", "Element by element the absolute value (Fluid's `abs`).")


def cast(x: Value, dtype: DType | str) -> Value:
    """x converted to another dtype. Raises ValueError for an unknown dtype."""
    kind = element_type(dtype)
    return layer("cast", {"X": x}, kind, {"in_dtype": x.dtype, "out_dtype": kind})


def scale(x: Value, factor: float = 1.0, bias: float = 0.0, *, bias_after_scale: bool = True) -> Value:
    """factor * x + bias, or factor * (x + bias)."""
    return unary("scale", x, scale=factor, bias=bias, bias_after_scale=bias_after_scale)


def elementwise(op_type: str, x: Value, y: Value, *, axis: int = -1, act: str | None = None) -> Value:
    """The op `elementwise_<...>` of x and y; the dims of y are aligned with those of x from `axis` on (-1: with the
    last ones).
    """
    draft = x.draft
    name = draft.names.mint(op_type)
    out = draft.temporary(name, x.dtype)
    draft.op(op_type, {"X": x, "Y": y}, {"Out": out}, {"axis": axis})
    x_var = x.var
    if x_var.kind is VarKind.SELECTED_ROWS:
        draft.declare(out.var._replace(kind=VarKind.SELECTED_ROWS, tensor=x_var.tensor))
    return activation(name, out, act)


elementwise_add = layer_of(elementwise, "elementwise_add", "x + y.")
elementwise_sub = layer_of(elementwise, "elementwise_sub", "x - y.")
elementwise_mul = layer_of(elementwise, "elementwise_mul", "x * y.")
elementwise_div = layer_of(elementwise, "elementwise_div", "x / y.")
elementwise_max = layer_of(elementwise, "elementwise_max", "The larger of x and y.")
elementwise_min = layer_of(elementwise, "elementwise_min", "The smaller of x and y.")
elementwise_pow = layer_of(elementwise, "elementwise_pow", "x to the power of y.")
elementwise_floordiv = layer_of(elementwise, "elementwise_floordiv", "x / y, rounded down.")
elementwise_mod = layer_of(elementwise, "elementwise_mod", "The remainder of x / y.")


def _no_activation(schema: OpSchema) -> str:
    """Why an op can't be made with an input X and an output Out alone, as activations are; "" if it can."""
    if schema.facts.communicates:
        return "it talks to other machines"
    for name, slots, kind in (("X", schema.inputs, "input"), ("Out", schema.outputs, "output")):
        if name not in slots:
            return f"it has no {kind} {name}"
    inputs = [name for name, slot in schema.inputs.items() if name != "X" and not slot.dispensable]
    outputs = [name for name, slot in schema.outputs.items() if name != "Out" and not slot.dispensable]
    attrs = [name for name, spec in schema.attrs.items() if spec.default is None and not spec.optional]
    found = (("input", inputs), ("output", outputs), ("attribute", attrs))
    parts = [f"the {kind}{'s' if len(names) > 1 else ''} {name_list(names)}" for kind, names in found if names]
    return f"it needs {' and '.join(parts)} too" if parts else ""


def activation(name: str, x: Value, act: str | None, *, use_cudnn: bool = False) -> Value:
    """x after the activation `act` (an op type) of a layer called `name`; x itself if `act` is None. Raises ValueError
    for an activation that there is not, TypeError for one that is no text.
    """
    if act is None:
        return x
    if not isinstance(act, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # scripts may give anything
        raise TypeError(f"an activation is a text, such as 'relu', not {act!r}")
    schema = schema_of(act)
    if schema is None:
        functions = [name for name, op in op_schemas().items() if [*op.inputs] == ["X"] and [*op.outputs] == ["Out"]]
        raise ValueError(f"there is no activation {act!r}{did_you_mean(act, functions)}")
    if reason := _no_activation(schema):
        raise ValueError(f"the op {act} is no activation: {reason}")
    attrs = {"use_cudnn": True} if use_cudnn and "use_cudnn" in schema.attrs else {}
    if not _follows(x, act, attrs):
        raise ValueError(f"the op {act} is no activation: the dims of its output do not follow from X alone")
    out = x.draft.temporary(name, x.dtype)
    x.draft.op(act, {"X": x}, {"Out": out}, attrs)
    return out


def _follows(x: Value, act: str, attrs: Mapping[str, object]) -> bool:
    """Whether the dims of x tell those of the output of an op of it, which takes an attribute for them otherwise. They
    do for an op without a shape rule, of which nothing is known.
    """
    schema = schema_of(act)
    if schema is not None and "shape" in schema.attrs:
        return False
    if not x.shape or rule_of(act) is None:
        return True
    (out,) = x.draft.infer_output_types(x.draft.make(act, {"X": x}, {"Out": x.name}, attrs)).get("Out") or (None,)
    return out is not None and bool(out.shape) and out.shape.count(-1) <= x.shape.count(-1)


def sums(values: Sequence[Value]) -> Value:
    """The sum of several tensors of one shape."""
    return layer("sum", {"X": values}, values[0].dtype)


def reduction(op_type: str, x: Value, dim: int | Sequence[int] | None = None, *, keep_dim: bool = False) -> Value:
    """`reduce_<...>(x)` over one dim, several, or (None) all of them."""
    dims = [dim] if isinstance(dim, int) else list(dim or ())
    return unary(op_type, x, dim=dims or [0], keep_dim=keep_dim, reduce_all=not dims)


reduce_sum = layer_of(reduction, "reduce_sum", "The sum over dims (None: all).")
reduce_mean = layer_of(reduction, "reduce_mean", "The mean over dims (None: all).")
reduce_max = layer_of(reduction, "reduce_max", "The largest element over dims (None: all).")
reduce_min = layer_of(reduction, "reduce_min", "The smallest element over dims (None: all).")
reduce_prod = layer_of(reduction, "reduce_prod", "The product over dims (None: all).")
reduce_all = layer_of(reduction, "reduce_all", "Whether all are true, over dims (None: all).")
reduce_any = layer_of(reduction, "reduce_any", "Whether any is true, over dims (None: all).")


def fill_constant(
    draft: Draft, shape: Sequence[int], dtype: DType | str, value: float, *, force_cpu: bool = False
) -> Value:
    """A tensor of dims `shape`, every element `value`. Raises ValueError for an unknown dtype."""
    dtype = element_type(dtype)
    out = draft.temporary(draft.names.mint("fill_constant"), dtype, stop_gradient=True)
    try:
        text = str(int(value)) if dtype in (DType.INT32, DType.INT64) else str(float(value))
    except (TypeError, ValueError, OverflowError) as problem:  # scripts may give anything
        raise type(problem)(f"fill_constant: {value!r} is no value of a {dtype.text}") from None
    attrs = {"shape": shape, "dtype": dtype, "value": float(value), "str_value": text, "force_cpu": force_cpu}
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
    """The result of an op whose output has the same kind of variable as x."""
    draft = x.draft
    out = draft.temporary(draft.names.mint(op_type), x.dtype)
    draft.declare(x.var._replace(name=out.name, persistable=False, parameter=None))
    draft.op(op_type, {"X": x}, {"Out": out}, attrs)
    return out


def merge_selected_rows(x: Value) -> Value:
    """SelectedRows in which repeated rows are added up."""
    return _like("merge_selected_rows", x)


def get_tensor_from_selected_rows(x: Value) -> Value:
    """The values of SelectedRows as a tensor."""
    return layer("get_tensor_from_selected_rows", {"X": x}, x.dtype)


def global_var(
    draft: Draft, name: str, shape: Sequence[int], dtype: DType, value: float, *, force_cpu: bool = False
) -> Value:
    """A persistable variable that the startup program fills with `value`; an existing one of that name is reused."""
    if name not in draft.blocks[0].vars:
        declare_initialised(draft, name, TensorType(dtype, tuple(shape)), value, force_cpu=force_cpu)
    draft.stop_gradient.add(name)
    return Value(draft, name)


def declare_initialised(draft: Draft, name: str, tensor: TensorType, value: float, *, force_cpu: bool = False) -> None:
    """Declares a persistable variable in both programs and fills it with `value` in the startup program."""
    var = Var(name, tensor=tensor, persistable=True)
    draft.declare(var, 0)
    draft.startup.vars[name] = var
    shape, dtype = tensor.shape, tensor.dtype
    draft.startup_op("fill_constant", None, name, shape=shape, dtype=dtype, value=value, force_cpu=force_cpu)


def step_counter(draft: Draft, name: str, begin: int = 1, step: int = 1) -> Value:
    """A counter (i64[1]) that is increased by `step` at the start of every run and holds `begin` in the first run."""
    known = name in draft.blocks[0].vars
    counter = global_var(draft, name, (1,), DType.INT64, begin - 1, force_cpu=True)
    if not known:
        draft.names.mint("global_step_counter")
        with draft.enter_block(0):
            draft.op("increment", {"X": counter}, {"Out": counter}, {"step": step}, front=True)
    return counter
