"""The functions that 2.x calls `paddle.NAME` and `paddle.tensor.NAME`: Fluid's layers with the later names and
arguments, and `einsum`, sums of products that are described by letters for dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod as number_of_elements
from string import ascii_letters
from typing import Any, NamedTuple

import numpy as np

from pstranspile.fluid import layers
from pstranspile.fluid.executor import global_scope
from pstranspile.fluid.graph.values import numpy_name
from pstranspile.fluid.graph.variable import Variable, as_floats, last_op
from pstranspile.fluid.layers.adapt import to_core, wrap
from pstranspile.fluid.paddle import figures
from pstranspile.fluid.paddle.later import from_tables
from pstranspile.frontends.layers.basic import layer_outputs

_DOTS = "..."


class _Term(NamedTuple):
    """A variable, and one letter for each of its dims."""

    variable: Any
    letters: str


def einsum(equation: str, *operands: Any) -> Any:
    """The sums of products that an equation such as `bij,bjk->bik` describes.

    Letters that the result lacks are summed over; `...` stands for dims without letters, of which those of length 1 are
    repeated. If an operand has a letter several times, its diagonal is taken; if the result has one several times,
    values are put on its diagonal, among zeros. Without `->` the result has the letters that occur once, in
    alphabetical order. Raises ValueError for a text that is not an equation, for operands that do not fit, and for a
    diagonal whose length is not known before the program runs.
    """
    terms, result = _parse_equation(equation.replace(" ", ""), list(operands))
    sizes = _sizes(equation, terms)
    terms = [_diagonal(term, sizes) for term in terms]
    kept = "".join(dict.fromkeys(result))
    made = _sum_other_dims(terms[0], "".join([kept, *(term.letters for term in terms[1:])]))
    for number, right in enumerate(terms[1:], 2):
        later = "".join([kept, *(term.letters for term in terms[number:])])
        made = _product(made, _sum_other_dims(right, later + made.letters), later, sizes)
    return _spread(made, result, sizes)


def _parse_equation(equation: str, operands: list[Any]) -> tuple[list[_Term], str]:
    given, arrow, result = equation.partition("->")
    texts = given.split(",")
    if len(texts) != len(operands):
        raise ValueError(f"einsum: {equation!r} describes {len(texts)} operands, not {len(operands)}")
    unnamed = [letter for letter in reversed(ascii_letters) if letter not in equation]
    terms: list[_Term] = []
    dots = ""
    for text, held in zip(texts, operands, strict=True):
        rank = len(held.shape) - len(text.replace(_DOTS, ""))
        front = "".join(unnamed[:rank][::-1])
        letters = text.replace(_DOTS, front, 1)
        if rank < 0 or (rank and _DOTS not in text) or not (letters.isalpha() and letters.isascii()):
            raise ValueError(f"einsum: {text!r} does not describe {held.name}, which has {len(held.shape)} dims")
        dots = max(dots, front, key=len)
        terms.append(_Term(held, letters))
    if not arrow:
        every = "".join(term.letters for term in terms)
        result = dots + "".join(sorted(letter for letter in every if every.count(letter) == 1 and letter not in dots))
    elif dots and _DOTS not in result:
        raise ValueError(f"einsum: the result of {equation!r} does not have the dims without letters; end it with ...")
    result = result.replace(_DOTS, dots, 1)
    if not set(result) <= set("".join(term.letters for term in terms)):
        raise ValueError(f"einsum: the result of {equation!r} is none of letters of its operands")
    return _without_ones(terms, dots), result


def _without_ones(terms: Sequence[_Term], dots: str) -> list[_Term]:
    """The operands without those dims of length 1 that have no letter, if another operand has the dim with a greater
    length.
    """
    longer = {letter for held, letters in terms for letter, size in zip(letters, held.shape, strict=True) if size != 1}
    made: list[_Term] = []
    for held, letters in terms:
        gone = [
            place
            for place, letter in enumerate(letters)
            if letter in dots and letter in longer and held.shape[place] == 1
        ]
        left = "".join(letter for place, letter in enumerate(letters) if place not in gone)
        made.append(_Term(L.squeeze(held, gone), left) if gone else _Term(held, letters))
    return made


def _sizes(equation: str, terms: Sequence[_Term]) -> dict[str, Any]:
    """The length of the dim of each letter: a number, or a variable if no operand's declaration has it."""
    known: dict[str, int] = {}
    for held, letters in terms:
        for letter, size in zip(letters, held.shape, strict=True):
            if size > 0 and known.setdefault(letter, size) != size:
                raise ValueError(f"einsum: {letter} of {equation!r} has the sizes {known[letter]} and {size}")
    sizes: dict[str, Any] = {**known}
    for held, letters in terms:
        for place, letter in enumerate(letters):
            if letter not in sizes:
                sizes[letter] = L.slice(figures.shape(held), [0], [place], [place + 1])
    return sizes


