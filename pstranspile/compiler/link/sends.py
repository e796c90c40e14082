"""Every gradient goes to the server that waits for it, in the type it is declared with there, in the order of slices.

A trainer cuts a gradient itself and sends the pieces, or gives it whole to its communicator with `sections` and
`send_varnames`, which cuts and sends it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pstranspile.compiler.link.base import described, finding, is_slice_type, same_type
from pstranspile.compiler.link.collect import unmade
from pstranspile.compiler.link.machines import Cluster, Server, Trainer
from pstranspile.ir.diagnostics import Diagnostic
from pstranspile.ir.model import Op
from pstranspile.ir.types import VarKind
from pstranspile.ops.attributes import ints_attr, strings_attr


def check_sends(trainer: Trainer, cluster: Cluster) -> Iterator[Diagnostic]:
    """The sends of a trainer's step, without the notices of step counters (`use_send_handler` false)."""
    role = trainer.role
    for op, name in unmade(trainer.main):
        code = "link-order" if op.type == "recv" else "link-unmade"
        yield finding(code, role, op, f"no op before it makes %{name}", name)
    for _, op in trainer.main.of("send"):
        if op.attrs.get("use_send_handler") is not False:
            yield from _check_send(trainer, op, cluster)
    for _, op in trainer.startup.of("send") if not trainer.part else ():
        yield finding("link-send", role, op, "nothing is sent to servers at start-up", next(op.input_names, ""))


def _check_send(trainer: Trainer, op: Op, cluster: Cluster) -> Iterator[Diagnostic]:
    role, variables = trainer.role, trainer.main.vars
    given = op.inputs.get("X", ())
    sections = ints_attr(op, "sections")
    sent, endpoints = strings_attr(op, "send_varnames") or given, strings_attr(op, "epmap")
    if len(sent) != len(endpoints):
        message = f"{len(sent)} variables are sent to {len(endpoints)} servers"
        yield finding("link-send", role, op, message, next(iter(sent or given), ""))
    if sections or sent is not given:
        yield from _check_sections(trainer, op, given, sections, sent)
    layout = trainer.layouts.get(op.role_vars[0]) if op.role_vars else None
    servers = cluster.servers
    for position, (name, endpoint) in enumerate(zip(sent, endpoints, strict=False)):
        server = servers.get(endpoint)
        if server is None or name not in server.awaited:
            yield finding("link-send", role, op, f"%{name} goes to {endpoint!r}, which does not expect it", name)
            continue
        server.senders.setdefault(name, []).append(trainer.number)
        held = server.vars.get(name)
        if sent is not given:
            whole = variables.get(given[0]) if given else None
            rows = sections[position] if position < len(sections) else -1
            fits = whole is not None and held is not None and is_slice_type(held, rows, whole)
            mine = f"{rows} rows of {described(whole)}"
        else:
            fits, mine = same_type(variables.get(name), held), ""
        if not fits:
            mine = mine or described(variables.get(name))
            message = f"%{name} has another type on {server.role.name}: {mine} here, {described(held)} there"
            yield finding("link-send", role, op, message, name)
        if layout is not None:
            yield from _check_place(trainer, op, server, position, name, layout)


def _check_place(
    trainer: Trainer, op: Op, server: Server, position: int, name: str, layout: Sequence[str]
) -> Iterator[Diagnostic]:
    """The k-th piece of a gradient is applied to the k-th slice of the parameter."""
    fed = server.feeds.get(name)
    wanted = layout[position] if position < len(layout) else None
    if fed is not None and fed != wanted:
        there = f"slice {position} of the parameter is %{wanted}" if wanted else f"it has {len(layout)} slices"
        message = f"%{name} is piece {position} and is applied to %{fed} on {server.role.name}, but {there}"
        yield finding("link-partition", trainer.role, op, message, name)


def _check_sections(
    trainer: Trainer, op: Op, given: Sequence[str], sections: Sequence[int], sent: Sequence[str]
) -> Iterator[Diagnostic]:
    """A whole variable for the communicator: as many sections as names, which have its rows between them."""
    if len(given) != 1 or len(sections) != len(sent):
        message = f"{len(given)} variables with {len(sections)} sections are sent as {len(sent)}"
        yield finding("link-partition", trainer.role, op, message, next(iter(given), ""))
        return
    whole = trainer.main.vars.get(given[0])
    rows = whole.shape[0] if whole is not None and whole.shape else -1
    if sum(sections) != rows:
        message = f"the sections {list(sections)} of %{given[0]} have {sum(sections)} rows, it has {rows}"
        yield finding("link-partition", trainer.role, op, message, given[0])


def check_senders(server: Server, trainers: int) -> Iterator[Diagnostic]:
    """What a server receives is sent by as many trainers as it takes: one in a synchronous job.

    A synchronous server that has the variable merged by nobody takes it from every trainer: the gradient of a
    table under completely_not_async, which Fluid sends under one name.
    """
    listed = set(server.op.inputs.get("X", ()))
    summed: set[str] | None = None
    for name, senders in server.senders.items():
        wanted, reader = trainers, server.op
        if name not in listed:
            reader = server.outside[name][1]
            if summed is None:
                summed = {name for merged in server.merges for name in merged.op.inputs["X"]}
            wanted = 1 if server.mode == 0 and name in summed else trainers
            var = server.vars.get(name)
            if var is not None and var.kind is not VarKind.SELECTED_ROWS:
                yield finding("link-send", server.role, server.op, f"%{name} is sent, but it is not an input", name)
        elif server.mode == 0:
            wanted = 1
        if len(senders) != wanted or len(set(senders)) != wanted:
            yield _unsent(server, reader, name, senders, wanted, trainers)


def check_awaited(server: Server, trainers: int) -> Iterator[Diagnostic]:
    """What a server waits for is sent in some part of the job."""
    for name in server.op.inputs.get("X", ()):
        if name not in server.sent:
            yield _unsent(server, server.op, name, (), 1 if server.mode == 0 else trainers, trainers)


def _unsent(server: Server, op: Op, name: str, senders: Sequence[int], wanted: int, trainers: int) -> Diagnostic:
    who = ", ".join([f"trainer {n}" for n in sorted(senders)]) or "no trainer"
    needed = "every trainer once" if wanted == trainers and wanted > 1 else f"{wanted}"
    message = f"%{name} is sent by {len(senders)} trainers ({who}), must be {needed}"
    return finding("link-unsent", server.role, op, message, name)
