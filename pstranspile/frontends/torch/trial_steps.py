"""What a model does in a step of torch that no graph of operators shows: trial steps tell, before the export."""

from __future__ import annotations

import ast
import linecache
import pickle
import random
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from types import CellType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeAlias, TypeGuard, cast

import numpy as np

from pstranspile.frontends.torch.derivatives import is_of_torch
from pstranspile.frontends.torch.refusals import CALLED, calling_line, is_own, is_torch_file, line_of, user_line
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, error, name_list, raise_errors
from pstranspile.ir.model import Location
from pstranspile.ir.user_warnings import warn, warn_at

_NEAR = 64
"""How far losses may be apart where only the order of sums differs, in relative roundings of their type."""


class ObservedStep(NamedTuple):
    """A step of torch on a batch: the module that gives the loss, what it takes, and the user's loss or model."""

    module: Any
    batch: Sequence[Any]
    called: Any

    def loss(self, *, warns: bool = False) -> Any:
        """The loss of a step, from copies of the tensors of the batch. `warns`: what warns in it is heard, such as
        torch of a loss between tensors of different sizes; other steps would only say it again.
        """
        with warnings.catch_warnings():
            if not warns:
                warnings.simplefilter("ignore")
            return self.module(*(tensor.detach().clone() for tensor in self.batch))


_OF_PROGRAMS = "the values of a program are f32 or f64"

_WITHOUT_AUTOCAST = Note("torch.autocast(..., enabled=False), in a model that is traced, leaves the types as they are")
"""What is said of code that has torch compute in half precision."""


def require_shown(torch: Any, model: Any, step: ObservedStep, held: RestoredState) -> Any:
    """What a step gives, None if it fails. Raises DiagnosticError (`torch-op`) if a graph would not show all that it
    does.

    That is a backward of a function of torch that is Python, a hook on a gradient, `torch.inference_mode()`,
    `torch.autocast`, numbers that Python or numpy draws, and a state outside of buffers by which the next step has
    another loss. A state
    that changes without that is warned of. Steps are made for this, and `held` is what `as_before` gives.
    """
    with torch.enable_grad():
        findings: list[Diagnostic] = []
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                kind = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
                message = f"the model is traced under torch.autocast, which computes in {kind}; {_OF_PROGRAMS}"
                notes = [Note("a model is traced outside of torch.autocast")]
                raise DiagnosticError([error("torch-op", message, calling_line(), notes=notes)])
        drawing = _random_states()
        try:
            aliases: list[_Alias] = []
            with _watch_unsupported(torch, findings), inline_checkpoints(torch), data_as_alias(torch, aliases):
                first = step.loss(warns=True)
        except Exception:  # the export tells what is wrong with the code
            raise_errors(findings)
            return None
        drawn = [name for name, state in _random_states().items() if state != drawing[name]]
        findings += _own_backwards(torch, step, first)
        findings += [_of_numbers(step, name) for name in drawn]
        raise_errors(findings)
        _require_unread(torch, step, first, aliases)
        _require_same(torch, model, step, first, held)
        held.again()
        return first


class RestoredState(NamedTuple):
    """What is as before after `as_before`."""

    held: HeldState
    """What the model and the loss held."""
    again: Callable[[], None]
    """Has parameters, buffers and the random numbers of torch be as before."""


@contextmanager
def as_before(torch: Any, model: Any, called: Any) -> Generator[RestoredState]:
    """Has a model and a loss, with all that they hold, and random numbers be as before after the block."""
    everything = HeldState(torch, _roots(model, called))
    own = [(name, getattr(one, kind)) for name, one in model.named_modules() for kind in ("_parameters", "_buffers")]
    devices = torch.cuda.is_available() and torch.cuda.is_initialized()
    states = (torch.random.get_rng_state(), torch.cuda.get_rng_state_all() if devices else None)
    python, numbers = random.getstate(), np.random.get_state()
    tensors = [one for _, kind in own for one in (kind, *kind.values())]

    def restore_state() -> None:
        everything.put_back(tensors)
        torch.random.set_rng_state(states[0])
        if devices:
            torch.cuda.set_rng_state_all(states[1])

    try:
        yield RestoredState(everything, restore_state)
    finally:
        restore_state()
        everything.put_back()
        random.setstate(python)
        np.random.set_state(numbers)


