"""How an op type is declared: its slots, its attributes, and what slicing a parameter does to each slot.

One `declare(...)` call per op type, in the file of its family, and one `declare_gradient(...)` below it:

    declare(
        "sgd",
        "Param Grad LearningRate -> ParamOut",
        follows="Param Grad ParamOut",
        doc="ParamOut = Param - LearningRate * Grad",
    )

In the slot text `X*` takes a list of variables (duplicable), `X?` may be missing (dispensable), `X*?` both. Fluid's
Python layer gives an op every dispensable input, if need be an empty one; `X-` is a dispensable slot that an op has
only if it needs it (some that Fluid's gradient makers add). `X~` is an output that only the gradient op reads
(intermediate). `X^` is as `X-`, of a slot that Fluid 1.8.5 does not know.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from pstranspile.ir.attributes import PYTHON_TYPES, AttrKind, AttrValue, float32, kind_of
from pstranspile.ir.model import EMPTY, Attrs, FrozenMap, Slots
from pstranspile.ops.attributes import Admitted, AxisOf, ElementType, Limits
from pstranspile.ops.facts import PLAIN, OpFacts, make_facts

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pstranspile.ops.facts import StatedFacts


class Slot(NamedTuple):
    """A named input or output. `duplicable`: takes a list of variables; `dispensable`: may be missing.

    `intermediate`: an output only for the gradient op, which scripts need not name. `later`: Fluid 1.8.5 does not know
    the slot; an op has it only if it needs it.
    """

    name: str
    duplicable: bool = False
    dispensable: bool = False
    intermediate: bool = False
    later: bool = False


class AttrSpec(NamedTuple):
    """Kind and default of an attribute. With a `default` of None every op must have the attribute.

    An `optional` attribute has no default, and an op may lack it. Fluid 1.8.5 does not know an attribute that is
    `later`, which says whose it is: an op that has it computes what Fluid does not. A STRING attribute is one of the
    texts `among`; empty: any. What values another attribute may have is `admitted`; None: any.
    """

    kind: AttrKind
    default: AttrValue | None = None
    optional: bool = False
    later: str = ""
    among: tuple[str, ...] = ()
    admitted: Admitted | None = None


class Slicing(Enum):
    """How cutting a parameter into row slices affects a slot of an op that updates it.

    FOLLOWS: cut like the parameter if it has the parameter's shape. WHOLE: one per server, never cut.
    """

    __hash__ = object.__hash__  # Enum calls the built-in hash, which a script may replace

    FOLLOWS = "follows"
    WHOLE = "whole"


class OpSchema(NamedTuple):
    """The declaration of one op type.

    `defaults` are the attribute values of an op whose text does not mention them, `empty_inputs` its slots without
    variables.

    `slicing` is the effect of cutting a parameter on every slot of an op that updates it. It is empty for all other
    ops, so an op type is an optimizer if and only if it has `slicing`.

    `row_wise`: a slice of the outputs along dim 0 depends only on the same slice of the inputs with as many rows, and
    on the other inputs. Such an op may run slice by slice.

    `whole_norm`: the result depends on a norm over the whole tensor, so computing slices separately gives another
    result.

    `never_cut`: a parameter that this optimizer updates is not cut. (Fluid cuts parameters of some optimizers with
    `whole_norm`, which is reproduced here. For the others it fails, and the parameter is not cut.)

    `forward` is the op type whose gradient this op type computes, "" for all others.

    `table_lookup`: the op looks up rows of the table W at Ids, and may do so on a server that has the table.

    `may_lack` are input slots that may be empty, and whose variables need not have a value. `module` is the module that
    declares the op type. `facts` are the further facts that the declaration states.
    """

    type: str
    inputs: FrozenMap[str, Slot]
    outputs: FrozenMap[str, Slot]
    attrs: FrozenMap[str, AttrSpec]
    defaults: Attrs
    empty_inputs: Slots
    slicing: FrozenMap[str, Slicing]
    row_wise: bool
    doc: str
    whole_norm: bool = False
    never_cut: bool = False
    forward: str = ""
    table_lookup: bool = False
    may_lack: frozenset[str] = frozenset()
    module: str = ""
    facts: OpFacts = PLAIN

    @property
    def is_optimizer(self) -> bool:
        """Whether the op updates a parameter from its gradient."""
        return bool(self.slicing)

    @property
    def is_built_in(self) -> bool:
        """Whether this package declares the op type, not another one."""
        return is_own(self.module)


GENERIC_ATTRS: FrozenMap[str, AttrSpec] = FrozenMap(
    op_namescope=AttrSpec(AttrKind.STRING, "/"), op_device=AttrSpec(AttrKind.STRING, "")
)
"""Attributes of every op in addition to its own (`op_role` and `op_role_var` are fields of Op).