def _diagonal(term: _Term, sizes: dict[str, Any]) -> _Term:
    """The operand with every letter once: dims with the same letter are replaced by their diagonal."""
    value, letters = term
    while repeated := _repeated_letter(letters):
        places = [place for place, letter in enumerate(letters) if letter == repeated][:2]
        beside = [place for place in range(len(letters)) if place not in places]
        others, size = [letters[place] for place in beside], _known_size(repeated, sizes, letters)
        dims = [sizes[letter] for letter in others]
        flat = _reshape_to_dims(L.transpose(value, [*beside, *places]), [*dims, size * size])
        # If rows have one more element, the elements of the diagonal are in one column.
        rows = _reshape_to_dims(L.pad(flat, [*[0, 0] * len(dims), 0, size]), [*dims, size, size + 1])
        last = len(dims) + 1
        value = L.squeeze(L.slice(rows, [last], [0], [1]), [last])
        letters = "".join([*others, repeated])
    return _Term(value, letters)


def _spread(term: _Term, result: str, sizes: dict[str, Any]) -> Any:
    """The values in the dims of the result: on the diagonal of dims with the same letter, zeros elsewhere."""
    value, letters = _transpose_to_letters(term, "".join(dict.fromkeys(result))), "".join(dict.fromkeys(result))
    while len(letters) < len(result):
        repeated = next(letter for letter in letters if letters.count(letter) < result.count(letter))
        size = _known_size(repeated, sizes, result)
        place = letters.index(repeated)
        beside = [other for other in range(len(letters)) if other != place]
        letters = "".join([*(letters[other] for other in beside), repeated, repeated])
        dims = [sizes[letter] for letter in letters[:-2]]
        column = _reshape_to_dims(L.transpose(value, [*beside, place]), [*dims, size, 1])
        # `size` zeros after each value move it one column to the right in each row of `size`.
        flat = _reshape_to_dims(L.pad(column, [*[0, 0] * (len(dims) + 1), 0, size]), [*dims, size * (size + 1)])
        value = _reshape_to_dims(L.slice(flat, [len(dims)], [0], [size * size]), [*dims, size, size])
    return _transpose_to_letters(_Term(value, letters), result)


def _repeated_letter(letters: str) -> str:
    """The first letter that occurs several times, "" if none does."""
    return next((letter for letter in letters if letters.count(letter) > 1), "")


def _known_size(letter: str, sizes: dict[str, Any], letters: str) -> int:
    if not isinstance(sizes[letter], int):
        raise ValueError(f"einsum: the size of {letter} in {letters!r}, where it stands twice, must be known")
    return sizes[letter]


def _sum_other_dims(term: _Term, kept: str) -> _Term:
    """The operand summed over the dims whose letters are not in `kept`."""
    gone = [place for place, letter in enumerate(term.letters) if letter not in kept]
    if not gone:
        return term
    left = "".join(letter for letter in term.letters if letter in kept)
    return _Term(L.reduce_sum(term.variable, dim=gone), left)


def _transpose_to_letters(term: _Term, letters: str) -> Any:
    """The operand with its dims in the order of these letters."""
    places: list[int] = []
    for letter in letters:
        places.append(next(n for n, other in enumerate(term.letters) if other == letter and n not in places))
    return term.variable if places == sorted(places) else L.transpose(term.variable, places)


