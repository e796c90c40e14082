"""Functions with a backward of the user's own (`torch.autograd.Function`): their forward and backward in one graph.

The backward is called where the function is, on stand-ins for the gradients of its results. What it computes of them
stands in the graph between an operator that makes such a stand-in and one that says which gradients it gives.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import CodeType, FunctionType
from typing import Any, NamedTuple, cast

from pstranspile.frontends.torch.packed import NAMESPACE
from pstranspile.frontends.torch.refusals import CALLED, user_line
from pstranspile.ir.diagnostics import DiagnosticError, error

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
    """Has `apply(own, function, arguments, named)` be what calls functions inside the block.

    The code of `Function.apply` is another one meanwhile, as a module may have taken it from its class long before.
    """
    called = torch.autograd.Function.__dict__["apply"].__func__
    own = FunctionType(called.__code__, called.__globals__, called.__name__, called.__defaults__, called.__closure__)
    own.__kwdefaults__ = called.__kwdefaults__
    before, names = called.__code__, called.__globals__

    def of_class(function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        return apply(own, function, arguments, named)

    names[_HOOK] = of_class
    called.__code__ = _calling_code()
    try:
        yield
    finally:
        called.__code__ = before
        del names[_HOOK]


_HOOK = "_pstranspile_apply"
"""The name by which the code of `_calling_code` finds what it calls."""


def _calling_code() -> CodeType:
    """The code of a class method that calls `_HOOK`, with the free variable that the one of torch has."""
    scope: dict[str, Any] = {}
    exec(_CALLING, scope)  # the names in it are of torch's module
    return scope["make"]().__code__


_CALLING = f"""
def make():
    __class__ = None
    def apply(cls, *arguments, **named):
        __class__
        return {_HOOK}(cls, arguments, named)
    return apply
"""


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
            return _marked(torch, call, given)
        finally:
            within.pop()

    with _applied_by(torch, apply_and_mark):
        yield


def _marked(torch: Any, call: Call, given: Sequence[Any]) -> Any:
    """What a call of a function gives, with the backward in the graph if it has one."""
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
    _LIBRARIES.append(made)
    own = getattr(torch.ops, NAMESPACE)
    return {name: getattr(own, name).default for name in ("upstream_gradient", "own_gradient")}


_LIBRARIES: list[Any] = []
"""What `_operators` has defined, which torch forgets with its object."""
