"""What a ProgramDesc does not carry: the `--meta` file, and what programs say of it themselves.

The file is a JSON object. Keys: `random_seed`; `params`, a list of objects with `name` and any of
`trainable`, `is_distributed`, `learning_rate`, `regularizer`; `startup_parameter_order`, a list of names;
`distribution`, the parts of programs in a cluster (see `meta_distribution`). Other keys are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from pstranspile.frontends.meta_distribution import read_distributions
from pstranspile.ir.codes import Code
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, raise_errors, warning
from pstranspile.ir.distribution import Distribution
from pstranspile.ir.frozen import EMPTY, FrozenMap
from pstranspile.ir.model import MAIN, STARTUP, Location, Module, ParameterInfo, Program, Var
from pstranspile.ir.suggest import nearest

MAX_SEED = (1 << 31) - 1
"""The largest random seed: Fluid keeps seeds in 32-bit signed attributes."""


class Meta(NamedTuple):
    """A checked `--meta` file. None: the file does not say.

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
    import json

    try:
        value = json.loads(text)
    except json.JSONDecodeError as problem:
        place = Location(file, problem.lineno, problem.colno)
        raise DiagnosticError([error("meta-json", f"not JSON: {problem.msg}", place)]) from None
    except (RecursionError, ValueError) as problem:  # nesting without end; an integer of thousands of digits
        reason = "nested too deeply" if isinstance(problem, RecursionError) else str(problem)
        raise DiagnosticError([error("meta-json", f"not JSON: {reason}", Location(file))]) from None
    if not isinstance(value, dict):
        message = f"the file must hold an object ({{...}}), it holds {_kind(value)}"
        raise DiagnosticError([error("meta-json", message, Location(file))])
    return _Checker(file).meta(cast("dict[str, Any]", value))


def apply_meta(module: Module, meta: Meta) -> tuple[Module, tuple[Diagnostic, ...]]:
    """The module with the facts of `meta`, and a warning for each name no program declares or has.

    Parameters are set in block 0 of `@main` and `@startup`, the seed on both programs, and the parameters of
    `@startup` are declared in the order given, in the places that parameters have among the declarations.
    Distributions are set on the programs they name.
    """
    programs: dict[str, Program] = dict(module.programs)
    named = [*meta.params, *(meta.startup_parameter_order or ())]
    declared = {name for key in (MAIN, STARTUP) if key in programs for name in _declared(programs[key])}
    for key in (MAIN, STARTUP):
        if key in programs:
            program = _with_parameters(programs[key], meta.params)
            seed = program.random_seed if meta.random_seed is None else meta.random_seed
            programs[key] = program._replace(random_seed=seed)
    if STARTUP in programs and meta.startup_parameter_order is not None:
        programs[STARTUP] = _reordered(programs[STARTUP], meta.startup_parameter_order)
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
    """The module with the parameters that its `@main` shows by how they are used.

    A parameter is a persistable variable of block 0 that an op names as parameter in its role variables, or
    reads through a slot `Param`. Those of `@startup` are the variables of the same names. Variables that are
    parameters already keep what is known of them; the others get Fluid's defaults.
    """
    main = module.programs.get(MAIN)
    if main is None:
        return module
    names: set[str] = set()
    for block in main.blocks:
        for op in block.ops:
            names.update(name for name, _ in op.role_pairs)
            names.update(op.inputs.get("Param", ()))
    declared = _declared(main)
    result: dict[str, FrozenMap[str, Any]] = {
        name: EMPTY
        for name, var in declared.items()
        if var.parameter is not None or (name in names and var.persistable)
    }
    usual = {key: program for key, program in module.programs.items() if key in (MAIN, STARTUP)}
    return module.with_programs({key: _with_parameters(program, result) for key, program in usual.items()})


def _declared(program: Program) -> Mapping[str, Var]:
    """The variables of block 0; none if there is no block, which the verifier reports."""
    return program.main_block.vars if program.blocks else EMPTY


def _with_parameters(program: Program, params: Mapping[str, Mapping[str, Any]]) -> Program:
    declared = _declared(program)
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


def _reordered(program: Program, order: tuple[str, ...]) -> Program:
    """The parameters of block 0 in `order`, those it does not name after them; the rest keeps its place."""
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
    "regularizer": ("any value", lambda _value: True),  # it is kept, and acts on nothing: its ops are in the program
}


def _kept(field: str, value: Any) -> Any:
    """A checked value as ParameterInfo has it: a learning rate as float, a regularizer as text, if need be JSON's."""
    if field == "learning_rate":
        return float(value)
    if field == "regularizer" and not (value is None or isinstance(value, str)):
        import json

        return json.dumps(value)
    return value


class _Checker:
    """Turns JSON values into a Meta and collects what is wrong with them."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._found: list[Diagnostic] = []

    def meta(self, value: Mapping[str, Any]) -> Meta:
        result = Meta(
            self._file,
            self._seed(value.get("random_seed")),
            self._params(value.get("params")),
            self._order(value.get("startup_parameter_order")),
            read_distributions(value.get("distribution"), self._wrong),
            self._in_order(value.get("declarations_in_order", False)),
        )
        raise_errors(self._found)
        return result

    def _wrong(self, key: str, expected: str, value: object) -> None:
        got = repr(value) if isinstance(value, int | float | str) else _kind(value)
        self._add("meta-type", f"{key} must be {expected}, it is {got if len(got) < 80 else _kind(value)}")

    def _add(self, code: Code, message: str) -> None:
        self._found.append(error(code, message, Location(self._file)))

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
                    fields[field] = _kept(field, given)
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
