"""What a model holds in Python besides parameters and buffers: told before and after a step, and put back."""

from __future__ import annotations

import pickle
import random
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, cast

import numpy as np

from pstranspile.frontends.torch.refusals import is_own
from pstranspile.ir.user_warnings import warn

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


class Held:
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
