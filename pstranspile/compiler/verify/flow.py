"""The types that variables have while a program runs: those its ops give them, whatever their declarations say.

Fluid's ops look at what their inputs hold. A declaration counts where nothing has written the variable: for inputs, and
for what an op without a shape rule gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from pstranspile.ir.model import Op, TensorType, Var
from pstranspile.ir.types import DType, VarKind
from pstranspile.ops import schema_of, with_defaults
from pstranspile.ops.shapes import ShapeError, ShapeProblem, Types, fits, infer_types, output_problems, rule_of

TypeOf = Callable[[str], "int | None"]
"""From a name to the number of its type, None for a name without a declaration."""


class VarType(NamedTuple):
    """What a variable holds: `known` follows from inputs and ops, `assumed` takes unknown dims from declarations."""

    known: TensorType | None
    assumed: TensorType | None


class Given(NamedTuple):
    """The numbers of the types that an op gives the variables it writes, in order.

    `certain` and `likely` say why its inputs don't fit together: by their known types, or only by declared ones.
    `differs` are the outputs that are declared otherwise.
    """

    numbers: tuple[int, ...]
    certain: ShapeError | None = None
    likely: ShapeError | None = None
    differs: tuple[ShapeProblem, ...] = ()


def reliable(var: Var) -> TensorType | None:
    """The type that a declaration states, None where it states none.

    A SelectedRows may hold any number of rows. Fluid declares variables without an element type as bool, and does so
    with parameters, so a persistable bool has no meaning.
    """
    tensor = var.tensor
    if tensor is None or (tensor.dtype is DType.BOOL and var.persistable):
        return None
    if var.kind is VarKind.SELECTED_ROWS and tensor.shape:
        return tensor._replace(shape=(-1, *tensor.shape[1:]))
    return tensor


class TypeTable:
    """Types as numbers, equal ones as equal numbers: 0 stands for an unknown type."""

    def __init__(self) -> None:
        self._numbers: dict[VarType, int] = {VarType(None, None): 0}
        self._held: list[VarType] = [VarType(None, None)]
        self._declared: dict[object, int] = {}

    def number(self, held: VarType) -> int:
        """The number of a type."""
        result = self._numbers.setdefault(held, len(self._held))
        if result == len(self._held):
            self._held.append(held)
        return result

    def __getitem__(self, number: int | None) -> VarType:
        return self._held[number or 0]

    def declared(self, var: Var | None) -> int | None:
        """The number of the type a variable is declared with, None without a variable."""
        if var is None:
            return None
        assumed = var[1:4]
        number = self._declared.get(assumed)
        if number is None:
            tensor = reliable(var)
            number = self._declared[assumed] = self.number(VarType(tensor, tensor))
        return number

    def unsure(self, number: int | None) -> int:
        """The same type, as one that only a declaration states."""
        return self.number(self[number]._replace(known=None))

    def either(self, one: int | None, other: int) -> int:
        """The type of a variable that has one of two, as after a block that may not have run."""
        if one is None or one == other:
            return other
        a, b = self[one], self[other]
        return self.number(VarType(_common(a.known, b.known), _common(a.assumed, b.assumed)))

    def given(self, op: Op, reads: Mapping[str, int | None], declared: TypeOf) -> Given:
        """What an op makes of the types of the variables it reads."""
        names = list(chain.from_iterable(op.outputs.values()))
        schema = schema_of(op.type)
        if schema is not None and not schema.defaults.keys() <= op.attrs.keys():
            op = with_defaults(op)
        if rule_of(op.type) is None:
            return Given(tuple([self.unsure(declared(name)) for name in names]))
        known: Types = {}
        assumed: Types = {}
        certain: ShapeError | None = None
        likely: ShapeError | None = None
        try:
            known = infer_types(op, lambda name: self[reads.get(name)].known)
        except ShapeError as problem:
            certain, likely = (problem, None) if problem.gives is None else (None, problem)
            known = assumed = problem.gives or {}
        if certain is None and likely is None:
            assumed = known
            if any(self[reads.get(name)].assumed != self[reads.get(name)].known for name in op.input_names):
                try:
                    assumed = infer_types(op, lambda name: self[reads.get(name)].assumed)
                except ShapeError as problem:
                    likely = problem
        differs = output_problems(op, assumed or known, lambda name: self[declared(name)].assumed)
        pairs = zip(_along(op, known), _along(op, assumed), map(declared, names), strict=True)
        numbers = [self.number(VarType(a, _filled(b, self[c].assumed))) for a, b, c in pairs]
        return Given(tuple(numbers), certain, likely, tuple(differs))


def _along(op: Op, types: Types) -> Iterator[TensorType | None]:
    """The types of an op's outputs, one for each of its variables."""
    for slot, names in op.outputs.items():
        result: Sequence[TensorType | None] = types.get(slot, ())
        for at in range(len(names)):
            yield result[at] if at < len(result) else None


def _filled(given: TensorType | None, declared: TensorType | None) -> TensorType | None:
    """A type that an op gives, its unknown dims taken from the declaration as far as that fits."""
    if given is None or declared is None:
        return given or declared
    if not given.shape:
        return given._replace(shape=declared.shape)
    if not fits(given.shape, declared.shape):
        return given
    return given._replace(shape=tuple([d if g < 0 else g for g, d in zip(given.shape, declared.shape, strict=True)]))


def _common(a: TensorType | None, b: TensorType | None) -> TensorType | None:
    """What two types have in common, None where their element types differ."""
    if a is None or b is None or a.dtype is not b.dtype:
        return None
    if len(a.shape) != len(b.shape):
        return a._replace(shape=())
    return a._replace(shape=tuple([x if x == y else -1 for x, y in zip(a.shape, b.shape, strict=True)]))