def _product(left: _Term, right: _Term, later: str, sizes: dict[str, Any]) -> _Term:
    """The product of two operands, summed over the letters that both have and `later` lacks."""
    both = [letter for letter in left.letters if letter in right.letters]
    rows, inner = [letter for letter in both if letter in later], [letter for letter in both if letter not in later]
    own = [[letter for letter in term.letters if letter not in both] for term in (left, right)]
    x = _flat(_Term(_transpose_to_letters(left, "".join([*rows, *own[0], *inner])), ""), [rows, own[0], inner], sizes)
    y = _flat(_Term(_transpose_to_letters(right, "".join([*rows, *inner, *own[1]])), ""), [rows, inner, own[1]], sizes)
    letters = [*rows, *own[0], *own[1]]
    made = L.matmul(x, y)
    if letters:
        return _Term(_flat(_Term(made, ""), [[letter] for letter in letters], sizes), "".join(letters))
    return _Term(L.reshape(made, [1]), "")


def _flat(term: _Term, groups: Sequence[Sequence[str]], sizes: dict[str, Any]) -> Any:
    """The operand reshaped to one dim for each group of letters."""
    return _reshape_to_dims(term.variable, [_size([sizes[letter] for letter in group]) for group in groups])


def _reshape_to_dims(held: Any, dims: Sequence[Any]) -> Any:
    """A variable reshaped to these dims, each a number or a variable with one."""
    first = next((place for place, dim in enumerate(dims) if not isinstance(dim, int)), None)
    return L.reshape(held, [-1 if place == first else dim for place, dim in enumerate(dims)])


def _size(sizes: Sequence[Any]) -> Any:
    """The product of lengths, each a number or a variable with one."""
    number = number_of_elements(size for size in sizes if isinstance(size, int))
    made: Any = None
    for size in sizes:
        if not isinstance(size, int):
            made = size if made is None else L.elementwise_mul(made, size)
    return number if made is None else made if number == 1 else L.scale(made, float(number))


L: Any = layers
_LARGEST = float(np.finfo("float32").max)

