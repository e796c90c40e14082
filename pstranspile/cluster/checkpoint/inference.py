"""Inference models: a program cut down to what its targets need, with the parameters whole, as Fluid saves them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from pstranspile.cluster.checkpoint import numbered_checkpoints
from pstranspile.cluster.checkpoint.api import scopes_of
from pstranspile.cluster.checkpoint.layout import layout_of
from pstranspile.cluster.checkpoint.manifest import MANIFEST, require_names
from pstranspile.cluster.checkpoint.runs import Source, newest
from pstranspile.cluster.checkpoint.state import State, dense, gather, merge_table_parts
from pstranspile.cluster.checkpoint.store import read_checkpoint
from pstranspile.compiler.analysis.uses import deep_blocks, effects_of
from pstranspile.compiler.compile import Compiled
from pstranspile.compiler.plan.plan import NameMint
from pstranspile.frontends.loading import load, require_regular
from pstranspile.frontends.onnx.writing import onnx_bytes
from pstranspile.ir.argument_checks import expect, expect_program, names_of
from pstranspile.ir.attributes import Strings, renumber_blocks
from pstranspile.ir.diagnostics import (
    Diagnostic,
    DiagnosticError,
    at_op,
    did_you_mean,
    error,
    file_of,
    raise_errors,
    warning,
)
from pstranspile.ir.model import MAIN, Block, FrozenMap, Location, Module, Op, Program, Var
from pstranspile.ir.types import OpRole, VarKind
from pstranspile.ir.user_warnings import warn
from pstranspile.ops import schema_of
from pstranspile.ops.build import make_op
from pstranspile.runtime.files.outputs import write_variables
from pstranspile.runtime.files.variables import load_variables, persistable_names
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.large.forms import combine_parts, to_selected_rows
from pstranspile.runtime.run.files import fitting, read_initial
from pstranspile.runtime.values import SelectedRows
from pstranspile.runtime.values.encoding import encode, require_encodable

# Values that a run starts from, or that a model is served with: of a checkpoint, of results, or of Fluid's files.


class StartingValues(NamedTuple):
    """Values of variables by name, and the findings to report about them."""

    values: dict[str, Any]
    warnings: tuple[Diagnostic, ...] = ()


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a checkpoint, or a folder of numbered_checkpoints ones."""
    place = Path(path)
    try:
        return place.is_dir() and ((place / MANIFEST).is_file() or bool(numbered_checkpoints(place)))
    except (OSError, ValueError):
        return False


def resolve_checkpoint(path: str) -> str:
    """The path that all of several processes should read: the newest checkpoint if `path` is a folder of checkpoints,
    else `path` itself.

    Raises DiagnosticError.
    """
    return str(newest(path)) if is_checkpoint(path) else path


def starting_values(path: str | None, program: Program, startup: Program | None = None) -> StartingValues:
    """The persistable variables that a run of a program starts from; none without a path.

    The path is a checkpoint, or a folder of some, of which it is the newest; a file of results, of which these are the
    parameters (`param/<name>`); arrays by name; or what Fluid's `save_persistables` wrote. A checkpoint may have more
    variables than the program; a parameter that is missing there keeps the value of the start-up program, with a
    warning. Raises DiagnosticError for what can't be read or does not fit, and for large tables, of which only rows
    exist.
    """
    if not path:
        return StartingValues({})
    there, checkpoint = _read(path, program)
    findings = [
        error("run-file-unusable", f"{name} is a large table, of which it has only rows: --resume takes them", here)
        for name, value in there.items()
        if isinstance(value, SelectedRows)
        for here in [Location(checkpoint or path)]
    ]
    raise_errors(findings)
    values = fitting(there, checkpoint or path, program, startup)
    missing = [var.name for var in program.parameters() if var.name not in values] if checkpoint else []
    if checkpoint and not values:
        message = "it has no variable of the program"
        raise DiagnosticError([error("checkpoint-variable", message, Location(checkpoint))])
    told = (
        warning("checkpoint-variable", f"it has no {name}, which begins as the start-up program says", here)
        for name in missing
        for here in [Location(checkpoint)]
    )
    return StartingValues(values, tuple(told))


