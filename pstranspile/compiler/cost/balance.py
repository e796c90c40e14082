"""The bytes that each parameter of a job moves, and the placement by which the busiest server moves as few as can be.

A dense parameter is sent to a trainer once a step, and its gradient comes back: every row costs the same. The gradient
of a sparse parameter has a row for each lookup, with its id, or each different row once where gradients are added up
before they are sent. Where servers look rows up, a trainer asks for each different id of its step once; a trainer that
looks rows up itself gets all rows. So rows that are looked up more often cost more, according to the counts of a job's
ids, and one that is in every batch costs as much as one exchange of a row.

Parameters that can't be cut are placed first, the heaviest on the least loaded server (Graham's rule, 1969), and this
is improved by moves and exchanges. The others then fill the servers up to one level, and are cut where it is reached
(McNaughton's rule, 1959), so that there are at most as many cuts as servers. Ties are broken by the order of servers,
so the same job gives the same plan.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from math import prod
from typing import NamedTuple

from pstranspile.compiler.cost.counts import IdCounts, RowCounts
from pstranspile.ir.model import Program, TensorType
from pstranspile.ops import facts_of

# Bytes that each parameter of a job moves between one trainer and the servers in a step, row by row.


ID = 8
"""The size of an id in a message, in bytes."""


class Moved(NamedTuple):
    """The bytes that a parameter of `rows` rows moves in a step.

    `each` is the number for every row. `looked_up` is the number for the gradients of all lookups of a step, which are
    spread over the rows as `counts` says, evenly if it counts nothing; `requested` that for the rows that a trainer
    asks servers for, as `distinct` says.
    """

    rows: int
    each: float
    looked_up: float = 0.0
    counts: RowCounts = RowCounts(())
    requested: float = 0.0
    distinct: RowCounts = RowCounts(())

    def below(self, row: int) -> float:
        """The bytes of the rows before `row`."""
        return self.each * row + self.looked_up_below(row) + self.requested_below(row)

    def looked_up_below(self, row: int) -> float:
        """The bytes of the gradients of lookups of the rows before `row`."""
        return self.looked_up * self._share(self.counts, row) if self.looked_up else 0.0

    def requested_below(self, row: int) -> float:
        """The bytes of the requests for rows before `row`, and of the rows."""
        return self.requested * self._share(self.distinct, row) if self.requested else 0.0

    def _share(self, counts: RowCounts, row: int) -> float:
        if not counts.total:
            return row / self.rows if self.rows else 0.0
        return counts.below(row) / counts.total

    @property
    def total(self) -> float:
        """The bytes of all rows."""
        return self.below(self.rows)

    def largest_stop(self, start: int, most: float) -> int:
        """The largest row up to which the rows from `start` on move at most `most` bytes."""
        base = self.below(start)
        if self.below(self.rows) - base <= most:
            return self.rows
        low, high = start, self.rows
        while high - low > 1:
            middle = (low + high) // 2
            if self.below(middle) - base <= most:
                low = middle
            else:
                high = middle
        return low


class Lookups(NamedTuple):
    """The lookups in a table in a step of a trainer: how many, and whether their gradient has each different row
    once.
    """

    number: float
    merged: bool = False


def lookups_of(program: Program, batch_rows: int, *, added_up: bool = False) -> dict[str, Lookups]:
    """The lookups in each table in a step of a trainer with `batch_rows` rows, from the dims of ids.

    An unknown dim counts as the rows of the batch, whatever the lengths of sequences. Tables without lookups are left
    out. Each row is in a gradient once where lookups say so (`merge_rows`), where the gradients of several lookups are
    added up, and in all gradients if the job adds them up before they are sent (`added_up`).
    """
    counts: dict[str, float] = {}
    merged: dict[str, list[bool]] = {}
    for op in program.main_block.ops:
        slot = facts_of(op.type).looks_up
        tables = op.inputs.get(slot, ()) if slot else ()
        if len(tables) != 1:
            continue
        for name in op.inputs.get("Ids", ()):
            var = program.main_block.vars.get(name)
            dims = var.shape if var is not None and var.shape else (-1,)
            count = prod(batch_rows if dim < 0 else dim for dim in dims)
            counts[tables[0]] = counts.get(tables[0], 0.0) + count
            merged.setdefault(tables[0], []).append(op.attrs.get("merge_rows") is True)
    return {
        table: Lookups(count, added_up or all(merged[table]) or len(merged[table]) > 1)
        for table, count in counts.items()
        if count
    }


def moved_by(
    table: str,
    tensor: TensorType,
    *,
    sparse: bool,
    prefetched: bool,
    batch_rows: int,
    lookups: Mapping[str, Lookups],
    counts: IdCounts | None,
) -> Moved:
    """The bytes that a parameter moves in a step of a trainer whose batch has `batch_rows` rows.

    `sparse`: its gradient has a row for each lookup. `prefetched`: the servers look its rows up. `lookups` are those of
    the program's tables in a step; a table that has none there is looked up once for each row of the batch. `counts`
    says how often its rows are looked up; without it all rows are assumed to be equally frequent, and the lookups of a
    step to be of different rows, as far as there are so many.
    """
    rows = tensor.shape[0] if tensor.shape else 1
    row = prod(tensor.shape[1:]) * tensor.dtype.size
    if not sparse:
        return Moved(rows, 2.0 * row)
    number, merged = lookups.get(table, Lookups(batch_rows))
    own = counts.tables.get(table) if counts is not None else None
    if own is None or not own.total or counts is None:
        own = distinct = RowCounts(())
        different = min(number, float(rows))
    else:
        number = own.total * batch_rows / counts.batch_rows
        distinct = own.distinct(number)
        different = distinct.total
    once = row + ID
    gradients = different if merged else number
    of_gradients = distinct if merged else own
    if prefetched:
        return Moved(rows, 0.0, gradients * once, of_gradients, different * once, distinct)
    return Moved(rows, float(row), gradients * once, of_gradients)


# Placement by what moves: the busiest server moves as few bytes as can be.


class Item(NamedTuple):
    """An item to place: the bytes that its rows move, the bytes that a row takes on a server, and whether it may be
    cut.

    No part of it has fewer than `least` rows.
    """

    name: str
    moved: Moved
    row_memory: float
    divisible: bool
    least: int = 1

    @property
    def memory(self) -> float:
        """The bytes that the item takes on a server that has all of it."""
        return self.row_memory * self.moved.rows


class PlacedRows(NamedTuple):
    """Rows of an item, from `start` up to `stop`, and the number of the server that has them."""

    start: int
    stop: int
    server: int


class NoRoom(Exception):
    """The rest of an item has no room on any server. `name` is the item, `memory` the bytes of the rest."""

    def __init__(self, name: str, memory: float):
        super().__init__(name)
        self.name, self.memory = name, memory


class _Servers:
    """The loads of servers during placement, and the memory that each has left."""

    def __init__(self, count: int, memory: float):
        self.loads = [0.0] * count
        self.room = [memory] * count

    def take(self, server: int, load: float, memory: float) -> None:
        """Adds load and memory to a server; negative numbers remove them."""
        self.loads[server] += load
        self.room[server] -= memory

    def least_loaded(self, memory: float) -> int | None:
        """The server with the least load among those with room for `memory` bytes; None if none has it."""
        fitting = [number for number, room in enumerate(self.room) if room >= memory]
        return min(fitting, key=lambda number: (self.loads[number], number), default=None)


def balance_items(items: Sequence[Item], servers: int, memory: float = float("inf")) -> list[tuple[PlacedRows, ...]]:
    """The parts of each item, in the order of its rows. `memory` is the capacity of a server in bytes.

    Raises NoRoom.
    """
    filling = _Servers(servers, memory)
    whole = [number for number, item in enumerate(items) if not item.divisible]
    placed = _placed_whole(items, whole, filling)
    _improve(items, placed, filling)
    if 0 < len(placed) <= _SEARCHED:
        placed = _search(items, placed, filling)
    parts: list[tuple[PlacedRows, ...]] = [
        (PlacedRows(0, item.moved.rows, placed[number]),) if number in placed else ()
        for number, item in enumerate(items)
    ]
    level = max(sum(item.moved.total for item in items) / servers, *filling.loads)
    for number in _heaviest_first(items, set(range(len(items))).difference(placed)):
        parts[number] = tuple(_divide_item(items[number], level, filling))
    return parts


def _heaviest_first(items: Sequence[Item], numbers: set[int]) -> list[int]:
    return sorted(numbers, key=lambda number: (-items[number].moved.total, -items[number].memory, number))


def _placed_whole(items: Sequence[Item], whole: Sequence[int], filling: _Servers) -> dict[int, int]:
    """Places the items that can't be cut: item -> server."""
    result: dict[int, int] = {}
    for number in _heaviest_first(items, {*whole}):
        item = items[number]
        server = filling.least_loaded(item.memory)
        if server is None:
            raise NoRoom(item.name, item.memory)
        filling.take(server, item.moved.total, item.memory)
        result[number] = server
    return result


