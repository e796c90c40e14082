"""Shape rules: what types an op's outputs must have, given the types of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from pstranspile.ir.model import Op, TensorType

Types: TypeAlias = Mapping[str, tuple[TensorType | None, ...]]
"""Slot -> type of each of its variables, None where nothing is known. A dim of -1 is unknown."""

ShapeRule: TypeAlias = Callable[[Op, Types], Types]
"""From an op and its input types to the types its outputs must have (slots left out: anything goes)."""

_RULES: dict[str, ShapeRule] = {}


class ShapeError(Exception):
    """Raised by a shape rule when the inputs don't fit together. `slot` is the one to point at."""

    def __init__(self, message: str, slot: str = ""):
        super().__init__(message)
        self.message = message
        self.slot = slot


def shape_rule(*op_types: str) -> Callable[[ShapeRule], ShapeRule]:
    """Registers the decorated function as the shape rule of these op types."""

    def register(rule: ShapeRule) -> ShapeRule:
        for op_type in op_types:
            if op_type in _RULES:
                raise ValueError(f"op type {op_type} has two shape rules")
            _RULES[op_type] = rule
        return rule

    return register


def rule_of(op_type: str) -> ShapeRule | None:
    """The shape rule of an op type, None if it has none (of the families imported so far)."""
    return _RULES.get(op_type)