def served_values(path: str, program: Program, names: Iterable[str]) -> dict[str, Any]:
    """The values of the variables `names` with which a model of a program is served.

    `path` is as for `starting_values`. Rows of a table that do not exist are zeros, as Fluid looks them up in tests.
    Raises DiagnosticError, also for a variable that the path does not have.
    """
    there, checkpoint = _read(path, program)
    place = checkpoint or path
    wanted = dict.fromkeys(names)
    held = {name: _whole(value) for name, value in there.items() if name in wanted}
    lacking = [name for name in wanted if name not in held]
    raise_errors(
        error("checkpoint-variable", f"it has no {name}, which the model needs", Location(place)) for name in lacking
    )
    return fitting(held, place, program)


def whole_values(machines: Any, job: Compiled) -> dict[str, Any]:
    """The persistable variables of a job's source program by name, put together from its machines: a Cluster, or
    scopes by role name. Of large tables these are the rows that exist. Raises DiagnosticError.
    """
    declared = {name: var for name, var in job.source.main.main_block.vars.items() if var.persistable}
    return dict(_values(gather(layout_of(job), scopes_of(machines)), declared))


def _whole(value: Any) -> Any:
    return dense(value, int(value.height)) if isinstance(value, SelectedRows) else value


def _read(path: str, program: Program) -> tuple[dict[str, Any], str]:
    """Returns the values at a path by name (of large tables, their rows), and the path of the checkpoint that has them
    ("" if none).
    """
    if not is_checkpoint(path):
        return read_initial(path, program), ""
    with closing(Source(path)) as source:
        _, state = read_checkpoint(source.place)
    declared = {name: var for name, var in program.main_block.vars.items() if var.persistable}
    return dict(_values(state, declared)), str(source.place)


def _values(state: State, declared: Mapping[str, Var]) -> Iterator[tuple[str, Any]]:
    """Yields name and value of every declared variable that a checkpoint has."""
    for name, var in declared.items():
        if name in state.large:
            yield name, to_selected_rows(combine_parts(state.large[name]), var.shape[0])
        elif name in state.tables:
            table = merge_table_parts(name, state.tables[name])
            yield name, dense(table, var.shape[0] if var.shape and var.shape[0] > 0 else int(table.height))
        elif name in state.values:
            yield name, state.values[name]


MODEL = "__model__"
"""The file of the program, as Fluid names it."""


class InferenceModel(NamedTuple):
    """A program to infer with: what is fed to it and what is fetched from it, in order."""

    program: Program
    feeds: tuple[str, ...]
    targets: tuple[str, ...]


# Cutting down


def inference_program(
    program: Program, feeds: Sequence[str], targets: Sequence[str], *, scaled: bool = False
) -> InferenceModel:
    """The part of a program that computes `targets` from `feeds`, set to testing, with feed and fetch ops.

    Each target is fetched through a `scale` by 1, as Fluid does (the program given is not touched), unless they are
    `scaled` already: then it is a script's program, of which an input that is not to be fed is only warned of. Raises
    DiagnosticError (`inference-program`) for a target that nothing computes, and else for an input that is not fed.
    """
    block = program.main_block
    raise_errors(_interface_errors(program, feeds, targets))
    starts = {_maker(block, name) for name in targets if name not in feeds}
    needed_ops: list[Op] = []
    needed = {name for name in targets if name in feeds}
    for index in range(len(block.ops) - 1, -1, -1):
        op = block.ops[index]
        effects = effects_of(program, op)
        if index in starts or any(name in needed for name in effects.writes):
            needed_ops.insert(0, op)
            needed.update(name for name in effects.reads if name not in feeds)
    lacking = list(_not_declared(program, needed_ops, feeds))
    if not scaled:
        raise_errors(lacking)
    for finding in lacking:
        warn(f"{finding.message}; a run of this model will have to feed it")
    return _build_inference_model(program, needed_ops, tuple(feeds), tuple(targets), scaled)