_ROUNDS = 200
"""The most moves and exchanges that are made."""


def _improve(items: Sequence[Item], placed: dict[int, int], filling: _Servers) -> None:
    """Moves an item from the busiest server, or exchanges one with another server's, as long as that lowers the
    load.
    """
    weights, memories = [item.moved.total for item in items], [item.memory for item in items]
    for _ in range(_ROUNDS):
        busiest = max(range(len(filling.loads)), key=lambda server: (filling.loads[server], -server))
        best: tuple[float, int, int | None, int] | None = None
        others = sorted(number for number, server in placed.items() if server != busiest)
        for number in sorted(number for number, server in placed.items() if server == busiest):
            weight, memory = weights[number], memories[number]
            for server, load in enumerate(filling.loads):
                if server != busiest and filling.room[server] >= memory:
                    best = _better(best, max(filling.loads[busiest] - weight, load + weight), number, None, server)
            for other in others:
                server, change = placed[other], weight - weights[other]
                more = memory - memories[other]
                if change > 0 and filling.room[server] >= more and filling.room[busiest] >= -more:
                    level = max(filling.loads[busiest] - change, filling.loads[server] + change)
                    best = _better(best, level, number, other, server)
        if best is None or best[0] >= filling.loads[busiest] * (1 - 1e-12):
            return
        _, number, other, server = best
        for moving, source, target in ((number, busiest, server), (other, server, busiest)):
            if moving is not None:
                filling.take(source, -weights[moving], -memories[moving])
                filling.take(target, weights[moving], memories[moving])
                placed[moving] = target


