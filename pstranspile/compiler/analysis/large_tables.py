"""Large tables: a module whose tables, as the job names them, begin without rows.

The initialiser of such a table becomes a `large_table` with the same numbers. The initialisers of its optimizer's state
become `large_table_state`s next to it, and its lookups are marked to be made on the servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pstranspile.compiler.analysis.sparse_tables import is_sparse
from pstranspile.ir.attributes import Longs, float32
from pstranspile.ir.diagnostics import Diagnostic, at_op, error, raise_errors
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import STARTUP, Block, Module, Op, Program
from pstranspile.ir.roles import OpRole
from pstranspile.ir.table_rules import Rules, parse_table
from pstranspile.ops import schema_of
from pstranspile.ops.attributes import ints_attr
from pstranspile.ops.build import make_op
from pstranspile.ops.schema import Slicing
from pstranspile.ops.tables.large import INITIALISERS

TABLE, STATE = "large_table", "large_table_state"


def with_large_tables(module: Module, tables: Sequence[str]) -> Module:
    """The module with these tables large (`NAME rule=value ...`). Raises DiagnosticError for what can't be one."""
    if not tables:
        return module
    rules = dict(parse_table(text) for text in tables)
    findings: list[Diagnostic] = []
    states: dict[str, dict[str, Op]] = {name: {} for name in rules}
    programs: dict[str, Program] = {}
    for key, program in module.programs.items():
        if key != STARTUP:
            findings += _find_states(program, states)
            programs[key] = _with_lookups_on_servers(program, states)
    for name in (name for name in rules if not states[name] and not findings):
        findings.append(error("table-large", f"large_tables names {name}, which no program updates"))
    if not findings:
        startup, findings = _with_tables(module[STARTUP], rules, states)
        programs[STARTUP] = startup
    raise_errors(findings)
    return Module(FrozenMap({key: programs[key] for key in module.programs}), module.source)


def _find_states(program: Program, states: Mapping[str, dict[str, Op]]) -> list[Diagnostic]:
    """Adds the table itself and what its optimizer keeps for each row, by name, each with the op that updates it."""
    findings: list[Diagnostic] = []
    for op in program.main_block.ops:
        name = op.input("Param")
        if name is None or name not in states or "ParamOut" not in op.outputs:
            continue
        schema = schema_of(op.type)
        reason = ""
        if schema is None or not schema.slicing:
            reason = f"{op.type} is no optimizer whose updates can be made row by row"
        elif schema.whole_norm:
            reason = f"{op.type} takes the norm of the whole table"
        elif not is_sparse(program, op.inputs["Grad"][0]):
            reason = f"its gradient %{op.inputs['Grad'][0]} is dense; a lookup with is_sparse=true makes it sparse"
        if reason:
            findings.append(at_op("table-large", f"%{name} can't be a large table: {reason}", op, focus=f"%{name}"))
            continue
        assert schema is not None
        whole = program.main_block.vars[name].shape
        for slot, names in op.inputs.items():
            if slot != "Grad" and schema.slicing.get(slot) is Slicing.FOLLOWS:
                kept = (n for n in names if program.main_block.vars[n].shape == whole)
                states[name].update(dict.fromkeys(kept, op))
    return findings


def _with_lookups_on_servers(program: Program, tables: Mapping[str, object]) -> Program:
    """The program whose lookups in these tables are made on the servers, wherever they are."""
    blocks: list[Block] = []
    for block in program.blocks:
        ops = tuple([_on_servers(op) if _is_lookup(op) and op.input("W") in tables else op for op in block.ops])
        blocks.append(block._replace(ops=ops))
    return program._replace(blocks=tuple(blocks))


def _is_lookup(op: Op) -> bool:
    schema = schema_of(op.type)
    while schema is not None and schema.forward:
        schema = schema_of(schema.forward)
    return schema is not None and schema.table_lookup


def _on_servers(op: Op) -> Op:
    return op._replace(attrs=FrozenMap({**op.attrs, "remote_prefetch": True, "is_distributed": False}))


def _with_tables(
    startup: Program, rules: Mapping[str, Rules], states: Mapping[str, Mapping[str, Op]]
) -> tuple[Program, list[Diagnostic]]:
    makers: dict[str, list[Op]] = {}
    for op in startup.main_block.ops:
        for name in op.output_names:
            makers.setdefault(name, []).append(op)
    findings: list[Diagnostic] = []
    made: dict[str, list[Op]] = {}
    gone = {name for kept in states.values() for name in kept}
    for name, rule in rules.items():
        for part in states[name]:
            reason = _unfit(makers.get(part, []), is_table=part == name)
            if reason:
                findings.append(at_op("table-large", f"%{name} can't be a large table: {reason}", states[name][part]))
        if not findings:
            (own,) = makers[name]
            made[name] = [large_table(own, rule), *(table_state(makers[n][0], name) for n in states[name] if n != name)]
    ops: list[Op] = []
    for op in startup.main_block.ops:
        names = [*op.output_names]
        if len(names) == 1 and names[0] in gone:
            ops += made.get(names[0], ())
        else:
            ops.append(op)
    block = startup.main_block._replace(ops=tuple(ops))
    return startup._replace(blocks=(block, *startup.blocks[1:])), findings


def _unfit(makers: Sequence[Op], *, is_table: bool) -> str:
    """Why the rows of a table or a state can't begin as these ops have the whole begin; empty if they can."""
    kinds = (*INITIALISERS, TABLE) if is_table else ("fill_constant", STATE)
    op = next(iter(makers), None)
    if op is None or len(makers) > 1 or op.type not in kinds or (any(op.input_names) and op.type != STATE):
        types = ", ".join(maker.type for maker in makers) or "nothing"
        return f"{types} initialises {'it' if is_table else 'what is kept of it'}, not one of {', '.join(kinds)}"
    if op.attrs.get("diag_num") or op.attrs.get("str_value"):
        return f"{op.type} makes rows that differ by their place, or by text"
    return ""


def large_table(op: Op, rules: Rules) -> Op:
    """The op that makes a table without rows, whose rows begin with the numbers of this initialiser."""
    own = {key: op.attrs[key] for key in ("min", "max", "mean", "std", "value", "seed", "dtype") if key in op.attrs}
    chosen = {key: float32(value) if isinstance(value, float) else value for key, value in rules._asdict().items()}
    if op.type == TABLE:
        attrs = {**op.attrs, **chosen}
    else:
        attrs = {"shape": Longs(ints_attr(op, "shape")), "initializer": op.type, **own, **chosen}
    return make_op(TABLE, {}, {"Out": op.outputs["Out"]}, attrs, role=op.role or OpRole.FORWARD, origin=op.origin)


def table_state(op: Op, table: str) -> Op:
    """The op that makes what an optimizer keeps for each row of a table, from that which makes the whole."""
    own = {key: op.attrs[key] for key in ("value", "dtype") if key in op.attrs}
    attrs = {"shape": Longs(ints_attr(op, "shape")), **own}
    return make_op(
        STATE, {"Table": [table]}, {"Out": op.outputs["Out"]}, attrs, role=op.role or OpRole.FORWARD, origin=op.origin
    )