The default of `op_namescope` is the value for an op outside any name scope.
"""

CARRIED_ATTRS: FrozenMap[str, AttrSpec] = FrozenMap(op_callstack=AttrSpec(AttrKind.STRINGS, None))
"""Attributes that every op may carry. They are kept, and have no default."""

_REGISTRY: dict[str, OpSchema] = {}


def is_own(module: str) -> bool:
    """Whether a module is one of this package."""
    return module.partition(".")[0] == __name__.partition(".")[0]


def require_own(op_type: str, what: str, module: str) -> None:
    """Raises ValueError if a module of another package registers something for an op type of this one.

    It would count from the moment when that package is imported, which depends on the programs that are read.
    """
    schema = _REGISTRY.get(op_type)
    if schema is not None and schema.is_built_in and not is_own(module):
        raise ValueError(f"op type {op_type} is of pstranspile, another package can't give it {what}")


def attr(kind: str, default: object = None) -> AttrSpec:
    """An attribute of the named kind (`int`, `float`, `ints`, ...) with this default; None: every op must have it."""
    attr_kind = AttrKind["BOOLEAN" if kind == "bool" else "BOOLEANS" if kind == "bools" else kind.upper()]
    if default is None:
        return AttrSpec(attr_kind, None)
    value: AttrValue = PYTHON_TYPES[attr_kind](default)
    if isinstance(value, float):
        value = float32(value)
    return AttrSpec(attr_kind, value)


def optional(kind: str) -> AttrSpec:
    """An attribute of the named kind that an op of the type may lack."""
    return attr(kind)._replace(optional=True)


def later(kind: str, whose: str = "a formula of Paddle 2.x") -> AttrSpec:
    """An attribute of the named kind that is `whose`, and not known to Fluid 1.8.5; an op of the type may lack it."""
    return optional(kind)._replace(later=whose)


UNSCOPED: Mapping[str, AttrSpec] = {"op_namescope": optional("string")}
"""The attributes of the few gradient ops whose makers in Fluid copy no attributes, so that they are in
no name scope.
"""

INT = attr("int")
LONG = attr("long")
FLOAT = attr("float")
BOOL = attr("bool")
STRING = attr("string")
INTS = attr("ints")
LONGS = attr("longs")
FLOATS = attr("floats")
STRINGS = attr("strings")
BLOCK = attr("block")
"""Specs of attributes without a default, which every op must have: one for each kind from `INT` to `BLOCK`."""


def long(value: int) -> AttrSpec:
    """A LONG attribute with this default (a plain int in a declaration is an INT)."""
    return attr("long", value)


def ints(*values: int) -> AttrSpec:
    """An INTS attribute with this default."""
    return attr("ints", values)


def words(default: str, *others: str) -> AttrSpec:
    """A STRING attribute that is one of these texts, the first by default."""
    return AttrSpec(AttrKind.STRING, default, among=(default, *others))


def bounded(
    value: object,
    least: float | None = None,
    most: float | None = None,
    *,
    above: float | None = None,
    below: str = "",
    finite: bool = False,
    counts: tuple[int, ...] = (),
) -> AttrSpec:
    """An attribute, given by its spec or its default, whose numbers lie in this range: see `Limits`."""
    return _plain(value)._replace(admitted=Limits(least, most, above, below, finite, counts))


def dim_of(value: object, slot: str, least: int | None = None, *, extra_dims: int = 0) -> AttrSpec:
    """An attribute, given by its spec or its default, that names dims of the input `slot`: see `AxisOf`."""
    return _plain(value)._replace(admitted=AxisOf(slot, least, extra_dims))


def element_type(value: object, *, unset: bool = False) -> AttrSpec:
    """An attribute, given by its spec or its default, with the numbers of element types: see `ElementType`."""
    return _plain(value)._replace(admitted=ElementType(unset))


def among(*texts: str) -> AttrSpec:
    """A STRING attribute that every op must have, one of these texts."""
    return STRING._replace(among=texts)


def longs(*values: int) -> AttrSpec:
    """A LONGS attribute with this default."""
    return attr("longs", values)


def floats(*values: float) -> AttrSpec:
    """A FLOATS attribute with this default."""
    return attr("floats", [float32(value) for value in values])


def strings(*values: str) -> AttrSpec:
    """A STRINGS attribute with this default."""
    return attr("strings", values)


def blocks() -> AttrSpec:
    """A BLOCKS attribute, empty by default."""
    return attr("blocks", ())


def _plain(value: object) -> AttrSpec:
    """An attribute given by its default only: 1 is INT, 1.0 FLOAT, True BOOLEAN, "" STRING."""
    if isinstance(value, AttrSpec):
        return value
    if isinstance(value, float):
        return AttrSpec(AttrKind.FLOAT, float32(value))
    assert isinstance(value, bool | int | str)
    return AttrSpec(kind_of(value), value)


@cache
def _slots(text: str) -> FrozenMap[str, Slot]:
    result: dict[str, Slot] = {}
    for word in text.split():
        name, mark = word.rstrip("*?-~^"), word[-1]
        result[name] = Slot(name, "*" in word, mark in "?-^", mark == "~", mark == "^")
    return FrozenMap(result)


def declare(
    op_type: str,
    slots: str,
    attrs: Mapping[str, object] | None = None,
    *,
    follows: str = "",
    row_wise: bool = False,
    whole_norm: bool = False,
    never_cut: bool = False,
    forward: str = "",
    table_lookup: bool = False,
    may_lack: str = "",
    doc: str = "",
    **facts: Unpack[StatedFacts],
) -> OpSchema:
    """Declares an op type and returns its schema.

    `follows` names the slots of an optimizer that are cut like the parameter; its other slots stay whole. `may_lack`
    names input slots that may be empty, and whose variables need not have a value. `facts` are those of
    `pstranspile.ops.facts.OpFacts`. Raises ValueError if the type is already declared, or for facts it can't have.
    """
    if op_type in _REGISTRY:
        raise ValueError(f"op type {op_type} is declared twice: {_REGISTRY[op_type].module} has declared it")
    if forward:
        require_own(forward, "a gradient op", _declaring_module())
    inputs, _, outputs = slots.partition("->")
    specs = FrozenMap({name: _plain(value) for name, value in (attrs or {}).items()})
    default_values = {
        name: spec.default for name, spec in {**GENERIC_ATTRS, **specs}.items() if spec.default is not None
    }
    input_slots = _slots(inputs)
    output_slots = _slots(outputs)
    try:
        stated = make_facts(input_slots, output_slots, specs, **facts)
    except ValueError as reason:
        raise ValueError(f"{op_type}: {reason}") from None
    schema = OpSchema(
        type=op_type,
        inputs=input_slots,
        outputs=output_slots,
        attrs=specs,
        defaults=FrozenMap(default_values),
        empty_inputs=FrozenMap({word.rstrip("*?"): () for word in inputs.split() if word[-1] == "?"}),
        slicing=_slicing(op_type, follows.split(), (*input_slots, *output_slots)) if follows else EMPTY,
        row_wise=row_wise,
        doc=doc,
        whole_norm=whole_norm,
        never_cut=never_cut,
        forward=forward,
        table_lookup=table_lookup,
        may_lack=frozenset(may_lack.split()),
        module=_declaring_module(),
        facts=stated,
    )
    _REGISTRY[op_type] = schema
    return schema


def _declaring_module() -> str:
    """The name of the module that declares an op: the first one up the stack outside of this package's folder."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals["__name__"].rpartition(".")[0] == __package__:
        frame = frame.f_back
    return frame.f_globals["__name__"]


