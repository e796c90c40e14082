"""Step counters in asynchronous jobs: each trainer sends its own to all servers, every server adds all of them up.

A trainer sends its counter past the communicator (`use_send_handler` false, `merge_add`); a server's learning-rate
block begins with a `sum` over the counters of all trainers.
"""

from __future__ import annotations

from collections.abc import Iterator

from pstranspile.compiler.link.base import described, finding, same_type
from pstranspile.compiler.link.machines import Cluster, Server, Trainer
from pstranspile.ir.diagnostics import Diagnostic
from pstranspile.ops.attributes import strings_attr


def check_notices(trainer: Trainer, cluster: Cluster) -> Iterator[Diagnostic]:
    """What a trainer sends past the communicator arrives on servers that have the variable."""
    for _, op in trainer.main.of("send"):
        if op.attrs.get("use_send_handler") is not False:
            continue
        for name in op.inputs.get("X", ()):
            for endpoint in strings_attr(op, "epmap"):
                server = cluster.servers.get(endpoint)
                held = server.vars.get(name) if server else None
                if server is None or held is None:
                    message = f"%{name} goes to {endpoint!r}, which does not know it"
                    yield finding("link-counter", trainer.role, op, message, name)
                    continue
                server.notices.setdefault(name, []).append(trainer.number)
                mine = trainer.main.vars.get(name)
                if not same_type(mine, held):
                    message = f"%{name} is {described(mine)} here, {described(held)} on {server.role.name}"
                    yield finding("link-counter", trainer.role, op, message, name)


def check_counters(server: Server, trainers: int) -> Iterator[Diagnostic]:
    """Every counter that the server adds up comes from one trainer, and there is one for every trainer."""
    added: set[str] = set()
    ops = server.role.main.blocks[server.rates].ops if server.rates in server.blocks else ()
    for op in ops:
        if op.type != "sum":
            continue
        names, total = op.inputs.get("X", ()), op.output("Out")
        if not any(name in server.notices or name.startswith(f"{total}.trainer_") for name in names):
            continue
        added.update(names)
        if total not in server.initialised:
            message = f"%{total}, the sum of the counters, is no counter that is initialised"
            yield finding("link-counter", server.role, op, message, names[0])
        for name in names:
            senders = server.notices.get(name, ())
            if len(senders) != 1:
                message = f"%{name} is sent by {len(senders)} trainers, must be 1"
                yield finding("link-counter", server.role, op, message, name)
        numbers = sorted(sender for name in names for sender in server.notices.get(name, ()))
        if numbers != list(range(trainers)):
            message = f"%{total} adds up the counters of trainers {numbers}, there are {trainers}"
            yield finding("link-counter", server.role, op, message, names[0])
    for name in server.notices:
        if name not in added:
            yield finding("link-counter", server.role, server.op, f"%{name} is received, but not added up", name)