def make_lazy(torch: Any, model: Any, step: ObservedStep) -> None:
    """Has the parameters of lazy modules, such as LazyLinear, made by a step, which changes nothing else."""
    tensors = [*model.parameters(), *model.buffers()]
    if not any(map(torch.nn.parameter.is_lazy, tensors)):
        return
    held = HeldState(torch, [("", one) for one in tensors if not torch.nn.parameter.is_lazy(one)])
    with suppress(Exception), torch.no_grad():  # the export tells what is wrong with the code
        step.loss()
    held.put_back()


def _roots(model: Any, called: Any) -> Iterator[tuple[str, Any]]:
    """What holds a state: the modules of a model by name, and the loss."""
    yield from model.named_modules()
    if called is not model:
        yield "", called


# What the first step tells.


@contextmanager
def _watch_unsupported(torch: Any, findings: list[Diagnostic]) -> Generator[None]:
    """Adds a finding for what the block sets: hooks on gradients, `torch.inference_mode()`, `torch.autocast`, functions
    of the graph.
    """
    kinds = [(torch.Tensor, "register_hook"), (torch.Tensor, "register_post_accumulate_grad_hook")]
    before = {name: getattr(kind, name) for kind, name in kinds}
    entered = torch.inference_mode.__enter__
    packed = torch.autograd.graph.saved_tensors_hooks.__enter__
    lowered = torch.autocast.__enter__
    handles: list[Any] = []

    def watching(name: str) -> Any:
        def register_and_report(tensor: Any, *arguments: Any, **named: Any) -> Any:
            message = "a hook on the gradient of a tensor is set here, which no graph shows"
            findings.append(error("torch-op", message, _current_user_line(), notes=[CALLED]))
            made = before[name](tensor, *arguments, **named)
            handles.append(made)
            return made

        return register_and_report

    def enter(mode: Any) -> Any:
        if mode.mode:
            message = "torch.inference_mode() is not translated"
            notes = [Note("torch.no_grad() does the same here, and is"), CALLED]
            findings.append(error("torch-op", message, _current_user_line(), notes=notes))
        return entered(mode)

    def lower(mode: Any) -> Any:
        if mode._enabled:
            message = f"torch.autocast computes in {str(mode.fast_dtype).removeprefix('torch.')} here; {_OF_PROGRAMS}"
            caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            decorated = caller.f_locals.get("func") if caller.f_code.co_name == "decorate_autocast" else None
            place = _current_user_line() if decorated is None else line_of(decorated)
            findings.append(error("torch-op", message, place, notes=[_WITHOUT_AUTOCAST, CALLED]))
        return lowered(mode)

    def pack(hooks: Any) -> Any:
        if type(hooks) is torch.autograd.graph.saved_tensors_hooks:  # those that torch derives change no numbers
            message = "saved_tensors_hooks change what gradients are computed of, which no graph shows"
            findings.append(error("torch-op", message, _current_user_line(), notes=[CALLED]))
        return packed(hooks)

    def function_of(tensor: Any) -> Any:
        if is_own(sys._getframe(1).f_code.co_filename):  # pyright: ignore[reportPrivateUsage]
            message = "grad_fn is of torch's own graph of gradients, which a program has not"
            findings.append(error("torch-op", message, _current_user_line(), notes=[CALLED]))
        return torch._C.TensorBase.grad_fn.__get__(tensor)

    for kind, name in kinds:
        setattr(kind, name, watching(name))
    torch.autograd.graph.saved_tensors_hooks.__enter__ = pack
    torch.Tensor.grad_fn = property(function_of)
    torch.inference_mode.__enter__ = enter
    torch.autocast.__enter__ = lower
    try:
        yield
    finally:
        for kind, name in kinds:
            setattr(kind, name, before[name])
        del torch.Tensor.grad_fn
        torch.autograd.graph.saved_tensors_hooks.__enter__ = packed
        torch.inference_mode.__enter__ = entered
        torch.autocast.__enter__ = lowered
        for handle in handles:
            handle.remove()