def _slicing(op_type: str, follows: list[str], slots: tuple[str, ...]) -> FrozenMap[str, Slicing]:
    unknown = [name for name in follows if name not in slots]
    if unknown:
        raise ValueError(f"{op_type} has no slot {unknown[0]}")
    return FrozenMap({name: Slicing.FOLLOWS if name in follows else Slicing.WHOLE for name in slots})


def declare_gradient(
    forward: str,
    slots: str,
    attrs: Mapping[str, object] | None = None,
    *,
    op_type: str = "",
    row_wise: bool = False,
    may_lack: str = "",
    **facts: Unpack[StatedFacts],
) -> OpSchema:
    """Declares the gradient op of `forward`, named `<forward>_grad` unless `op_type` is given, with facts of its own.

    It has the attributes of the forward op, as Fluid's gradient makers copy them, unless `attrs` is given.
    """
    own = _REGISTRY[forward].attrs if attrs is None else attrs
    name = op_type or f"{forward}_grad"
    return declare(name, slots, own, row_wise=row_wise, forward=forward, may_lack=may_lack, **facts)


def undeclare(op_types: Iterable[str]) -> None:
    """Drops the declarations of these op types, whose module could not be imported as a whole."""
    for op_type in op_types:
        del _REGISTRY[op_type]


def op_schemas() -> Mapping[str, OpSchema]:
    """Every declared op type, by name."""
    return _REGISTRY
