"""Complex numbers of an exported graph as pairs of real ones, which operators of real numbers compute.

A gradient is then that of the two parts, as PyTorch has it for a real loss. Fourier transforms are products with the
matrices of their roots of one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from pstranspile.frontends.torch.refusals import CALLED, user_line, user_place
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error


class Pair(NamedTuple):
    """The real and the imaginary part of a value: nodes, or numbers."""

    real: Any
    imaginary: Any


Rule: TypeAlias = "Callable[[_Rewriting, Any, Sequence[Any], dict[str, Any]], Any]"
"""What an operator gives, of arguments in which complex values are pairs: a pair, or a node for real numbers."""

_RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers the rule of operators, by their names without overload."""

    def register(rule: Rule) -> Rule:
        for name in names:
            _RULES[name] = rule
        return rule

    return register


def has_complex(graph: Any) -> bool:
    """Whether a node of a graph has complex numbers."""
    return any(map(is_complex, graph.nodes))


def is_complex(node: Any) -> bool:
    """Whether the value of a node, or one of its values, is complex."""
    return any(hasattr(one, "dtype") and one.dtype.is_complex for one in _flat(node.meta.get("val")))


def has_rule(node: Any) -> bool:
    """Whether an operator is taken with complex numbers."""
    return _base(node) in _RULES


def split_complex(torch: Any, exported: Any) -> None:
    """Replaces complex nodes of a graph without side effects by pairs of real ones.

    Raises DiagnosticError (`torch-op`) for operators that have no rule.
    """
    rewriting = _Rewriting(torch, exported.graph_module.graph)
    findings = [*rewriting.rewrite_nodes()]
    if findings:
        raise DiagnosticError(findings)
    exported.graph_module.recompile()


def _base(node: Any) -> str:
    return str(getattr(node.target, "__name__", node.target)).split(".")[0]