def _current_user_line() -> Location | None:
    """The line of the user's code that is running."""
    return user_line("".join(traceback.format_stack()))


@contextmanager
def inline_checkpoints(torch: Any) -> Generator[None]:
    """Has `torch.utils.checkpoint` with `use_reentrant=True` call its function itself inside the block.

    It computes the function without gradient first, and again with one in the backward, which a graph would not show.
    """
    kind = torch.utils.checkpoint.CheckpointFunction
    before = kind.__dict__.get("apply")

    def apply(function: Any, _: Any, *arguments: Any) -> Any:
        trained = any(isinstance(one, torch.Tensor) and one.requires_grad for one in arguments)
        with torch.set_grad_enabled(trained and torch.is_grad_enabled()):
            return function(*arguments)

    kind.apply = staticmethod(apply)
    try:
        yield
    finally:
        if before is None:
            del kind.apply
        else:
            kind.apply = before


class _Alias(NamedTuple):
    """An alias that `.data` has given: the line that asked for it, and how often its elements had been written then."""

    tensor: Any
    version: int
    place: Location | None


@contextmanager
def data_as_alias(torch: Any, noted: list[_Alias] | None = None) -> Generator[None]:
    """Has `.data` of a tensor, where code other than torch's reads or sets it, be an alias that a graph shows:
    `detach()`, which shares its elements too, but whose writes torch counts. Adds each to `noted`.

    A value of other dims or another type is set as torch does it.
    """
    own = torch._C.TensorBase.data

    def is_shown() -> bool:
        return not is_torch_file(sys._getframe(2).f_code.co_filename)  # pyright: ignore[reportPrivateUsage]

    def alias_of(tensor: Any) -> Any:
        alias = tensor.detach()
        if noted is not None:
            noted.append(_Alias(alias, alias._version, _current_user_line()))
        return alias

    def read(tensor: Any) -> Any:
        return alias_of(tensor) if is_shown() else own.__get__(tensor)

    def write(tensor: Any, value: Any) -> None:
        alike = isinstance(value, torch.Tensor) and (value.shape, value.dtype) == (tensor.shape, tensor.dtype)
        if alike and is_shown():
            alias_of(tensor).copy_(value.detach())
        else:
            own.__set__(tensor, value)

    torch.Tensor.data = property(read, write)
    try:
        yield
    finally:
        del torch.Tensor.data


def _require_unread(torch: Any, step: ObservedStep, loss: Any, aliases: Iterable[_Alias]) -> None:
    """Raises DiagnosticError where a step writes through `.data` into what its backward reads: torch computes gradients
    of the new elements there, and a graph has those of the old ones.
    """
    written = {one.tensor.data_ptr(): one for one in aliases if one.tensor._version != one.version}
    wanted = [one for one in step.module.parameters() if one.requires_grad]
    if not written or not wanted or not isinstance(loss, torch.Tensor) or loss.grad_fn is None or loss.numel() != 1:
        return
    try:
        torch.autograd.grad(loss, wanted, allow_unused=True)
    except RuntimeError as problem:
        if "inplace operation" not in str(problem):
            return  # the export tells what is wrong with the code
        message = "the step writes into a tensor through `.data`, and its backward reads what was there before"
        place = next(iter(written.values())).place
        raise DiagnosticError([error("torch-op", message, place, notes=[CALLED])]) from problem


