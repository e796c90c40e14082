"""Mode geo on a trainer: it keeps its updates, and reports every step to its communicator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pstranspile.compiler.analysis.facts import Facts
from pstranspile.compiler.emit.rules import (
    BEGIN_EXCHANGE,
    KEEP_CLIP,
    LOCAL_LOOKUP,
    REPORT_ROWS,
    REPORT_STEP,
    made,
    made_of_program,
)
from pstranspile.compiler.emit.trainer_startup import StartupTemplate, emit_trainer_startup
from pstranspile.compiler.modes.geo_programs.local_updates import SentRows
from pstranspile.compiler.plan.plan import GeoPlan, Plan, PlannedParameter
from pstranspile.ir.attributes import Longs, Strings
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import STARTUP, Op, Program, TensorType, Var
from pstranspile.ir.roles import OpRole
from pstranspile.ir.types import DType, VarKind
from pstranspile.ops.build import make_op

BEGIN = "param_init"
"""The variable whose send starts Fluid's communicator: the parameters are complete. The communicator requires it."""


def delta_name(variable: str) -> str:
    """Under which name the change of a parameter or slice travels; Fluid's communicators and servers make it so."""
    return f"{variable}.delta"


def change_of(name: str, dtype: DType, shape: tuple[int, ...], *, sparse: bool) -> Var:
    """The variable for the change of a parameter or slice: of a sparse one, rows."""
    kind = VarKind.SELECTED_ROWS if sparse else VarKind.LOD_TENSOR
    return Var(delta_name(name), kind, TensorType(dtype, shape))


def emit_geo_trainer(
    facts: Facts, sent_rows: Sequence[SentRows], parameters: Sequence[PlannedParameter], geo: GeoPlan
) -> Program:
    """The main program of every trainer: the source's, and a `send` that ends the step.

    `sent_rows` are the ids of changed rows that the send names, `parameters` those whose changes the program
    declares. If no table is sparse, the send has a token, because Fluid's communicator ignores a send without
    inputs. The token is sent for a parameter that the program updates, or, if it updates none, for one that others
    update.
    """
    program, block = facts.program, facts.program.main_block
    variables = dict(block.vars)
    for parameter in parameters:
        whole = change_of(parameter.name, parameter.dtype, parameter.shape, sparse=parameter.sparse)
        variables[whole.name] = whole
        for s in parameter.slices if parameter.is_cut else ():
            change = change_of(s.name, parameter.dtype, s.shape, sparse=parameter.sparse)
            variables[s.name] = Var(s.name, tensor=TensorType(parameter.dtype, s.shape))
            variables[change.name] = change
    clips = frozenset(facts.roles.trainer_clips)
    ops = [_on_trainer(op, is_clip=index in clips) for index, op in enumerate(block.ops)]
    origin = made_of_program(program, REPORT_ROWS if sent_rows else REPORT_STEP)
    trained = (*(update.parameter for update in facts.updates), *(p.name for p in parameters if p.name in block.vars))
    dense = () if sent_rows else trained[:1]
    if dense or any(rows.padded for rows in sent_rows):
        variables[geo.token] = Var(geo.token, tensor=TensorType(DType.INT64, (1,)))
        attrs = {"shape": Longs([1]), "dtype": DType.INT64.value, "value": 0.0}
        ops.append(make_op("fill_constant", {}, {"Out": [geo.token]}, attrs, origin=origin))
    ids: list[str] = []
    for rows in sent_rows:
        name = rows.ids
        if rows.padded:  # row 0 instead of none: it is sent as it is, changed or not
            name = geo.row_names[rows.ids]
            variables[name] = block.vars[rows.ids]._replace(name=name, need_check_feed=False, location=None)
            inputs = {"X": [rows.ids], "Y": [geo.token]}
            ops.append(make_op("elementwise_max", inputs, {"Out": [name]}, origin=origin))
        ids.append(name)
    tables = [rows.table for rows in sent_rows]
    if dense:
        ids, tables = [geo.token], [*dense]
    variables[geo.step] = Var(geo.step)
    ops.append(make_op("send", {"X": ids}, {"Out": [geo.step]}, {"send_varnames": Strings(tables)}, origin=origin))
    main = block._replace(vars=FrozenMap(variables), ops=tuple(ops))
    return program.with_main_block(main)


def _on_trainer(op: Op, *, is_clip: bool) -> Op:
    """The op as trainers have it: clips belong to the backward pass, lookups find their rows here."""
    if is_clip:
        return op._replace(role=OpRole.BACKWARD, origin=made(op.origin, KEEP_CLIP))
    if op.type == "lookup_table" and op.attrs.get("remote_prefetch") is True:
        attrs = FrozenMap({**op.attrs, "remote_prefetch": False})
        return op._replace(attrs=attrs, origin=made(op.origin, LOCAL_LOOKUP))
    return op


class GeoStartupTemplate:
    """What the start-up programs of all trainers of a geo job share: `variables`, and `begin`, their last op.

    Beside the source's they have the parameters as the servers have them, and `param_init`. `received` is the plan with
    just the parameters that are received. Fluid has looked-up tables initialised by each trainer; their
    initialisers make the same values here as on the servers.
    """

    def __init__(self, plan: Plan, received: Plan, declared: Mapping[str, Var], startup: Program):
        """`declared` are the variables of the main program."""
        geo = plan.geo
        assert geo is not None
        self.startup = StartupTemplate(received, frozenset(), declared, startup)
        variables = dict(self.startup.variables)
        for parameter in plan.parameters:
            change = change_of(parameter.name, parameter.dtype, parameter.shape, sparse=parameter.sparse)
            variables[change.name] = change
        variables[BEGIN] = Var(BEGIN)
        variables[geo.begin] = Var(geo.begin)
        self.variables = FrozenMap(variables)
        origin = made_of_program(startup, BEGIN_EXCHANGE, STARTUP)
        attrs = {"send_varnames": Strings([BEGIN])}
        self.begin = make_op("send", {"X": [BEGIN]}, {"Out": [geo.begin]}, attrs, origin=origin)


def emit_geo_trainer_startup(template: GeoStartupTemplate, trainer: int) -> Program:
    """The start-up program of one trainer."""
    program = emit_trainer_startup(template.startup, trainer)
    block = program.main_block
    main = block._replace(vars=template.variables, ops=(*block.ops, template.begin))
    return program.with_main_block(main)
