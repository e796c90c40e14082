"""A large table: rows of numbers by id, of which one exists once it has been trained often enough.

    table = LargeTable(height=1 << 40, width=16, initial=draw)
    table.add_state(0.0)                  # what an optimizer keeps for each row, such as Adagrad's moment
    values = table.look_up(ids)           # what rows have, or would begin with
    places, kept = table.enter(ids)       # an update: counts the ids, makes rows of those that may enter
    rows = table.take(places)             # [n, 1 + states, width], to be changed and put back
    table.put(places, rows)

Numbers of all rows are in one array, a row's parameters and states side by side; besides them a row costs 20 to 27
bytes, for its id, its place and when it was changed last. Lookups change nothing, so that whoever asks, and how often,
makes no difference to what is trained. A table is changed by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pstranspile.job.table_rules import Rules
from pstranspile.large.index import IdIndex, grown
from pstranspile.values import Array

Initial: TypeAlias = Callable[[Array], Array]
"""From ids int64 [n] to what their rows begin with, [n, width]."""

Chances: TypeAlias = Callable[[Array, int], Array]
"""From ids int64 [n] and the number of an update to a number in (0, 1) for each id."""


class TableState(NamedTuple):
    """What stands in a variable that an optimizer keeps for each row: `table`, a variable, has its numbers as `number`.

    `value` is what those of a row begin with.
    """

    table: str
    number: int
    value: float


class TableRows(NamedTuple):
    """All that a table holds, as arrays in the order of ids, or of a part of it.

    `ids` int64 [n]; `numbers` [n, 1 + states, width]; `seen` uint32 [n], the update that changed a row last; `scores`
    float32 [n], or [0] where the rules ask for none; `waiting` int64 [m], ids that have not entered, and `counts`
    uint32 [m, 2], their gradients so far and the update of the last one; `updates`, how many there were; `saved`, how
    many when changed rows were saved last; `dropped` int64 [k], ids that have left since.
    """

    ids: Array
    numbers: Array
    seen: Array
    scores: Array
    waiting: Array
    counts: Array
    dropped: Array
    updates: int
    saved: int

    @property
    def dims(self) -> tuple[int, ...]:
        """The numbers of a row: 1 + states, width."""
        return self.numbers.shape[1:]


class LargeTable:
    """A large table of `height` ids from 0 on, each with a row of `width` numbers."""

    def __init__(
        self,
        height: int,
        width: int,
        initial: Initial,
        *,
        chances: Chances | None = None,
        rules: Rules | None = None,
        dtype: Any = "float32",
    ):
        self.height, self.width, self.dtype = height, width, np.dtype(dtype)
        self.rules = rules or Rules()
        self.initial, self.chances = initial, chances
        mistake = self.rules.mistake()
        if mistake or (self.rules.enter_chance < 1 and chances is None):
            raise ValueError(mistake or "rows are drawn to enter, but nothing draws them")
        self.states: list[float] = []
        """What each state of a row begins with."""
        self.updates = self.saved = 0
        self.index = IdIndex()
        self._numbers = np.empty((0, 1, width), self.dtype)
        self._seen = np.empty(0, np.uint32)
        self._scores = np.empty(0, np.float32)
        self._waiting = IdIndex()
        self._counts = np.empty((0, 2), np.uint32)
        self._dropped: list[Array] = []

    def __len__(self) -> int:
        return self.index.count

    def __repr__(self) -> str:
        return f"<LargeTable of {len(self)} rows x {self.width}, {1 + len(self.states)} numbers each>"

    @property
    def nbytes(self) -> int:
        """Bytes of memory, with the room that is kept for rows to come."""
        arrays = (self._numbers, self._seen, self._scores, self._counts)
        return self.index.nbytes + self._waiting.nbytes + sum(int(array.nbytes) for array in arrays)

    @property
    def dims(self) -> tuple[int, ...]:
        """The numbers of a row: 1 + states, width."""
        return self._numbers.shape[1:]

    def add_state(self, value: float) -> int:
        """Has every row keep as many numbers more, which begin with `value`; gives the number of this state.

        Raises ValueError if there are rows.
        """
        if len(self):
            raise ValueError("a table that has rows can't keep more for each of them")
        self.states.append(value)
        self._numbers = np.empty((0, 1 + len(self.states), self.width), self.dtype)
        return len(self.states)

    # reading

    def find(self, ids: Array) -> Array:
        """The place of each row, int64 [n]; -1 where there is none. Raises ValueError for an id outside."""
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= self.height):
            wrong = ids[(ids < 0) | (ids >= self.height)][0]
            raise ValueError(f"Ids holds {int(wrong)}, but the table has ids from 0 to {self.height - 1}")
        return self.index.find(ids)

    def look_up(self, ids: Array) -> Array:
        """The values of rows, [n, width], for `ids` int64 [n] that may repeat.

        Of rows that do not exist, those are what they would begin with, or 0 where rows do not enter at once.
        """
        places = self.find(ids)
        known = places >= 0
        if known.all():
            return np.ascontiguousarray(self._numbers.take(places, axis=0)[:, 0])
        out = np.zeros((len(ids), self.width), self.dtype)
        out[known] = self._numbers.take(places[known], axis=0)[:, 0]
        if self.rules.at_once:
            new, back = np.unique(ids[~known], return_inverse=True)
            out[~known] = self.initial(new)[back]
        return out

    def take(self, places: Array) -> Array:
        """The numbers of rows by place, [n, 1 + states, width], in new memory."""
        return self._numbers.take(places, axis=0)

    # changing

    def enter(self, ids: Array) -> tuple[Array, Array]:
        """Begins an update that has gradients of these rows, int64 [n], each once and in ascending order.

        Gives the places of the rows and which of the ids have one (bool [n]).
        """
        self.updates += 1
        places = self.find(ids)
        new = (places < 0).nonzero()[0]
        if len(new):
            chosen = new[self._may_enter(ids[new])]
            first = self.index.count
            self._add(ids[chosen])
            places[chosen] = np.arange(first, first + len(chosen))
        kept = places >= 0
        places = places[kept] if len(new) else places
        self._seen[places] = self.updates
        if self.keeps_scores:
            self._scores[places] += 1
        return places, kept

    def put(self, places: Array, rows: Array) -> None:
        """Ends the update with what rows are now; rows leave if it is time."""
        self._numbers[places] = rows
        if self.rules.shrink_every and self.updates % self.rules.shrink_every == 0:
            self.shrink()

    def _may_enter(self, ids: Array) -> Array:
        """Which of these ids that are not in the table enter it now."""
        rules = self.rules
        if rules.at_once:
            return np.ones(len(ids), bool)
        chosen = np.ones(len(ids), bool)
        if rules.enter_chance < 1:
            assert self.chances is not None
            chosen = self.chances(ids, self.updates) < rules.enter_chance
        if rules.enter_after > 1:
            places = self._waiting.find(ids)
            new = (places < 0).nonzero()[0]
            first = self._waiting.count
            self._waiting.add(ids[new])
            places[new] = np.arange(first, first + len(new))
            self._counts = grown(self._counts, self._waiting.count)
            self._counts[first : self._waiting.count] = 0
            self._counts[places, 0] += 1
            self._counts[places, 1] = self.updates
            chosen &= self._counts[places, 0] >= rules.enter_after
            if chosen.any():
                stay = np.ones(self._waiting.count, bool)
                stay[places[chosen]] = False
                self._keep_waiting(stay)
        return chosen

    def _keep_waiting(self, stay: Array) -> None:
        counts = self._counts[: self._waiting.count][stay]
        self._counts = np.array(counts)
        self._waiting.keep(stay.nonzero()[0])

    def _add(self, ids: Array) -> None:
        first, total = self.index.count, self.index.count + len(ids)
        self.index.add(ids)
        self._numbers = grown(self._numbers, total)
        self._numbers[first:total, 0] = self.initial(ids)
        for number, value in enumerate(self.states):
            self._numbers[first:total, 1 + number] = value
        self._seen = grown(self._seen, total)
        if self.keeps_scores:
            self._scores = grown(self._scores, total)
            self._scores[first:total] = 0

    # rows that leave

    def shrink(self, unseen: int | None = None, below: float | None = None) -> int:
        """Has rows leave by the rules, or by other numbers for `drop_unseen` and `drop_below`; gives how many did."""
        unseen = self.rules.drop_unseen if unseen is None else unseen
        below = self.rules.drop_below if below is None else below
        count = self.index.count
        stay = np.ones(count, bool)
        if unseen:
            stay &= self._seen[:count].astype(np.int64) + unseen >= self.updates
            if self._waiting.count:
                fresh = self._counts[: self._waiting.count, 1].astype(np.int64) + unseen >= self.updates
                self._keep_waiting(fresh)
        if len(self._scores):
            self._scores[:count] *= np.float32(self.rules.score_decay)
            if below:
                stay &= self._scores[:count] >= below
        left = count - int(np.count_nonzero(stay))
        if left:
            self._dropped.append(self.index.held[~stay])
            self._keep(stay.nonzero()[0])
        return left

    def _keep(self, places: Array) -> None:
        """Keeps the rows of these places, which ascend: they move to the front, in pieces."""
        step = 1 << 16
        arrays = [array for array in (self._numbers, self._seen, self._scores) if len(array)]
        for start in range(0, len(places), step):
            piece = places[start : start + step]
            for array in arrays:
                array[start : start + len(piece)] = array.take(piece, axis=0)
        for array in arrays:
            array.resize((len(places), *array.shape[1:]), refcheck=False)
        self.index.keep(places)

    # all of it

    def order(self) -> Array:
        """The places of all rows in the order of their ids."""
        return self.index.held.argsort(kind="stable")

    @property
    def keeps_scores(self) -> bool:
        """Whether the rules ask for scores."""
        return self.rules.drop_below > 0

    def field(self, name: str, places: Array) -> Array:
        """`ids`, `numbers`, `seen` or `scores` of rows by place."""
        arrays = {"ids": self.index.ids, "numbers": self._numbers, "seen": self._seen, "scores": self._scores}
        return arrays[name].take(places, axis=0)

    def without_rows(self) -> TableRows:
        """What the table holds beside its rows."""
        nothing, waiting = np.empty(0, np.int64), self._waiting.held.argsort(kind="stable")
        return TableRows(
            nothing,
            np.empty((0, *self._numbers.shape[1:]), self.dtype),
            np.empty(0, np.uint32),
            np.empty(0, np.float32),
            self._waiting.ids[waiting],
            self._counts[waiting],
            self.left(),
            self.updates,
            self.saved,
        )

    def changed(self) -> Array:
        """The places of the rows that were changed since changed rows were saved last, in the order of their ids."""
        order = self.order()
        return order[self._seen[order] > self.saved]

    def left(self) -> Array:
        """The ids of rows that have left since then and are not there again, in order."""
        if not self._dropped:
            return np.empty(0, np.int64)
        ids = np.unique(np.concatenate(self._dropped))
        return ids[self.index.find(ids) < 0]

    def mark_saved(self) -> None:
        """From here on rows count as changed anew."""
        self.saved = self.updates
        self._dropped.clear()

    def rows(self) -> TableRows:
        """All that the table holds, in new memory, in the order of ids."""
        order = self.order()
        names = ("ids", "numbers", "seen", *(("scores",) if self.keeps_scores else ()))
        return self.without_rows()._replace(**{name: self.field(name, order) for name in names})

    def whole(self, number: int = 0) -> Array:
        """What all rows have, [height, width]: their values, or a state by number. Those that do not exist have what
        `look_up` says, and states their first value.
        """
        if number:
            out = np.full((self.height, self.width), self.states[number - 1], self.dtype)
        elif self.rules.at_once:
            out = self.initial(np.arange(self.height))
        else:
            out = np.zeros((self.height, self.width), self.dtype)
        out[self.index.held] = self._numbers[: len(self), number]
        return out

    def fill(self, whole: Array) -> None:
        """Has all rows exist, with these values, [height, width]; states begin anew. Raises ValueError."""
        if whole.shape != (self.height, self.width):
            raise ValueError(f"it has dims {list(whole.shape)}, the table {[self.height, self.width]}")
        self.clear()
        self._add(np.arange(self.height))
        self._numbers[: self.height, 0] = whole
        self._seen[: self.height] = 0

    def add_rows(self, rows: TableRows) -> None:
        """Takes rows that are not there yet, as they were in another table. Raises ValueError for others' dims."""
        if rows.numbers.shape[1:] != self._numbers.shape[1:]:
            have, want = list(rows.numbers.shape[1:]), list(self._numbers.shape[1:])
            raise ValueError(f"a row there is {have}, one of the table is {want}")
        first, total = self.index.count, self.index.count + len(rows.ids)
        if (self.find(rows.ids) >= 0).any():
            raise ValueError("a row is there twice")
        self.index.add(rows.ids)
        self._numbers, self._seen = grown(self._numbers, total), grown(self._seen, total)
        self._numbers[first:total], self._seen[first:total] = rows.numbers, rows.seen
        if self.keeps_scores:
            self._scores = grown(self._scores, total)
            self._scores[first:total] = rows.scores if len(rows.scores) else 1
        if len(rows.waiting):
            count = self._waiting.count
            self._waiting.add(rows.waiting)
            self._counts = grown(self._counts, self._waiting.count)
            self._counts[count : self._waiting.count] = rows.counts
        if len(rows.dropped):
            self._dropped.append(rows.dropped)
        self.updates, self.saved = max(self.updates, rows.updates), max(self.saved, rows.saved)

    def set_rows(self, ids: Array, numbers: Array, seen: Array | None = None) -> None:
        """Has rows be as these, [n, 1 + states, width], or have these values, [n, width]; ids are there once each.

        `seen` is the update that changed each last (default: the last one).
        """
        places = self.find(ids)
        new = places < 0
        places[new] = self.index.count + np.arange(np.count_nonzero(new))
        self._add(ids[new])
        self._numbers[places, : 1 if numbers.ndim == 2 else None] = numbers[:, None] if numbers.ndim == 2 else numbers
        self._seen[places] = self.updates if seen is None else seen
        self.updates = max(self.updates, int(self._seen[places].max(initial=0)))

    def remove(self, ids: Array) -> None:
        """Has these rows leave, those of them that are there."""
        places = self.find(ids)
        stay = np.ones(self.index.count, bool)
        stay[places[places >= 0]] = False
        if not stay.all():
            self._keep(stay.nonzero()[0])

    def clear(self) -> None:
        """Forgets all rows, and what was counted."""
        fresh = self.like()
        self.__dict__.update(fresh.__dict__)

    def like(self) -> LargeTable:
        """A table of the same kind without rows."""
        other = LargeTable(
            self.height, self.width, self.initial, chances=self.chances, rules=self.rules, dtype=self.dtype
        )
        for value in self.states:
            other.add_state(value)
        return other

    def copy(self) -> LargeTable:
        """A table that shares no memory with this one."""
        other = self.like()
        other.add_rows(self.rows())
        return other