def _own_backwards(torch: Any, step: ObservedStep, loss: Any) -> Iterator[Diagnostic]:
    """A finding for each `torch.autograd.Function` of torch's own that a loss depends on."""
    names = dict.fromkeys(name for name, _ in _functions(torch, loss))
    if not names:
        return
    told: Any = None
    try:
        with torch.autograd.set_detect_anomaly(True, check_nan=False):  # which notes the stack of each operation
            told = step.loss()
    except Exception:
        told = None
    found = {name: user_line(stack) for name, stack in _functions(torch, told)}
    for name in names:
        message = f"{name} is a torch.autograd.Function, whose backward no graph shows"
        place = found.get(name) or line_of(step.called)
        yield error("torch-op", message, place, notes=[CALLED])


def _functions(torch: Any, loss: Any) -> Iterator[tuple[str, str]]:
    """The names of torch's functions in the graph of a loss whose backward is Python, with their stacks if noted."""
    waiting, seen = [getattr(loss, "grad_fn", None)], set[Any]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [one for one, _ in node.next_functions]
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            kind = cast("Any", type(node))
            function = getattr(kind, "_forward_cls", kind)
            if is_of_torch(function):
                yield function.__name__, "".join(node.metadata.get("traceback_", ()))


def _random_states() -> dict[str, Any]:
    """The states of the random numbers of Python and numpy."""
    kind, keys, *rest = cast("tuple[Any, ...]", np.random.get_state())
    return {"random": random.getstate(), "np.random": (kind, keys.tobytes(), *rest)}


def _of_numbers(step: ObservedStep, name: str) -> Diagnostic:
    """The finding for a step that draws random numbers of Python or numpy, at the line after which they are others."""
    place: list[Location] = []
    state, at = _random_states()[name], Location("", 0)

    def trace_frame(frame: FrameType, *_: Any) -> Any:
        nonlocal at
        if place or not is_own(frame.f_code.co_filename):
            return trace_frame
        if _random_states()[name] != state:
            place.append(at)
        at = Location(frame.f_code.co_filename, frame.f_lineno)
        return trace_frame

    before = sys.gettrace()
    sys.settrace(trace_frame)
    try:
        step.loss()
    except Exception:
        place.clear()
    finally:
        sys.settrace(before)
    message = f"the step draws a number of {name}, and its program would have the same one in all steps"
    notes = [Note("numbers that torch draws (torch.rand) are drawn anew in each step of a program"), CALLED]
    return error("torch-op", message, place[0] if place and place[0].file else line_of(step.called), notes=notes)


# Checks: branches on data that only raise an error.