_SEARCHED = 14
"""The most items that can't be cut for which placement by search is tried."""

_PLACES = 20_000
"""The most placements that a search tries."""


def _search(items: Sequence[Item], placed: dict[int, int], filling: _Servers) -> dict[int, int]:
    """The placement with the lowest load of the busiest server that a depth-first search finds, beginning with the
    heaviest item.

    A server with the same load and room as an earlier one is not tried.
    """
    order = _heaviest_first(items, {*placed})
    weights = [(items[number].moved.total, items[number].memory) for number in order]
    servers = range(len(filling.loads))
    lowest = max(sum(weight for weight, _ in weights) / len(servers), weights[0][0])
    best, most, tried = [placed[number] for number in order], max(filling.loads), 0
    trying = _Servers(len(servers), 0.0)
    memory = [0.0] * len(servers)
    for number, server in placed.items():
        memory[server] += items[number].memory
    trying.room = [room + used for room, used in zip(filling.room, memory, strict=True)]
    chosen: list[int] = []

    def visit(place: int) -> None:
        nonlocal best, most, tried
        if place == len(order):
            best, most = [*chosen], max(trying.loads)
            return
        weight, size = weights[place]
        seen: set[tuple[float, float]] = set()
        for server in sorted(servers, key=lambda each: (trying.loads[each], each)):
            state = trying.loads[server], trying.room[server]
            enough = most <= lowest * (1 + 1e-12) or tried >= _PLACES
            if enough or state[0] + weight >= most:
                return
            if state in seen or state[1] < size:
                continue
            seen.add(state)
            tried += 1
            trying.take(server, weight, size)
            chosen.append(server)
            visit(place + 1)
            chosen.pop()
            trying.loads[server], trying.room[server] = state

    visit(0)
    for number, server in zip(order, best, strict=True):
        item = items[number]
        filling.take(placed[number], -item.moved.total, -item.memory)
        filling.take(server, item.moved.total, item.memory)
    return dict(zip(order, best, strict=True))


