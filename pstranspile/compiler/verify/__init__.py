"""Are programs well formed, and does a training program train what it declares?

Findings have a code, a place and a plain sentence; programs are not changed. Findings about training are warnings, as
another process may feed, load or update the rest, unless the caller excludes that.

`docs/reference/diagnostics.md` explains the codes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain

from pstranspile.compiler.verify.places import Findings
from pstranspile.compiler.verify.references import check_agreement, check_blocks, check_references, references
from pstranspile.compiler.verify.walk import Walk, check_kinds, report_unknown_op
from pstranspile.ir.argument_checks import check_arguments, expect_module
from pstranspile.ir.codes import Code
from pstranspile.ir.diagnostics import Diagnostic, Severity, adjust_severities, at_op, error, raise_errors, warning
from pstranspile.ir.model import (
    EMPTY,
    MAIN,
    STARTUP,
    Block,
    Location,
    Module,
    Op,
    Program,
    SourceText,
    TensorType,
    Var,
    collector_paused,
)
from pstranspile.ir.text.literals import declared_here, type_text, var_text
from pstranspile.ir.types import DType, OpRole
from pstranspile.ops import facts_of, is_optimizer

__all__ = ["require_blocks", "verify", "verify_program"]

_FRACTIONS = frozenset({DType.FP16, DType.FP32, DType.FP64})
_SHOWN = 4


def check_training(module: Module, *, initialised_here: bool = False) -> Iterator[Diagnostic]:
    """Findings about the updates of `@main`: missing gradients, parameters without an initial value, parameters without
    an update.

    With `initialised_here` it is an error if @startup does not initialise a variable that an update reads. Programs of
    servers, and those whose parameters come from servers, are not checked.
    """
    main = module.programs.get(MAIN)
    if main is None or not main.blocks:
        return
    types = {op.type: op for op in main.main_block.ops}
    optimizers = {name for name, op in types.items() if is_optimizer(op)}
    updates = [op for op in main.main_block.ops if op.type in optimizers]
    if not updates or any(facts_of(kind).communicates in ("request", "server") for kind in types):
        return
    written = _written(main)
    yield from _roles(updates)
    yield from _gradients(main.main_block, updates, written)
    startup = module.programs.get(STARTUP)
    initialised = _written(startup) if startup is not None else None
    elsewhere = [_written(program) for name, program in module.programs.items() if name not in (MAIN, STARTUP)]
    updated = written.union(*elsewhere)
    if initialised is not None:
        yield from _states(main.main_block, updates, initialised, _severity(initialised_here))
    idle: list[Var] = []
    read = {name for op in updates for name in op.input_names}
    for var in main.parameters():
        if initialised is not None and var.name not in initialised:
            yield _without_value("parameter", var, _severity(initialised_here and var.name in read))
        if var.name not in updated and _is_trained(var):
            idle.append(var)
    if idle:
        names = ", ".join([var_text(var.name) for var in idle[:_SHOWN]]) + (", ..." if len(idle) > _SHOWN else "")
        message = f"no op updates {names}; `trainable=false` on a parameter says that this is meant"
        yield _at("parameter-not-updated", message, idle[0])


def _roles(updates: list[Op]) -> Iterator[Diagnostic]:
    """Findings about optimizers that the roles of ops do not tell from the rest of the step."""
    for op in updates:
        name = op.input("Param")
        if name is not None and name in op.output_names and not (op.role or 0) & OpRole.OPTIMIZE:
            pair = ", ".join(var_text(one) for one in (name, op.input("Grad")) if one)
            message = (
                f"it updates {var_text(name)} without the role `optimize`, so every trainer of a cluster does this by "
                f"itself: `: optimize({pair})` makes it an update"
            )
            yield at_op("update-role", message, op, severity=Severity.WARNING)


def _severity(wrong: bool) -> Severity:
    return Severity.ERROR if wrong else Severity.WARNING


def _states(block: Block, updates: list[Op], initialised: frozenset[str], severity: Severity) -> Iterator[Diagnostic]:
    """Findings about variables that updates read and no op makes: the state of optimizers, learning rates."""
    readers = {name: op.type for op in updates for name in op.input_names}
    optimizers = {op.type for op in updates}
    made: frozenset[str] | None = None
    for name, reader in readers.items():
        var = block.vars.get(name)
        if var is None or not var.persistable or var.parameter is not None or name in initialised:
            continue
        if made is None:
            made = _outputs(op for op in block.ops if op.type not in optimizers)
        if name not in made:
            yield _without_value(f"state of {reader}", var, severity)


def _without_value(what: str, var: Var, severity: Severity) -> Diagnostic:
    message = f"no op of @{STARTUP} gives the {what} {var_text(var.name)} a value; it must be loaded"
    if severity is Severity.ERROR:
        message += ", and can't be compiled for servers"
    return _at("parameter-without-value", message, var)._replace(severity=severity)


def _is_trained(var: Var) -> bool:
    info = var.parameter
    return info is not None and info.trainable and not info.is_distributed and var.dtype in _FRACTIONS


def _written(program: Program) -> frozenset[str]:
    return _outputs(op for block in program.blocks for op in block.ops)


def _outputs(ops: Iterable[Op]) -> frozenset[str]:
    return frozenset(chain.from_iterable(chain.from_iterable(op.outputs.values() for op in ops)))


def _gradients(block: Block, updates: list[Op], written: frozenset[str]) -> Iterator[Diagnostic]:
    reported: set[str] = set()
    for op in updates:
        for name in op.inputs.get("Grad", ()):
            var = block.vars.get(name)
            if name in written or name in reported or var is None or var.persistable:
                continue
            reported.add(name)
            message = f"no op writes the gradient {var_text(name)}; it must be fed"
            made = at_op("unwritten-gradient", message, op, focus=var_text(name), severity=Severity.WARNING)
            yield made._replace(notes=declared_here(var))


def _at(code: Code, message: str, var: Var) -> Diagnostic:
    finding = warning(code, message, var.location, focus=var_text(var.name))
    return finding._replace(subject=f"@{MAIN}^0 {var_text(var.name)}")


_GRAD = "@GRAD"


@check_arguments
def verify(
    module: Module, *, strict: bool = False, allow: Collection[str] = (), initialised_here: bool = False
) -> tuple[Diagnostic, ...]:
    """All findings about the programs of a module, program by program.

    A finding is an error if the program can't run, else a warning. `strict` makes findings that only declarations
    support errors; a code in `allow` turns an error into a warning, and drops a warning. `initialised_here` makes it an
    error if @main updates a parameter or state that @startup does not initialise, as it could only be loaded. The time
    is proportional to the number of ops and variables.
    """
    expect_module(module, "verify")
    findings: list[Diagnostic] = []
    if not module.programs:
        findings.append(
            error("no-program", "there is no program", Location(module.source.file) if module.source else None)
        )
    with collector_paused():
        startup: tuple[Diagnostic, ...] = ()
        made: Mapping[str, TensorType] = EMPTY
        if STARTUP in module.programs:
            startup, walk = _verify(module.programs[STARTUP], STARTUP, module.source)
            made = walk.persistable_types() if walk is not None else EMPTY
        for name, program in module.programs.items():
            findings += startup if name == STARTUP else _verify(program, name, module.source, made)[0]
        findings += check_agreement(module)
        findings += check_training(module, initialised_here=initialised_here)
    return tuple(adjust_severities(findings, strict=strict, allow=allow))


def require_blocks(module: Module) -> None:
    """Raises DiagnosticError if blocks of a program refer to each other in circles, are nested too deeply, or are
    missing.
    """
    found: list[Diagnostic] = []
    for name, program in module.programs.items():
        findings = Findings(name, program.blocks, module.source)
        if program.blocks and check_blocks(findings):
            ops = ((at, number, op) for at, block in enumerate(program.blocks) for number, op in enumerate(block.ops))
            check_references(findings, [(at, number) for at, number, op in ops if references(op)])
        found += _in_order(findings)
    raise_errors(found)


def verify_program(program: Program, name: str = MAIN, source: SourceText | None = None) -> tuple[Diagnostic, ...]:
    """All findings about one program.

    `name` is its name in findings without a text, `source` the text from which it was read.
    """
    return _verify(program, name, source)[0]


def _verify(
    program: Program, name: str, source: SourceText | None, kept: Mapping[str, TensorType] = EMPTY
) -> tuple[tuple[Diagnostic, ...], Walk | None]:
    """The findings about a program, and the walk over its ops, if its blocks are sound.

    `kept` are the types of persistable variables that another program made before it.
    """
    findings = Findings(name, program.blocks, source)
    if not program.blocks:
        return (Diagnostic("no-block", f"the program @{name} has no block", subject=f"@{name}"),), None
    _check_parameters(findings)
    _check_dims(findings)
    if not check_blocks(findings):
        return _in_order(findings), None
    walk = Walk(findings, kept)
    walk.run()
    check_kinds(walk)
    _check_gradients(walk)
    check_references(findings, walk.referring)
    for places in walk.unknown_ops.values():
        block, position = places[0]
        report_unknown_op(program.blocks[block].ops[position], len(places), places[0], findings)
    for index in range(len(program.blocks)):
        if index not in walk.visited:
            message = f"no op refers to block ^{index}: its ops never run, and are not checked"
            findings.block("unreferenced-block", message, index, severity=Severity.WARNING)
    return _in_order(findings), walk


def _check_parameters(findings: Findings) -> None:
    for index, block in enumerate(findings.blocks):
        for name, var in block.vars.items():
            if var.parameter is not None and not var.persistable:
                message = f"the parameter {var_text(name)} is not persistable, so it is gone after every step"
                findings.var("parameter-not-persistable", message, var, index)


def _check_dims(findings: Findings) -> None:
    """Reports wrong dims of variables that no op makes: other dims follow from them, and Fluid declares products of -1
    there.
    """
    made: set[str] | None = None
    for index, block in enumerate(findings.blocks):
        if min(chain.from_iterable([var.tensor.shape for var in block.vars.values() if var.tensor]), default=0) >= -1:
            continue
        if made is None:
            made = {name for block in findings.blocks for op in block.ops for name in op.output_names}
        for name, var in block.vars.items():
            if min(var.shape, default=0) < -1 and (var.persistable or name not in made):
                message = f"{var_text(name)} is declared {type_text(var)}; only -1 stands for a dim known at run time"
                findings.var("dims", message, var, index, Severity.WARNING)


def _check_gradients(walk: Walk) -> None:
    """Reports wrong names of gradients of gradients: they are named `grad/X@GRAD`, with one `grad/` for every further
    derivative.
    """
    findings = walk.findings
    for index, block in enumerate(findings.blocks):
        for name in block.vars:
            if not name.endswith(_GRAD) or name[: -len(_GRAD)] in block.vars:
                continue
            of = name[: -len(_GRAD)]
            while of.startswith("grad/"):
                of = of[5:]
            if walk.names.find(of, index) is None:
                hint = findings.suggest(of, block.vars, "%")
                message = f"{var_text(name)} is named as the gradient of {var_text(of)}, which is not declared{hint}"
                findings.var("gradient-without-variable", message, block.vars[name], index, Severity.WARNING)


def _in_order(findings: Findings) -> tuple[Diagnostic, ...]:
    """The findings in the order of the text; those without a place in a text keep their order."""
    return tuple(sorted(findings.diagnostics, key=lambda result: (result.location or Location(""))[1:3]))
