"""What a trainer's ops do that talk to servers directly, without a communicator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import TypeAlias

import numpy as np

from pstranspile.cluster.machines import message as kinds
from pstranspile.cluster.machines.addresses import Servers, link_to, number_list, text_list
from pstranspile.cluster.machines.cutting import cut, join
from pstranspile.cluster.machines.exchanges import Exchange
from pstranspile.cluster.machines.lookups import make_lookup
from pstranspile.cluster.machines.network import Link
from pstranspile.cluster.machines.script import is_plain
from pstranspile.cluster.machines.trainer import Trainer
from pstranspile.cluster.machines.waits import Action, Join, Replies
from pstranspile.ir.diagnostics import DiagnosticError, at_op
from pstranspile.ir.model import Op, Program, Var
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.scope import own_copy
from pstranspile.runtime.values import NUMPY_TYPES

Maker: TypeAlias = "Callable[[Trainer, Exchange, Program, Servers], Action]"
"""Makes the action of an exchange of a program with servers. Raises DiagnosticError."""


def make_rpc(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
    """The action of an exchange with servers. Raises DiagnosticError."""
    make = _MAKERS.get(exchange.kind)
    if make is None:
        message = "this version does not run it in a cluster"
        raise DiagnosticError([at_op("cluster-roles", message, exchange.op)])
    return make(trainer, exchange, program, servers)


def counts_steps(op: Op) -> bool:
    """Whether a `send` sends step counters."""
    return not op.attrs.get("use_send_handler", True)


def send_targets(trainer: Trainer, op: Op, servers: Servers) -> list[tuple[Link, str, int]]:
    """Where a `send` sends: link, name on the server, and the number of the input, or of the section of the only one.

    A step counter goes to every endpoint.
    """
    names = op.inputs.get("X", ())
    links = [link_to(trainer, servers, endpoint, op) for endpoint in text_list(op, "epmap")]
    if counts_steps(op):
        return [(link, name, place) for place, name in enumerate(names) for link in links]
    sent_as = text_list(op, "send_varnames") or names
    return [(link, name, place) for place, (link, name) in enumerate(zip(links, sent_as, strict=True))]


def _send(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
    op = exchange.op
    targets, sections = send_targets(trainer, op, servers), number_list(op, "sections")
    cuts = len(exchange.inputs) == 1 and bool(text_list(op, "send_varnames")) and not counts_steps(op)
    kind = kinds.NOTIFY if counts_steps(op) else kinds.SEND
    variables, changed = program.main_block.vars, trainer.role.changed
    copied = [name in changed or (name in variables and variables[name].persistable) for name in exchange.inputs]
    any_copied = any(copied)
    if len(targets) == 1 and not cuts and not any_copied:
        ((only, name, _),) = targets
        return lambda values: only.post(kind, trainer.step, name, values[0])

    def run(values: Sequence[Value]) -> None:
        if any_copied:
            values = [own_copy(value) if own else value for value, own in zip(values, copied, strict=True)]
        if cuts:
            try:
                values = cut(values[0], sections)
            except ValueError as problem:
                raise DiagnosticError([at_op("cluster-op", f"{trainer.name}: {problem}", op)]) from None
        step = trainer.step
        for link, name, place in targets:
            link.post(kind, step, name, values[place])

    return run


def _barrier(kind: str) -> Maker:
    def make(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
        links = [link_to(trainer, servers, endpoint, exchange.op) for endpoint in text_list(exchange.op, "endpoints")]
        label = trainer.role.label(program)
        return lambda _values: report(trainer, kind, links, label)

    return make


def report(trainer: Trainer, kind: str, links: Sequence[Link], label: str | None = None) -> None:
    """Tells servers that the trainer has come to a barrier. `label`: of which program, where several take turns."""
    step = trainer.step
    for link in links:
        link.post(kind, step, "", label)


Request: TypeAlias = "tuple[Link, str, str]"
"""What to ask for: link, kind of message, name on the server."""


def requests_of(trainer: Trainer, ops: Sequence[Op], servers: Servers) -> tuple[list[Request], list[int]]:
    """What several `recv` ask for, and of how many answers in a row each of their outputs is made."""
    requests: list[Request] = []
    counts: list[int] = []
    for op in ops:
        outputs = op.outputs.get("Out", ())
        slices = text_list(op, "recv_varnames")
        names = slices or text_list(op, "varnames") or outputs
        kind = kinds.GET if op.attrs.get("with_barrier", True) else kinds.GET_NOW
        links = [link_to(trainer, servers, endpoint, op) for endpoint in text_list(op, "epmap")]
        requests += [(link, kind, name) for link, name in zip(links, names, strict=True)]
        counts += [len(slices)] if slices else [1] * len(outputs)
    return requests, counts


def _joined(counts: Sequence[int]) -> Callable[[list[Value]], list[Value]] | None:
    """Makes outputs of so many answers each; None if each answer is an output."""
    if all(count == 1 for count in counts):
        return None
    ends = np.cumsum((0, *counts))
    spans = list(pairwise(ends))
    return lambda answers: [join(answers[start:end]) for start, end in spans]


def _ask(
    trainer: Trainer, requests: Sequence[Request], join: Join | None, payloads: Sequence[Value] | None = None
) -> Action:
    """Sends all requests at once, and waits for the replies. The requests bring `payloads`, else the values to send."""
    posts = [(link.post, kind, name, slot) for slot, (link, kind, name) in enumerate(requests)]
    asked = [link for link, _, _ in requests]
    nothing = [None] * len(posts)

    def run(values: Sequence[Value]) -> Replies:
        step, brought = trainer.step, payloads or values or nothing
        for post, kind, name, slot in posts:
            post(kind, step, name, brought[slot], slot)
        return Replies(step, len(posts), join, asked)

    return run


def _recv(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
    requests, counts = requests_of(trainer, exchange.ops, servers)
    return _ask(trainer, requests, checked(trainer, exchange, program, counts))


def checked(trainer: Trainer, exchange: Exchange, program: Program, counts: Sequence[int]) -> Join:
    """Makes outputs of so many answers each. Raises DiagnosticError where a declared tensor is no plain array. Copies
    values that the trainer itself changes, because all trainers that asked share one answer.
    """
    changed, outputs, together = trainer.role.changed, exchange.outputs, _joined(counts)
    own = [place for place, name in enumerate(outputs) if name in changed and counts[place] == 1]
    plain = [place for place, name in enumerate(outputs) if is_plain(program, name)]
    declared = program.main_block.vars
    forms = {place: _form(declared[outputs[place]]) for place in plain}

    def finish(answers: list[Value]) -> list[Value]:
        values = answers if together is None else together(answers)
        for place in plain:
            if values[place].__class__ is not np.ndarray:
                message = f"{outputs[place]} is declared to be a tensor, but the server holds something else"
                raise DiagnosticError([at_op("cluster-unknown-variable", message, exchange.op, focus=outputs[place])])
            kind, size = forms[place]
            if values[place].dtype.name != kind or (size >= 0 and values[place].size != size):
                held, of = f"{values[place].dtype.name}{list(values[place].shape)}", declared[outputs[place]]
                message = f"{outputs[place]} is declared as {kind}{list(of.shape)}, but the server holds {held}"
                raise DiagnosticError([at_op("cluster-unknown-variable", message, exchange.op, focus=outputs[place])])
        for place in own:
            values[place] = own_copy(values[place])
        return values

    return finish


def _form(declared: Var) -> tuple[str, int]:
    """The element type of a tensor, and how many elements it has (-1: any number)."""
    assert declared.dtype is not None
    return NUMPY_TYPES[declared.dtype], prod(declared.shape) if min(declared.shape, default=1) >= 0 else -1


def _prefetch(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
    op = exchange.op
    links = [link_to(trainer, servers, endpoint, op) for endpoint in text_list(op, "epmap")]
    return _ask(
        trainer, [(link, kinds.PREFETCH, name) for link, name in zip(links, exchange.inputs, strict=True)], None
    )


def _checkpoint(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
    op = exchange.op
    links = [link_to(trainer, servers, endpoint, op) for endpoint in text_list(op, "epmap")]
    folder, table = str(op.attrs.get("dir", "")), str(op.attrs.get("lookup_table", ""))
    paths = [f"{folder}/{table}_{number}" for number in range(len(links))]
    return _ask(trainer, [(link, kinds.CHECKPOINT, table) for link in links], lambda _answers: (), paths)


def _shrink(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
    op = exchange.op
    links = [link_to(trainer, servers, endpoint, op) for endpoint in text_list(op, "epmap")]
    requests = [(link, kinds.SHRINK, str(op.attrs["table"])) for link in links]
    return _ask(trainer, requests, lambda _answers: (), [op.attrs["unseen"]] * len(links))


def _recv_save(trainer: Trainer, exchange: Exchange, program: Program, servers: Servers) -> Action:
    """Fetches the slices of a variable as they are now, and writes the whole to a file."""
    from pstranspile.cluster.machines.receiving import write_whole

    op = exchange.op
    names = text_list(op, "remote_varnames")
    links = [link_to(trainer, servers, endpoint, op) for endpoint in text_list(op, "endpoints")]
    join = write_whole(op, names, len(links), trainer.host.folder)
    return _ask(trainer, [(link, kinds.GET_NOW, name) for link, name in zip(links, names, strict=True)], join)


_MAKERS: dict[str, Maker] = {
    "send": _send,
    "recv": _recv,
    "send_barrier": _barrier(kinds.SEND_BARRIER),
    "fetch_barrier": _barrier(kinds.FETCH_BARRIER),
    "prefetch": _prefetch,
    "distributed_lookup_table": make_lookup,
    "checkpoint_notify": _checkpoint,
    "recv_save": _recv_save,
    "shrink_table": _shrink,
}
