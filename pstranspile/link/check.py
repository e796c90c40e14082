"""Do all programs of a job together fit? Every send has a receiver, every slice one owner, every barrier its count.

The check knows nothing of how the programs were made: it reads the emitted programs of all roles, as a linker
reads object files. A finding is a fault of the compiler, so it ends in LinkError (exit code 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import NamedTuple

from pstranspile.ir.attributes import BlockRefs, Strings
from pstranspile.ir.codes import declare
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, at_op
from pstranspile.ir.model import Op, Program, Var

SEND = declare("link-send", "A variable is sent to a server that does not expect it, or expects another type.")
RECEIVE = declare("link-receive", "A variable is fetched from a server that does not hold it, or holds another type.")
BARRIER = declare("link-barrier", "The barriers of the trainers and the number of trainers a server waits for differ.")
OWNER = declare("link-owner", "A slice has no server that updates it, or more than one.")
PARTITION = declare("link-partition", "The slices of a variable do not make up the whole of it.")
UNSENT = declare("link-unsent", "A server waits for a variable that no trainer, or more than one, sends.")
UNSERVED = declare("link-unserved", "An op on a server reads a variable that is not received, made or initialised.")
BLOCKS = declare("link-blocks", "The blocks a listen_and_serv refers to do not exist or are not its own.")


class LinkError(DiagnosticError):
    """The emitted programs of a job do not fit together: a fault of the compiler."""


class Linked(NamedTuple):
    """One machine's programs, as the link check sees them."""

    name: str
    main: Program
    startup: Program


class _Server(NamedTuple):
    role: Linked
    op: Op
    endpoint: str
    expected: frozenset[str]
    blocks: tuple[int, ...]


def link(roles: Iterable[Linked]) -> None:
    """Checks all emitted programs of a job together. Raises LinkError with every finding."""
    trainers: list[Linked] = []
    servers: dict[str, _Server] = {}
    for role in roles:
        listen = next((op for op in role.main.main_block.ops if op.type == "listen_and_serv"), None)
        if listen is None:
            trainers.append(role)
        else:
            server = _server(role, listen)
            servers[server.endpoint] = server
    findings: list[Diagnostic] = []
    senders: dict[str, dict[str, int]] = {endpoint: {} for endpoint in servers}
    owners = _owners(servers, {name for trainer in trainers for name in _fetched(trainer.main)})
    for trainer in trainers:
        findings += _check_sends(trainer, servers, senders)
        findings += _check_receives(trainer, trainer.main, servers, owners)
        findings += _check_receives(trainer, trainer.startup, servers, owners)
        findings += _check_joins(trainer)
        findings += _check_barriers(trainer, servers)
    for server in servers.values():
        findings += _check_server(server, len(trainers), senders[server.endpoint])
    if findings:
        raise LinkError(findings)


def _server(role: Linked, op: Op) -> _Server:
    blocks = op.attrs.get("optimize_blocks", BlockRefs())
    listed = tuple(blocks) if isinstance(blocks, BlockRefs) else ()
    return _Server(role, op, str(op.attrs.get("endpoint", "")), frozenset(op.inputs.get("X", ())), listed)


def _fetched(program: Program) -> Iterator[str]:
    return (name for op in program.main_block.ops if op.type == "recv" for name in op.output_names)


def _owners(servers: Mapping[str, _Server], names: set[str]) -> dict[str, list[str]]:
    """Which of these variables the blocks of which servers write: name -> endpoints, each once."""
    owners: dict[str, list[str]] = {}
    for endpoint, server in servers.items():
        blocks = server.role.main.blocks
        for index in server.blocks:
            for op in blocks[index].ops if 0 < index < len(blocks) else ():
                for outputs in op.outputs.values():
                    for name in outputs:
                        if name in names:
                            found = owners.setdefault(name, [])
                            if endpoint not in found:
                                found.append(endpoint)
    return owners


def _finding(code: str, role: Linked, op: Op, message: str, name: str) -> Diagnostic:
    return at_op(code, f"in {role.name}: {message}", op, focus=f"%{name}")


