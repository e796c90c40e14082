"""The mistakes in a program for one machine because of which the programs of a cluster do not fit together.

They are searched for when the link check has failed, so that a mistake in the source is reported as one, and not as a
fault of the compiler. Programs that link are not examined.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from pstranspile.compiler.analysis.updates import attribute, find_roles, gradients_finished, is_frozen
from pstranspile.compiler.analysis.uses import effects_of, names_in_slots
from pstranspile.ir.attributes import BlockRef, BlockRefs, Ints, Longs
from pstranspile.ir.diagnostics import Diagnostic, Note, at_op, first_findings
from pstranspile.ir.model import EMPTY, MAIN, STARTUP, FrozenMap, Module, Op, Program, Var
from pstranspile.ir.text.literals import type_text, var_text
from pstranspile.ir.types import DType, OpRole, VarKind
from pstranspile.ops import facts_of, is_optimizer, schema_of
from pstranspile.ops.gradient import EMPTY_NAME

# Persistable variables of block 0 are shared by name; all programs must declare them alike.


def declared_alike(module: Module) -> Module:
    """The module with the same element type for a persistable variable in all programs; the same object if that is so
    already.

    The declaration in @main counts, unless it is `bool`, which Fluid writes for an unknown type. A variable has the
    type of the value written to it, so programs with different declarations run, but programs compiled from several
    need one.
    """
    main = module.programs[MAIN]
    known = main.main_block.vars if main.blocks else EMPTY
    types: dict[str, DType] = {}
    for name, program in module.programs.items():
        for var in program.main_block.vars.values() if name != MAIN and program.blocks else ():
            mine = known.get(var.name)
            if mine is None or var.dtype is mine.dtype or not (var.persistable and mine.persistable):
                continue
            if var.tensor is not None and mine.tensor is not None:
                types[var.name] = var.tensor.dtype if mine.dtype is DType.BOOL else mine.tensor.dtype
    if not types:
        return module
    return module.with_programs({name: _with_types(program, types) for name, program in module.programs.items()})


def _with_types(program: Program, types: dict[str, DType]) -> Program:
    if not program.blocks:
        return program
    block = program.main_block
    variables = {name: _with_type(var, types.get(name)) for name, var in block.vars.items()}
    return program.with_main_block(block._replace(vars=FrozenMap(variables)))


def _with_type(var: Var, dtype: DType | None) -> Var:
    fits = dtype is not None and var.persistable and var.tensor is not None
    return var._replace(tensor=var.tensor._replace(dtype=dtype)) if fits and var.tensor else var


# Programs that can't be distributed: those that already are, and those that train in a block that not every step runs.


def already_distributed(program: Program, name: str) -> tuple[Diagnostic, ...]:
    """An error at the first op that exchanges messages with other machines, as a program for one machine has no such
    op; else empty.
    """
    ops = program.main_block.ops if program.blocks else ()
    talking = {kind for kind in {op.type for op in ops} if facts_of(kind).communicates in ("request", "server")}
    first = next((op for op in ops if op.type in talking), None) if talking else None
    if first is None:
        return ()
    message = f"@{name} is the program of one machine of a cluster already; compile the program it was made from"
    return (at_op("already-distributed", message, first),)


def trained_in_blocks(program: Program, name: str, *, served: bool) -> tuple[Diagnostic, ...]:
    """Errors at losses that are minimised in a block of a branch or a loop, as no machine would send their gradients.

    If updates are `served`, those in a block are errors too: servers run those of the main block.
    """
    found: list[Diagnostic] = []
    for number, block in enumerate(program.blocks[1:], 1):
        for op in block.ops:
            if op.role == OpRole.BACKWARD | OpRole.LOSS:
                message = f"a loss is minimised in block ^{number} of @{name}, whose gradients no other machine is sent"
                found.append(at_op("trained-in-block", message, op))
            elif served and is_optimizer(op) and (param := op.input("Param")):
                message = (
                    f"%{param} is updated in block ^{number} of @{name}; servers run the updates of the main block"
                )
                found.append(at_op("trained-in-block", message, op, focus=f"%{param}"))
    return tuple(first_findings(found))


_TENSORS = (VarKind.LOD_TENSOR, VarKind.SELECTED_ROWS)


def causes(module: Module) -> tuple[Diagnostic, ...]:
    """The mistakes in a module that the verifier does not find, each at the op that makes it, program by program."""
    startup = module.programs.get(STARTUP, Program())
    programs = [program for name, program in module.programs.items() if name != STARTUP]
    return tuple(dict.fromkeys(chain.from_iterable(_causes(program, startup) for program in programs)))


def _causes(main: Program, startup: Program) -> list[Diagnostic]:
    """The mistakes in one program and in @startup, in order of the text."""
    ops = main.main_block.ops
    moved = find_roles(main.main_block).moved_by_role
    updates = [op for index, op in enumerate(ops) if index in moved and _is_optimizer(op)]
    findings = [
        *_mistaken_roles(main, moved),
        *_undeclared_errors(main, [ops[index] for index in sorted(moved)]),
        *_overwritten(main, moved, {op.input("Param") for op in updates}),
        *chain.from_iterable(_mistaken_update(op, main) for op in updates),
        *_updated_twice(updates),
        *_never_updated(main),
        *_mistaken_rates(main, {op.input("Param") for op in updates}),
        *_not_initialised(main, startup, [ops[index] for index in sorted(moved)]),
        *_mistaken_pairs(main),
        *_made_for_frozen(main),
        *_gradients_of_nothing(main),
        *_mistaken_initial_values(main, startup),
        *_no_variables(main),
        *_collectives(main),
        *_dense_tables(main),
    ]
    findings = findings or [*_made_by_trainers(main, moved), *_late_ids(main), *_other_gradients(updates)]
    return sorted(findings, key=lambda finding: (finding.location or ("",))[1:])


def _is_optimizer(op: Op) -> bool:
    return is_optimizer(op) and bool(op.input("Param"))


def _not_initialised(main: Program, startup: Program, moved: list[Op]) -> Iterator[Diagnostic]:
    """Errors for variables that ops on servers read, but that no machine initialises."""
    initialised = set(chain.from_iterable(effects_of(startup, op).writes for op in startup.main_block.ops))
    initialised_names = {
        name for name in initialised if (var := main.main_block.vars.get(name)) is not None and var.persistable
    }
    moving = set(map(id, moved))
    on_trainer = set(names_in_slots([op.outputs for op in main.main_block.ops if id(op) not in moving]))
    reported: set[str] = set()
    for op in moved:
        for slot, names in op.inputs.items():
            for name in names:
                var = main.main_block.vars.get(name)
                if var is None or name in initialised_names or name in reported:
                    continue
                if var.persistable:
                    message = f"{slot} is {var_text(name)}, but no op of @{STARTUP} gives it a value"
                elif name in on_trainer:
                    continue  # a gradient, or found elsewhere
                else:
                    message = f"{slot} is {var_text(name)}, but no op before makes it, and it is not persistable"
                reported.add(name)
                yield at_op("not-initialised", message, op, focus=var_text(name))
        initialised_names.update(op.output_names)


def _undeclared_errors(main: Program, moved: list[Op]) -> Iterator[Diagnostic]:
    """Errors for variables that ops on servers name without a declaration in block 0, as servers declare the variables
    that they receive.
    """
    waiting = [(op, main.main_block.vars.keys()) for op in reversed(moved)]
    while waiting:
        op, declared = waiting.pop()
        for name in dict.fromkeys(op.names):
            if name not in ("", EMPTY_NAME) and name not in declared:
                message = f"%{name} is not declared in block 0, so the servers that the op moves to can't have it"
                yield at_op("not-initialised", message, op, focus=f"%{name}")
        for value in op.attrs.values():
            for index in [value] if type(value) is BlockRef else value if type(value) is BlockRefs else ():
                inner = main.blocks[int(index)]
                waiting += [(within, declared | inner.vars.keys()) for within in reversed(inner.ops)]


def _no_variables(main: Program) -> Iterator[Diagnostic]:
    """Errors for ops other than gradient ops that name no variable in a slot where they need one."""
    for op in chain.from_iterable(block.ops for block in main.blocks):
        schema = schema_of(op.type)
        if schema is not None and schema.forward:
            continue
        for slot, names in (*op.inputs.items(), *op.outputs.items()):
            if EMPTY_NAME in names:
                message = f"{slot} is {var_text(EMPTY_NAME)}, no variable; only gradient ops may leave one out"
                yield at_op("not-initialised", message, op, focus=var_text(EMPTY_NAME))


def _collectives(main: Program) -> Iterator[Diagnostic]:
    """Errors for ops that exchange values with other trainers already."""
    for op in main.main_block.ops:
        if op.type.startswith("c_"):
            message = f"{op.type} exchanges values with other trainers already; compile the program it was made from"
            yield at_op("already-distributed", message, op)


def _dense_tables(main: Program) -> Iterator[Diagnostic]:
    """Errors for lookups in a table that is distributed by id although its gradient is dense."""
    gradients = dict(pair for op in main.main_block.ops for pair in op.role_pairs)
    for op in main.main_block.ops:
        table = op.input("W") or ""
        gradient = main.main_block.vars.get(gradients.get(table, ""))
        distributed = op.type.startswith("lookup_table") and op.attrs.get("is_distributed") is True
        if distributed and gradient is not None and gradient.kind is not VarKind.SELECTED_ROWS:
            message = (
                f"{var_text(table)} is a distributed lookup table, but its gradient {var_text(gradient.name)} is "
                f"declared {type_text(gradient)}: trainers send rows to their servers, so lookups need is_sparse=true"
            )
            yield at_op("table-gradient", message, op, focus=var_text(table))


def _late_ids(main: Program) -> Iterator[Diagnostic]:
    """Errors for lookups that precede the op which makes their ids, although a value that is fed may be used before."""
    makers = {name: op for op in reversed(main.main_block.ops) for name in op.output_names}
    done: set[str] = set()
    for op in main.main_block.ops:
        for name in op.inputs.get("Ids", ()) if op.type.startswith("lookup_table") else ():
            if name in makers and name not in done:
                notes = (Note(f"it is made here, by {makers[name].type}", makers[name].location),)
                message = f"Ids is {var_text(name)}, which {makers[name].type} makes after the lookup"
                yield at_op("table-order", message, op, focus=var_text(name), notes=notes)
        done.update(op.output_names)


def _made_by_trainers(main: Program, moved: frozenset[int]) -> Iterator[Diagnostic]:
    """Errors for ops that move to servers and read the result of an op that stays, as a server receives only
    gradients.
    """
    ops = main.main_block.ops
    roles = find_roles(main.main_block)
    owned, named, _ = attribute(main, roles)
    finished = gradients_finished(main, roles)
    own = {index: {named.get(parameter), finished.get(parameter)} for parameter in owned for index in owned[parameter]}
    sent = {gradient for op in ops for _, gradient in op.role_pairs}
    # trainers send the results of clipping by the norm of all gradients
    given = {gradient for parameter, gradient in named.items() if gradient != finished.get(parameter)}
    moved -= {index for index in moved if not given.isdisjoint(ops[index].output_names)}
    makers = {name: op for index, op in enumerate(ops) if index not in moved for name in op.output_names}
    on_servers: set[str] = set()
    for index in sorted(moved):
        op = ops[index]
        schedules = bool((op.role or OpRole.FORWARD) & OpRole.LR_SCHED)  # schedules run before anything is received
        received = frozenset[str]() if schedules else own.get(index, sent)
        for slot, names in op.inputs.items():
            for name in names:
                var = main.main_block.vars.get(name)
                if name not in makers or name in on_servers or name in received or var is None or var.persistable:
                    continue
                maker = makers[name]
                notes = (Note(f"it is made here, by {maker.type}", maker.location),)
                what = "the gradients of parameters only; both ops need the same kind of role"
                if name in sent and not schedules:
                    what = "the server of a parameter its own gradient only, as its last op leaves it"
                message = (
                    f"the op moves to a server, but {slot} is {var_text(name)}, which a trainer makes, and trainers "
                    f"send {what}"
                )
                yield at_op("needs-trainer-value", message, op, focus=var_text(name), notes=notes)
        on_servers.update(op.output_names)


def _made_for_frozen(main: Program) -> Iterator[Diagnostic]:
    """Errors for ops of updates that read a result of the update of a parameter that is not trainable, which no server
    computes.
    """
    roles = find_roles(main.main_block)
    gone = {
        index: parameter
        for parameter, indices in attribute(main, roles)[0].items()
        for index in (indices if is_frozen(main, parameter) else ())
    }
    makers: dict[str, int] = {}
    for index in sorted(roles.moved_by_role):
        op = main.main_block.ops[index]
        for slot, names in op.inputs.items() if index not in gone else ():
            for name in (name for name in names if name in makers):
                maker = main.main_block.ops[makers[name]]
                notes = (Note(f"it is made here, by {maker.type}", maker.location),)
                message = (
                    f"{slot} is {var_text(name)}, which is made for the update of {var_text(gone[makers[name]])}; that "
                    "is not trainable, so no server updates it"
                )
                yield at_op("not-initialised", message, op, focus=var_text(name), notes=notes)
        for name in op.output_names:
            if index in gone:
                makers[name] = index
            else:
                makers.pop(name, None)


def _overwritten(main: Program, moved: frozenset[int], parameters: set[str | None]) -> Iterator[Diagnostic]:
    """Errors for ops that stay on the trainer and write a parameter that a server updates."""
    for index, op in enumerate(main.main_block.ops):
        # data_norm_grad changes its statistics only with sync_stats
        stays = index not in moved and (op.type != "data_norm_grad" or op.attrs.get("sync_stats") is True)
        for name in op.output_names if stays else ():
            if name in parameters:
                message = f"it writes the parameter {var_text(name)} in every step, which the optimizer updates"
                yield at_op("parameter-overwritten", message, op, focus=var_text(name))


def _mistaken_roles(main: Program, moved: frozenset[int]) -> Iterator[Diagnostic]:
    """Errors for optimizers whose role is not that of an update."""
    for index, op in enumerate(main.main_block.ops):
        if _is_optimizer(op) and (index not in moved or op.role != OpRole.OPTIMIZE):
            message = f"it updates {var_text(op.input('Param') or '')}, but its role is not optimize"
            yield at_op("update-variables", message, op)


def _updated_twice(updates: list[Op]) -> Iterator[Diagnostic]:
    """Errors for optimizers of a parameter that an earlier one has updated."""
    first: dict[str, Op] = {}
    for op in updates:
        name = op.input("Param") or ""
        other = first.get(name)
        if other is not None:
            place = other.location
            notes = (Note("it is updated here first", place, var_text(name)),)
            message = f"it is the second op that updates {var_text(name)}"
            yield at_op("update-variables", message, op, focus=var_text(name), notes=notes)
        first.setdefault(name, op)


def _never_updated(main: Program) -> Iterator[Diagnostic]:
    """Errors for parameters that have ops with the role of an update, none of which writes them."""
    ops = main.main_block.ops
    for parameter, indices in attribute(main, find_roles(main.main_block))[0].items():
        if indices and not is_frozen(main, parameter) and not any(parameter in ops[i].output_names for i in indices):
            message = f"it belongs to the update of {var_text(parameter)}, but no op writes that parameter"
            yield at_op("optimizer-unknown", message, ops[indices[-1]], focus=var_text(parameter))


def _other_gradients(updates: list[Op]) -> Iterator[Diagnostic]:
    """Errors for optimizers whose role variables name another gradient than they read."""
    for op in updates:
        for _, gradient in op.role_pairs[:1]:
            if op.input("Grad") not in (None, gradient):
                message = f"Grad is {var_text(op.input('Grad') or '')}, but the role variable is {var_text(gradient)}"
                yield at_op("update-variables", message, op, focus=var_text(gradient))


def _mistaken_rates(main: Program, parameters: set[str | None]) -> Iterator[Diagnostic]:
    """Errors for ops that compute learning rates, which every server runs before its updates, without having that
    role.
    """
    ops, roles = main.main_block.ops, find_roles(main.main_block)
    gradients = {gradient: parameter for op in ops for parameter, gradient in op.role_pairs}
    makers = {name: ops[index] for index in roles.optimize for name in ops[index].output_names}
    for op in (ops[index] for index in roles.learning_rate):
        counter = main.find_var(op.output("Out") or "") if op.type == "increment" else None
        if counter is not None and counter.kind is not VarKind.LOD_TENSOR:
            message = f"it counts steps in {var_text(counter.name)}, declared {type_text(counter)}: it must be a tensor"
            yield at_op("update-variables", message, op, focus=var_text(counter.name))
        for name in (name for name in op.output_names if name in parameters):
            message = f"its role is that of a learning rate, but it writes the parameter {var_text(name)}"
            yield at_op("parameter-overwritten", message, op, focus=var_text(name))
        for name in (name for name in op.output_names if name in gradients):
            what = f"{var_text(name)}, the gradient of {var_text(gradients[name])}"
            message = f"its role is that of a learning rate, but it writes {what}"
            yield at_op("role-gradient", message, op, focus=var_text(name))
        for slot, name in ((slot, name) for slot, names in op.inputs.items() for name in names if name in makers):
            message = (
                f"its role is that of a learning rate, which servers compute first, but {slot} is {var_text(name)}, "
                f"which {makers[name].type} makes for an update"
            )
            yield at_op("not-initialised", message, op, focus=var_text(name))


def _mistaken_update(op: Op, main: Program) -> Iterator[Diagnostic]:
    """Errors for an optimizer that reads one parameter and writes another, or whose variables have no known size."""
    parameter = op.input("Param") or ""
    others = [("ParamOut", op.output("ParamOut")), *(("the role variable", pair[0]) for pair in op.role_pairs[:1])]
    for place, other in others:
        if other is not None and other != parameter:
            message = f"Param is {var_text(parameter)}, but {place} is {var_text(other)}"
            yield at_op("update-variables", message, op, focus=var_text(other))
    for slot, (name, *_) in ((slot, names) for slot, names in op.outputs.items() if names):
        state = op.input(slot.removesuffix("Out")) if slot.endswith("Out") and slot != "ParamOut" else None
        if state is not None and state != name:
            message = f"{slot.removesuffix('Out')} is {var_text(state)}, but {slot} is {var_text(name)}"
            yield at_op("update-variables", message, op, focus=var_text(name))
    for slot, names in op.inputs.items():
        for name in names:
            if slot != "Grad" and name == op.input("Grad"):
                message = f"{slot} is {var_text(name)}, and so is Grad"
                yield at_op("update-variables", message, op, focus=var_text(name))
            wrong = _mistaken_input(op, slot, main.find_var(name), main.find_var(parameter))
            if wrong:
                yield at_op("update-variables", f"{slot} is {var_text(name)}, {wrong}", op, focus=var_text(name))


def _mistaken_input(op: Op, slot: str, var: Var | None, whole: Var | None) -> str:
    """The reason why a variable is wrong as an input of an optimizer; empty if it is right."""
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
        return "which is kept from step to step, and so is no gradient" if var.persistable else ""
    if var.kind is not VarKind.LOD_TENSOR:
        return f"declared {type_text(var)}, but it must be a tensor"
    if not var.shape or min(var.shape) < 0:
        return f"declared {type_text(var)}; its dims must be known"
    return ""


def _mistaken_pairs(main: Program) -> Iterator[Diagnostic]:
    """Errors for role variables that name as gradient a variable that is none, or that the op does not compute."""
    variables = main.main_block.vars
    for op in main.main_block.ops:
        for parameter, gradient in op.role_pairs:
            whole, var = variables.get(parameter), variables.get(gradient)
            if whole is None or var is None:
                continue  # the verifier has reported it
            pair = f"{var_text(parameter)}, {var_text(gradient)}"
            place = f"the role variables say that {var_text(gradient)} is the gradient of {var_text(parameter)}"
            if op.role is not None and op.role & OpRole.BACKWARD and gradient not in op.output_names:
                yield at_op("role-gradient", f"{place}, but the op does not compute it", op, focus=pair)
            elif var.kind not in _TENSORS or var.shape != whole.shape:
                message = f"{place}, but one is {type_text(var)}, the other {type_text(whole)}"
                yield at_op("role-gradient", message, op, focus=pair)


def _gradients_of_nothing(main: Program) -> Iterator[Diagnostic]:
    """Errors for gradient ops without a forward op: no op of the forward type reads the same variables.

    The output whose gradient they take must be made by that forward op, too.
    """
    forward: dict[tuple[str, tuple[str, ...]], set[tuple[tuple[str, ...], ...]]] = {}
    ops = main.main_block.ops
    makers: dict[tuple[str, str], list[Op]] = {}
    for op in ops:
        for name in op.output_names:
            makers.setdefault((op.type, name), []).append(op)
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
            yield at_op("gradient-of-nothing", message, op)
            continue
        taken = chain.from_iterable(op.inputs.get(f"{slot}@GRAD", ()) for slot in original.outputs)
        for name in taken:
            for maker in makers.get((original.type, name.partition("@GRAD")[0]), ()):
                if any(maker.inputs.get(s) != op.inputs[s] for s in shared):
                    message = f"{var_text(name)} is the gradient of what an op with other inputs makes"
                    notes = (Note("it is made here", maker.location),)
                    yield at_op("gradient-of-nothing", message, op, focus=var_text(name), notes=notes)


def _mistaken_initial_values(main: Program, startup: Program) -> Iterator[Diagnostic]:
    """Errors for ops of @startup that give a persistable variable of @main other dims than @main declares or writes."""
    for op in startup.main_block.ops:
        dims = op.attrs.get("shape")
        for name in op.output_names:
            var, made = main.main_block.vars.get(name), startup.main_block.vars.get(name)
            if var is None or made is None or not var.persistable:
                continue
            wrong = ""
            if isinstance(dims, Ints | Longs) and tuple(dims) != var.shape:
                wrong = f"it makes {var_text(name)} with dims {list(dims)}, but it is declared {type_text(var)}"
            elif made.shape != var.shape or made.kind is not var.kind:
                wrong = f"{var_text(name)} is {type_text(made)} here, but {type_text(var)} in @{MAIN}"
            if wrong:
                yield at_op("initial-value", wrong, op, focus=var_text(name))
