"""What 2.x calls `paddle.NAME` and `paddle.tensor.NAME`: Fluid's layers with the later names and arguments."""

from __future__ import annotations

from typing import Any

import numpy as np

from pstranspile.fluid import layers
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.layers.adapt import to_core, wrap
from pstranspile.fluid.paddle.later import from_tables
from pstranspile.layers.basic import layer_outputs

L: Any = layers
_LARGEST = float(np.finfo("float32").max)

_PAIR = "x, y"
_REDUCE = ("x, axis=None, keepdim=False", "x=input axis=dim keepdim=keep_dim")
_TABLE: dict[str, tuple[str, ...]] = {
    "add": ("elementwise_add", _PAIR),
    "subtract": ("elementwise_sub", _PAIR),
    "multiply": ("elementwise_mul", _PAIR),
    "divide": ("elementwise_div", _PAIR),
    "maximum": ("elementwise_max", _PAIR),
    "minimum": ("elementwise_min", _PAIR),
    "mod": ("elementwise_mod", _PAIR),
    "remainder": ("elementwise_mod", _PAIR),
    "floor_divide": ("elementwise_floordiv", _PAIR),
    "equal": ("equal", _PAIR),
    "not_equal": ("not_equal", _PAIR),
    "less_than": ("less_than", _PAIR),
    "less_equal": ("less_equal", _PAIR),
    "greater_than": ("greater_than", _PAIR),
    "greater_equal": ("greater_equal", _PAIR),
    "mm": ("matmul", "input, mat2", "input=x mat2=y"),
    "matmul": ("matmul", "x, y, transpose_x=False, transpose_y=False"),
    "bmm": ("bmm", _PAIR),
    "dot": ("dot", _PAIR),
    "prod": ("reduce_prod", *_REDUCE),
    "max": ("reduce_max", *_REDUCE),
    "min": ("reduce_min", *_REDUCE),
    "any": ("reduce_any", *_REDUCE),
    "all": ("reduce_all", *_REDUCE),
    "concat": ("concat", "x, axis=0", "x=input"),
    "split": ("split", "x, num_or_sections, axis=0", "x=input axis=dim"),
    "unsqueeze": ("unsqueeze", "x, axis", "x=input axis=axes"),
    "unbind": ("unstack", "input, axis=0", "input=x"),
    "stack": ("stack", "x, axis=0"),
    "tile": ("expand", "x, repeat_times", "repeat_times=expand_times"),
    "gather_nd": ("gather_nd", "x, index", "x=input"),
    "scatter": ("scatter", "x, index, updates, overwrite=True", "x=input"),
    "index_select": ("index_select", "x, index, axis=0", "x=input axis=dim"),
    "assign": ("assign", "x, output=None", "x=input"),
    "add_n": ("sums", "inputs", "inputs=input"),
    "numel": ("size", "x", "x=input"),
    "ones_like": ("ones_like", "x"),
    "zeros_like": ("zeros_like", "x"),
    "zeros": ("zeros", "shape, dtype='float32'"),
    "ones": ("ones", "shape, dtype='float32'"),
    "uniform": ("uniform_random", "shape, dtype='float32', min=-1.0, max=1.0, seed=0"),
    "rand": ("uniform_random", "shape, dtype='float32', min=0.0, max=1.0"),
    "randn": ("gaussian_random", "shape, dtype='float32'"),
    "normal": ("gaussian_random", "mean=0.0, std=1.0, shape=(1,)"),
}
_SAME = """abs acos asin atan cast ceil cos create_parameter cross cumsum diag_embed erf exp eye floor full_like
gather increment kron linspace log logical_and logical_not logical_or logical_xor logsumexp meshgrid nonzero
randint randperm rank reciprocal reshape reverse round rsqrt scale shape sign sin slice sqrt square strided_slice t
tanh trace transpose tril triu unique unstack"""


def _reduced(fluid: str, x: Any, axis: Any, keepdim: bool, name: Any) -> Any:
    return getattr(L, fluid)(x, dim=axis, keep_dim=keepdim, name=name)


def sum(x: Any, axis: Any = None, dtype: Any = None, keepdim: bool = False, name: Any = None) -> Any:
    """The sum over the dims in `axis` (default: all), as elements of `dtype`."""
    return _reduced("reduce_sum", x if dtype is None else L.cast(x, dtype), axis, keepdim, name)


