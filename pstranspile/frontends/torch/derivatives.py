"""Derivatives that the user's code states or asks for, in the graph of a step.

A function with a backward of the user's own (`torch.autograd.Function`) has both in the graph.

The backward is called where the function is, on stand-ins for the gradients of its results. What it computes of them
stands in the graph between an operator that makes such a stand-in and one that says which gradients it gives.
"""

from __future__ import annotations

import inspect
import math
import operator
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import Any, NamedTuple, cast

from pstranspile.frontends.torch.packed import NAMESPACE
from pstranspile.frontends.torch.refusals import CALLED, user_line
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location

# Calls in a step of torch.


class Call(NamedTuple):
    """A call of a function with a backward of its own, in a step of torch."""

    function: Any
    """The class of the function."""
    has_gradient: bool
    """Whether its backward is called."""
    needed: tuple[bool, ...]
    """Whether each argument has a gradient (`ctx.needs_input_grad`)."""
    written: tuple[bool, ...]
    """Whether the forward writes into each argument."""


def is_of_torch(function: Any) -> bool:
    """Whether the class of a function is torch's own."""
    return function.__module__.partition(".")[0] == "torch"


@contextmanager
def noted_calls(torch: Any) -> Generator[list[Call]]:
    """The calls of functions inside the block, but for those within others."""
    calls: list[Call] = []
    within: list[Any] = []

    def apply_and_note(own: Callable[..., Any], function: Any, arguments: Sequence[Any], named: Any) -> Any:
        if within or is_of_torch(function):
            return own(function, *arguments, **named)
        given = _bound(torch, function, arguments, named)
        tensors = [isinstance(one, torch.Tensor) for one in given]
        needed = tuple(is_tensor and one.requires_grad for is_tensor, one in zip(tensors, given, strict=True))
        before = [one._version if is_tensor else 0 for is_tensor, one in zip(tensors, given, strict=True)]
        within.append(function)
        try:
            made = own(function, *given)
        finally:
            within.pop()
        after = [one._version if is_tensor else 0 for is_tensor, one in zip(tensors, given, strict=True)]
        written = tuple(one != other for one, other in zip(before, after, strict=True))
        calls.append(Call(function, torch.is_grad_enabled() and any(needed), needed, written))
        return made

    with _applied_by(torch, apply_and_note):
        yield calls


@contextmanager
def _applied_by(torch: Any, apply: Callable[[Any, Any, Sequence[Any], Any], Any]) -> Generator[None]:
    """Has `apply(own, function, arguments, named)` be what calls functions inside the block."""
    called = torch.autograd.Function.__dict__["apply"].__func__
    with _called_by(called, _METHOD, lambda own, given, named: apply(own, given[0], given[1:], named)):
        yield


