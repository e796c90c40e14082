"""Does a training program train what it declares?

Findings are warnings, as another process may feed, load or update the rest, unless the caller says that none does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from pstranspile.compiler.verify.places import declared_here
from pstranspile.ir.codes import Code
from pstranspile.ir.describe import var_text
from pstranspile.ir.diagnostics import Diagnostic, Severity, at_op, warning
from pstranspile.ir.model import MAIN, STARTUP, Block, Module, Op, Program, Var
from pstranspile.ir.types import DType
from pstranspile.ops import facts_of, is_optimizer

_FRACTIONS = frozenset({DType.FP16, DType.FP32, DType.FP64})
_SHOWN = 4


def check_training(module: Module, *, initialised_here: bool = False) -> Iterator[Diagnostic]:
    """What the updates of `@main` lack: gradients, parameters that start with a value, parameters that are updated.

    With `initialised_here` it is an error if @startup gives no value to what an update reads. Programs of servers, and
    those whose parameters come from servers, are not looked at.
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


def _severity(wrong: bool) -> Severity:
    return Severity.ERROR if wrong else Severity.WARNING


def _states(block: Block, updates: list[Op], initialised: frozenset[str], severity: Severity) -> Iterator[Diagnostic]:
    """What updates read and no op makes: the state of optimizers, rates."""
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