def _better(
    best: tuple[float, int, int | None, int] | None, level: float, number: int, other: int | None, server: int
) -> tuple[float, int, int | None, int]:
    """The better one of two changes: the higher load of the two servers, the item to move, the item that comes back,
    and the server.
    """
    return (level, number, other, server) if best is None or level < best[0] else best


def _divide_item(item: Item, level: float, filling: _Servers) -> list[PlacedRows]:
    """The parts of an item that fills servers up to a level."""
    parts: list[PlacedRows] = []
    start, rows = 0, item.moved.rows
    while start < rows or not parts:
        left = item.moved.total - item.moved.below(start)
        memory = item.row_memory * (rows - start)
        free = [level - load for load in filling.loads]
        used = {part.server for part in parts}
        servers = [number for number in range(len(free)) if number not in used]
        fitting = [n for n in servers if free[n] >= left * (1 - 1e-9) and filling.room[n] >= memory]
        if fitting:
            server, stop = min(fitting, key=lambda n: (free[n], n)), rows
        else:
            server, stop = _next_server_and_stop(item, start, used, free, filling)
        filling.take(server, item.moved.below(stop) - item.moved.below(start), item.row_memory * (stop - start))
        parts.append(PlacedRows(start, stop, server))
        start = stop
    return parts


def _next_server_and_stop(
    item: Item, start: int, used: Container[int], free: Sequence[float], filling: _Servers
) -> tuple[int, int]:
    """The server for the next rows of an item, and the row up to which it takes them. Servers in `used` have rows of
    the item already, and take more only if no other has room.
    """
    rows = item.moved.rows
    servers = [number for number in range(len(free)) if number not in used]
    for server in sorted(range(len(free)), key=lambda number: (number in used, -free[number], number)):
        room = filling.room[server]
        most = rows if room >= item.row_memory * (rows - start) else start + int(room / item.row_memory)
        if most <= start:
            continue
        if servers in ([server], []) and most == rows:
            return server, rows
        parts = min(len(servers), (rows - start) // item.least)
        share = (item.moved.total - item.moved.below(start)) / max(1, parts)
        stop = max(_nearest(item.moved, start, max(free[server], share)), start + item.least)
        if rows - stop < item.least:
            stop = rows - item.least if rows - start >= 2 * item.least else rows
        return server, min(stop, most)
    raise NoRoom(item.name, item.row_memory * (rows - start))


def _nearest(moved: Moved, start: int, amount: float) -> int:
    """The row up to which the rows from `start` on move a number of bytes as near to `amount` as possible."""
    stop = moved.largest_stop(start, amount)
    base = moved.below(start)
    over = moved.below(min(stop + 1, moved.rows)) - base - amount
    return min(stop + 1, moved.rows) if over < amount - (moved.below(stop) - base) else stop