def _interface_errors(program: Program, feeds: Sequence[str], targets: Sequence[str]) -> Iterator[Diagnostic]:
    variables, place = program.main_block.vars, file_of(program.main_block.ops)
    for what, names in (("fed", feeds), ("a target", targets)):
        for name in names:
            if name not in variables:
                hint = did_you_mean(name, variables)
                message = f"{name} is to be {what}, but the program declares no such variable{hint}"
                yield error("inference-program", message, place)
            elif names.count(name) > 1:
                yield error("inference-program", f"{name} is {what} twice", place)
    for name in targets:
        if name in variables and name not in feeds and _maker(program.main_block, name) < 0:
            yield error("inference-program", f"no op computes the target {name}", place)
    if not targets:
        yield error("inference-program", "there is no target", place)


def _maker(block: Block, name: str) -> int:
    """The index of the first op that computes a variable, not counting its update; -1 if there is none."""
    made = (i for i, op in enumerate(block.ops) if op.role != OpRole.OPTIMIZE and name in op.output_names)
    return next(made, -1)


def _not_declared(program: Program, ops: Iterable[Op], feeds: Sequence[str]) -> Iterator[Diagnostic]:
    known = set(feeds)
    for op in ops:
        for name in op.input_names:
            var = program.main_block.vars.get(name)
            kept = var is not None and (var.persistable or var.kind in (VarKind.LOD_TENSOR_ARRAY, VarKind.READER))
            if name not in known and not kept:
                known.add(name)
                yield at_op(
                    "inference-program", f"the targets depend on {name}, which is not to be fed", op, focus=name
                )
        if op.type == "read":
            yield at_op("inference-program", "the targets depend on a reader; feed what it reads instead", op)
        known.update(effects_of(program, op).writes)


def _build_inference_model(
    program: Program, kept: list[Op], feeds: tuple[str, ...], targets: tuple[str, ...], scaled: bool
) -> InferenceModel:
    block = program.main_block
    mint = NameMint(name for b in program.blocks for name in b.vars)
    mentioned = {name for op in kept for names in effects_of(program, op) for name in names} | {*feeds, *targets}
    variables = {name: _inference_var(var, feeds) for name, var in block.vars.items() if name in mentioned}
    numbers = {0: 0}
    for index in sorted({b for op in kept for b in deep_blocks(program, op)}):
        numbers[index] = len(numbers)
    feed, fetch = mint.mint("feed"), mint.mint("fetch")
    variables[feed] = Var(feed, VarKind.FEED_MINIBATCH, persistable=True)
    variables[fetch] = Var(fetch, VarKind.FETCH_LIST, persistable=True)
    ops = [make_op("feed", {"X": [feed]}, {"Out": [name]}, {"col": k}) for k, name in enumerate(feeds)][::-1]
    ops += (_testing(op, numbers) for op in kept)
    fetched: list[str] = []
    for number, name in enumerate(targets):
        if scaled:
            fetched.append(name)
            continue
        fetched.append(mint.mint(f"save_infer_model/scale_{number}.tmp_0"))
        var = block.vars[name]
        variables[fetched[-1]] = Var(fetched[-1], var.kind, var.tensor)
        ops.append(make_op("scale", {"X": [name]}, {"Out": [fetched[-1]]}))
    ops += (make_op("fetch", {"X": [name]}, {"Out": [fetch]}, {"col": k}) for k, name in enumerate(fetched))
    blocks = [Block(FrozenMap(variables), tuple(ops))]
    for index in list(numbers)[1:]:
        inner = program.blocks[index]
        blocks.append(
            inner._replace(
                ops=tuple(_testing(op, numbers) for op in inner.ops),
                parent=numbers.get(inner.parent, 0),
                forward_block=-1,
            )
        )
    return InferenceModel(program._replace(blocks=tuple(blocks)), feeds, tuple(fetched))


def _inference_var(var: Var, feeds: tuple[str, ...]) -> Var:
    """Returns the declaration of a variable for an inference model: no longer a parameter, and not persistable if it is
    fed.
    """
    return var._replace(persistable=var.persistable and var.name not in feeds, parameter=None)


def _testing(op: Op, numbers: Mapping[int, int]) -> Op:
    """Returns the op for an inference model: `is_test` is set where its schema has it, and its blocks have their new
    numbers.
    """
    schema = schema_of(op.type)
    attrs = {name: renumber_blocks(value, numbers) for name, value in op.attrs.items()}
    if "is_test" in attrs or (schema is not None and "is_test" in schema.defaults):
        attrs["is_test"] = True
    return op._replace(attrs=FrozenMap(attrs))


