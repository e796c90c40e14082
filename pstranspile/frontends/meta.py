"""The properties of programs that a ProgramDesc does not carry: the `--meta` file, and values inferred from programs.

The file is a JSON object. Keys: `random_seed`; `params`, a list of objects with `name` and any of `trainable`,
`is_distributed`, `learning_rate`, `regularizer`; `startup_parameter_order`, a list of names; `distribution`, the parts
of programs in a cluster (see `meta_distribution`). Other keys are ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from pstranspile.ir.attributes import Double
from pstranspile.ir.codes import Code
from pstranspile.ir.diagnostics import (
    Diagnostic,
    DiagnosticError,
    Severity,
    at_op,
    error,
    nearest,
    raise_errors,
    warning,
)
from pstranspile.ir.json_text import json_fault
from pstranspile.ir.model import (
    EMPTY,
    MAIN,
    STARTUP,
    Block,
    DistributedVar,
    Distribution,
    FrozenMap,
    Location,
    Module,
    Op,
    ParameterInfo,
    Program,
    Var,
)
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.user_warnings import warn
from pstranspile.ops import schema_of

# What Fluid 1.8.5 can't read, or computes differently: attributes that have a meaning or a kind only in Paddle 2.x
# or in this package.


def newer_ops(programs: Iterable[Program]) -> list[Diagnostic]:
    """A warning for each type of op and attribute or input of these programs that Fluid 1.8.5 does not know."""
    found: dict[tuple[str, str], Diagnostic] = {}
    for program in programs:
        for op in (op for block in program.blocks for op in block.ops):
            for name, message in _newer_in(op):
                finding = at_op("desc-newer", message, op, focus=name, severity=Severity.WARNING)
                found.setdefault((op.type, name), finding)
    return list(found.values())


def _newer_in(op: Op) -> Iterator[tuple[str, str]]:
    """The attributes and inputs of an op that Fluid 1.8.5 does not know, with a sentence on each."""
    schema = schema_of(op.type)
    if schema is not None:
        for name, spec in schema.attrs.items():
            if spec.later and op.attrs.get(name):
                yield name, f"{name} is {spec.later}; Fluid 1.8.5 does not know it, and computes its own"
        for name, slot in schema.inputs.items():
            if slot.later and op.inputs.get(name):
                yield name, f"{name} is an input that Fluid 1.8.5 does not have; it can't run the program"
    for name, value in op.attrs.items():
        if isinstance(value, Double):
            yield name, f"{name} is a FLOAT64, a kind of attribute of Paddle 2.x; Fluid 1.8.5 can't read the program"


def warn_of_newer_ops(programs: Iterable[Program]) -> None:
    """Reports the findings of `newer_ops` through Python's `warnings`."""
    for finding in newer_ops(programs):
        warn(str(DiagnosticError([finding])))


# Distributions of programs in a `--meta` file: the key `distribution`, an object by program name.
#
# Its values have the fields of `Distribution` under the same names; those at their default may be left out. The list
# `variables` holds objects with the fields of `DistributedVar`, all of them.

Wrong = Callable[[str, str, object], None]
"""A function that reports a wrong value: it takes the key, what the value must be, and the value."""

_INT64 = range(-(1 << 63), 1 << 63)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in _INT64


def _is_list(value: Any, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(holds(item) for item in cast("list[Any]", value))


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


_TRUTH: tuple[str, Callable[[Any], bool]] = ("true or false", lambda value: isinstance(value, bool))
_INTEGER: tuple[str, Callable[[Any], bool]] = ("an integer of 64 bits", _is_integer)
_STRING: tuple[str, Callable[[Any], bool]] = ("a string", _is_string)
_STRING_OR_NULL: tuple[str, Callable[[Any], bool]] = (
    "a string or null",
    lambda value: value is None or isinstance(value, str),
)
_STRINGS: tuple[str, Callable[[Any], bool]] = ("a list of strings", lambda value: _is_list(value, _is_string))
_DIMS: tuple[str, Callable[[Any], bool]] = ("a list of integers", lambda value: _is_list(value, _is_integer))

_FIELDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "is_distributed": _TRUTH,
    "is_chief": _TRUTH,
    "endpoints": _STRINGS,
    "ps_endpoint": _STRING_OR_NULL,
    "distributed_lookup_table": _STRING_OR_NULL,
    "trainers_endpoints": _STRINGS,
    "nccl_comm_num": _INTEGER,
    "use_hierarchical_allreduce": _TRUTH,
    "hierarchical_allreduce_inter_nranks": _INTEGER,
}
_VARIABLE: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "origin": _STRING,
    "origin_shape": _DIMS,
    "slice": _STRING,
    "slice_shape": _DIMS,
    "is_slice": _TRUTH,
    "block_id": _INTEGER,
    "offset": _INTEGER,
    "endpoint": _STRING,
    "vtype": _STRING,
}