def _pairs(op: Op, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    endpoints = op.attrs.get("epmap", Strings())
    assert isinstance(endpoints, Strings)
    return zip(names, (*endpoints, *[""] * (len(names) - len(endpoints))), strict=False)


def _same_type(a: Var | None, b: Var | None) -> bool:
    return a is not None and b is not None and a.kind is b.kind and a.dtype is b.dtype and a.shape == b.shape


def _check_sends(
    trainer: Linked, servers: Mapping[str, _Server], senders: dict[str, dict[str, int]]
) -> Iterator[Diagnostic]:
    variables = trainer.main.main_block.vars
    for op in trainer.main.main_block.ops:
        if op.type != "send":
            continue
        if op.attrs.get("use_send_handler") is False:
            yield from _check_notice(trainer, op, servers)
            continue
        for name, endpoint in _pairs(op, op.inputs.get("X", ())):
            server = servers.get(endpoint)
            if server is None or name not in server.expected:
                yield _finding(SEND, trainer, op, f"%{name} goes to {endpoint!r}, which does not expect it", name)
                continue
            counts = senders[endpoint]
            counts[name] = counts.get(name, 0) + 1
            if not _same_type(variables.get(name), server.role.main.main_block.vars.get(name)):
                yield _finding(SEND, trainer, op, f"%{name} has another type on {server.role.name}", name)


def _check_notice(trainer: Linked, op: Op, servers: Mapping[str, _Server]) -> Iterator[Diagnostic]:
    """A notice (a step counter) goes to every server it names, under a name that the server has declared."""
    endpoints = op.attrs.get("epmap", Strings())
    for endpoint in endpoints if isinstance(endpoints, Strings) else ():
        for name in op.input_names:
            server = servers.get(endpoint)
            if server is None or name not in server.role.main.main_block.vars:
                yield _finding(SEND, trainer, op, f"%{name} goes to {endpoint!r}, which does not know it", name)


def _check_receives(
    trainer: Linked, program: Program, servers: Mapping[str, _Server], owners: Mapping[str, list[str]]
) -> Iterator[Diagnostic]:
    variables = program.main_block.vars
    for op in program.main_block.ops:
        if op.type != "recv":
            continue
        for name, endpoint in _pairs(op, op.outputs.get("Out", ())):
            server = servers.get(endpoint)
            held = server.role.main.main_block.vars.get(name) if server else None
            if server is None or held is None or not held.persistable:
                yield _finding(RECEIVE, trainer, op, f"{endpoint!r} does not hold %{name}", name)
            elif not _same_type(variables.get(name), held):
                yield _finding(RECEIVE, trainer, op, f"%{name} has another type on {server.role.name}", name)
            elif owners.get(name) != [endpoint]:
                found = ", ".join(owners.get(name, ())) or "none"
                yield _finding(OWNER, trainer, op, f"%{name} is fetched from {endpoint}, updated by {found}", name)


def _check_joins(trainer: Linked) -> Iterator[Diagnostic]:
    """Slices that are joined, or made by a split, have the rows of the whole between them."""
    for program in (trainer.main, trainer.startup):
        variables = program.main_block.vars
        received = {n for op in program.main_block.ops if op.type == "recv" for n in op.output_names}
        for op in program.main_block.ops:
            if op.type == "concat" and any(name in received for name in op.input_names):
                whole, parts = op.output("Out"), op.inputs["X"]
            elif op.type in ("split_byref", "split_selected_rows"):
                whole, parts = op.input("X"), op.outputs["Out"]
            else:
                continue
            shapes = [variables[name].shape for name in parts if name in variables]
            full = variables[whole].shape if whole and whole in variables else ()
            if len(shapes) != len(parts) or sum(map(prod, shapes)) != prod(full):
                yield _finding(PARTITION, trainer, op, f"the slices of %{whole} are not {list(full)}", whole or "")


def _check_barriers(trainer: Linked, servers: Mapping[str, _Server]) -> Iterator[Diagnostic]:
    """One barrier of each kind per step, one fetch barrier at start-up, each to every server."""
    if not any(server.op.attrs.get("distributed_mode") == 0 for server in servers.values()):
        return
    wanted = ((trainer.main, "send_barrier"), (trainer.main, "fetch_barrier"), (trainer.startup, "fetch_barrier"))
    for program, kind in wanted:
        found = [op for op in program.main_block.ops if op.type == kind]
        endpoints = [op.attrs.get("endpoints", Strings()) for op in found]
        if len(found) != 1 or not isinstance(endpoints[0], Strings) or sorted(endpoints[0]) != sorted(servers):
            op = found[0] if found else Op(kind)
            message = f"{len(found)} {kind} ops, to {[list(e) for e in endpoints if isinstance(e, Strings)]}"
            yield _finding(BARRIER, trainer, op, f"{message}; one to every server is needed", "")


def _check_server(server: _Server, trainers: int, senders: Mapping[str, int]) -> Iterator[Diagnostic]:
    role, op = server.role, server.op
    if op.attrs.get("Fanin") != trainers:
        yield _finding(BARRIER, role, op, f"it waits for {op.attrs.get('Fanin')} trainers of {trainers}", "")
    wanted = 1 if op.attrs.get("distributed_mode") == 0 else trainers
    for name in op.inputs.get("X", ()):
        count = senders.get(name, 0)
        if count != wanted:
            yield _finding(UNSENT, role, op, f"%{name} is sent by {count} trainers, must be {wanted}", name)
    listed = server.blocks
    if not listed or any(not 0 < index < len(role.main.blocks) for index in listed):
        yield _finding(BLOCKS, role, op, f"optimize_blocks {list(listed)} are not blocks of the program", "")
        return
    owned = frozenset(listed)
    served = op.attrs.get("grad_to_block_id", Strings())
    for entry in served if isinstance(served, Strings) else ():
        name, _, block = entry.rpartition(":")
        if not block.isdigit() or int(block) not in owned or name not in role.main.main_block.vars:
            yield _finding(BLOCKS, role, op, f"grad_to_block_id names {entry!r}", name)
    yield from _check_reads(server)


def _check_reads(server: _Server) -> Iterator[Diagnostic]:
    """Every op of the optimize blocks reads what is received, initialised, or made before it."""
    program = server.role.main
    initialised = {name for op in server.role.startup.main_block.ops for names in op.outputs.values() for name in names}
    expected, rates = server.expected, set[str]()
    rate_block = server.op.attrs.get("lr_decay_block_id", -1)
    for index in server.blocks:
        made: set[str] = set()
        for op in program.blocks[index].ops:
            for names in op.inputs.values():
                for name in names:
                    if name in initialised or name in made or name in expected or name in rates:
                        continue
                    message = f"%{name} is neither received, made before this, nor initialised"
                    yield _finding(UNSERVED, server.role, op, message, name)
            for names in op.outputs.values():
                made.update(names)
        if index == rate_block:
            rates = made