def mean(x: Any, axis: Any = None, keepdim: bool = False, name: Any = None) -> Any:
    """The mean over the dims in `axis` (default: all)."""
    return L.mean(x, name) if axis is None and not keepdim else _reduced("reduce_mean", x, axis, keepdim, name)


def pow(x: Any, y: Any, name: Any = None) -> Any:
    """x to the power of a number or a variable."""
    return L.elementwise_pow(x, y, name=name) if isinstance(y, Variable) else L.pow(x, float(y), name=name)


def full(shape: Any, fill_value: Any, dtype: Any = None, name: Any = None) -> Any:
    """A tensor of one number."""
    return L.fill_constant(shape, dtype or "float32", fill_value)


def arange(start: Any = 0, end: Any = None, step: Any = 1, dtype: Any = None, name: Any = None) -> Any:
    """The numbers from `start` to `end`; with one number, those from 0 to it."""
    first, last = (0, start) if end is None else (start, end)
    whole = all(isinstance(value, int) for value in (first, last, step))
    return L.range(first, last, step, dtype or ("int64" if whole else "float32"))


def squeeze(x: Any, axis: Any = None, name: Any = None) -> Any:
    """Without the dims of size 1 in `axis` (default: all that have it)."""
    return L.squeeze(x, [] if axis is None else [axis] if isinstance(axis, int) else axis, name)


def flatten(x: Any, start_axis: int = 0, stop_axis: int = -1, name: Any = None) -> Any:
    """The dims from `start_axis` to `stop_axis` as one. Raises ValueError where more than one of the sizes is open."""
    dims = list(x.shape)
    last = stop_axis % len(dims)
    inner, size = dims[start_axis : last + 1], 1
    for dim in inner:
        size = -1 if dim < 0 or size < 0 else size * dim
    before = [0] * start_axis
    after = dims[last + 1 :]
    if size < 0 and any(dim < 0 for dim in after):
        raise ValueError(f"flatten: {x.name} has the dims {dims}, of which several are open")
    return L.reshape(x, [*before, size, *after], name=name)


def clip(x: Any, min: Any = None, max: Any = None, name: Any = None) -> Any:
    """No element below `min` or above `max`."""
    if isinstance(min, Variable) or isinstance(max, Variable):
        return L.clamp(x, -_LARGEST if min is None else min, _LARGEST if max is None else max, name=name)
    return L.clip(x, -_LARGEST if min is None else float(min), _LARGEST if max is None else float(max), name)


def where(condition: Any, x: Any = None, y: Any = None, name: Any = None) -> Any:
    """x where the condition is true, else y."""
    inputs = {"Condition": to_core(condition), "X": to_core(x), "Y": to_core(y)}
    return wrap(layer_outputs("where", inputs, {"Out": to_core(x).dtype}, name=name)[0])


def argmax(x: Any, axis: int | None = None, keepdim: bool = False, dtype: Any = "int64", name: Any = None) -> Any:
    """Where the largest elements along `axis` are; None: in all of them in a row."""
    return _place("argmax", x, axis, keepdim, dtype)


def argmin(x: Any, axis: int | None = None, keepdim: bool = False, dtype: Any = "int64", name: Any = None) -> Any:
    """Where the smallest elements along `axis` are; None: in all of them in a row."""
    return _place("argmin", x, axis, keepdim, dtype)


def _place(fluid: str, x: Any, axis: int | None, keepdim: bool, dtype: Any) -> Any:
    found = getattr(L, fluid)(L.reshape(x, [-1]) if axis is None else x, 0 if axis is None else axis)
    if keepdim and axis is not None:
        found = L.unsqueeze(found, [axis])
    return found if dtype == "int64" else L.cast(found, dtype)


def argsort(x: Any, axis: int = -1, descending: bool = False, name: Any = None) -> Any:
    """Where the elements of the sorted tensor are."""
    return L.argsort(x, axis, descending, name)[1]


def sort(x: Any, axis: int = -1, descending: bool = False, name: Any = None) -> Any:
    """The elements in order along `axis`."""
    return L.argsort(x, axis, descending, name)[0]


def topk(x: Any, k: Any, axis: int | None = None, largest: bool = True, sorted: bool = True, name: Any = None) -> Any:
    """The k largest elements along the last dim, and where they are. Raises ValueError for others."""
    if axis not in (None, -1, len(x.shape) - 1) or not largest:
        raise ValueError("topk takes the largest elements along the last dim: leave out axis and largest")
    return L.topk(x, k, name)


__getattr__ = from_tables("paddle", globals(), _TABLE, _SAME)