@contextmanager
def _called_by(
    function: FunctionType, text: str, call: Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]
) -> Generator[None]:
    """Has `call(own, arguments, named)` be what a function of torch does inside the block, where `own` does what it
    did. `text` is Python that makes a function with as many free variables as it has.

    Its code is another one meanwhile, as the user's modules may hold the function itself.
    """
    names, before, own = function.__globals__, function.__code__, _copy(function)
    hook = f"_pstranspile_{function.__name__}"
    scope: dict[str, Any] = {}
    exec(text.format(hook=hook), scope)  # the name of the hook is one of torch's module

    def called(arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        return call(own, arguments, named)

    names[hook] = called
    function.__code__ = scope["make"]().__code__
    try:
        yield
    finally:
        function.__code__ = before
        del names[hook]


def _copy(function: FunctionType) -> Any:
    """A function that does what another one does now."""
    made = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


_FUNCTION = """
def make():
    def called(*arguments, **named):
        return {hook}(arguments, named)
    return called
"""
"""A function that calls a hook."""

_METHOD = """
def make():
    __class__ = None
    def called(*arguments, **named):
        __class__
        return {hook}(arguments, named)
    return called
"""
"""A method that calls a hook, whose class is a free variable."""


def _sets_up(torch: Any, function: Any) -> bool:
    """Whether a function has a `setup_context` of its own, so that its forward takes no `ctx`."""
    return function.setup_context is not torch.autograd.Function.setup_context


def _bound(torch: Any, function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments in the order of the forward, as torch binds them."""
    if not _sets_up(torch, function):
        if named:
            raise TypeError("apply() takes no keyword arguments")
        return tuple(arguments)
    bound = inspect.signature(function.forward).bind(*arguments, **named)
    bound.apply_defaults()
    return bound.args


# Calls in an export.


class _Context:
    """What forward and backward of a function have in common (`ctx`)."""

    def __init__(self, needed: tuple[bool, ...]):
        self.needs_input_grad = needed
        self.to_save: tuple[Any, ...] = ()
        self.non_differentiable: tuple[Any, ...] = ()
        self.materialize_grads = True

    def save_for_backward(self, *tensors: Any) -> None:
        """Keeps tensors for the backward."""
        self.to_save = tensors

    def save_for_forward(self, *_: Any) -> None:
        """Keeps tensors for derivatives in forward mode, which a step has none of."""

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What the forward has kept."""
        return self.to_save

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Says which results have no gradient."""
        self.non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Says whether a result that the loss does not depend on has zeros as its gradient, or None."""
        self.materialize_grads = value

    def mark_dirty(self, *_: Any) -> None:
        """Raises DiagnosticError: what is written in place has no two values in a program."""
        raise _refused("a torch.autograd.Function marks what it writes in place (mark_dirty), which is not translated")


def _refused(message: str) -> DiagnosticError:
    place = user_line("".join(traceback.format_stack()))
    return DiagnosticError([error("torch-op", message, place, notes=[CALLED])])


@contextmanager
def exported_backwards(torch: Any, calls: Sequence[Call]) -> Generator[None]:
    """Has an export that runs the code have the backwards of functions in its graph. `calls` are those of a step."""
    within: list[Any] = []
    kept: list[_SavedTensor] = []
    count = 0

    def apply_and_mark(own: Callable[..., Any], function: Any, arguments: Sequence[Any], named: Any) -> Any:
        nonlocal count
        if is_of_torch(function):
            return own(function, *arguments, **named)
        given = _bound(torch, function, arguments, named)
        call = Call(function, False, tuple([False] * len(given)), tuple([False] * len(given)))
        if not within:
            call = calls[count % len(calls)]
            count += 1
            if call.function is not function:
                raise ValueError(f"its export calls {function.__name__} where a step calls {call.function.__name__}")
        within.append(function)
        try:
            return _marked(torch, call, given, kept)
        finally:
            within.pop()

    with _applied_by(torch, apply_and_mark):
        yield
    for one in kept:
        if one.tensor._version != one.version:
            message = f"{one.function} keeps a tensor for its backward that the step writes into afterwards"
            raise DiagnosticError([error("torch-op", message, one.place, notes=[CALLED])])


class _SavedTensor(NamedTuple):
    """A tensor that a function keeps for its backward, as it is at the end of its call."""

    function: str
    tensor: Any
    version: int
    place: Location | None


def _kept_by(torch: Any, function: Any, context: _Context) -> Iterator[_SavedTensor]:
    """The tensors in what forward and backward have in common."""
    place = user_line("".join(traceback.format_stack()))
    for value in vars(context).values():
        for one in cast("Sequence[Any]", value) if isinstance(value, tuple | list) else (value,):
            if isinstance(one, torch.Tensor):
                yield _SavedTensor(function.__name__, one, one._version, place)


def _marked(torch: Any, call: Call, given: Sequence[Any], kept_tensors: list[_SavedTensor]) -> Any:
    """What a call of a function gives, with the backward in the graph if it has one. Adds to `kept_tensors`."""
    function, context = call.function, _Context(call.needed)
    inner = [one.detach() if isinstance(one, torch.Tensor) else one for one in given]
    inner = [one.clone() if is_written else one for one, is_written in zip(inner, call.written, strict=True)]
    if _sets_up(torch, function):
        made = function.forward(*inner)
        function.setup_context(context, tuple(inner), made)
    else:
        made = function.forward(context, *inner)
    outputs = list(cast("Sequence[Any]", made)) if isinstance(made, tuple) else [made]
    fixed = {id(one) for one in context.non_differentiable}
    tensors = [isinstance(one, torch.Tensor) for one in outputs]
    trained = [at for at, one in enumerate(outputs) if tensors[at] and one.is_floating_point() and id(one) not in fixed]
    outputs = [one.detach() if is_tensor else one for one, is_tensor in zip(outputs, tensors, strict=True)]
    if not call.has_gradient or not trained:
        _write_back(torch, call, given, inner, {})
        return tuple(outputs) if isinstance(made, tuple) else outputs[0]
    if len(trained) > 1 and not context.materialize_grads:
        name = function.__name__
        raise _refused(f"{name} has several results, whose gradients may be None (set_materialize_grads)")
    marks = _operators(torch)
    stands = {at: marks["upstream_gradient"](outputs[at]) for at in trained}
    kept_tensors.extend(_kept_by(torch, function, context))
    gradients = _gradients(torch, call, context, outputs, stands)
    wanted = [
        at for at, one in enumerate(gradients) if one is not None and call.needed[at] and given[at].is_floating_point()
    ]
    kept = {at: _as_gradient(gradients[at], given[at]) for at in wanted}
    originals = [given[at] for at in wanted]
    if wanted:
        results = marks["own_gradient"](
            [outputs[at] for at in trained], originals, [stands[at] for at in trained], [kept[at] for at in wanted]
        )
        for at, one in zip(trained, results, strict=True):
            outputs[at] = one
    _write_back(torch, call, given, inner, marks)
    return tuple(outputs) if isinstance(made, tuple) else outputs[0]


def _gradients(torch: Any, call: Call, context: _Context, outputs: Sequence[Any], stands: Mapping[int, Any]) -> Any:
    """What the backward gives for each argument of a call, None for those without a gradient."""

    def upstream(at: int, one: Any) -> Any:
        if at in stands:
            return stands[at]
        return torch.zeros_like(one) if isinstance(one, torch.Tensor) and context.materialize_grads else None

    function = call.function
    backward = function.backward if function.backward is not torch.autograd.Function.backward else function.vjp
    made = backward(context, *(upstream(at, one) for at, one in enumerate(outputs)))
    gradients = list(cast("Sequence[Any]", made)) if isinstance(made, tuple) else [made]
    return [*gradients, *([None] * len(call.needed))][: len(call.needed)]


def _as_gradient(gradient: Any, argument: Any) -> Any:
    """A gradient with the dims and the element type of the argument that it is of, as torch makes it."""
    if tuple(gradient.shape) != tuple(argument.shape):
        gradient = gradient.sum_to_size(argument.shape)
    return gradient.to(argument.dtype)


def _write_back(
    torch: Any, call: Call, given: Sequence[Any], inner: Sequence[Any], marks: Mapping[str, Callable[..., Any]]
) -> None:
    """Writes into arguments what the forward has written into their copies. Their gradients stay what they were."""
    for at, is_written in enumerate(call.written):
        if not is_written:
            continue
        new = inner[at]
        if marks and call.needed[at]:
            stand = marks["upstream_gradient"](new)
            (new,) = marks["own_gradient"]([new], [given[at]], [stand], [stand])
        given[at].copy_(new)


@cache
def _operators(torch: Any) -> dict[str, Any]:
    """The operators that stand in a graph before and after what a backward computes."""
    made = torch.library.Library(NAMESPACE, "FRAGMENT")
    made.define("upstream_gradient(Tensor result) -> Tensor")
    made.define("own_gradient(Tensor[] results, Tensor[] arguments, Tensor[] upstream, Tensor[] gradients) -> Tensor[]")

    def upstream_gradient(result: Any) -> Any:
        return torch.empty_like(result)

    def own_gradient(results: Sequence[Any], *_: Any) -> list[Any]:
        return [one.clone() for one in results]

    made.impl("upstream_gradient", upstream_gradient, "CompositeExplicitAutograd")
    made.impl("own_gradient", own_gradient, "CompositeExplicitAutograd")

    made.define("inner_gradient(Tensor[] results, Tensor[] of, Tensor?[] upstream, bool[] has) -> Tensor[]")
    made.define("stopped(Tensor x) -> Tensor")

    def inner_gradient(_results: Sequence[Any], of: Sequence[Any], *_: Any) -> list[Any]:
        return [torch.empty_like(one) for one in of]

    def stopped(x: Any) -> Any:
        return x.clone()

    made.impl("inner_gradient", inner_gradient, "CompositeExplicitAutograd")
    made.impl("stopped", stopped, "CompositeExplicitAutograd")
    _LIBRARIES.append(made)
    own = getattr(torch.ops, NAMESPACE)
    names = ("upstream_gradient", "own_gradient", "inner_gradient", "stopped")
    return {name: getattr(own, name).default for name in names}


_LIBRARIES: list[Any] = []
"""What `_operators` has defined, which torch forgets with its object."""


# Gradients that a step computes of what it has computed so far (`torch.autograd.grad`).


class Differentiation(NamedTuple):
    """A call of `torch.autograd.grad` in a step of torch."""

    created: bool
    """Whether its gradients have gradients in turn (`create_graph`)."""
    found: tuple[bool, ...]
    """Whether the results depend on each tensor, so that it has a gradient."""


@contextmanager
def noted_gradients(torch: Any) -> Generator[list[Differentiation]]:
    """The calls of `torch.autograd.grad` inside the block."""
    noted: list[Differentiation] = []
    _gradients_of_torch(torch)

    def note(own: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        made: Any = own(*arguments, **named)
        if torch._C._are_functorch_transforms_active():  # as within torch.func.grad
            return made
        bound = _gradient_arguments(own, arguments, named)
        values = _tensors_in(made)
        noted.append(Differentiation(bool(bound["create_graph"]), tuple(one is not None for one in values)))
        return made

    with _called_by(torch.autograd.grad, _FUNCTION, note):
        yield noted


@cache
def _gradients_of_torch(torch: Any) -> Any:
    """What `torch.autograd.grad` does outside of the blocks that replace it."""
    return _copy(torch.autograd.grad)


def _gradient_arguments(own: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Mapping[str, Any]:
    bound = inspect.signature(own).bind(*arguments, **named)
    bound.apply_defaults()
    return bound.arguments


@contextmanager
def exported_gradients(torch: Any, calls: Sequence[Differentiation]) -> Generator[None]:
    """Has an export that runs the code have an operator in its graph for each call of `torch.autograd.grad`; `calls`
    are those of a step. `with_gradients` puts what computes the gradients in its place.
    """
    count = 0

    def mark(own: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        nonlocal count
        if torch._C._are_functorch_transforms_active():
            return own(*arguments, **named)
        call = calls[count % len(calls)]
        count += 1
        bound = _gradient_arguments(own, arguments, named)
        if bound["is_grads_batched"]:
            raise ValueError("its gradients within the step are batched (is_grads_batched)")
        results, of, upstream = (_tensors_in(bound[name]) for name in ("outputs", "inputs", "grad_outputs"))
        upstream = [*upstream] if upstream else [None] * len(results)
        made = _operators(torch)["inner_gradient"](results, of, upstream, [*call.found])
        made = [one if call.created else one.detach() for one in made]
        given = [one if has else None for one, has in zip(made, call.found, strict=True)]
        if isinstance(bound["inputs"], Mapping):
            return dict(zip(cast("Mapping[Any, Any]", bound["inputs"]), given, strict=True))
        return tuple(given)

    with _called_by(torch.autograd.grad, _FUNCTION, mark):
        yield


def _tensors_in(given: Any) -> list[Any]:
    """The tensors that an argument of `torch.autograd.grad` has."""
    if given is None:
        return []
    if isinstance(given, Mapping):
        return [*cast("Mapping[Any, Any]", given).values()]
    return [*cast("Sequence[Any]", given)] if isinstance(given, tuple | list) else [given]


def _stop(torch: Any, x: Any) -> Any:
    """A tensor without a gradient, in a graph where `detach` tells nothing, as torch detaches what it saves."""
    with torch.no_grad():
        return _operators(torch)["stopped"](x)


def _normalised(x: Any, axes: Sequence[int], eps: float) -> Any:
    """A tensor less its mean over some axes, divided by its deviation."""
    apart = x - x.mean(axes, keepdim=True)
    return apart * (apart.square().mean(axes, keepdim=True) + eps).rsqrt()


def _layer_norm(
    x: Any, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, _: bool = True
) -> Any:
    made = _normalised(x, [-1 - at for at in range(len(shape))], eps)
    made = made if weight is None else made * weight
    return made if bias is None else made + bias


def _native_layer_norm(x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> tuple[Any, None, None]:
    return _layer_norm(x, shape, weight, bias, eps), None, None


def _group_norm(x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, _: bool = True) -> Any:
    made = _normalised(x.reshape(x.shape[0], groups, -1), [2], eps).reshape(x.shape)
    return _of_channels(made, weight, bias)


def _native_group_norm(
    x: Any, weight: Any, bias: Any, _rows: int, _channels: int, _rest: int, groups: int, eps: float
) -> tuple[Any, None, None]:
    return _group_norm(x, groups, weight, bias, eps), None, None


def _of_channels(x: Any, weight: Any, bias: Any) -> Any:
    """A tensor times a weight and plus a bias for each channel, its second dim."""
    wide = [1, -1, *([1] * (x.dim() - 2))]
    made = x if weight is None else x * weight.reshape(wide)
    return made if bias is None else made + bias.reshape(wide)


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, None, None, Any, Any]:
    """A batch norm, and its running statistics after it."""
    axes = [0, *range(2, x.dim())]
    if not training:
        made = _of_channels(x, None, -mean)
        return (
            _of_channels(_of_channels(made, (variance + eps).rsqrt(), None), weight, bias),
            None,
            None,
            mean,
            variance,
        )
    if mean is not None:
        if momentum < 0:
            raise ValueError("its gradient within the step is of a batch norm with momentum=None")
        count = x.numel() // x.shape[1]
        fixed = _stop(import_module("torch"), x)
        now, spread = fixed.mean(axes), fixed.var(axes, correction=0) * (count / (count - 1))
        mean, variance = mean + (now - mean) * momentum, variance + (spread - variance) * momentum
    return _of_channels(_normalised(x, axes, eps), weight, bias), None, None, mean, variance


def _batch_norm_alone(
    x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, None, None]:
    return _batch_norm(x, weight, bias, None, None, training, momentum, eps)[:3]


def _batch_norm_in_evaluation(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, eps: float
) -> tuple[Any, None, None]:
    return _batch_norm(x, weight, bias, mean, variance, False, momentum, eps)[:3]


def _rms_norm(x: Any, shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
    least = import_module("torch").finfo(x.dtype).eps if eps is None else eps
    made = x * (x.square().mean([-1 - at for at in range(len(shape))], keepdim=True) + least).rsqrt()
    return made if weight is None else made * weight


def _attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    rate: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    torch = import_module("torch")
    if enable_gqa:
        key, value = (one.repeat_interleave(query.shape[-3] // one.shape[-3], -3) for one in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        scores = torch.where(mask, scores, torch.full_like(scores, -torch.inf))
    elif mask is not None:
        scores = scores + mask
    weights = scores.softmax(-1)
    return (torch.dropout(weights, rate, True) if rate else weights) @ value


def _reshaped(x: Any, shape: Sequence[int]) -> Any:
    """A view, also of a tensor that lies otherwise in memory than that of the operator written out."""
    return x.reshape(shape)


def _mean_pool(
    x: Any,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil: bool = False,
    include_pad: bool = True,
    divisor: int | None = None,
) -> Any:
    """A mean of windows, as a convolution by equal weights."""
    torch, padded = import_module("torch"), any(padding)
    if ceil or (padded and not include_pad):
        raise ValueError("its gradient within the step is of a mean of windows that counts the padding out")
    rank = 2 if len(kernel) != 1 else x.dim() - 2 if x.dim() < 4 else 2
    kernel = [*kernel] * (rank // len(kernel))
    count = math.prod(kernel) if divisor is None else divisor
    weight = torch.full((1, 1, *kernel), 1.0 / count, dtype=x.dtype, device=x.device)
    alone = x.reshape(-1, 1, *x.shape[-rank:])
    made = torch.ops.aten.convolution(alone, weight, None, stride or kernel, padding, [1], False, [0], 1)
    return made.reshape(*x.shape[:-rank], *made.shape[-rank:])


_WRITTEN_OUT: Mapping[str, Callable[..., Any]] = {
    "layer_norm.default": _layer_norm,
    "native_layer_norm.default": _native_layer_norm,
    "group_norm.default": _group_norm,
    "native_group_norm.default": _native_group_norm,
    "_native_batch_norm_legit_functional.default": _batch_norm,
    "_native_batch_norm_legit.no_stats": _batch_norm_alone,
    "_native_batch_norm_legit_no_training.default": _batch_norm_in_evaluation,
    "rms_norm.default": _rms_norm,
    "scaled_dot_product_attention.default": _attention,
    "view.default": _reshaped,
    "avg_pool1d.default": _mean_pool,
    "avg_pool2d.default": _mean_pool,
}
"""Operators whose gradients torch computes by operators of their own, in terms of others."""


def with_gradients(torch: Any, exported: Any) -> Any:
    """The graph of a step without side effects, with operators that compute gradients within it in the place of those
    that `exported_gradients` has left. Torch derives them of the operators in the graph.

    Raises DiagnosticError (`torch-op`) for a gradient of a function whose backward is the user's own.
    """
    graph, marks = exported.graph, _operators(torch)
    graph.eliminate_dead_code()
    while (mark := next((node for node in graph.nodes if node.target is marks["inner_gradient"]), None)) is not None:
        _Region(torch, graph, mark).differentiate()
    graph.eliminate_dead_code()
    graph.lint()
    exported.graph_module.recompile()
    return exported


class _Region:
    """The nodes of a graph between the tensors that a gradient is of, and what it is the gradient of."""

    def __init__(self, torch: Any, graph: Any, mark: Any):
        self._torch, self._graph, self._mark = torch, graph, mark
        self._results, self._of, self._upstream, _ = mark.args
        order = [*graph.nodes]
        before = order[: order.index(mark)]
        reached = {*self._of}
        for node in before:
            if reached.intersection(node.all_input_nodes):
                reached.add(node)
        needed = {*self._results, *(one for one in self._upstream if one is not None)}
        for node in reversed(before):
            if node in needed:
                needed.update(node.all_input_nodes)
        inside = (reached & needed) - {one for one in self._of if not reached.intersection(one.all_input_nodes)}
        inside |= {node for node in before if node.target is operator.getitem and node.args[0] in inside}
        self._nodes = [node for node in before if node in inside]
        self._after = [node for node in before if node in reached and node not in inside and node not in self._of]

    def differentiate(self) -> None:
        """Replaces the nodes and the mark by what torch computes for them and for their gradients."""
        inside = {*self._nodes}
        own = _operators(self._torch)["own_gradient"]
        if (function := next((node for node in self._nodes if node.target is own), None)) is not None:
            message = (
                "a gradient within the step is of a torch.autograd.Function, whose backward has no derivative here"
            )
            place = user_line(function.meta.get("stack_trace"))
            raise DiagnosticError([error("torch-op", message, place, notes=[CALLED])])
        upstream = [one for one in self._upstream if one is not None]
        given = [*self._of, *self._results, *upstream, *(one for node in self._nodes for one in node.all_input_nodes)]
        outer = [one for one in dict.fromkeys(given) if one not in inside]
        used = [
            node for node in self._nodes if any(user not in inside and user is not self._mark for user in node.users)
        ]
        traced = self._traced(outer, used)
        self._inline(traced, outer, used)

    def _traced(self, outer: Sequence[Any], used: Sequence[Any]) -> Any:
        """The graph of the nodes that are used elsewhere, and of the gradients, as torch computes them of `outer`."""
        torch = self._torch
        symbolic = import_module("torch.fx.experimental.proxy_tensor")
        notes = import_module("torch.fx.traceback")
        fakes = import_module("torch._subclasses.fake_tensor")
        stops = (torch.ops.aten.detach.default, torch.ops.aten.detach_.default)

        def computed(values: Sequence[Any]) -> list[Any]:
            env = dict(zip(outer, values, strict=True))
            of: dict[Any, Any] = {}

            def start(node: Any) -> None:
                """Has the gradient be of this tensor itself, where it is."""
                if node in self._of and node not in of:
                    if not env[node].requires_grad:
                        env[node] = env[node].detach().requires_grad_()
                    of[node] = env[node]

            for node in outer:
                start(node)
            for node in self._nodes:
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), env.__getitem__)
                with _line_of(notes, node):
                    if node.target in stops:
                        env[node] = _stop(torch, args[0])
                    else:
                        written = _WRITTEN_OUT.get(str(getattr(node.target, "__name__", "")), node.target)
                        env[node] = written(*args, **kwargs)
                start(node)
            results = [env[one] for one in self._results]
            given = [None if one is None else env[one] for one in self._upstream]
            with _line_of(notes, self._mark):
                gradients = _gradients_of_torch(torch)(
                    results, [of[one] for one in self._of], given, create_graph=True, allow_unused=True
                )
                zeros = [
                    torch.zeros_like(of[one]) if made is None else made
                    for one, made in zip(self._of, gradients, strict=True)
                ]
            return [*(env[node] for node in used), *zeros]

        values = [node.meta["val"] for node in outer]
        mode = fakes.maybe_get_fake_mode(next(one for one in values if isinstance(one, torch.Tensor)))
        with mode, torch.enable_grad(), notes.preserve_node_meta():
            values = [one.detach() if isinstance(one, torch.Tensor) else one for one in values]
            return symbolic.make_fx(computed, _disable_torch_fn_metadata_mode=True)(values)

    def _inline(self, traced: Any, outer: Sequence[Any], used: Sequence[Any]) -> None:
        """Puts a traced graph before the mark, in the place of the nodes."""
        torch, marks = self._torch, _operators(self._torch)
        graph, known, made = self._graph, dict[Any, Any](), list[Any]()
        places = iter(outer)
        anchor = self._mark
        with graph.inserting_before(anchor):
            for node in traced.graph.nodes:
                if node.op == "placeholder":
                    known[node] = next(places)
                elif node.op == "output":
                    made = [known[one] for one in node.args[0]]
                elif node.op == "get_attr":
                    raise ValueError("its gradient within the step has a constant tensor of torch's own")
                elif node.target is torch.ops.aten.detach.default:  # of what torch saves, which a graph needs not
                    known[node] = known[node.args[0]]
                else:
                    known[node] = graph.node_copy(node, known.__getitem__)
                    if node.target is marks["stopped"]:
                        known[node].target = torch.ops.aten.detach.default
                    known[node].meta.setdefault("stack_trace", anchor.meta.get("stack_trace"))
        last = anchor
        for node in self._after:
            last.append(node)
            last = node
        for node, value in zip(used, made, strict=False):
            node.replace_all_uses_with(value)
        gradients = made[len(used) :]
        for part in [*anchor.users]:
            part.replace_all_uses_with(gradients[part.args[1]])
            graph.erase_node(part)
        graph.erase_node(anchor)
        for node in reversed(self._nodes):
            if not node.users:
                graph.erase_node(node)


@contextmanager
def _line_of(notes: Any, node: Any) -> Generator[None]:
    """Has nodes that are traced inside the block have the stack of another one."""
    before, notes.current_meta = notes.current_meta, {"stack_trace": node.meta.get("stack_trace")}
    try:
        yield
    finally:
        notes.current_meta = before