_PAIR = "x, y"
_REDUCE = ("x, axis=None, keepdim=False", "x=input axis=dim keepdim=keep_dim")
_TABLE: dict[str, tuple[str, ...]] = {
    "add": ("elementwise_add", _PAIR),
    "subtract": ("elementwise_sub", _PAIR),
    "multiply": ("elementwise_mul", _PAIR),
    "maximum": ("elementwise_max", _PAIR),
    "minimum": ("elementwise_min", _PAIR),
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
    "max": ("reduce_max", *_REDUCE),
    "min": ("reduce_min", *_REDUCE),
    "any": ("reduce_any", *_REDUCE),
    "all": ("reduce_all", *_REDUCE),
    "concat": ("concat", "x, axis=0", "x=input"),
    "split": ("split", "x, num_or_sections, axis=0", "x=input axis=dim"),
    "unsqueeze": ("unsqueeze", "x, axis", "x=input axis=axes"),
    "cross": ("cross", "x, y, axis=None", "x=input y=other axis=dim"),
    "diag_embed": ("diag_embed", "input, offset=0, dim1=-2, dim2=-1"),
    "dist": ("dist", "x, y, p=2"),
    "eye": ("eye", "num_rows, num_columns=None, dtype='float32'"),
    "flip": ("flip", "x, axis", "x=input axis=dims"),
    "reverse": ("flip", "x, axis", "x=input axis=dims"),
    "full_like": ("full_like", "x, fill_value, dtype=None", "x=input"),
    "increment": ("increment", "x, value=1.0"),
    "index_sample": ("index_sample", "x, index"),
    "kron": ("kron", _PAIR),
    "log1p": ("log1p", "x"),
    "logsumexp": ("logsumexp", "x, axis=None, keepdim=False", "axis=dim"),
    "nonzero": ("nonzero", "x, as_tuple=False", "x=input"),
    "addmm": ("addmm", "input, x, y, beta=1.0, alpha=1.0"),
    "allclose": ("allclose", "x, y, rtol=1e-05, atol=1e-08, equal_nan=False", "x=input y=other"),
    "chunk": ("split", "x, chunks, axis=0", "x=input chunks=num_or_sections axis=dim"),
    "crop": ("crop_tensor", "x, shape=None, offsets=None"),
    "multiplex": ("multiplex", "inputs, index"),
    "mv": ("matmul", "x, vec", "vec=y"),
    "reshape": ("reshape", "x, shape"),
    "scatter_nd": ("scatter_nd", "index, updates, shape"),
    "scatter_nd_add": ("scatter_nd_add", "x, index, updates", "x=ref"),
    "sign": ("sign", "x"),
    "stanh": ("stanh", "x, scale_a=0.67, scale_b=1.7159"),
    "standard_normal": ("gaussian_random", "shape, dtype='float32'"),
    "strided_slice": ("strided_slice", "x, axes, starts, ends, strides", "x=input"),
    "trace": ("trace", "x, offset=0, axis1=0, axis2=1", "x=input axis1=dim1 axis2=dim2"),
    "tril": ("tril", "x, diagonal=0", "x=input"),
    "triu": ("triu", "x, diagonal=0", "x=input"),
    "unbind": ("unstack", "input, axis=0", "input=x"),
    "stack": ("stack", "x, axis=0"),
    "tile": ("expand", "x, repeat_times", "repeat_times=expand_times"),
    "gather_nd": ("gather_nd", "x, index", "x=input"),
    "scatter": ("scatter", "x, index, updates, overwrite=True", "x=input"),
    "index_select": ("index_select", "x, index, axis=0", "x=input axis=dim"),
    "assign": ("assign", "x, output=None", "x=input"),
    "add_n": ("sums", "inputs", "inputs=input"),
    "numel": ("size", "x", "x=input"),
    "zeros": ("zeros", "shape, dtype='float32'"),
    "ones": ("ones", "shape, dtype='float32'"),
    "uniform": ("uniform_random", "shape, dtype='float32', min=-1.0, max=1.0, seed=0"),
    "randn": ("gaussian_random", "shape, dtype='float32'"),
    "normal": ("gaussian_random", "mean=0.0, std=1.0, shape=(1,)"),
}
_SAME = """abs acos array_length array_read array_write asin atan cast ceil cos create_array create_parameter erf exp
floor is_empty linspace log logical_and logical_not logical_or logical_xor rank reciprocal round rsqrt scale
shard_index sin slice sqrt square t tanh transpose unstack"""
_IN_PLACE = ("reshape", "scatter", "squeeze", "tanh", "unsqueeze", "add", "subtract", "clip", "ceil", "floor", "exp")
"""Functions that 2.x also has with a trailing underscore; here these return a new value and change no other."""


def _reduce_dims(fluid: str, x: Any, axis: Any, keepdim: bool, name: Any) -> Any:
    return getattr(L, fluid)(x, dim=axis, keep_dim=keepdim, name=name)


def mod(x: Any, y: Any, name: Any = None) -> Any:
    """The remainder of x / y, with the sign of y."""
    return _mark_floored(L.elementwise_mod(x, y, name=name))


remainder = floor_mod = mod


def floor_divide(x: Any, y: Any, name: Any = None) -> Any:
    """x / y, rounded down."""
    return _mark_floored(L.elementwise_floordiv(x, y, name=name))


def _mark_floored(result: Any) -> Any:
    last_op(result)._set_attr("floored", True)
    return result


def divide(x: Any, y: Any, name: Any = None) -> Any:
    """x / y; whole numbers are divided as float32."""
    return L.elementwise_div(as_floats(x), as_floats(y), name=name)


