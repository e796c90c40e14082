"""Functions over nested lists, tuples and dicts of variables (Fluid's `layers.utils`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pstranspile.fluid.missing import names_of_fluid


def copy_structure(nest: Any) -> Any:
    """A copy of the lists, tuples and dicts, with the same leaves."""
    return pack_sequence_as(nest, flatten(nest))


def _parts(nest: Any) -> list[Any] | None:
    """The parts of a list, tuple or dict (in the order of its keys), None for anything else."""
    if isinstance(nest, dict):
        return [nest[key] for key in sorted(nest)]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return list(nest) if isinstance(nest, list | tuple) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def flatten(nest: Any) -> list[Any]:
    """The leaves of a nested value, in order."""
    parts = _parts(nest)
    return [nest] if parts is None else [leaf for part in parts for leaf in flatten(part)]


def pack_sequence_as(structure: Any, flat_sequence: list[Any]) -> Any:
    """The leaves in `flat_sequence`, nested like `structure`."""
    return _pack_leaves(structure, iter(flat_sequence))


def _pack_leaves(like: Any, leaves: Iterator[Any]) -> Any:
    parts = _parts(like)
    if parts is None:
        return next(leaves)
    made = [_pack_leaves(part, leaves) for part in parts]
    kind: Any = type(like)  # pyright: ignore[reportUnknownVariableType]
    if isinstance(like, dict):
        return kind(zip(sorted(like), made, strict=True))  # pyright: ignore[reportUnknownArgumentType]
    return kind(*made) if hasattr(kind, "_fields") else kind(made)


def is_sequence(seq: Any) -> bool:
    """Whether a value has parts: a list, a tuple or a dict."""
    return _parts(seq) is not None


def convert_to_list(value: Any, n: int, name: str, dtype: Any = int) -> list[Any]:
    """A setting for n dims: a number for all of them, or a list of n. Raises ValueError for anything else."""
    if isinstance(value, dtype):
        return [value] * n
    try:
        held = list(value)
    except TypeError:
        raise ValueError(f"{name} must be a number or {n} of them, not {value!r}") from None
    if len(held) != n or not all(isinstance(item, dtype) for item in held):
        raise ValueError(f"{name} must be a number or {n} of them, not {value!r}")
    return held


def map_structure(func: Callable[..., Any], *structure: Any) -> Any:
    """The results of `func` for the leaves at the same positions, nested like the first structure."""
    leaves = zip(*(flatten(nest) for nest in structure), strict=False)
    return pack_sequence_as(structure[0], [func(*held) for held in leaves])


def map_leaves(func: Callable[[Any], Any], nest: Any) -> Any:
    """The results of `func` for every leaf, nested like `nest`."""
    return map_structure(func, nest)


def pairwise(func: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    """The results of `func` for every two leaves at the same position, nested like `one`."""
    return map_structure(func, one, other)


def assert_same_structure(nest1: Any, nest2: Any, check_types: bool = True) -> None:
    """Raises ValueError when two structures have different nesting, TypeError when `check_types` and their types
    differ.
    """
    first, second = _parts(nest1), _parts(nest2)
    if (None if first is None else len(first)) != (None if second is None else len(second)):
        raise ValueError(f"the structures differ: {_structure_text(nest1)} and {_structure_text(nest2)}")
    if _keys(nest1) != _keys(nest2) and None not in (_keys(nest1), _keys(nest2)):
        raise ValueError(f"the dicts have other keys: {_keys(nest1)} and {_keys(nest2)}")
    if check_types and first is not None and type(nest1) is not type(nest2):
        raise TypeError(f"the structures are a {type(nest1).__name__} and a {type(nest2).__name__}")
    for one, other in zip(first or (), second or (), strict=False):
        assert_same_structure(one, other, check_types)


def _keys(nest: Any) -> list[Any] | None:
    return sorted(nest) if isinstance(nest, dict) else None  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _structure_text(nest: Any) -> str:
    parts = _parts(nest)
    if parts is None:
        return "*"
    return f"{type(nest).__name__}({', '.join(map(_structure_text, parts))})"


__getattr__ = names_of_fluid(__name__, globals())
