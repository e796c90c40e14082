"""The declarations of op types, in a file per family in a folder per area.

A family's file holds the declarations, shape rules and gradient rules of its ops, and the facts that other wings ask
for. `pstranspile.runtime.kernels` has their kernels in a file of the same name. Nothing here computes.

Other wings use `schema_of`, `facts_of` and `families` of this module, `admitted` (which values attributes may have),
`attributes` (values of attributes), `build` (make_op), `shapes` (infer types), `work` (operations and bytes),
`gradient` (WantedGradients), `gradients` (which value each gradient belongs to), `schema` (Slicing), `facts`, `plugins`
(what other packages offer), `programs.modules` and `textual` (parse, print_module);
kernels also use what the families of the same names say, in `detection`, `images`, `math`, `tables` and `tensors`. Read
`schema.py` first, then a family such as `math/products.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pstranspile.ir.attributes import AttrKind, AttrValue, float32
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, raise_errors
from pstranspile.ir.model import TEXTS, Block, FrozenMap, Module, Op, Program, Var
from pstranspile.ops.facts import PLAIN, OpFacts
from pstranspile.ops.schema import CARRIED_ATTRS, GENERIC_ATTRS, OpSchema, op_schemas

if TYPE_CHECKING:
    from pstranspile.ir.text.literals import Language

GROUP = "pstranspile.ops"
"""Entry point group through which other packages add op types: each entry is a module that declares some.

The modules are imported at the first op type that this package does not declare.
"""


def families() -> list[str]:
    """The names of the modules of this package that declare op types, sorted: all modules in its folders except
    `gradients`.
    """
    files = sorted(file for file in Path(__file__).parent.glob("*/[a-z]*.py") if file.parent.name != "gradients")
    return [f"{__name__}.{file.parent.name}.{file.stem}" for file in files]


@cache
def _load() -> None:
    for family in families():
        importlib.import_module(family)


@cache
def _load_others() -> tuple[Diagnostic, ...]:
    """Imports the families of other installed packages; the findings (`op-family`) about those that can't be."""
    from pstranspile.ops.plugins import load_family, offers

    findings: list[Diagnostic] = []
    try:
        points = offers(GROUP, "op-family")
    except DiagnosticError as problem:
        return problem.diagnostics
    for point in points:
        try:
            load_family(point, "op-family")
        except DiagnosticError as problem:
            findings += problem.diagnostics
    return tuple(findings)


def schema_of(op_type: str) -> OpSchema | None:
    """The declaration of an op type, None if it has none. This call also registers its shape and gradient rules.

    Raises DiagnosticError (`op-family`) if there is none and families of other packages can't be loaded.
    """
    result = op_schemas().get(op_type)
    if result is None:
        _load()
        result = op_schemas().get(op_type)
    if result is None:
        findings = _load_others()
        result = op_schemas().get(op_type)
        if result is None:
            raise_errors(findings)
    return result


def _schema_in_text(op_type: str) -> OpSchema | None:
    """The schema of an op type; None for the statements that only look like ops, so that no family is loaded for
    them.
    """
    from pstranspile.ir.text.distribution import STATEMENTS

    return None if op_type in STATEMENTS else schema_of(op_type)


@cache
def language() -> Language:
    """The language of the op types declared here, in which programs are read and printed."""
    from pstranspile.ir.text.literals import Language

    defaults = FrozenMap({name: spec.default for name, spec in GENERIC_ATTRS.items() if spec.default is not None})
    kinds = FrozenMap({name: spec.kind for name, spec in {**GENERIC_ATTRS, **CARRIED_ATTRS}.items()})
    return Language(_schema_in_text, defaults, kinds)


def _text_of(value: Module | Program | Block | Op | Var) -> str:
    from pstranspile.ir.text.printer import value_text

    return value_text(value, language())


TEXTS.written_by(_text_of)


def facts_of(op_type: str) -> OpFacts:
    """The facts that the declaration of an op type states, also one of another package; `PLAIN` if it states none."""
    schema = schema_of(op_type)
    return PLAIN if schema is None else schema.facts


def is_optimizer(op: Op) -> bool:
    """Whether the op's schema declares how it updates a parameter."""
    schema = schema_of(op.type)
    return schema is not None and schema.is_optimizer


def with_defaults(op: Op) -> Op:
    """The op with its schema's defaults for the attributes that it does not carry.

    As in Fluid, integers are converted where the schema has a float or a boolean.
    """
    schema = schema_of(op.type)
    if schema is None:
        return op
    attrs: dict[str, AttrValue] = {**schema.defaults, **op.attrs}
    for name, value in op.attrs.items():
        kind = schema.attrs[name].kind if name in schema.attrs else None
        if isinstance(value, int) and not isinstance(value, bool) and kind in (AttrKind.FLOAT, AttrKind.BOOLEAN):
            attrs[name] = float32(value) if kind is AttrKind.FLOAT else bool(value)
    return op._replace(attrs=FrozenMap(attrs))


def all_schemas() -> Mapping[str, OpSchema]:
    """Every declared op type by name. Raises DiagnosticError (`op-family`) if a family can't be loaded."""
    _load()
    raise_errors(_load_others())
    return op_schemas()