def sum(x: Any, axis: Any = None, dtype: Any = None, keepdim: bool = False, name: Any = None) -> Any:
    """The sum over the dims in `axis` (default: all), as elements of `dtype`; the default is int64 for
    int32 and bool.
    """
    if dtype is None and numpy_name(x.dtype) in ("bool", "int32"):
        dtype = "int64"
    return _reduce_dims("reduce_sum", x if dtype is None else L.cast(x, dtype), axis, keepdim, name)


def mean(x: Any, axis: Any = None, keepdim: bool = False, name: Any = None) -> Any:
    """The mean over the dims in `axis` (default: all)."""
    return L.mean(x, name) if axis is None and not keepdim else _reduce_dims("reduce_mean", x, axis, keepdim, name)


def pow(x: Any, y: Any, name: Any = None) -> Any:
    """x to the power of a number or a variable."""
    return L.elementwise_pow(x, y, name=name) if isinstance(y, Variable) else L.pow(x, float(y), name=name)


def full(shape: Any, fill_value: Any, dtype: Any = None, name: Any = None) -> Any:
    """A tensor whose elements are all `fill_value`."""
    return L.fill_constant(shape, dtype or "float32", fill_value)


def arange(start: Any = 0, end: Any = None, step: Any = 1, dtype: Any = None, name: Any = None) -> Any:
    """The numbers from `start` up to `end`, without `end` itself; with one number, from 0 up to it."""
    first, last = (0, start) if end is None else (start, end)
    whole = all(isinstance(value, int) for value in (first, last, step))
    return L.range(first, last, step, dtype or ("int64" if whole else "float32"))


def squeeze(x: Any, axis: Any = None, name: Any = None) -> Any:
    """x without the dims of length 1 in `axis` (default: all such dims). Dims of other lengths are kept."""
    axes = [] if axis is None else [axis] if isinstance(axis, int) else [*axis]
    if not axes:
        return L.squeeze(x, axes, name)
    value = to_core(x)
    attrs = {"axes": axes, "ones_only": True}
    outputs = {"Out": value.dtype, "XShape": value.dtype}
    return wrap(layer_outputs("squeeze2", {"X": value}, outputs, attrs, key="squeeze", name=name)[0])


def flatten(x: Any, start_axis: int = 0, stop_axis: int = -1, name: Any = None) -> Any:
    """x with the dims from `start_axis` to `stop_axis` joined to one. Raises ValueError where more than one length is
    unknown.
    """
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
    """x with its elements limited to at least `min` and at most `max`."""
    if isinstance(min, Variable) or isinstance(max, Variable):
        return L.clamp(x, -_LARGEST if min is None else min, _LARGEST if max is None else max, name=name)
    return L.clip(x, -_LARGEST if min is None else float(min), _LARGEST if max is None else float(max), name)


def where(condition: Any, x: Any = None, y: Any = None, name: Any = None) -> Any:
    """The elements of x where the condition is true, and those of y elsewhere; the three are broadcast to the same
    dims.

    Without x and y, the indices where the condition is true.
    """
    if x is None and y is None:
        return L.nonzero(condition, True)
    x, y = ((L.fill_constant([1], "float32", held) if isinstance(held, int | float) else held) for held in (x, y))
    if len({tuple(held.shape) for held in (condition, x, y)}) > 1:
        chosen = L.cast(condition, x.dtype)
        zeros = L.elementwise_add(L.elementwise_add(L.zeros_like(x), L.zeros_like(y)), L.zeros_like(chosen))
        condition = L.cast(L.elementwise_add(chosen, zeros), "bool")
        x, y = L.elementwise_add(x, zeros), L.elementwise_add(y, zeros)
    inputs = {"Condition": to_core(condition), "X": to_core(x), "Y": to_core(y)}
    return wrap(layer_outputs("where", inputs, {"Out": to_core(x).dtype}, name=name)[0])


def argmax(x: Any, axis: int | None = None, keepdim: bool = False, dtype: Any = "int64", name: Any = None) -> Any:
    """The indices of the largest elements along `axis`; with None, the index of the largest of all in
    the flattened x.
    """
    return _place("argmax", x, axis, keepdim, dtype)