# Saving and loading


def save_inference_model(
    machines: Any,
    job: Compiled | Module,
    folder: str | os.PathLike[str],
    feeds: Sequence[str],
    targets: Sequence[str],
    *,
    model_filename: str = MODEL,
    params_filename: str | None = None,
    remote_tables: bool = False,
    program: str = MAIN,
) -> tuple[str, ...]:
    """Writes the program that computes `targets` from `feeds`, and its parameters whole; returns the names of the
    variables that it fetches.

    `program` is the name of the program of the module that is cut down, where there are several.

    Of a job in a cluster it is the source program that is cut down, so tables are looked up where the model runs; rows
    of a distributed table that no lookup ever asked for are zeros. With `remote_tables` it is the trainer's, which goes
    on asking the servers for rows of tables. Files are as in Fluid, and none is replaced before all are written. Raises
    DiagnosticError.
    """
    module = job if isinstance(job, Module) else job.trainer(0).module if remote_tables else job.source
    if program not in module.programs:
        raise DiagnosticError([error("inference-program", f"there is no program @{program}")])
    source = module[program]
    model = inference_program(source, feeds, targets)
    values = _parameters(machines, job, model.program)
    write_model(folder, model, values, model_filename=model_filename, params_filename=params_filename)
    return model.targets


def write_model(
    folder: str | os.PathLike[str],
    model: InferenceModel,
    values: Mapping[str, Value],
    *,
    model_filename: str = MODEL,
    params_filename: str | None = None,
) -> None:
    """Writes an inference model with the values of its variables, each in a file or all in one, in the order of names.

    Raises DiagnosticError.
    """
    from pstranspile.frontends.program_desc import program_to_bytes

    file = params_filename
    names: dict[str, list[str]] = {name: [name] for name in values} if file is None else {file: list(values)}
    require_names([*names, model_filename], (), str(folder))
    for name, value in values.items():
        require_encodable(value, name, str(folder))
    files = {path: [piece for name in held for piece in encode(values[name])] for path, held in names.items()}
    write_variables(folder, {**files, model_filename: [program_to_bytes(model.program)]})


def asked_for(program: Program, targets: Sequence[str] = ()) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names of the variables to feed, and of those to infer.

    These are `targets` and what they need, or else those that the feed and fetch ops of the program name. Raises
    DiagnosticError where neither says what to infer.
    """
    if targets:
        return _needed_feeds(program, targets), tuple(targets)
    ops = program.main_block.ops
    fetched = _columns(ops, "fetch", "X")
    if not fetched:
        message = "the program has no fetch op; --fetch names what a model shall compute"
        raise DiagnosticError([error("inference-program", message, file_of(ops))])
    return _columns(ops, "feed", "Out"), fetched


def _needed_feeds(program: Program, targets: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the variables to feed for the targets, in the order of declaration.

    These are the variables that an op reads before any op writes them and that are not kept between steps, and those
    that feed ops name.
    """
    block, needed = program.main_block, set(targets)
    op_effects: list[tuple[set[str], set[str]]] = []
    for op in reversed(block.ops):
        effects = effects_of(program, op)
        reads, writes = {*effects.reads}, {*effects.writes}
        if op.type != "feed" and not needed.isdisjoint(writes):
            op_effects.append((reads, writes))
            needed |= reads
    made, fed = set[str](), set[str]()
    for reads, writes in reversed(op_effects):
        fed |= reads - made
        made |= writes
    return tuple(name for name, var in block.vars.items() if name in fed and not var.persistable)


def _parameters(machines: Any, job: Compiled | Module, program: Program) -> dict[str, Value]:
    """The whole values of a program's persistable variables, in the order of names."""
    layout = layout_of(job)
    state = gather(layout, scopes_of(machines))
    looked_up = {name for op in program.main_block.ops if op.type == LOOKUP for name in op.inputs.get("W", ())}
    result: dict[str, Value] = {}
    for name in persistable_names(program):
        if name in state.tables:
            result[name] = dense(merge_table_parts(name, state.tables[name]), layout.variables[name].shape[0])
        elif name not in looked_up:
            result[name] = state.values[name]
    return result


