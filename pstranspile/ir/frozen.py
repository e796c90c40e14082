"""An immutable mapping with the speed of a dict."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class FrozenMap(dict[K, V]):
    """A dict that refuses changes after construction; hashable if its values are.

    Program values hold their slots, attributes and variables in these, so that programs can share them. Equality is
    that of dict; the order of keys does not count.
    """

    __slots__ = ()

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError("a FrozenMap does not change; build a new one from {**old, key: value}")

    __setitem__ = _refuse
    __delitem__ = _refuse
    __ior__ = _refuse  # pyright: ignore[reportAssignmentType]
    clear = _refuse
    pop = _refuse  # pyright: ignore[reportAssignmentType]
    popitem = _refuse  # pyright: ignore[reportAssignmentType]
    setdefault = _refuse  # pyright: ignore[reportAssignmentType]
    update = _refuse  # pyright: ignore[reportAssignmentType]

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return frozenset.__hash__(frozenset(self.items()))  # pyright: ignore[reportUnknownMemberType]

    def __copy__(self) -> FrozenMap[K, V]:
        return self

    def __deepcopy__(self, _memo: object) -> FrozenMap[K, V]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenMap, (dict(self),))


EMPTY: FrozenMap[Any, Any] = FrozenMap()
"""The empty mapping, shared."""