def distribution_json(distribution: Distribution) -> dict[str, Any]:
    """A distribution in the form of a `--meta` file, with every field."""
    fields = distribution._asdict()
    fields["variables"] = [variable_json(variable) for variable in distribution.variables]
    return _with_lists(fields)


def variable_json(variable: DistributedVar) -> dict[str, Any]:
    """A variable on a server in the form of `--meta` files and `plan.json`."""
    return _with_lists(variable._asdict())


def _with_lists(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: [*value] if isinstance(value, tuple) else value for key, value in fields.items()}  # pyright: ignore


def read_distributions(value: object, wrong: Wrong) -> FrozenMap[str, Distribution]:
    """The distributions under the key `distribution`, by program; faulty ones are reported to `wrong` and left out."""
    if value is None:
        return FrozenMap()
    if not isinstance(value, dict):
        wrong("distribution", "an object by program name", value)
        return FrozenMap()
    given = cast("dict[str, Any]", value)
    return FrozenMap(
        {program: _distribution(f"distribution.{program}", content, wrong) for program, content in given.items()}
    )


def _distribution(key: str, value: object, wrong: Wrong) -> Distribution:
    if not isinstance(value, dict):
        wrong(key, "an object", value)
        return Distribution()
    given = cast("dict[str, Any]", value)
    fields = _valid_fields(key, given, _FIELDS, wrong)
    variables = given.get("variables", [])
    if not isinstance(variables, list):
        wrong(f"{key}.variables", "a list", variables)
        variables = []
    return Distribution(**fields, variables=tuple(_variables(f"{key}.variables", cast("list[Any]", variables), wrong)))


def _variables(key: str, given: list[Any], wrong: Wrong) -> Iterable[DistributedVar]:
    for position, item in enumerate(given):
        place = f"{key}[{position}]"
        if not isinstance(item, dict):
            wrong(place, "an object", item)
            continue
        entry = cast("dict[str, Any]", item)
        missing = next((name for name in _VARIABLE if name not in entry), None)
        if missing is not None:
            wrong(f"{place}.{missing}", _VARIABLE[missing][0], None)
            continue
        fields = _valid_fields(place, entry, _VARIABLE, wrong)
        if len(fields) == len(_VARIABLE):
            yield DistributedVar(**fields)


def _valid_fields(
    key: str, given: Mapping[str, Any], known: Mapping[str, tuple[str, Callable[[Any], bool]]], wrong: Wrong
) -> dict[str, Any]:
    """The known fields that have values of the right type; other keys are ignored, as everywhere in the file."""
    fields: dict[str, Any] = {}
    for name, (expected, holds) in known.items():
        if name not in given:
            continue
        value = given[name]
        if holds(value):
            fields[name] = tuple(cast("list[Any]", value)) if isinstance(value, list) else value
        else:
            wrong(f"{key}.{name}", expected, value)
    return fields


# The order of declarations: in a ProgramDesc it is that of a hash table, in which nobody finds a variable.

_NUMBER = Pattern("([0-9]+)")


def with_sorted_declarations(module: Module, names: Collection[str]) -> Module:
    """The module with the variables of these programs sorted: persistable ones first, then by name.

    Numbers in names are compared as numbers: `fc_2` precedes `fc_10`.
    """

    def in_order(block: Block) -> Block:
        variables = sorted(block.vars.values(), key=_place)
        return block._replace(vars=FrozenMap({var.name: var for var in variables})) if variables else block

    def of_program(program: Program) -> Program:
        return program._replace(blocks=tuple(map(in_order, program.blocks)))

    return module.with_programs({name: of_program(p) for name, p in module.programs.items() if name in names})


def _place(var: Var) -> tuple[bool, list[str | tuple[int, str]]]:
    parts: list[Any] = _NUMBER.split(var.name)
    parts[1::2] = [(len(digits), digits) for digits in parts[1::2]]
    return not var.persistable, parts


MAX_SEED = (1 << 31) - 1
"""The largest random seed: Fluid keeps seeds in 32-bit signed attributes."""


class Meta(NamedTuple):
    """A checked `--meta` file. A field is None if the file does not have its key.

    `params` maps the name of a parameter to the fields of ParameterInfo the file gives. `in_order`: variables stand in
    the ProgramDescs in the order in which they were declared, not in that of a hash table as in Fluid's.
    """

    file: str = "<meta>"
    random_seed: int | None = None
    params: FrozenMap[str, FrozenMap[str, Any]] = EMPTY
    startup_parameter_order: tuple[str, ...] | None = None
    distribution: FrozenMap[str, Distribution] = EMPTY
    in_order: bool = False