def argmin(x: Any, axis: int | None = None, keepdim: bool = False, dtype: Any = "int64", name: Any = None) -> Any:
    """The indices of the smallest elements along `axis`; with None, the index of the smallest of all in the flattened
    x.
    """
    return _place("argmin", x, axis, keepdim, dtype)


def _place(fluid: str, x: Any, axis: int | None, keepdim: bool, dtype: Any) -> Any:
    found = getattr(L, fluid)(L.reshape(x, [-1]) if axis is None else x, 0 if axis is None else axis)
    if keepdim and axis is not None:
        found = L.unsqueeze(found, [axis])
    return found if dtype == "int64" else L.cast(found, dtype)


def argsort(x: Any, axis: int = -1, descending: bool = False, name: Any = None) -> Any:
    """The indices that sort x along `axis`."""
    return L.argsort(x, axis, descending, name)[1]


def sort(x: Any, axis: int = -1, descending: bool = False, name: Any = None) -> Any:
    """The elements sorted along `axis`."""
    values = L.argsort(x, axis, descending, name)[0]
    values.stop_gradient = x.stop_gradient  # Fluid's has no gradient
    return values


def topk(x: Any, k: Any, axis: int | None = None, largest: bool = True, sorted: bool = True, name: Any = None) -> Any:
    """The k largest or smallest elements along `axis` (default: the last dim), and their indices."""
    last = len(x.shape) - 1
    order = list(range(last + 1))
    if axis is not None and axis % (last + 1) != last:
        order[axis % (last + 1)], order[last] = last, axis % (last + 1)
        x = L.transpose(x, order)
    values, places = L.topk(x if largest else L.scale(x, -1.0), k)
    values.stop_gradient = x.stop_gradient  # Fluid's op has no gradient, like that of sort
    values = values if largest else L.scale(values, -1.0)
    if order == list(range(last + 1)):
        return values, places
    return L.transpose(values, order), L.transpose(places, order)


def prod(x: Any, axis: Any = None, keepdim: bool = False, dtype: Any = None, name: Any = None) -> Any:
    """The product over the dims in `axis` (default: all), as elements of `dtype`."""
    return _reduce_dims("reduce_prod", x if dtype is None else L.cast(x, dtype), axis, keepdim, name)


def ones_like(x: Any, dtype: Any = None, name: Any = None) -> Any:
    """A tensor of ones with the dims of x."""
    return L.ones_like(x) if dtype is None else L.full_like(x, 1, dtype=dtype)


def zeros_like(x: Any, dtype: Any = None, name: Any = None) -> Any:
    """A tensor of zeros with the dims of x."""
    return L.zeros_like(x) if dtype is None else L.full_like(x, 0, dtype=dtype)


def rand(shape: Any, dtype: Any = None, name: Any = None) -> Any:
    """Numbers drawn uniformly from [0, 1)."""
    return L.uniform_random(shape, dtype or "float32", 0.0, 1.0)


def roll(x: Any, shifts: Any, axis: Any = None, name: Any = None) -> Any:
    """The elements shifted along dims, those beyond the end to the front; without an axis, in the flattened x."""
    moved, dims = ([value] if isinstance(value, int) else value for value in (shifts, axis))
    return (
        L.reshape(L.roll(L.reshape(x, [-1]), moved, [0]), figures.shape(x)) if dims is None else L.roll(x, moved, dims)
    )


def gather(x: Any, index: Any, axis: Any = None, name: Any = None) -> Any:
    """The slices of x along `axis` (default: the first dim) with the given indices."""
    return L.index_select(x, index, axis) if axis else L.gather(x, index)


def cumsum(x: Any, axis: Any = None, dtype: Any = None, name: Any = None) -> Any:
    """The cumulative sums along `axis`; with None, over the flattened x."""
    x = x if dtype is None else L.cast(x, dtype)
    return L.cumsum(L.reshape(x, [-1]) if axis is None else x, 0 if axis is None else axis)


def meshgrid(*args: Any, **options: Any) -> Any:
    """The coordinates of the points of a grid, from the coordinates along each dim, which are separate arguments or a
    list.
    """
    listed = isinstance(args[0], list | tuple)
    return L.meshgrid([*args[0]] if listed else [*args])