LOOKUP = "distributed_lookup_table"


def load_inference_model(
    folder: str | os.PathLike[str],
    scope: MutableMapping[str, Value],
    *,
    model_filename: str = MODEL,
    params_filename: str | None = None,
    pserver_endpoints: Sequence[str] | None = None,
) -> InferenceModel:
    """The inference model in a folder that Fluid or `save_inference_model` wrote; its parameters go to `scope`.

    `pserver_endpoints` are the servers that hold the tables now, in place of those when it was saved: as many, since
    the tables are cut over them. Nothing is set before all is read and fits. Raises DiagnosticError.
    """
    file = Path(folder) / model_filename
    require_regular(file)
    program = load(file).main
    ops = program.main_block.ops
    feeds = _columns(ops, "feed", "Out")
    targets = _columns(ops, "fetch", "X")
    if not targets:
        raise DiagnosticError([error("inference-program", "the program has no fetch op", Location(str(file)))])
    if pserver_endpoints is not None:
        program = _with_servers(program, pserver_endpoints)
    looked_up = {name for op in ops if op.type == LOOKUP for name in op.inputs.get("W", ())}
    names = [name for name in persistable_names(program) if name not in looked_up]
    if names and params_filename is None:
        load_variables(program, scope, folder, names=names)
    elif names:
        load_variables(program, scope, Path(folder) / str(params_filename), layout="combined", names=names)
    return InferenceModel(program, feeds, targets)


def _columns(ops: Iterable[Op], kind: str, slot: str) -> tuple[str, ...]:
    """The variables of all feed ops (or all fetch ops), in the order of their columns."""

    def column(op: Op) -> int:
        value = op.attrs.get("col", 0)
        return value if isinstance(value, int) else 0

    def name(op: Op) -> str:
        names = (op.inputs if slot == "X" else op.outputs).get(slot, ())
        if len(names) != 1:
            raise DiagnosticError([at_op("inference-program", f"it has no variable in its slot {slot}", op)])
        return names[0]

    columns = [(column(op), name(op)) for op in ops if op.type == kind]
    return tuple(name for _, name in sorted(columns, key=lambda pair: pair[0]))


def _with_servers(program: Program, endpoints: Sequence[str]) -> Program:
    findings: list[Diagnostic] = []

    def with_new_endpoints(op: Op) -> Op:
        attrs = dict(op.attrs)
        for name in ("epmap", "endpoints"):
            had = attrs.get(name)
            if op.type in (LOOKUP, "prefetch") and isinstance(had, Strings) and had:
                if len(set(had)) != len(set(endpoints)):
                    message = f"the table is on {len(set(had))} servers, not on {len(set(endpoints))}"
                    findings.append(at_op("inference-program", message, op))
                    continue
                new = dict(zip(dict.fromkeys(had), dict.fromkeys(endpoints), strict=True))
                attrs[name] = Strings(new[endpoint] for endpoint in had)
        return op._replace(attrs=FrozenMap(attrs))

    blocks = tuple(block._replace(ops=tuple(with_new_endpoints(op) for op in block.ops)) for block in program.blocks)
    raise_errors(findings)
    return program._replace(blocks=blocks)


# A program with the trained values of its variables, as an ONNX model.


def onnx_model(program: Program, scope: Mapping[str, Any], targets: Sequence[str] = ()) -> bytes:
    """The ONNX model that infers `targets` with the values of `scope` (default: the variables that the program's fetch
    ops name).

    The program is cut down to the ops that the targets need, and set to testing. Raises DiagnosticError: `onnx-op` for
    what ONNX can't express, `inference-program` for targets that can't be computed from the feeds.
    """
    expect_program(program, "onnx_model")
    expect(scope, Mapping, "onnx_model", "a scope")
    wanted = names_of(targets, "onnx_model")
    feeds, wanted = asked_for(program, wanted)
    cut = inference_program(program, feeds, wanted).program
    values = {name: scope[name] for name in persistable_names(cut) if name in scope}
    return onnx_bytes(cut, feeds, wanted, values)