class _Rewriting:
    """A graph while its complex nodes are replaced."""

    def __init__(self, torch: Any, graph: Any):
        self.torch = torch
        self.aten = torch.ops.aten
        self._graph = graph
        self._pairs: dict[Any, Pair] = {}
        self._stack: str | None = None
        self._mode = next(
            one.fake_mode
            for node in graph.nodes
            for one in _flat(node.meta.get("val"))
            if getattr(one, "fake_mode", None) is not None
        )

    def rewrite_nodes(self) -> list[Diagnostic]:
        """Rewrites every node that has or takes complex numbers; returns what is refused."""
        result: list[Diagnostic] = []
        lost: set[Any] = set()
        first = next(node for node in self._graph.nodes if node.op != "placeholder")
        for node in [*self._graph.nodes]:
            taken = [one for one in node.all_input_nodes if one in self._pairs]
            if lost.intersection(node.all_input_nodes):
                lost.add(node)
            elif node.op == "placeholder" and is_complex(node):
                with self._graph.inserting_before(first):
                    both = self.add_node(self.aten.view_as_real.default, node)
                    parts = (self.add_node(self.aten.select.int, both, -1, at) for at in (0, 1))
                    self._pairs[node] = Pair(*parts)
            elif node.op == "call_function" and (taken or is_complex(node)):
                problem = self._rewritten(node)
                if problem is not None:
                    lost.add(node)
                    result.append(problem)
        for node in reversed([*self._graph.nodes]):
            if node in self._pairs and node.op == "call_function" and not node.users:
                self._graph.erase_node(node)
        return result

    def _rewritten(self, node: Any) -> Diagnostic | None:
        if _base(node).startswith("_assert"):
            self._graph.erase_node(node)
            return None
        rule, stack = _RULES.get(_base(node)), node.meta.get("stack_trace")
        self._stack = stack
        if rule is None:
            message = f"{node.target}: it takes complex numbers, with which it is not translated"
            return error("torch-op", message, user_place(stack) or user_line(stack), notes=[CALLED])
        with self._graph.inserting_before(node):
            args = [self._with_pairs(arg) for arg in node.args]
            made = rule(self, node, args, {name: self._with_pairs(arg) for name, arg in node.kwargs.items()})
        if isinstance(made, Pair):
            same = [one if hasattr(one, "op") else self._constant_node(one, node) for one in made]
            self._pairs[node] = Pair(*same)
        else:
            node.replace_all_uses_with(made)
            self._pairs[node] = Pair(made, 0.0)
        return None

    def _constant_node(self, number: float, node: Any) -> Any:
        """A constant with the dims of a node."""
        value = node.meta["val"]
        with self._graph.inserting_before(node):
            kind = part_kind(self.torch, value.dtype)
            return self.add_node(self.aten.full.default, [*value.shape], number, dtype=kind, device=value.device)

    def _with_pairs(self, arg: Any) -> Any:
        if isinstance(arg, tuple | list):
            return [self._with_pairs(one) for one in cast("Sequence[Any]", arg)]
        if isinstance(arg, complex):
            return Pair(arg.real, arg.imag)
        return self._pairs.get(arg, arg) if hasattr(arg, "op") else arg

    def add_node(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        """A new node, whose value has the dims and the type that torch finds."""

        def value(arg: Any) -> Any:
            if isinstance(arg, tuple | list):
                return [value(one) for one in cast("Sequence[Any]", arg)]
            return arg.meta["val"] if hasattr(arg, "op") else arg

        given = [value(arg) for arg in args]
        node = self._graph.call_function(target, tuple(args), kwargs)
        with self._mode:
            node.meta["val"] = target(*given, **{name: value(arg) for name, arg in kwargs.items()})
        node.meta["stack_trace"] = self._stack
        return node

    # Arithmetic on nodes and numbers; 0.0 is nothing.

    def zeros(self, like: Any) -> Any:
        """As many zeros as a node has elements; 0.0 for a number."""
        return self.add_node(self.aten.zeros_like.default, like) if hasattr(like, "op") else 0.0

    def negative(self, x: Any) -> Any:
        """A node or a number with the other sign."""
        return self.add_node(self.aten.neg.default, x) if hasattr(x, "op") else -x

    def sum(self, x: Any, y: Any) -> Any:
        """x + y."""
        if not hasattr(x, "op"):
            x, y = y, x
        return x if not hasattr(y, "op") and y == 0 else self._of_two(self.aten.add.Tensor, operator.add, x, y)

    def difference(self, x: Any, y: Any) -> Any:
        """x - y."""
        return self.sum(x, self.negative(y))

    def product(self, x: Any, y: Any) -> Any:
        """x * y, element by element."""
        if not hasattr(x, "op"):
            x, y = y, x
        return self._of_two(self.aten.mul.Tensor, operator.mul, x, y)

    def quotient(self, x: Any, y: Any) -> Any:
        """x / y, element by element."""
        if not hasattr(x, "op") and hasattr(y, "op"):
            return self.product(self.function("reciprocal", y), x) if x else self.zeros(y)
        return self._of_two(self.aten.div.Tensor, lambda one, other: one / other, x, y)

    def _of_two(self, target: Any, plain: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
        if not hasattr(x, "op") and not hasattr(y, "op"):
            return plain(x, y)
        return self.add_node(target, x, y)

    def function(self, name: str, x: Any) -> Any:
        """A function of one value, such as `cos`."""
        return self.add_node(getattr(self.aten, name).default, x)

    def size(self, x: Pair) -> Any:
        """The size of complex numbers, with no gradient at 0."""
        squares = self.sum(self.product(x.real, x.real), self.product(x.imaginary, x.imaginary))
        none = self.add_node(self.aten.eq.Scalar, squares, 0)
        ones = self.add_node(self.aten.ones_like.default, squares)
        root = self.function("sqrt", self.add_node(self.aten.where.self, none, ones, squares))
        return self.add_node(self.aten.where.self, none, self.zeros(squares), root)

    # Fourier transforms.

    def roots(self, size: int, like: Any) -> Pair:
        """The cosines and the sines of the angles 2 pi j k / size, as matrices [size, size]."""
        value, full, aten = like.meta["val"], self.torch.float64, self.aten
        places = self.add_node(aten.arange.default, size, dtype=self.torch.int64, device=value.device)
        down, across = (self.add_node(aten.unsqueeze.default, places, at) for at in (1, 0))
        turns = self.add_node(aten.remainder.Scalar, self.add_node(aten.mul.Tensor, down, across), size)
        angles = self.add_node(
            aten.mul.Tensor, self.add_node(aten._to_copy.default, turns, dtype=full), 2 * math.pi / size
        )
        made = (self.function(name, angles) for name in ("cos", "sin"))
        return Pair(*(self.add_node(aten._to_copy.default, one, dtype=value.dtype) for one in made))

    def multiply_along(self, x: Any, matrix: Any, axis: int) -> Any:
        """The products of the elements along an axis with the columns of a matrix."""
        last = x.meta["val"].dim() - 1
        turned = x if axis == last else self.add_node(self.aten.transpose.int, x, axis, last)
        made = self.add_node(self.aten.matmul.default, turned, matrix)
        return made if axis == last else self.add_node(self.aten.transpose.int, made, axis, last)

    def fourier_transform(self, x: Pair, axis: int, *, forward: bool) -> Pair:
        """The sums of elements along an axis times roots of one, whose angles are negative for `forward`."""
        wave = self.roots(_length(x.real, axis), x.real)
        sine = self.negative(wave.imaginary) if forward else wave.imaginary
        if not hasattr(x.imaginary, "op"):
            return Pair(self.multiply_along(x.real, wave.real, axis), self.multiply_along(x.real, sine, axis))
        real = self.difference(
            self.multiply_along(x.real, wave.real, axis), self.multiply_along(x.imaginary, sine, axis)
        )
        return Pair(
            real, self.sum(self.multiply_along(x.real, sine, axis), self.multiply_along(x.imaginary, wave.real, axis))
        )

    def scaled(self, x: Any, factor: float) -> Any:
        """A node times a number."""
        return x if factor == 1 else self.add_node(self.aten.mul.Tensor, x, factor)


def _flat(given: Any) -> list[Any]:
    if not isinstance(given, tuple | list):
        return [given]
    return [one for part in cast("Sequence[Any]", given) for one in _flat(part)]


def _length(x: Any, axis: int) -> int:
    size = x.meta["val"].shape[axis]
    if not isinstance(size, int):
        message = "a Fourier transform is over a dim whose size only a run knows, which is not translated"
        raise DiagnosticError([error("torch-op", message, user_line(x.meta.get("stack_trace")), notes=[CALLED])])
    return size


_NORMS: dict[int, Callable[[int], float]] = {0: lambda _: 1.0, 1: lambda n: 1 / math.sqrt(n), 2: lambda n: 1 / n}
"""The factor of a transform of so many elements, by torch's number for its normalization."""


def _real(one: Any) -> Any:
    return one.real if isinstance(one, Pair) else one


def _as_pair(one: Any) -> Pair:
    return one if isinstance(one, Pair) else Pair(one, 0.0)


@_rule("_fft_c2c")
def _fourier(graph: _Rewriting, _node: Any, args: Sequence[Any], _named: dict[str, Any]) -> Any:
    x, axes, norm, forward = args
    x, count, rank = _as_pair(x), 1, x.real.meta["val"].dim()
    for axis in axes:
        count *= _length(x.real, axis % rank)
        x = graph.fourier_transform(x, axis % rank, forward=bool(forward))
    return Pair(*(graph.scaled(one, _NORMS[norm](count)) for one in x))


@_rule("_fft_r2c")
def _fourier_of_real(graph: _Rewriting, _node: Any, args: Sequence[Any], _named: dict[str, Any]) -> Any:
    """The last of the dims has the first half of its frequencies with `onesided`."""
    real, axes, norm, onesided = args
    rank = real.meta["val"].dim()
    axes = [axis % rank for axis in axes]
    count = math.prod(_length(real, axis) for axis in axes)
    x = graph.fourier_transform(Pair(real, 0.0), axes[-1], forward=True)
    if onesided:
        half = _length(real, axes[-1]) // 2 + 1
        x = Pair(*(graph.add_node(graph.aten.slice.Tensor, one, axes[-1], 0, half) for one in x))
    for axis in axes[:-1]:
        x = graph.fourier_transform(x, axis, forward=True)
    return Pair(*(graph.scaled(one, _NORMS[norm](count)) for one in x))


@_rule("_fft_c2r")
def _fourier_to_real(graph: _Rewriting, _node: Any, args: Sequence[Any], _named: dict[str, Any]) -> Any:
    """The last of the dims has half of its frequencies: all but the first, and the last of an even size, stand for
    two.
    """
    x, axes, norm, size = args
    x, rank, aten = _as_pair(x), x.real.meta["val"].dim(), graph.aten
    axes = [axis % rank for axis in axes]
    count = size
    for axis in axes[:-1]:
        count *= _length(x.real, axis)
        x = graph.fourier_transform(x, axis, forward=False)
    wave, half = graph.roots(size, x.real), size // 2 + 1
    real, imaginary = (graph.add_node(aten.slice.Tensor, one, axes[-1], 0, half) for one in x)
    once = [0, half - 1] if size % 2 == 0 else [0]
    sides: list[Any] = []
    for one in wave:
        rows = graph.add_node(aten.slice.Tensor, one, 0, 0, half)
        parts = [graph.scaled(graph.add_node(aten.slice.Tensor, rows, 0, at, at + 1), 0.5) for at in once]
        inner = graph.add_node(aten.slice.Tensor, rows, 0, 1, half - 1 if size % 2 == 0 else half)
        joined = [parts[0], inner, *parts[1:]] if size > 1 else parts[:1]
        sides.append(graph.scaled(graph.add_node(aten.cat.default, joined, 0), 2.0))
    made = graph.difference(
        graph.multiply_along(real, sides[0], axes[-1]), graph.multiply_along(imaginary, sides[1], axes[-1])
    )
    return graph.scaled(made, _NORMS[norm](count))


# Parts.


@_rule("sym_size", "sym_numel", "sym_stride", "sym_storage_offset")
def _of_dims(graph: _Rewriting, node: Any, args: Sequence[Any], _named: dict[str, Any]) -> Any:
    return graph.add_node(node.target, args[0].real, *args[1:])


@_rule("full", "zeros", "ones", "scalar_tensor", "full_like", "ones_like", "new_full")
def _constant_pair(graph: _Rewriting, node: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
    """A constant complex tensor, whose imaginary part is usually 0."""
    kind = part_kind(graph.torch, node.meta["val"].dtype)
    given = [one if place != len(args) - 1 else _real(one) for place, one in enumerate(map(_real_node, args))]
    real = graph.add_node(node.target, *given, **{**named, "dtype": kind})
    imaginary = _as_pair(args[-1]).imaginary if args else 0.0
    with_same = imaginary if not hasattr(imaginary, "op") and imaginary else 0.0
    return Pair(real, graph.add_node(graph.aten.full_like.default, real, with_same))


def _real_node(one: Any) -> Any:
    """The real part of a pair of nodes; anything else is returned unchanged."""
    return one.real if isinstance(one, Pair) and hasattr(one.real, "op") else one


@_rule("real")
def _real_part(graph: _Rewriting, _node: Any, args: Sequence[Any], _named: dict[str, Any]) -> Any:
    return graph.add_node(graph.aten.clone.default, _real(args[0]))


@_rule("imag")
def _imaginary_part(graph: _Rewriting, _node: Any, args: Sequence[Any], _named: dict[str, Any]) -> Any:
    return graph.add_node(graph.aten.clone.default, _imaginary(graph, args[0]))


def _imaginary(graph: _Rewriting, one: Any) -> Any:
    """The imaginary part of a value as a node."""
    pair = _as_pair(one)
    return pair.imaginary if hasattr(pair.imaginary, "op") else graph.zeros(pair.real)


@_rule("complex", "view_as_complex", "polar")
def _from_real(graph: _Rewriting, node: Any, args: Sequence[Any], _named: dict[str, Any]) -> Any:
    kind = _base(node)
    if kind == "complex":
        return Pair(*args)
    if kind == "polar":
        size, angle = args
        return Pair(*(graph.product(size, graph.function(name, angle)) for name in ("cos", "sin")))
    return Pair(*(graph.add_node(graph.aten.select.int, args[0], -1, at) for at in (0, 1)))


@_rule("view_as_real", "view_as_real_copy")
def _to_real(graph: _Rewriting, _node: Any, args: Sequence[Any], _named: dict[str, Any]) -> Any:
    return graph.add_node(graph.aten.stack.default, [args[0].real, _imaginary(graph, args[0])], -1)


@_rule("_conj", "conj", "conj_physical", "_conj_physical")
def _conjugate(graph: _Rewriting, _node: Any, args: Sequence[Any], _named: dict[str, Any]) -> Any:
    return Pair(args[0].real, graph.negative(args[0].imaginary))


@_rule("abs")
def _size(graph: _Rewriting, _node: Any, args: Sequence[Any], _named: dict[str, Any]) -> Any:
    return graph.size(args[0])


@_rule("linalg_vector_norm")
def _norm(graph: _Rewriting, node: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
    return graph.add_node(node.target, graph.size(args[0]), *args[1:], **named)


@_rule("angle")
def _angle(graph: _Rewriting, _node: Any, args: Sequence[Any], _named: dict[str, Any]) -> Any:
    return graph.add_node(graph.aten.atan2.default, _imaginary(graph, args[0]), args[0].real)


@_rule("exp")
def _exp(graph: _Rewriting, _node: Any, args: Sequence[Any], _named: dict[str, Any]) -> Any:
    size = graph.function("exp", args[0].real)
    return Pair(*(graph.product(size, graph.function(name, args[0].imaginary)) for name in ("cos", "sin")))


# Arithmetic.


@_rule("add", "sub", "rsub")
def _sum_or_difference(graph: _Rewriting, node: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
    x, y = _as_pair(args[0]), _as_pair(args[1])
    alpha = named.get("alpha", args[2] if len(args) > 2 else 1)
    if _base(node) == "rsub":
        x, y = y, x
    factor = alpha if _base(node) == "add" else -alpha
    real, imaginary = (
        graph.sum(one, other if factor == 1 else graph.product(other, factor)) for one, other in zip(x, y, strict=True)
    )
    return Pair(real, graph.sum(imaginary, graph.zeros(real)))


_BILINEAR = ("mul", "bmm", "mm", "matmul", "dot", "mv", "einsum")


@_rule(*_BILINEAR)
def _bilinear_product(graph: _Rewriting, node: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
    """The four products of the parts of two values, without those in which a part is 0."""
    first, second = args[1] if _base(node) == "einsum" else args[:2]

    def product(x: Any, y: Any) -> Any:
        if not (hasattr(x, "op") or x != 0.0) or not (hasattr(y, "op") or y != 0.0):
            return None
        if _base(node) == "einsum":
            return graph.add_node(node.target, args[0], [x, y], **named)
        return graph.product(x, y) if _base(node) == "mul" else graph.add_node(node.target, x, y)

    x, y = _as_pair(first), _as_pair(second)
    same, turned = product(x.real, y.real), product(x.imaginary, y.imaginary)
    crossed = [one for one in (product(x.real, y.imaginary), product(x.imaginary, y.real)) if one is not None]
    real = same if turned is None else graph.negative(turned) if same is None else graph.difference(same, turned)
    imaginary = crossed[0] if len(crossed) == 1 else graph.sum(*crossed) if crossed else 0.0
    if real is None:
        real = graph.zeros(imaginary)
    return Pair(real, imaginary if crossed else graph.zeros(real))


@_rule("div", "reciprocal")
def _quotient(graph: _Rewriting, _node: Any, args: Sequence[Any], _named: dict[str, Any]) -> Any:
    x, y = (_as_pair(args[0]), args[1]) if len(args) > 1 else (Pair(1.0, 0.0), args[0])
    if not isinstance(y, Pair):
        return Pair(graph.quotient(x.real, y), graph.quotient(x.imaginary, y))
    squares = graph.sum(graph.product(y.real, y.real), graph.product(y.imaginary, y.imaginary))
    real = graph.sum(graph.product(x.real, y.real), graph.product(x.imaginary, y.imaginary))
    imaginary = graph.difference(graph.product(x.imaginary, y.real), graph.product(x.real, y.imaginary))
    return Pair(graph.quotient(real, squares), graph.quotient(imaginary, squares))


@_rule("pow")
def _power(graph: _Rewriting, node: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
    x, exponent = args
    if exponent not in (1, 2, 3, 4):
        message = f"{node.target}: it takes complex numbers to the power of {exponent}, which is not translated"
        place = node.meta.get("stack_trace")
        raise DiagnosticError([error("torch-op", message, user_place(place) or user_line(place))])
    made = x
    for _ in range(exponent - 1):
        made = Pair(
            graph.difference(graph.product(made.real, x.real), graph.product(made.imaginary, x.imaginary)),
            graph.sum(graph.product(made.real, x.imaginary), graph.product(made.imaginary, x.real)),
        )
    return made


# Operators that take each part for itself.


_LINEAR = (
    *("view", "reshape", "_unsafe_view", "permute", "transpose", "t", "expand", "unsqueeze", "squeeze", "slice"),
    *("select", "clone", "contiguous", "alias", "detach", "index_select", "gather", "index", "flip", "roll", "repeat"),
    *("cumsum", "sum", "mean", "neg", "constant_pad_nd", "narrow", "split", "split_with_sizes", "chunk", "unbind"),
    *("getitem", "lift_fresh_copy", "resolve_conj", "resolve_neg", "movedim", "new_zeros", "zeros_like", "unfold"),
)
"""Operators whose first argument is the only one that may be complex."""

_VALUES = {
    **dict.fromkeys(("cat", "stack", "slice_scatter", "select_scatter", "copy"), (0, 1)),
    "where": (1, 2),
    "index_put": (0, 2),
    "masked_fill": (0, 2),
}
"""Operators that take several values, by the places of these; others among them are no tensors."""


@_rule(*_LINEAR, *_VALUES)
def _each_part(graph: _Rewriting, node: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
    places = _VALUES.get(_base(node), (0,))
    if "dtype" in named and named["dtype"] is not None:
        named = {**named, "dtype": part_kind(graph.torch, named["dtype"])}

    def part(arg: Any, at: int) -> Any:
        if isinstance(arg, Pair):
            return arg.real if at == 0 else _imaginary(graph, arg)
        if isinstance(arg, list):
            return [part(one, at) for one in cast("list[Any]", arg)]
        if hasattr(arg, "op"):
            return arg if at == 0 else graph.zeros(arg)
        return arg if at == 0 or not isinstance(arg, float | int) or _base(node) == "cat" else 0.0

    def parts(at: int) -> Any:
        given = [part(arg, at) if place in places and place != _axis(node) else arg for place, arg in enumerate(args)]
        return graph.add_node(node.target, *given, **named)

    return Pair(parts(0), parts(1))


def _axis(node: Any) -> int | None:
    """The place of the argument that is an axis, of operators that take a list of values."""
    return 1 if _base(node) in ("cat", "stack") else None


def part_kind(torch: Any, kind: Any) -> Any:
    """The type of the real and imaginary parts of a complex type; other types are returned unchanged."""
    return {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(kind, kind)


@_rule("to", "_to_copy")
def _type_conversion(graph: _Rewriting, node: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
    kind = node.meta["val"].dtype
    x = _as_pair(args[0])
    real = graph.add_node(graph.aten._to_copy.default, x.real, dtype=part_kind(graph.torch, kind))
    if not kind.is_complex:
        return real
    if not hasattr(x.imaginary, "op"):
        return Pair(real, graph.zeros(real))
    return Pair(real, graph.add_node(graph.aten._to_copy.default, x.imaginary, dtype=part_kind(graph.torch, kind)))