def parse_meta(text: str, file: str) -> Meta:
    """Reads the text of a `--meta` file. Raises DiagnosticError with every finding."""

    try:
        value = json.loads(text)
    except (RecursionError, ValueError) as problem:
        fault = json_fault(problem)
        place = Location(file, fault.line, fault.column)
        raise DiagnosticError([error("meta-json", f"not JSON: {fault.reason}", place)]) from None
    if not isinstance(value, dict):
        message = f"the file must hold an object ({{...}}), it holds {_kind(value)}"
        raise DiagnosticError([error("meta-json", message, Location(file))])
    return _Checker(file).meta(cast("dict[str, Any]", value))


def apply_meta(module: Module, meta: Meta) -> tuple[Module, tuple[Diagnostic, ...]]:
    """The module with the properties in `meta`, and a warning for each name that no program declares or has.

    Parameters are set in block 0 of `@main` and `@startup`, the seed on both programs. The parameters of `@startup` are
    declared in the given order, in the places that parameters have among the declarations. Distributions are set on the
    programs that they name.
    """
    programs: dict[str, Program] = dict(module.programs)
    named = [*meta.params, *(meta.startup_parameter_order or ())]
    declared = {name for key in (MAIN, STARTUP) if key in programs for name in _global_variables(programs[key])}
    for key in (MAIN, STARTUP):
        if key in programs:
            program = _with_parameters(programs[key], meta.params)
            seed = program.random_seed if meta.random_seed is None else meta.random_seed
            programs[key] = program._replace(random_seed=seed)
    if STARTUP in programs and meta.startup_parameter_order is not None:
        programs[STARTUP] = _reorder_parameters(programs[STARTUP], meta.startup_parameter_order)
    unknown = [
        warning(
            "meta-unknown-parameter",
            f"no program declares the parameter {name!r}" + (f"; is {near!r} meant?" if near else ""),
            Location(meta.file),
        )
        for name in dict.fromkeys(named)
        if name not in declared
        for near in (nearest(name, sorted(declared), 0.8),)
    ]
    for key, distribution in meta.distribution.items():
        if key in programs:
            programs[key] = programs[key]._replace(distribution=distribution)
        else:
            message = f"there is no program @{key} for a distribution to be set on"
            unknown.append(warning("meta-unknown-program", message, Location(meta.file)))
    return module.with_programs(programs), tuple(unknown)


def infer_parameters(module: Module) -> Module:
    """The module with parameters inferred from how `@main` uses its variables.

    A parameter is a persistable variable of block 0 that an op names as parameter in its role variables, or reads
    through a slot `Param`. Those of `@startup` are the variables of the same names. Variables that are parameters
    already keep their properties; the others get Fluid's defaults.
    """
    main = module.programs.get(MAIN)
    if main is None:
        return module
    names: set[str] = set()
    for block in main.blocks:
        for op in block.ops:
            names.update(name for name, _ in op.role_pairs)
            names.update(op.inputs.get("Param", ()))
    declared = _global_variables(main)
    result: dict[str, FrozenMap[str, Any]] = {
        name: EMPTY
        for name, var in declared.items()
        if var.parameter is not None or (name in names and var.persistable)
    }
    usual = {key: program for key, program in module.programs.items() if key in (MAIN, STARTUP)}
    return module.with_programs({key: _with_parameters(program, result) for key, program in usual.items()})


def _global_variables(program: Program) -> Mapping[str, Var]:
    """The variables of block 0; none if there is no block, which the verifier reports."""
    return program.main_block.vars if program.blocks else EMPTY


def _with_parameters(program: Program, params: Mapping[str, Mapping[str, Any]]) -> Program:
    declared = _global_variables(program)
    changed: dict[str, Var] = {}
    for name, fields in params.items():
        var = declared.get(name)
        if var is not None:
            info = (var.parameter or ParameterInfo())._replace(**fields)
            if info != var.parameter:
                changed[name] = var._replace(parameter=info)
    if not changed:
        return program
    return program.with_main_block(program.main_block._replace(vars=FrozenMap({**declared, **changed})))


def _reorder_parameters(program: Program, order: tuple[str, ...]) -> Program:
    """The program with the parameters of block 0 in `order`, followed by those that `order` does not have; other
    variables keep their place.
    """
    if not program.blocks:
        return program
    block = program.main_block
    rank = {name: position for position, name in enumerate(order)}
    parameters = [name for name, var in block.vars.items() if var.parameter is not None or name in rank]
    in_order = iter(sorted(parameters, key=lambda name: rank.get(name, len(rank))))
    moving = frozenset(parameters)
    names = [next(in_order) if name in moving else name for name in block.vars]
    block = block._replace(vars=FrozenMap({name: block.vars[name] for name in names}))
    return program.with_main_block(block)


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names: dict[str, str] = {"dict": "an object", "list": "a list", "str": "a string", "bool": "a boolean"}
    return names.get(type(value).__name__, "a number")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_PARAMETER_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "trainable": ("true or false", lambda value: isinstance(value, bool)),
    "is_distributed": ("true or false", lambda value: isinstance(value, bool)),
    "learning_rate": (
        "a finite number",
        lambda value: _is_number(value) and abs(value) < 1e308 and math.isfinite(value),
    ),
    "regularizer": ("any value", lambda _value: True),  # kept without effect: its ops are in the program
}


