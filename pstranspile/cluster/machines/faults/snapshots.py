"""A server's state between two messages, to which it returns when it is started again.

The state is the effect of all messages taken so far: variables, the gradients of the step under way, and the list of
trainers that reported. It includes the position of each link. Messages that came later are taken again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from pstranspile.cluster.machines.rounds import Round, new_round
from pstranspile.cluster.machines.server import Server
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.large.forms import table_with
from pstranspile.runtime.large.table import LargeTable, TableRows
from pstranspile.runtime.run.scope import Scope, own_copy


class Snapshot(NamedTuple):
    """A server's state. `taken`: the number of the last message taken from each source; `sent`: likewise, by link."""

    values: dict[str, Value]
    state: dict[str, Any]
    steps: dict[int, int]
    taken: dict[str, int]
    sent: dict[str, int]


def take_snapshot(server: Server, taken: dict[str, int], *, tables: bool = True) -> Snapshot:
    """The server's state now. Nothing is shared with the server but values that never change.

    Without `tables`, large tables are shared as well, because memory may not hold a copy: that state is written before
    the server goes on.
    """
    values = server.scope.values_here
    return Snapshot(
        {name: value if has_table([value]) and not tables else kept_copy(value) for name, value in values.items()},
        {name: _copy(getattr(server, name)) for name in server.STATE},
        {place: block.execution.step for place, block in enumerate(server.prepared())},
        dict(taken),
        {name: link.sequence for name, link in server.links.items()},
    )


def restore(server: Server, snapshot: Snapshot) -> None:
    """Makes the server what it was, whose start-up program has run. Links into it are the network's matter."""
    put_back(server.scope, snapshot.values)
    for name, value in snapshot.state.items():
        setattr(server, name, _copy(value))
    for place, block in enumerate(server.prepared()):
        block.execution.step = snapshot.steps.get(place, 0)
    server.forget_all_copies()
    for name, link in server.links.items():
        link.sequence = snapshot.sent.get(name, 0)


def has_table(values: Iterable[Value]) -> bool:
    """Whether a large table is among values."""
    return any(isinstance(value, LargeTable) for value in values)


def kept_copy(value: Value) -> Value:
    """A copy of a value to be kept: of a large table, what it holds."""
    return value.rows() if isinstance(value, LargeTable) else own_copy(value)


def put_back(scope: Scope, kept: Mapping[str, Value]) -> None:
    """Makes a scope hold copies of what was kept, and nothing else. What a large table held goes into one as it is."""
    values = dict(scope.values_here)
    scope.values_here.clear()
    for name, value in kept.items():
        table = values.get(name)
        if isinstance(value, TableRows) and isinstance(table, LargeTable):
            scope.values_here[name] = table_with(value, table)
        else:
            scope.values_here[name] = own_copy(value)


def lose_state(server: Server) -> None:
    """Empties the server, as the end of its process does: of variables and messages nothing is left but what was
    written to a file. (Who belongs to the cluster, and how far it was, the scenario still needs.)
    """
    values = server.scope.values_here
    empty = {name: value.like() for name, value in values.items() if isinstance(value, LargeTable)}
    values.clear()
    values.update(empty)  # as the start-up program makes them
    for name in server.STATE:
        value = getattr(server, name)
        if isinstance(value, Round):
            setattr(server, name, new_round())
        elif name not in Server.STATE and isinstance(value, dict | set | list | deque):
            setattr(server, name, type(cast("Any", value))())
    server.forget_all_copies()


def _copy(value: Any) -> Any:
    """Containers copied, what they hold (numbers, names, messages, values that never change) shared."""
    if isinstance(value, Round):
        return Round(*map(_copy, value))
    if isinstance(value, dict):
        held = cast("dict[Any, Any]", value)
        return {key: _copy(item) for key, item in held.items()}
    if isinstance(value, set | list | deque):
        held = cast("Any", value)
        return type(held)(_copy(item) if isinstance(item, dict | set | list) else item for item in held)
    return value