def randint(low: int = 0, high: Any = None, shape: Any = (1,), dtype: Any = None, name: Any = None) -> Any:
    """Whole numbers drawn from [low, high), or from [0, low) if `high` is None."""
    first, last = (0, low) if high is None else (low, high)
    return L.randint(first, last, shape=[*shape] if isinstance(shape, tuple) else shape, dtype=dtype or "int64")


def randperm(n: int, dtype: Any = "int64", name: Any = None) -> Any:
    """The whole numbers below `n` in random order."""
    return L.randperm(n, dtype=dtype)


def to_tensor(data: Any, dtype: Any = None, place: Any = None, stop_gradient: bool = True) -> Any:
    """A variable with the elements of an array, a list or a number."""
    held = np.asarray(data)
    kind = dtype or (held.dtype if isinstance(data, np.ndarray) or held.dtype != "float64" else "float32")
    made = L.assign(held.reshape(-1) if held.ndim == 0 else held)
    made = made if str(held.dtype) == str(kind) else L.cast(made, kind)
    made.stop_gradient = stop_gradient
    return made


def function(name: str) -> Any:
    """The function with a name. Raises AttributeError, which names the nearest one, if there is none."""
    if name in globals() and not name.startswith("_"):
        return globals()[name]
    if name.endswith("_") and name[:-1] in _IN_PLACE:
        return globals().get(name[:-1]) or _tabled(name[:-1])
    return vars(figures)[name] if name in figures.NAMES else _tabled(name)


_tabled = from_tables("paddle", [*globals(), *figures.NAMES], _TABLE, _SAME)
__getattr__ = function
_METHODS = """
abs acos add add_n addmm all allclose any argmax argmin argsort asin atan bitwise_and bitwise_not
bitwise_or bitwise_xor bmm broadcast_to cast ceil chunk clip clone
concat cos cosh cross cumsum detach dist divide dot equal equal_all erf exp expand expand_as flatten flip floor
floor_divide floor_mod gather gather_nd greater_equal greater_than increment index_sample index_select is_empty
is_tensor isfinite isinf isnan kron less_equal less_than log log10 log1p log2 logical_and logical_not logical_or
logical_xor logsumexp masked_select matmul max maximum mean median min minimum mm mod multiplex multiply mv nonzero
norm not_equal numel pow prod rank reciprocal remainder reshape reshape_ reverse roll round rsqrt scale scatter
scatter_ scatter_nd scatter_nd_add shard_index sign sin sinh slice sort split sqrt square squeeze squeeze_ stack
stanh std strided_slice subtract sum t tanh tanh_ tile topk trace transpose unbind unique unsqueeze unsqueeze_
unstack var where"""
METHODS = frozenset(_METHODS.split())
"""The names of the functions that variables of 2.x have as methods."""


# Methods of variables that read and set their values in a scope.


def get_value(var: Any, scope: Any = None) -> Any:
    """The tensor of a variable in a scope (default: the one in use). Raises ValueError if it has no value."""
    held = (scope or global_scope()).find_var(var.name)
    if held is None:
        raise ValueError(f"{var.name} has no value in the scope: run the start-up program first")
    return held.get_tensor()


def set_value(var: Any, value: Any, scope: Any = None) -> None:
    """Sets a variable in a scope (default: the one in use) to an array or a tensor.

    Raises TypeError for other values, ValueError if the variable has no value yet, or one with other dims.
    """
    if not isinstance(value, np.ndarray) and not hasattr(value, "lod"):
        raise TypeError(f"{var.name} is set to an array or a tensor, not to a {type(value).__name__}")
    tensor, made = get_value(var, scope), np.array(value)
    if made.shape != np.array(tensor).shape:
        raise ValueError(f"{var.name} has the dims {[*np.array(tensor).shape]}, the value {[*made.shape]}")
    tensor.set(made.astype(np.array(tensor).dtype, copy=False), None)