@contextmanager
def noted_checks(torch: Any) -> Generator[Checks]:
    """The truth of each tensor that a check in the block takes: the test of an `assert`, or of an `if` that raises."""
    noted: Checks = {}
    before = torch.Tensor.__bool__

    def truth(tensor: Any) -> bool:
        made = before(tensor)
        place = _check_at(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        if place is not None:
            noted.setdefault(place, set()).add(made)
        return made

    torch.Tensor.__bool__ = truth
    try:
        yield noted
    finally:
        del torch.Tensor.__bool__


@contextmanager
def passed_checks(torch: Any, noted: Checks) -> Generator[None]:
    """Has tensors in the tests of checks be as true as they were in a step that raised nothing: a program has no
    checks, and no other branch of theirs goes on.
    """
    kinds = [torch.Tensor, import_module("torch._subclasses.functional_tensor").FunctionalTensor]
    before = [kind.__bool__ for kind in kinds]
    own = ["__bool__" in kind.__dict__ for kind in kinds]

    def passing(asked: Callable[[Any], bool]) -> Callable[[Any], bool]:
        def truth(tensor: Any) -> bool:
            place = _check_at(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
            known = noted.get(place, set()) if place is not None else set[bool]()
            return next(iter(known)) if len(known) == 1 else asked(tensor)

        return truth

    for kind, asked in zip(kinds, before, strict=True):
        kind.__bool__ = passing(asked)
    try:
        yield
    finally:
        for kind, asked, has in zip(kinds, before, own, strict=True):
            if has:
                kind.__bool__ = asked
            else:
                del kind.__bool__


Checks: TypeAlias = "dict[tuple[str, int], set[bool]]"
"""What tensors in the tests of checks were, by file and line."""


def _check_at(frame: FrameType) -> tuple[str, int] | None:
    """The place of the test that a frame computes, if it is that of a check."""
    file, line = frame.f_code.co_filename, frame.f_lineno
    return (file, line) if line in _checks_of(file) else None


@cache
def _checks_of(file: str) -> frozenset[int]:
    """The lines of a file that the tests of its checks are on."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return frozenset()
    tests = [node.test for node in ast.walk(tree) if isinstance(node, ast.Assert) or _only_raises(node)]
    return frozenset(line for test in tests for line in range(test.lineno, (test.end_lineno or test.lineno) + 1))


def _only_raises(node: ast.AST) -> TypeGuard[ast.If]:
    """Whether a node is an `if` whose body ends with an error, in every way through it."""
    if not isinstance(node, ast.If) or not isinstance(node.body[-1], ast.Raise):
        return False
    leaves = (ast.Return, ast.Break, ast.Continue, ast.Try)
    return not any(isinstance(inner, leaves) for part in node.body for inner in ast.walk(part))


# What a second step tells.


def _require_same(torch: Any, model: Any, step: ObservedStep, first: Any, before: RestoredState) -> None:
    """Raises DiagnosticError if a second step from the same parameters and buffers, with the same random numbers, fails
    or has another loss; warns of a state that is another after it.
    """
    before.again()
    held, place = HeldState(torch, _roots(model, step.called)), line_of(step.called)
    try:
        with inline_checkpoints(torch):
            second = step.loss()
    except Exception as problem:
        message = f"a second step ends with an error, though the first one did not: {type(problem).__name__}: {problem}"
        raise DiagnosticError([error("torch-op", message, place, notes=[CALLED])]) from problem
    before.again()
    changed = held.changed_paths()
    if not _are_losses_close(torch, first, second):
        changed = changed or before.held.changed_paths()
        keeps = "a program would keep what it is in the first step"
        if changed:
            one = len(changed) == 1
            what = f"{name_list(changed)}, which {'is' if one else 'are'} no buffer{'' if one else 's'} of the model"
            message = f"the loss depends on {what}, and {'changes' if one else 'change'} from step to step; {keeps}"
        else:
            message = (
                "a second step from the same parameters, buffers and random numbers, on the same batch, has another "
                f"loss, for what is no buffer of the model; {keeps}"
            )
        notes = [Note("a tensor that is a buffer (register_buffer), and is written in place, is a state of a program")]
        raise_errors([error("torch-op", message, place, notes=[*notes, CALLED])])
    if changed:
        one = len(changed) == 1
        told = f"{name_list(changed)} {'changes' if one else 'change'} from step to step and "
        told += f"{'is no buffer' if one else 'are no buffers'} of the model: the program has what the first step has"
        where = place or Location("pstranspile", 1)
        warn_at(told, where.file, where.line)


def _are_losses_close(torch: Any, one: Any, other: Any) -> bool:
    """Whether two losses are equal but for the order of sums; what is no tensor of floating-point numbers counts as
    equal.
    """
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor) or one.shape != other.shape:
        return True
    if not one.is_floating_point() or one.dtype != other.dtype:
        return True
    near = _NEAR * torch.finfo(one.dtype).eps
    return bool(torch.allclose(one.detach(), other.detach(), rtol=near, atol=0, equal_nan=True))


# What a model holds in Python besides parameters and buffers: told before and after a step, and put back.

_MOST = 100_000
"""The most objects that are looked at. Where there are more, a warning says so."""

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
"""The types of values that are compared as they are."""

_DEEPEST = 8
"""How deep containers are compared."""


class _Record(NamedTuple):
    """What one object held."""

    path: str
    """The place where it was found: the name of an attribute, as far as it has one."""
    thing: Any
    content: Any
    """A copy of what it held."""


class HeldState:
    """The values that objects hold, as they are: attributes of modules and of the user's own objects, elements of
    containers, elements of tensors, what functions take from around them, and the states of random number generators.
    """

    def __init__(self, torch: Any, roots: Iterable[tuple[str, Any]]):
        self._torch = torch
        self._records: dict[int, _Record] = {}
        waiting = deque(roots)
        while waiting and len(self._records) < _MOST:
            path, thing = waiting.popleft()
            if id(thing) in self._records or isinstance(thing, _PLAIN):
                continue
            content, parts = self._of(path, thing)
            if content is not None:
                self._records[id(thing)] = _Record(path, thing, content)
            waiting.extend(parts)
        if waiting and len(self._records) == _MOST:
            warn(f"the model and its loss hold over {_MOST:,} objects; whether steps change the others is not seen")

    def _of(self, path: str, thing: Any) -> tuple[Any, Iterable[tuple[str, Any]]]:
        """A copy of what an object holds, None if it is not looked into, and the objects in it with their paths."""
        torch = self._torch
        if isinstance(thing, torch.Tensor):
            return None if torch.nn.parameter.is_lazy(thing) else thing.detach().clone(), ()
        if isinstance(thing, np.ndarray):
            return thing.copy(), ()
        generator = _state_of(torch, thing)
        if generator is not None:
            return generator, ()
        if isinstance(thing, dict):
            named = cast("dict[Any, Any]", thing)
            return dict(named), [(_member_path(path, key), value) for key, value in named.items()]
        if isinstance(thing, list | deque | set):
            values = list(cast("Iterable[Any]", thing))
            return values, [(path, value) for value in values]
        if isinstance(thing, tuple):
            values = cast("tuple[Any, ...]", thing)
            return None, [(path, value) for value in values]
        if isinstance(thing, CellType):
            with suppress(ValueError):  # it has no value yet
                return (thing.cell_contents,), [(path, thing.cell_contents)]
            return None, ()
        if isinstance(thing, MethodType):
            return None, [(path, thing.__self__), (path, thing.__func__)]
        if isinstance(thing, FunctionType):
            if not is_own(thing.__code__.co_filename):
                return None, ()
            return None, [*zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True)]
        of_torch = type(thing).__module__.partition(".")[0] in ("torch", "numpy")
        if isinstance(thing, type | ModuleType) or (of_torch and not isinstance(thing, torch.nn.Module)):
            return None, ()
        own: Any = getattr(thing, "__dict__", None)
        return None, () if own is None else [(path, own)]

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """The tensors among the objects, each with its path."""
        for record in self._records.values():
            if isinstance(record.thing, self._torch.Tensor):
                yield record.path, record.thing

    def changed_paths(self) -> list[str]:
        """The paths of everything that has changed since. A tensor or container is unchanged if its elements are."""
        result: dict[str, None] = {}
        for record in self._records.values():
            result |= dict.fromkeys(self._differing(record))
        return list(result)

    def _differing(self, record: _Record) -> Iterator[str]:
        path, thing, content = record
        if isinstance(thing, dict):
            named = cast("dict[Any, Any]", thing)
            for key in dict.fromkeys((*content, *named)):
                if key not in content or key not in named or not self._same_value(content[key], named[key]):
                    yield _member_path(path, key)
        elif isinstance(thing, set):
            if {*content} != thing:
                yield path
        elif isinstance(thing, list | deque):
            values = list(cast("Iterable[Any]", thing))
            if len(values) != len(content) or not all(map(self._same_value, content, values)):
                yield path
        elif isinstance(thing, CellType):
            if not self._same_value(content[0], thing.cell_contents):
                yield path
        elif not self._equal(content, self._of(path, thing)[0]):
            yield path

    def _same_value(self, before: Any, after: Any, depth: int = 0) -> bool:
        """Whether two values are the same, of which the first is taken as it was held."""
        if before is after:
            return True  # if its elements differ, its own record tells
        kinds = (self._torch.Tensor, np.ndarray)
        if isinstance(before, kinds) and isinstance(after, kinds):
            record = self._records.get(id(before))
            return self._equal(before if record is None else record.content, after)
        if isinstance(before, _PLAIN) or isinstance(after, _PLAIN):
            return before == after or (before != before and after != after)
        if type(before) is not type(after) or depth == _DEEPEST:
            return type(before) is type(after)
        if isinstance(before, dict):
            one, other = cast("dict[Any, Any]", before), cast("dict[Any, Any]", after)
            return one.keys() == other.keys() and all(self._same_value(one[key], other[key], depth + 1) for key in one)
        if isinstance(before, list | tuple | deque):
            left, right = list(cast("Iterable[Any]", before)), list(cast("Iterable[Any]", after))
            return len(left) == len(right) and all(
                self._same_value(*pair, depth + 1) for pair in zip(left, right, strict=True)
            )
        return True

    def _equal(self, one: Any, other: Any) -> bool:
        """Whether two tensors, arrays or states of a generator are equal; NaN is equal to NaN."""
        torch = self._torch
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            if (one.shape, one.dtype, one.layout, one.device) != (other.shape, other.dtype, other.layout, other.device):
                return False
            compared = [_comparable(torch, tensor.detach()) for tensor in (one, other)]
            return bool(torch.allclose(*compared, rtol=0, atol=0, equal_nan=True))
        if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
            return (one.shape, one.dtype, one.tobytes()) == (other.shape, other.dtype, other.tobytes())
        return pickle.dumps(one) == pickle.dumps(other)

    def put_back(self, things: Iterable[Any] | None = None) -> None:
        """Has every object, or those of `things`, hold what it held. Warns of one that does not take it back."""
        asked = self._records if things is None else [id(thing) for thing in things]
        for record in [self._records[one] for one in asked if one in self._records]:
            try:
                self._put_back(record)
            except (RuntimeError, TypeError, ValueError) as problem:
                what = record.path or f"a value of type {type(record.thing).__name__}"
                warn(f"{what} holds another value than before the trace, and can't take it back: {problem}")

    def _put_back(self, record: _Record) -> None:
        torch, (_, thing, content) = self._torch, record
        if isinstance(thing, torch.Tensor):
            if not self._equal(content, thing):
                with torch.no_grad():
                    thing.copy_(content)
        elif isinstance(thing, np.ndarray):
            if not self._equal(content, thing):
                thing[...] = content
        elif isinstance(thing, dict):
            named = cast("dict[Any, Any]", thing)
            if [*map(id, named.values())] != [*map(id, content.values())] or [*named] != [*content]:
                named.clear()
                named.update(content)
        elif isinstance(thing, CellType):
            thing.cell_contents = content[0]
        elif isinstance(thing, set):
            cast("set[Any]", thing).clear()
            cast("set[Any]", thing).update(content)
        elif isinstance(thing, list | deque):
            values = cast("list[Any]", thing)
            if [*map(id, values)] != [*map(id, content)]:
                values.clear()
                values.extend(content)
        elif isinstance(thing, random.Random):
            thing.setstate(content)
        elif isinstance(thing, np.random.RandomState):
            thing.set_state(content)
        elif isinstance(thing, np.random.Generator):
            thing.bit_generator.state = content
        elif isinstance(thing, torch.Generator):
            thing.set_state(content)


def _comparable(torch: Any, tensor: Any) -> Any:
    """The elements of a tensor as one that can be compared; none for a tensor without memory (of the device "meta")."""
    if tensor.is_meta:
        return torch.empty(0)
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        return tensor.int_repr()
    return tensor.view(torch.uint8) if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


def _state_of(torch: Any, thing: Any) -> Any:
    """The state of a random number generator; None for anything else."""
    if isinstance(thing, random.Random):
        return thing.getstate()
    if isinstance(thing, np.random.RandomState):
        return thing.get_state()
    if isinstance(thing, np.random.Generator):
        return thing.bit_generator.state
    return thing.get_state() if isinstance(thing, torch.Generator) else None


_INNER = ("_modules", "_buffers", "_parameters")
"""The attributes of a module that hold what is called by its own name."""


def _member_path(path: str, key: Any) -> str:
    """The path of the member that an object has under a key."""
    if key in _INNER:
        return path
    return f"{path}.{key}" if path else str(key)