def _convert_field(field: str, value: Any) -> Any:
    """A checked value in the form of a ParameterInfo: a learning rate as float, a regularizer as text, if need be as
    JSON.
    """
    if field == "learning_rate":
        return float(value)
    if field == "regularizer" and not (value is None or isinstance(value, str)):
        import json

        return json.dumps(value)
    return value


class _Checker:
    """Converts JSON values into a Meta, and collects errors."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._findings: list[Diagnostic] = []

    def meta(self, value: Mapping[str, Any]) -> Meta:
        result = Meta(
            self._file,
            self._seed(value.get("random_seed")),
            self._params(value.get("params")),
            self._order(value.get("startup_parameter_order")),
            read_distributions(value.get("distribution"), self._wrong),
            self._in_order(value.get("declarations_in_order", False)),
        )
        raise_errors(self._findings)
        return result

    def _wrong(self, key: str, expected: str, value: object) -> None:
        got = repr(value) if isinstance(value, int | float | str) else _kind(value)
        self._add("meta-type", f"{key} must be {expected}, it is {got if len(got) < 80 else _kind(value)}")

    def _add(self, code: Code, message: str) -> None:
        self._findings.append(error(code, message, Location(self._file)))

    def _seed(self, value: object) -> int | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_SEED:
            self._wrong("random_seed", f"an integer from 0 to {MAX_SEED}", value)
            return None
        return value

    def _in_order(self, value: object) -> bool:
        if not isinstance(value, bool):
            self._wrong("declarations_in_order", "true or false", value)
        return value is True

    def _params(self, value: object) -> FrozenMap[str, FrozenMap[str, Any]]:
        params: dict[str, FrozenMap[str, Any]] = {}
        for position, item in enumerate(self._list("params", value) or ()):
            key = f"params[{position}]"
            if not isinstance(item, dict):
                self._wrong(key, "an object", item)
                continue
            entry = cast("dict[str, Any]", item)
            name = entry.get("name")
            if not isinstance(name, str) or not name:
                self._wrong(f"{key}.name", "the name of a parameter", name)
                continue
            if name in params:
                self._add("meta-duplicate", f"{key}.name: the parameter {name!r} is there twice")
            params[name] = self._parameter(key, entry)
        return FrozenMap(params)

    def _parameter(self, key: str, entry: Mapping[str, Any]) -> FrozenMap[str, Any]:
        fields: dict[str, Any] = {}
        for field, (expected, holds) in _PARAMETER_FIELDS.items():
            if field in entry:
                given = entry[field]
                if holds(given):
                    fields[field] = _convert_field(field, given)
                else:
                    self._wrong(f"{key}.{field}", expected, given)
        return FrozenMap(fields)

    def _order(self, value: object) -> tuple[str, ...] | None:
        items = self._list("startup_parameter_order", value)
        if items is None:
            return None
        names: dict[str, None] = {}
        for position, item in enumerate(items):
            key = f"startup_parameter_order[{position}]"
            if not isinstance(item, str):
                self._wrong(key, "the name of a parameter", item)
            elif item in names:
                self._add("meta-duplicate", f"{key}: the parameter {item!r} is there twice")
            else:
                names[item] = None
        return tuple(names)

    def _list(self, key: str, value: object) -> list[Any] | None:
        if value is None or isinstance(value, list):
            return cast("list[Any] | None", value)
        self._wrong(key, "a list", value)
        return None


# Writing a `--meta` file: the properties of a module that ProgramDescs do not carry.


def meta_of(module: Module) -> dict[str, Any]:
    """The properties of a module that ProgramDescs do not carry, with the keys of a `--meta` file.

    The seed is that of `@main`, or of the first program if there is no `@main`.
    """
    programs = module.programs
    first = programs.get(MAIN) or next(iter(programs.values()), None)
    params = {
        var.name: {"name": var.name, **var.parameter._asdict()}
        for program in programs.values()
        for var in program.parameters()
        if var.parameter is not None
    }
    meta: dict[str, Any] = {"random_seed": first.random_seed if first else 0, "params": [*params.values()]}
    if module.startup is not None:
        meta["startup_parameter_order"] = [var.name for var in module.startup.parameters()]
    meta["declarations_in_order"] = True
    distributions = {
        name: distribution_json(program.distribution)
        for name, program in programs.items()
        if program.distribution is not None
    }
    if distributions:
        meta["distribution"] = distributions
    return meta
