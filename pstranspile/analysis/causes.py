"""What in a program for one machine keeps the programs of a cluster from fitting together.

Asked when the link check has failed, so that a mistake in the source is told as one, and not as a fault of the
compiler; programs that link are never looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from pstranspile.analysis import codes
from pstranspile.analysis.roles import find_roles
from pstranspile.analysis.uses import mentioned
from pstranspile.ir.attributes import Ints, Longs
from pstranspile.ir.describe import type_text, var_text
from pstranspile.ir.diagnostics import Diagnostic, at_op
from pstranspile.ir.model import MAIN, STARTUP, Module, Op, Program, Var
from pstranspile.ir.roles import OpRole
from pstranspile.ir.types import VarKind
from pstranspile.ops import schema_of

_TENSORS = (VarKind.LOD_TENSOR, VarKind.SELECTED_ROWS)


def causes(module: Module) -> tuple[Diagnostic, ...]:
    """The mistakes in @main and @startup that the verifier does not find, each at the op that makes it, in order."""
    main, startup = module.main, module.programs[STARTUP]
    ops = main.main_block.ops
    moved = find_roles(main.main_block).moved
    updates = [op for index, op in enumerate(ops) if index in moved and _is_optimizer(op)]
    found = [
        *_mistaken_roles(main, moved),
        *_not_initialised(main, startup, [ops[index] for index in sorted(moved)]),
        *_overwritten(main, moved, {op.input("Param") for op in updates}),
        *chain.from_iterable(_mistaken_update(op, main) for op in updates),
        *_mistaken_pairs(main),
        *_gradients_of_nothing(main),
        *_mistaken_initial_values(main, startup),
    ]
    return tuple(sorted(dict.fromkeys(found), key=lambda finding: (finding.location or ("",))[1:]))


def _is_optimizer(op: Op) -> bool:
    schema = schema_of(op.type)
    return schema is not None and schema.is_optimizer and bool(op.input("Param"))


def _not_initialised(main: Program, startup: Program, moved: list[Op]) -> Iterator[Diagnostic]:
    """What ops that move to servers read, but no machine gives a value before."""
    given = set(chain.from_iterable(mentioned([op.outputs for op in block.ops]) for block in startup.blocks))
    moving = set(map(id, moved))
    on_trainer = set(mentioned([op.outputs for op in main.main_block.ops if id(op) not in moving]))
    reported: set[str] = set()
    for op in moved:
        for slot, names in op.inputs.items():
            for name in names:
                var = main.main_block.vars.get(name)
                if var is None or name in given or name in reported or var.kind not in _TENSORS:
                    continue
                if var.persistable:
                    message = f"{slot} is {var_text(name)}, but no op of @{STARTUP} gives it a value"
                elif name in on_trainer or slot == "Grad":
                    continue  # a gradient, or found elsewhere
                else:
                    message = f"{slot} is {var_text(name)}, but no op before makes it, and it is not persistable"
                reported.add(name)
                yield at_op(codes.NOT_INITIALISED, message, op, focus=var_text(name))
        given.update(op.output_names)


def _overwritten(main: Program, moved: frozenset[int], parameters: set[str | None]) -> Iterator[Diagnostic]:
    """Ops that stay on the trainer and write a parameter that a server updates."""
    for index, op in enumerate(main.main_block.ops):
        # data_norm_grad changes its statistics only with sync_stats
        stays = index not in moved and (op.type != "data_norm_grad" or op.attrs.get("sync_stats") is True)
        for name in op.output_names if stays else ():
            if name in parameters:
                message = f"it writes the parameter {var_text(name)} in every step, which the optimizer updates"
                yield at_op(codes.OVERWRITTEN, message, op, focus=var_text(name))


def _mistaken_roles(main: Program, moved: frozenset[int]) -> Iterator[Diagnostic]:
    """Optimizers that are not marked as what updates a parameter."""
    for index, op in enumerate(main.main_block.ops):
        if _is_optimizer(op) and (index not in moved or op.role != OpRole.OPTIMIZE):
            message = f"it updates {var_text(op.input('Param') or '')}, but its role is not optimize"
            yield at_op(codes.UPDATE, message, op)


def _mistaken_update(op: Op, main: Program) -> Iterator[Diagnostic]:
    """An optimizer that reads one parameter and writes another, or whose variables are not of a size that is known."""
    parameter = op.input("Param") or ""
    others = [("ParamOut", op.output("ParamOut")), *(("the role variable", pair[0]) for pair in op.role_pairs[:1])]
    for place, other in others:
        if other is not None and other != parameter:
            message = f"Param is {var_text(parameter)}, but {place} is {var_text(other)}"
            yield at_op(codes.UPDATE, message, op, focus=var_text(other))
    for slot, names in op.inputs.items():
        for name in names:
            wrong = _mistaken_input(op, slot, main.find_var(name), main.find_var(parameter))
            if wrong:
                yield at_op(codes.UPDATE, f"{slot} is {var_text(name)}, {wrong}", op, focus=var_text(name))


def _mistaken_input(op: Op, slot: str, var: Var | None, whole: Var | None) -> str:
    """What is wrong with a variable that an optimizer reads; empty when nothing is."""
    if var is None:
        return "which block 0 does not declare"
    if slot == "Grad":
        pairs = op.role_pairs
        if var.kind not in _TENSORS:
            return f"declared {type_text(var)}, which can't be sent to a server"
        if whole is not None and var.kind is VarKind.LOD_TENSOR and var.shape != whole.shape:
            return f"declared {type_text(var)}, but {var_text(whole.name)} is {type_text(whole)}"
        if pairs and var.name == pairs[0][0]:
            return "the parameter itself"
        return ""
    if var.kind is not VarKind.LOD_TENSOR:
        return f"declared {type_text(var)}, but it must be a tensor"
    if not var.shape or min(var.shape) < 0:
        return f"declared {type_text(var)}; its dims must be known"
    return ""


def _mistaken_pairs(main: Program) -> Iterator[Diagnostic]:
    """Role variables that name a gradient which is none, or which the op does not compute."""
    variables = main.main_block.vars
    for op in main.main_block.ops:
        for parameter, gradient in op.role_pairs:
            whole, var = variables.get(parameter), variables.get(gradient)
            if whole is None or var is None:
                continue  # the verifier has told
            pair = f"{var_text(parameter)}, {var_text(gradient)}"
            place = f"the role variables say that {var_text(gradient)} is the gradient of {var_text(parameter)}"
            if op.role is not None and op.role & OpRole.BACKWARD and gradient not in op.output_names:
                yield at_op(codes.ROLE, f"{place}, but the op does not compute it", op, focus=pair)
            elif var.kind not in _TENSORS or (var.kind is VarKind.LOD_TENSOR and var.shape != whole.shape):
                message = f"{place}, but one is {type_text(var)}, the other {type_text(whole)}"
                yield at_op(codes.ROLE, message, op, focus=pair)


def _gradients_of_nothing(main: Program) -> Iterator[Diagnostic]:
    """Gradient ops to which no op of the program belongs: none of the forward type reads the same variables."""
    forward: dict[tuple[str, tuple[str, ...]], set[tuple[tuple[str, ...], ...]]] = {}
    ops = main.main_block.ops
    for op in ops:
        schema = schema_of(op.type)
        original = schema_of(schema.forward) if schema is not None and schema.forward else None
        if original is None:
            continue
        shared = tuple([slot for slot, names in op.inputs.items() if names and slot in original.inputs])
        key = (original.type, shared)
        if key not in forward:
            forward[key] = {tuple([f.inputs.get(s, ()) for s in shared]) for f in ops if f.type == original.type}
        if tuple([op.inputs[slot] for slot in shared]) not in forward[key]:
            message = f"no {original.type} of the program reads the same variables, so it is the gradient of nothing"
            yield at_op(codes.GRADIENT_OF_NOTHING, message, op)


def _mistaken_initial_values(main: Program, startup: Program) -> Iterator[Diagnostic]:
    """Ops of @startup that give a persistable variable of @main other dims than it has, or is said to have there."""
    for op in startup.main_block.ops:
        dims = op.attrs.get("shape")
        for name in op.output_names:
            var, made = main.main_block.vars.get(name), startup.main_block.vars.get(name)
            if var is None or made is None or not var.persistable:
                continue
            wrong = ""
            if isinstance(dims, Ints | Longs) and tuple(dims) != var.shape:
                wrong = f"it makes {var_text(name)} with dims {list(dims)}, but it is declared {type_text(var)}"
            elif made.shape != var.shape:
                wrong = f"{var_text(name)} is {type_text(made)} here, but {type_text(var)} in @{MAIN}"
            if wrong:
                yield at_op(codes.INITIAL_VALUE, wrong, op, focus=var_text(name))
