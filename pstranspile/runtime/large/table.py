"""Large tables: rows of numbers by id, each of which is created once it has been trained often enough.

    table = LargeTable(height=1 << 40, width=16, initial=draw)
    table.add_state(0.0)                  # a state of an optimizer for each row, such as Adagrad's moment
    values = table.look_up(ids)           # the values of rows; initial ones of rows that do not exist
    places, kept = table.enter(ids)       # begins an update: counts the ids, creates rows that may enter
    rows = table.take(places)             # [n, 1 + states, width], to be changed and stored again
    table.put(places, rows)
    table.end_update()

The numbers of all rows are in one array, in which a row's parameters and states lie side by side. In addition, a row
costs 20 to 27 bytes, for its id, its place and the update that last changed it, and up to 36 while the hash table of
ids grows. Lookups change nothing, so training
does not depend on who looks rows up, or how often. Only one thread may change a table at a time.

The array may be in a file, of which the system keeps the used pages, of many rows each, in memory. To keep rows in use
together, recently updated rows are moved to the front from time to time.

    with rows_on_disk("/fast/disk"):
        ps.simulate(result, feeds)        # tables created here have files in this folder
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakSet

import numpy as np

from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location
from pstranspile.ir.table_rules import Rules, most_rows
from pstranspile.runtime.arithmetic import loops
from pstranspile.runtime.values import Array

# The places of ids in arrays: a hash table of numbers in two arrays, for many ids at a time.


# Ids of tables that have a row for every id of 64 bits. Such ids are not row numbers.

_ID_FACTOR = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)
_ONE = np.uint64(1)


def beside(ids: Array, width: int) -> Array:
    """For each id, int64 of any shape, the row of the table beside which it lies; ids near each other lie apart."""
    mixed = ids.astype(np.int64, copy=False).view(np.uint64) * _ID_FACTOR
    mixed ^= mixed >> _HALF
    mixed *= _ID_FACTOR
    mixed >>= _ONE
    mixed //= np.uint64(width)
    return np.minimum(mixed.view(np.int64), most_rows(width) - 1)


def lie_within(ids: Array, width: int, start: int, rows: int) -> Array:
    """A mask of the ids that lie beside one of so many rows from `start` on (bool)."""
    row = beside(ids, width)
    return (row >= start) & (row < start + rows)


_FILLED = 0.6
"""The largest share of the hash table that is in use. Beyond it, the hash table is doubled."""

_NEARLY_FILLED = 0.58
"""The share from which on the next hash table is prepared."""

_PREPARED = 1 << 20
"""Entries of the next hash table that are prepared at once; smaller hash tables are not prepared for."""

_LEAST = 1 << 10
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


_MOST_ROOM = 1 << 23
"""The most bytes of room for further items: it is set to zeros at once, which takes time."""


_SMALL = 1 << 20
"""The bytes below which an array has more room in proportion, so that it is not copied at each addition."""


def _homes(ids: Array, entries: Array) -> Array:
    """The entry of a hash table at which the search for each id begins."""
    return ((ids.view(np.uint64) * _SPREAD) >> np.uint64(64 - len(entries).bit_length() + 1)).astype(np.int64)


def ensure_capacity(array: Array, length: int) -> Array:
    """The array with room for at least `length` items. If it must grow, it grows by a 32nd more than needed, or less
    where that would be more than `_MOST_ROOM` bytes; a small array grows by an eighth more.

    It is resized in place, which moves no numbers of large arrays on most systems. No other object may refer to it.
    """
    if length > len(array):
        room = min(length // 32, _MOST_ROOM // max(array[:1].nbytes, 1) if len(array) else length)
        if array.nbytes < _SMALL:
            room = length // 8
        array.resize((max(length + room, 64), *array.shape[1:]), refcheck=False)
    return array


def distinct(ids: Array) -> tuple[Array, Array]:
    """The different ids in ascending order, and the index of each id among them; int64 [n] of any order."""
    found, back, _ = distinct_of_each(ids, [0, len(ids)])
    return found, back


def distinct_of_each(ids: Array, bounds: Sequence[int]) -> tuple[Array, Array, list[int]]:
    """The different ids of each section, in ascending order and section after section; the index of each id among them;
    and the boundaries of the sections there.

    `ids` is int64 [n] of any order, `bounds` are the boundaries of its sections, from 0 to n.
    """
    ids = np.ascontiguousarray(ids, np.int64)
    found, back, ends = np.empty_like(ids), np.empty_like(ids), np.array(bounds, np.int64)
    if count := loops.group_ids(ids, ends, found, back):
        return found[:count], back, ends.tolist()
    parts = [np.unique(ids[start:stop], return_inverse=True) for start, stop in pairwise(bounds)]
    ends = [*accumulate((len(different) for different, _ in parts), initial=0)]
    for (_, places), (start, stop), first in zip(parts, pairwise(bounds), ends, strict=False):
        back[start:stop] = places + first
    return np.concatenate([ids[:0], *(different for different, _ in parts)]), back, ends


_MOVED_AT_ONCE = 1 << 16
"""The most ids that move from a hash table to the one of twice its size when ids are added, besides twice as many as
those.
"""


class IdIndex:
    """Distinct ids in order of arrival. The place of an id is the number of ids that arrived before it.

    `ids[:count]` are the ids by place, int64. In addition, each entry of the hash table takes 4 bytes; at most 60 in
    100 entries are in use. An entry is 0, or one more than the place of an id. A hash table that must grow stays in use
    until its ids have moved to the new one, some at a time, so that no addition takes long.
    """

    def __init__(self) -> None:
        self.ids = np.empty(0, np.int64)
        self.count = 0
        self._former: Array | None = None
        """The hash table before the last growth, with the ids at the places below `_end`."""
        self._next: Array | None = None
        """The hash table that will follow."""
        self._moved = 0
        """The place up to which ids have moved from the former hash table."""
        self._end = 0
        """The place up to which ids must move from the former hash table."""
        self._ready = 0
        """The entries of the next hash table that are in memory."""
        self._begin(_LEAST)

    def __len__(self) -> int:
        return self.count

    @property
    def ids_by_place(self) -> Array:
        """The ids by place. The array must not be stored, since its memory moves when ids are added."""
        return self.ids[: self.count]

    @property
    def nbytes(self) -> int:
        """The bytes of memory in use."""
        more = 0 if self._former is None else self._former.nbytes
        if self._next is not None:
            more += self._ready * self._next.itemsize
        return int(self.ids.nbytes + self._entries.nbytes + more)

    @property
    def whole(self) -> Array | None:
        """The hash table; None while ids move to a larger one."""
        return self._entries if self._former is None else None

    def _begin(self, size: int) -> None:
        self._entries = np.zeros(size, np.int32)  # memory that the system gives when it is used

    def find(self, ids: Array) -> Array:
        """The place of each id, int64 [n]; -1 for an id that is not in the index. `ids` is int64 [n]."""
        ids = np.ascontiguousarray(ids, np.int64)
        found = self._find(ids, self._entries)
        if self._former is not None:
            left = (found < 0).nonzero()[0]
            found[left] = self._find(ids[left], self._former)
        return found

    def _find(self, ids: Array, entries: Array) -> Array:
        """The places of ids in one hash table."""
        found = np.empty(ids.shape, np.int64)
        if loops.find_ids(ids, self.ids, entries, found):
            return found
        at = _homes(ids, entries)
        places = entries.take(at).astype(np.int64)
        places -= 1
        if not self.count:
            return places
        # An entry without a place ends the search; an entry with another id does not.
        wrong = (places >= 0).nonzero()[0]
        wrong = wrong[self.ids.take(places[wrong]) != ids[wrong]]
        last = len(entries) - 1
        while len(wrong):
            at[wrong] = (at[wrong] + 1) & last
            places[wrong] = entries.take(at[wrong]) - 1
            wrong = wrong[places[wrong] >= 0]
            wrong = wrong[self.ids.take(places[wrong]) != ids[wrong]]
        return places

    def add(self, new: Array) -> None:
        """Adds distinct ids that are not in the index, in order."""
        count, total = self.count, self.count + len(new)
        self.ids = ensure_capacity(self.ids, total)
        self.ids[count:total] = new
        self.count = total
        if total > _FILLED * len(self._entries):
            self._move(self._end)
            size = 2 * len(self._entries)
            while total > _FILLED * size:
                size *= 2
            self._former, self._moved, self._end = self._entries, 0, count
            ready, self._next = self._next, None
            if ready is None or len(ready) != size:
                self._begin(size)
            else:
                self._entries = ready
        elif total > _NEARLY_FILLED * len(self._entries) and len(self._entries) >= _PREPARED:
            self._prepare()
        self._enter(count, total)
        self._move(self._moved + _MOVED_AT_ONCE + 2 * len(new))

    def _prepare(self) -> None:
        """Has some more of the next hash table in memory: all at once would take long."""
        ready = self._next
        if ready is None:
            ready = self._next = np.zeros(2 * len(self._entries), np.int32)
            self._ready = 0
        start, self._ready = self._ready, min(self._ready + _PREPARED, len(ready))
        ready[start : self._ready] = 0

    def _move(self, stop: int) -> None:
        """Moves ids at places up to `stop` from the former hash table."""
        if self._former is not None:
            start, self._moved = self._moved, min(stop, self._end)
            self._enter(start, self._moved)
            if self._moved == self._end:
                self._former = None

    def keep(self, places: Array) -> None:
        """Keeps the ids at these ascending places, and removes all others."""
        kept = self.ids[places]
        self.ids = np.empty(0, np.int64)
        self.ids = ensure_capacity(self.ids, len(kept))
        self.ids[: len(kept)] = kept
        self.count = len(kept)
        self.rebuild()

    def exchange(self, ones: Array, others: Array) -> None:
        """Exchanges the places of ids: the id at `ones[i]` with the id at `others[i]`. No place may occur twice."""
        self._move(self._end)
        at, other_at = self._held_at(ones), self._held_at(others)
        self._entries[at], self._entries[other_at] = others + 1, ones + 1
        self.ids[ones], self.ids[others] = self.ids[others], self.ids[ones]

    def _held_at(self, places: Array) -> Array:
        """The indices of the hash table's entries that hold these places."""
        expected, last = places + 1, len(self._entries) - 1
        at = _homes(self.ids[places], self._entries)
        wrong = (self._entries.take(at) != expected).nonzero()[0]
        while len(wrong):
            at[wrong] = (at[wrong] + 1) & last
            wrong = wrong[self._entries.take(at[wrong]) != expected[wrong]]
        return at

    def rebuild(self) -> None:
        """Builds a new hash table, of a size that fits the number of ids."""
        size = _LEAST
        while self.count > _FILLED * size:
            size *= 2
        self._former = self._next = None
        self._entries = np.empty(0, np.int32)
        self._begin(size)
        step = 1 << 16
        for start in range(0, self.count, step):
            self._enter(start, min(start + step, self.count))

    def _enter(self, start: int, stop: int) -> None:
        """Enters the ids at the places `start` to `stop` into the hash table."""
        entries = self._entries
        if loops.enter_ids(self.ids, entries, start, stop):
            return
        values = np.arange(start + 1, stop + 1, dtype=np.int32)
        at = _homes(self.ids[start:stop], entries)
        last = len(entries) - 1
        while len(values):
            free = entries.take(at) == 0
            entries[at[free]] = values[free]
            left = entries.take(at) != values  # not free, or just filled by another place
            values, at = values[left], (at[left] + 1) & last


_LARGE_PAGE = 2 << 20
"""The bytes of a large page of memory."""

_LARGE = 2 * _LARGE_PAGE
"""From this many bytes on, rows have memory of their own from the system, in large pages."""

_HAS_LARGE_PAGES = hasattr(mmap, "MADV_HUGEPAGE") and hasattr(mmap, "MAP_PRIVATE")


class MemoryRows:
    """Rows of numbers in an array that is resized in place; `dims` are the dims of a row.

    Many rows are in large pages: rows at random places need the addresses of fewer pages, and more room moves no
    numbers.
    """

    def __init__(self, dims: tuple[int, ...], dtype: Any):
        self.array: Array = np.empty((0, *dims), dtype)
        """The rows, [n, *dims]. The array must not be stored elsewhere, since its memory moves."""
        self._row = max(int(np.prod(dims)) * self.array.itemsize, 1)
        self._map: mmap.mmap | None = None

    def require(self, length: int) -> None:
        """Makes room for at least `length` rows."""
        if length > len(self.array):
            room = length + min(length // 32, _MOST_ROOM // self._row)
            if _HAS_LARGE_PAGES and room * self._row >= _LARGE:
                self._map_rows(room)
            else:
                self.array = ensure_capacity(self.array, length)

    def take(self, places: Array) -> Array:
        """Rows by place, in new memory."""
        return self.array.take(places, axis=0)

    def values(self, places: Array) -> Array:
        """The parameters of rows by place, without their states, in new memory."""
        return self.array.reshape(-1, *self.array.shape[2:]).take(places * self.array.shape[1], axis=0)

    def put(self, places: Array, rows: Array) -> None:
        """Sets rows by place."""
        self.array[places] = rows

    def pieces(self, count: int, *, in_order: bool = False, each: int = 1) -> Iterable[slice]:
        """Slices of so many rows for work on them."""
        return (slice(0, count),)

    def exchange(self, ones: Array, others: Array) -> None:
        """Exchanges rows by place: that at `ones[i]` with that at `others[i]`."""
        _exchange(self.array, ones, others)

    def count_outside(self, places: Array) -> int:
        """The number of rows at these places that are not known to be in use."""
        return len(places)

    def keep_front(self, rows: int) -> None:
        """Tells that the first rows are in use: all stay in memory."""

    def truncate(self, length: int) -> None:
        """Releases the room beyond `length` rows."""
        if length * self._row >= _LARGE and self._map is not None:
            self._map_rows(length)
        elif self._map is not None:
            self.array, self._map = self.array[:length].copy(), None
        else:
            self.array.resize((length, *self.array.shape[1:]), refcheck=False)

    def _map_rows(self, length: int) -> None:
        """Keeps the rows in a mapping with room for `length` rows, in whole large pages."""
        size = -(-length * self._row // _LARGE_PAGE) * _LARGE_PAGE
        dims, dtype, rows, memory = self.array.shape[1:], self.array.dtype, self.array, self._map
        self.array, self._map = np.empty((0, *dims), dtype), None
        if memory is not None:
            had = len(memory)
            del rows
            with suppress(BufferError):  # rows are in use elsewhere, as in the traceback of an error: they are copied
                memory.resize(size)
            rows = self._rows_in(memory, min(had, len(memory)), dims, dtype)
        if memory is None or len(memory) != size:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory.madvise(mmap.MADV_HUGEPAGE)
            self._rows_in(memory, size, dims, dtype)[: len(rows)] = rows[: size // self._row]
        self.array, self._map = self._rows_in(memory, size, dims, dtype), memory

    def _rows_in(self, memory: mmap.mmap, size: int, dims: tuple[int, ...], dtype: Any) -> Array:
        rows = size // self._row
        return np.frombuffer(memory, dtype, rows * (self._row // dtype.itemsize)).reshape(rows, *dims)


_MMAP_THRESHOLD, _LARGEST_KEPT = -3, 4 << 20


def return_freed_arrays() -> None:
    """Makes the C library return freed arrays of 4 MiB and more to the system, for the rest of the process.

    By default glibc keeps freed arrays of up to 32 MiB for later use. A server with a large table has no use for them:
    updates of many rows allocate such arrays, later updates of fewer rows do not. Only glibc needs this.
    """
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        if hasattr(library, "gnu_get_libc_version"):
            library.mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)


# Rows of large tables on disk: an array in a file, of which the system keeps in memory what is used.
#
# A file has no name, so that nothing of it is left when its process ends in any way. Its room on the disk is
# allocated before it is used: memory that stands for a file whose disk is full can't be written to, which would end the
# process.


_FEW_ROWS = 1 << 12
"""The most rows of a file that are exchanged at once where memory is limited."""

_AT_ONCE = 1 << 20
_READERS = 8
_FEW = 64


@cache
def _readers() -> Any:
    """The thread pool that reads rows from files."""
    from concurrent.futures import ThreadPoolExecutor  # imported here, as few tables are in files

    return ThreadPoolExecutor(_READERS, "rows-on-disk")


def require_usable(folder: str) -> None:
    """Makes the folder if it does not exist. Raises DiagnosticError (`table-folder`) if rows can't be stored there."""
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            _take_room(file.fileno(), 0, mmap.PAGESIZE)
            mmap.mmap(file.fileno(), mmap.PAGESIZE).close()
    except (OSError, ValueError) as problem:
        raise _folder_error(folder, problem) from None


def _folder_error(folder: str, problem: Exception) -> DiagnosticError:
    reason = (problem.strerror if isinstance(problem, OSError) else "") or str(problem)
    return DiagnosticError([error("table-folder", f"can't hold rows of large tables: {reason}", Location(folder))])


def _take_room(file: int, start: int, stop: int) -> None:
    """Allocates disk space for the bytes `start` to `stop` of a file. Raises OSError."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, start, stop - start)
        return
    for at in range(start, stop, _AT_ONCE):
        os.pwrite(file, bytes(min(_AT_ONCE, stop - at)), at)


def _take_items(array: Array, places: Array) -> Array:
    """Items of an array in a file, in new memory.

    Items that are not in memory are read by several threads, as disks serve many requests at a time.
    """
    count, part = len(places), -(-len(places) // _READERS)
    if count < _FEW:
        return array.take(places, axis=0)
    out = np.empty((count, *array.shape[1:]), array.dtype)

    def read(at: int) -> None:
        array.take(places[at : at + part], axis=0, out=out[at : at + part], mode="clip")  # "raise" would copy

    list(_readers().map(read, range(0, count, part)))
    return out


_PAGES_OF_FILES = "/proc/self/statm"
"""Where the system tells the pages of files that a process has in memory, as the third number."""

_AROUND = 1 << 16
"""The most bytes of a file that the system puts into memory for one that is read."""

_OVER = 25
"""Memory may be over its limit by one part in this many."""


def _file_bytes() -> int:
    """The bytes of files that this process has in memory."""
    with open(_PAGES_OF_FILES, "rb") as file:
        return int(file.read().split()[2]) * mmap.PAGESIZE


class MemoryLimit:
    """The most bytes of memory that the rows of all tables in files of this process take, `most`.

    Raises DiagnosticError (`table-folder`) where the system does not tell how many there are, or takes none back.
    """

    def __init__(self, most: int, folder: str):
        self.most = most
        self._rows: WeakSet[DiskRows] = WeakSet()
        try:
            self._others = _file_bytes()  # of libraries, which become more
        except OSError as problem:
            raise _folder_error(folder, problem) from None
        if not hasattr(mmap, "MADV_DONTNEED"):
            raise _folder_error(folder, ValueError("the system takes no memory of files back"))

    def add(self, rows: DiskRows) -> None:
        """Has the limit hold for these rows, too."""
        self._rows.add(rows)

    @property
    def share(self) -> int:
        """The bytes for the rows in use of one table, if all have as many."""
        return self.most // 2 // max(len(self._rows), 1)

    def pieces(self, count: int, at_once: int = _AROUND) -> Iterator[slice]:
        """Slices of `count` items, after each of which memory is taken back if need be. To use an item puts `at_once`
        bytes into memory at most.
        """
        at = 0
        while at < count:
            stop = min(at + max(self.require(self.most // 4) // at_once, 1), count)
            yield slice(at, stop)
            at = stop
        self.require(0)

    def require(self, size: int) -> int:
        """Makes room for `size` bytes in memory, if there can be: rows that are not in use leave first, and then all.
        Returns the bytes that may come into memory.
        """
        room = self.most - _file_bytes() + self._others
        for is_used in (True, False):
            if room < size:
                for rows in self._rows:
                    rows.let_go(rows.front if is_used else 0)
                if not is_used:
                    self._others = _file_bytes()
                room = self.most - _file_bytes() + self._others
        return room + self.most // _OVER


class DiskRows:
    """Rows of numbers in a file in `folder`; `dims` are the dims of a row."""

    def __init__(self, folder: str, dims: tuple[int, ...], dtype: Any, limit: MemoryLimit | None = None):
        self.folder, self.limit = folder, limit
        self.front = 0
        """The number of rows in use, which lie first."""
        self.array: Array = np.empty((0, *dims), dtype)
        """The rows, [n, *dims]. The array must not be stored elsewhere, since its memory moves."""
        self._row = int(np.prod(dims)) * self.array.itemsize
        self._map: mmap.mmap | None = None
        if limit is not None:
            limit.add(self)

    @cached_property
    def _file(self) -> Any:
        try:
            return tempfile.TemporaryFile(dir=self.folder)
        except OSError as problem:
            raise _folder_error(self.folder, problem) from None

    def require(self, length: int) -> None:
        """Makes room for at least `length` rows. Raises DiagnosticError if the disk has no room; the rows are unchanged
        then.
        """
        have = len(self.array)
        if length > have:
            room = max(length + length // 32, 64)
            try:
                _take_room(self._file.fileno(), have * self._row, room * self._row)
            except OSError as problem:
                os.ftruncate(self._file.fileno(), have * self._row)
                raise _folder_error(self.folder, problem) from None
            self._show(room)

    def take(self, places: Array) -> Array:
        """Rows by place, in new memory."""
        return self._take(self.array, places)

    def values(self, places: Array) -> Array:
        """The parameters of rows by place, without their states, in new memory."""
        return self._take(self.array.reshape(-1, *self.array.shape[2:]), places, self.array.shape[1])

    def _take(self, array: Array, places: Array, items: int = 1) -> Array:
        """The first of the `items` of an array that each row is."""
        if self.limit is None:
            return _take_items(array, places * items)
        out = np.empty((len(places), *array.shape[1:]), array.dtype)
        self._transfer(out, places, writes=False)
        return out

    def put(self, places: Array, rows: Array) -> None:
        """Sets rows by place."""
        if self.limit is None:
            self.array[places] = rows
        else:
            self._transfer(np.ascontiguousarray(rows, self.array.dtype), places, writes=True)

    def _transfer(self, rows: Array, places: Array, *, writes: bool) -> None:
        """Reads or writes the first numbers of rows by place; those in use in memory, if they fit there together, and
        others in the file, without memory of this process for its pages.

        The system is told of the rows to read first, so that it reads those that it does not have at the same time.
        """
        if not len(places):
            return
        size = self.front * self._row
        front = 0 if self.limit is None or size > self.limit.share else self.front
        if front and self.limit is not None:
            self.limit.require(size)
        file, flat = self._file.fileno(), rows.reshape(len(rows), -1).view(np.uint8)
        memory = self.array.reshape(-1).view(np.uint8)
        if loops.move_rows(file, places, self._row, front, memory, flat, writes):
            return
        held, size = memory.reshape(-1, self._row), flat.shape[1]
        used, others = (places < front).nonzero()[0], (places >= front).nonzero()[0]
        if writes:
            held[places[used], :size] = flat[used]
        else:
            flat[used] = held[places[used], :size]
        starts = (places[others] * self._row).tolist()
        for start in () if writes else starts:
            os.posix_fadvise(file, start, size, os.POSIX_FADV_WILLNEED)
        move: Callable[..., int] = os.pwritev if writes else os.preadv
        for index, start in zip(others.tolist(), starts, strict=True):
            if move(file, (flat[index],), start) != size:
                raise _folder_error(self.folder, OSError(errno.EIO, os.strerror(errno.EIO)))

    def exchange(self, ones: Array, others: Array) -> None:
        """Exchanges rows by place: that at `ones[i]` with that at `others[i]`."""
        if self.limit is None:
            _exchange(self.array, ones, others)
            return
        for at in range(0, len(ones), _FEW_ROWS):
            here, there = ones[at : at + _FEW_ROWS], others[at : at + _FEW_ROWS]
            moved, other = self.take(here), self.take(there)
            self.put(here, other)
            self.put(there, moved)

    def count_outside(self, places: Array) -> int:
        """The number of rows at these places that are not known to be in use; without a limit, of all."""
        return len(places) if self.limit is None else int(np.count_nonzero(places >= self.front))

    def pieces(self, count: int, *, in_order: bool = False, each: int = 1) -> Iterable[slice]:
        """Slices of so many items of work, each on so many rows, after each of which the limit of memory is held. Rows
        in order put nothing else into memory.
        """
        if self.limit is None:
            return (slice(0, count),)
        return self.limit.pieces(count, each * (self._row if in_order else max(_AROUND, self._row + mmap.PAGESIZE)))

    def truncate(self, length: int) -> None:
        """Releases the room beyond `length` rows."""
        self._show(length)
        os.ftruncate(self._file.fileno(), length * self._row)

    def _show(self, length: int) -> None:
        """Maps the first `length` rows of the file into the array."""
        dims, dtype = self.array.shape[1:], self.array.dtype
        self.array, self._map = np.empty((0, *dims), dtype), None
        if length:
            try:
                self._map = mmap.mmap(self._file.fileno(), length * self._row)
            except OSError as problem:
                raise _folder_error(self.folder, problem) from None
            if hasattr(mmap, "MADV_RANDOM"):
                self._map.madvise(mmap.MADV_RANDOM)  # neighbours of a row are no likelier to be read next
            self.array = np.frombuffer(self._map, dtype).reshape(length, *dims)

    def keep_front(self, rows: int) -> None:
        """Releases the memory of all but the first rows, which are in use."""
        self.front = rows
        self.let_go(rows)

    def let_go(self, first: int) -> None:
        """Releases the memory of the rows from `first` on, which stay in the file. For rows that will
        not be used soon.
        """
        start = -(-first * self._row // mmap.PAGESIZE) * mmap.PAGESIZE
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED") and start < len(self._map):
            self._map.madvise(mmap.MADV_DONTNEED, start)


_FOLDER: ContextVar[str | None] = ContextVar("rows_on_disk", default=None)

_LIMIT: ContextVar[MemoryLimit | None] = ContextVar("memory_limit", default=None)


@contextmanager
def rows_on_disk(folder: str | os.PathLike[str] | None, memory: int | None = None) -> Generator[None]:
    """Makes large tables that this thread creates within the context keep their numbers in files in `folder` (None: in
    memory).

    With `memory` these rows take so many bytes of memory together, and at most 5 % more; rows in use stay longest. The
    system may keep more of the files in memory that no process uses, and takes it back when it needs it.

    The results are the same. The folder is made if it does not exist. Raises DiagnosticError (`table-folder`) if rows
    can't be stored there, and so does a table for whose rows the disk has no room.
    """
    if folder is not None:
        require_usable(os.fspath(folder))
    limit = None if folder is None or memory is None else MemoryLimit(memory, os.fspath(folder))
    token, of_limit = _FOLDER.set(None if folder is None else os.fspath(folder)), _LIMIT.set(limit)
    try:
        yield
    finally:
        _FOLDER.reset(token)
        _LIMIT.reset(of_limit)


# Lookups and updates of several tables side by side: the work of compiled loops, which does not need the interpreter.

_THREADS: ContextVar[int] = ContextVar("threads_of_tables", default=1)


@contextmanager
def tables_on_threads(count: int) -> Generator[None]:
    """Makes servers that this thread runs within the context look up and update rows of large tables on `count`
    threads, which share out the tables and ranges of rows, with the same results.
    """
    token = _THREADS.set(count)
    try:
        yield
    finally:
        _THREADS.reset(token)


def threads_of_tables() -> int:
    """The number of threads on which rows of large tables are looked up and updated."""
    return _THREADS.get()


def look_up_side_by_side(asked: Sequence[tuple[LargeTable, Array]]) -> list[Array]:
    """What `look_up` gives for each table and its ids. Tables in memory are searched on several threads."""
    lookups = [table.lookup_of(ids) for table, ids in asked]
    found = [lookup for lookup in lookups if lookup is not None]
    missing = iter(loops.look_up_tables(found, threads_of_tables()))
    return [
        table.look_up(ids) if lookup is None else table.found_rows(lookup, next(missing))
        for (table, ids), lookup in zip(asked, lookups, strict=True)
    ]


class _WaitingUpdate(NamedTuple):
    """An update that waits for others, and what is told the result of `loops.update_tables`."""

    update: loops.HeldUpdate
    finish: Callable[[int, int], object]


class JoinedUpdates:
    """Updates of rows that different tables have, which are made together at the end."""

    def __init__(self) -> None:
        self._waiting_updates: list[_WaitingUpdate] = []

    def add(self, update: loops.HeldUpdate, finish: Callable[[int, int], object]) -> None:
        """Adds an update of a table that has none yet. `finish` is told the result of `loops.update_tables`, when no
        update has views of tables any more.
        """
        self._waiting_updates.append(_WaitingUpdate(update, finish))

    def run(self) -> None:
        """Makes the updates, on as many threads as tables have."""
        waiting, self._waiting_updates = self._waiting_updates, []
        updates, finishes = [each.update for each in waiting], [each.finish for each in waiting]
        made = loops.update_tables(updates, threads_of_tables())
        del waiting, updates  # views of memory that moves when rows are added
        for finish, (missing, different) in zip(finishes, made, strict=True):
            finish(missing, different)


_SIDE_BY_SIDE: ContextVar[JoinedUpdates | None] = ContextVar("side_by_side", default=None)


@contextmanager
def updates_side_by_side() -> Generator[None]:
    """Puts the updates of large tables off to the end of the context, where tables have several threads.

    No table may be updated twice, or read, within the context. If it ends with an error, no update is made that was put
    off.
    """
    if threads_of_tables() < 2:
        yield
        return
    together = JoinedUpdates()
    token = _SIDE_BY_SIDE.set(together)
    try:
        yield
    finally:
        _SIDE_BY_SIDE.reset(token)
    together.run()


def updates_put_off() -> JoinedUpdates | None:
    """The updates that are put off; None where each is made at once."""
    return _SIDE_BY_SIDE.get()


# The content of large tables as arrays, and the variable that stands for a state of a table.

Initial: TypeAlias = Callable[[Array], Array]
"""A function from ids int64 [n] to the initial values of their rows, [n, width]."""

Chances: TypeAlias = Callable[[Array, int], Array]
"""A function from ids int64 [n] and the number of an update to a random number in (0, 1) for each id."""


class TableState(NamedTuple):
    """The value of a variable that an optimizer keeps for each row of a table: state `number` of the table in the
    variable `table`.

    `value` is the initial value of the state's elements.
    """

    table: str
    number: int
    value: float


class TableRows(NamedTuple):
    """The content of a table or of a part of it, as arrays in ascending order of ids.

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
        """The dims of a row: 1 + states, width."""
        return self.numbers.shape[1:]


# Ids that have had gradients but have no row yet, with the number of their gradients.


class WaitingIds:
    """Ids that wait to enter a table, each with the number of its gradients so far and the update of the last one."""

    def __init__(self) -> None:
        self.index = IdIndex()
        self._counts = np.empty((0, 2), np.uint32)

    def __len__(self) -> int:
        return self.index.count

    @property
    def nbytes(self) -> int:
        """The bytes of memory in use."""
        return self.index.nbytes + int(self._counts.nbytes)

    def count_gradients(self, ids: Array, update: int, enough: int) -> Array:
        """Counts a gradient for each of these distinct ids, int64 [n]. Returns which ids have had `enough` gradients,
        bool [n].
        """
        places = self.index.find(ids)
        new = (places < 0).nonzero()[0]
        first = self.index.count
        self.add(ids[new], np.zeros((len(new), 2), np.uint32))
        places[new] = np.arange(first, first + len(new))
        self._counts[places, 0] += 1
        self._counts[places, 1] = update
        return self._counts[places, 0] >= enough

    def add(self, ids: Array, counts: Array) -> None:
        """Adds ids that do not wait yet, with their counts and updates, [n, 2]."""
        count = self.index.count
        self.index.add(ids)
        self._counts = ensure_capacity(self._counts, self.index.count)
        self._counts[count : self.index.count] = counts

    def leave(self, ids: Array) -> None:
        """Removes these ids, all of which must wait."""
        if len(ids):
            stay = np.ones(len(self), bool)
            stay[self.index.find(ids)] = False
            self._keep(stay)

    def drop_before(self, update: int) -> None:
        """Removes the ids whose last gradient came before an update."""
        if len(self):
            self._keep(self._counts[: len(self), 1].astype(np.int64) >= update)

    def _keep(self, stay: Array) -> None:
        self._counts = np.array(self._counts[: len(self)][stay])
        self.index.keep(stay.nonzero()[0])

    def rows(self) -> tuple[Array, Array]:
        """(the ids in ascending order, the count and the last update of each [n, 2])."""
        order = self.index.ids_by_place.argsort()
        return self.index.ids[order], self._counts[order]


_REMEMBERED = 1 << 14
"""The most rows whose initial values are remembered between a lookup and the update that enters them."""


class DrawnValues:
    """Initial values that lookups have drawn for rows that do not exist yet, as the update that follows enters them.

    Drawing a row takes several times as long as finding it. What is remembered changes no result: a row has the same
    initial values whenever they are drawn.
    """

    def __init__(self, draw: Initial):
        self._draw = draw
        self._parts: list[tuple[Array, Array]] = []

    def look_up(self, ids: Array) -> Array:
        """The initial values [n, width] of rows with these distinct ids, in ascending order."""
        rows = self._draw(ids)
        parts = [*self._parts, (ids, rows)]
        while parts and sum(len(each) for each, _ in parts) > _REMEMBERED:
            del parts[0]
        self._parts = parts
        return rows

    def take(self, ids: Array) -> Array:
        """The initial values of rows with these distinct ids, in ascending order, which are remembered no longer."""
        remaining_parts: list[tuple[Array, Array]] = []
        missing, out = np.arange(len(ids)), None
        for part in self._parts:
            known, rows = part
            if out is None and len(known) == len(ids) and (known == ids).all():
                out, missing = rows, missing[:0]
                continue
            places = np.minimum(known.searchsorted(ids[missing]), len(known) - 1)
            hits = known[places] == ids[missing]
            if not hits.any():
                remaining_parts.append(part)
                continue
            if out is None:
                out = np.empty((len(ids), *rows.shape[1:]), rows.dtype)
            out[missing[hits]] = rows[places[hits]]
            missing = missing[~hits]
        self._parts = remaining_parts
        if out is None:
            return self._draw(ids)
        if len(missing):
            out[missing] = self._draw(ids[missing])
        return out


def _exchange(array: Array, ones: Array, others: Array) -> None:
    """Exchanges items of an array: that at `ones[i]` with that at `others[i]`."""
    moved = array.take(ones, axis=0)
    array[ones] = array.take(others, axis=0)
    array[others] = moved


SHARE = 16
"""The rows in use are moved to the front once the number of updated rows exceeds the number of all rows divided by
this.
"""

_PIECE = 1 << 16


class LargeTable:
    """A large table of `height` ids from 0 on, each with a row of `width` numbers.

    With `any_id` its ids are all 64-bit numbers, int64 with the bits of uint64, whatever the height; the height of a
    part is its share of the rows.

    `folder` is where the file with its numbers is, and `limit` how much memory these may take (default: what
    `rows_on_disk` says, else there is none). A table in a
    file raises DiagnosticError (`table-folder`) where rows are to be added and the disk has no room for them.
    """

    def __init__(
        self,
        height: int,
        width: int,
        initial: Initial,
        *,
        chances: Chances | None = None,
        rules: Rules | None = None,
        dtype: Any = "float32",
        folder: str | None = None,
        limit: MemoryLimit | None = None,
        any_id: bool = False,
    ):
        self.height, self.width, self.dtype, self.any_id = height, width, np.dtype(dtype), any_id
        self.rules = rules or Rules()
        self.initial, self.chances, self._drawn_values = initial, chances, DrawnValues(initial)
        mistake = self.rules.mistake()
        if mistake or (self.rules.enter_chance < 1 and chances is None):
            raise ValueError(mistake or "rows are drawn to enter, but nothing draws them")
        self.states: list[float] = []  # the initial value of each state of a row
        self.updates = self.saved = 0
        self.index = IdIndex()
        self.folder = folder or _FOLDER.get()
        self.limit = limit or _LIMIT.get()
        self._rows = self._no_rows()
        self._last_updates = np.empty(0, np.uint32)
        self._scores = np.empty(0, np.float32)
        self._waiting_ids = WaitingIds()
        self._dropped: list[Array] = []
        self._calls: list[int] = []  # the number of updates at each call of `shrink_after`
        self._pack_update = self._updated_rows = 0
        """The update after which rows in use were last moved to the front, and the number of rows
        updated since then.
        """

    def _no_rows(self) -> MemoryRows | DiskRows:
        dims = 1 + len(self.states), self.width
        if self.folder is None:
            return MemoryRows(dims, self.dtype)
        return DiskRows(self.folder, dims, self.dtype, self.limit)

    @property
    def _numbers(self) -> Array:
        return self._rows.array

    def __len__(self) -> int:
        return self.index.count

    def __repr__(self) -> str:
        return f"<LargeTable of {len(self)} rows x {self.width}, {1 + len(self.states)} numbers each>"

    @property
    def nbytes(self) -> int:
        """The bytes of memory in use, with the room that is kept for further rows, but without the file."""
        numbers = 0 if self.folder is not None else int(self._numbers.nbytes)
        return (
            numbers
            + int(self._last_updates.nbytes + self._scores.nbytes)
            + self.index.nbytes
            + self._waiting_ids.nbytes
        )

    @property
    def dims(self) -> tuple[int, ...]:
        """The dims of a row: 1 + states, width."""
        return self._numbers.shape[1:]

    def add_state(self, value: float) -> int:
        """Adds a state to every row: `width` numbers that are initially `value`. Returns the number of this state.

        Raises ValueError if the table has rows.
        """
        if len(self):
            raise ValueError("a table that has rows can't keep more for each of them")
        self.states.append(value)
        self._rows = self._no_rows()
        return len(self.states)

    @property
    def total_height(self) -> int:
        """The number of rows that the ids of its rows are part of: the height, or, with `any_id`, that of the whole
        table.
        """
        return most_rows(self.width) if self.any_id else self.height

    # reading

    def find(self, ids: Array) -> Array:
        """The place of each row, int64 [n]; -1 if the row does not exist. Raises ValueError for an id outside of the
        table.
        """
        self.require_ids(ids)
        return self.index.find(ids)

    def require_ids(self, ids: Array) -> None:
        """Raises ValueError for an id outside of the table."""
        if not self.any_id and len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= self.height):
            wrong = ids[(ids < 0) | (ids >= self.height)][0]
            raise ValueError(f"Ids holds {int(wrong)}, but the table has ids from 0 to {self.height - 1}")

    def look_up(self, ids: Array) -> Array:
        """The values of rows, [n, width], for `ids` int64 [n] that may repeat.

        Rows that do not exist have their initial values, or 0 if rows do not enter with their first gradient.
        """
        lookup = self.lookup_of(ids)
        if lookup is not None:
            (missing,) = loops.look_up_tables([lookup], threads_of_tables())
            return self.found_rows(lookup, missing)
        return self._look_up(ids)

    def lookup_of(self, ids: Array) -> loops.Lookup | None:
        """A lookup of rows by compiled loops; None if the rows are in a file, or the ids just move to a larger hash
        table.
        """
        entries = self.index.whole
        if entries is None or self.folder is not None:
            return None
        ids = np.ascontiguousarray(ids, np.int64)
        out = np.empty((len(ids), self.width), self.dtype)
        return loops.Lookup(ids, self.index.ids, entries, np.empty(ids.shape, np.int64), self._numbers, out)

    def found_rows(self, lookup: loops.Lookup, missing: int) -> Array:
        """The rows of a lookup that compiled loops have made, of which so many ids are missing (-1: they have not)."""
        if missing < 0:
            return self._look_up(lookup.wanted_ids)
        if missing:
            absent = (lookup.places < 0).nonzero()[0]
            self.require_ids(lookup.wanted_ids[absent])
            lookup.results[absent] = self._unseen(lookup.wanted_ids[absent])
        return lookup.results

    def _look_up(self, ids: Array) -> Array:
        """The rows of a lookup by numpy."""
        out = np.empty((len(ids), self.width), self.dtype)
        places = self.find(ids)
        known = places >= 0
        if known.all():
            return self._rows.values(places)
        there, missing = known.nonzero()[0], (~known).nonzero()[0]
        out[missing] = self._unseen(ids[missing])
        out[there] = self._rows.values(places[there])
        return out

    def _unseen(self, ids: Array) -> Any:
        """What a lookup gives for rows that do not exist."""
        if not self.rules.at_once:
            return 0
        if (ids[1:] > ids[:-1]).all():
            return self._drawn_values.look_up(ids)
        new, back = distinct(ids)
        return self._drawn_values.look_up(new).take(back, axis=0)

    def take(self, places: Array) -> Array:
        """The numbers of rows by place, [n, 1 + states, width], in new memory."""
        return self._rows.take(places)

    # changing

    def enter(self, ids: Array) -> tuple[Array, Array]:
        """Begins an update that has gradients of these rows, int64 [n], each once and in ascending order.

        Returns the places of the rows that exist, and a mask of the ids that have a row (bool [n]).
        """
        self.updates += 1
        return self.enter_more(ids)

    def enter_more(self, ids: Array) -> tuple[Array, Array]:
        """What `enter` gives for further rows of the update that has begun."""
        entries, places, left = self.index.whole, np.empty(len(ids), np.int64), -1
        if entries is not None:
            ids = np.ascontiguousarray(ids, np.int64)
            left = loops.enter_rows(ids, self.index.ids, entries, places, self._last_updates, self.updates)
        if left < 0:
            places = self.find(ids)
        elif left:
            self.require_ids(ids[places < 0])
        elif not self.keeps_scores:
            self._updated_rows += self._rows.count_outside(places)
            return places, np.ones(len(ids), bool)
        new = (places < 0).nonzero()[0]
        if len(new):
            chosen = new[self._may_enter(ids[new])]
            first = self.index.count
            self._add(ids[chosen])
            places[chosen] = np.arange(first, first + len(chosen))
        kept = places >= 0
        places = places[kept] if len(new) else places
        self._last_updates[places] = self.updates
        self._updated_rows += self._rows.count_outside(places)
        if self.keeps_scores:
            self._scores[places] += 1
        return places, kept

    def create_rows(self, ids: Array) -> bool:
        """Creates those rows of an update's ids, int64 [n] that may repeat, that do not exist. Returns whether all
        exist now; False where compiled loops do not find them, or not every id gets a row with its first gradient.
        """
        entries = self.index.whole
        if entries is None or self.folder is not None or self.keeps_scores or not self.rules.at_once:
            return False
        ids = np.ascontiguousarray(ids, np.int64)
        missing = np.empty(ids.shape, np.int64)
        height = None if self.any_id else self.height
        count = loops.missing_ids(ids, self.index.ids, entries, height, missing)
        if count > 0:
            first = self.index.count
            self._add(missing[:count])
            self._last_updates[first : first + count] = self.updates
        return count >= 0

    def held_update(self, update: loops.RowUpdate, ids: Array, value: Array) -> loops.HeldUpdate | None:
        """An update of those rows of these ids that exist, by compiled loops. Ids may repeat, `value` has their
        gradients, and the tables of the update are among `parts`.

        None if an update does more than that.
        """
        entries = self.index.whole
        if entries is None or self.folder is not None or self.keeps_scores:
            return None
        ids = np.ascontiguousarray(ids, np.int64)
        places = np.empty(len(ids), np.int64)
        return loops.HeldUpdate(
            update, ids, value, self.index.ids, entries, self._last_updates, self.updates + 1, places
        )

    def begin_after(self, changed: int) -> None:
        """Begins an update of which compiled loops have already changed so many rows."""
        self.updates += 1
        self._updated_rows += changed

    def parts(self) -> list[Array] | None:
        """The parameters of all rows and then each of their states, [rows, width], as views of the table's memory,
        which may be changed until rows are added; None if the rows are in a file.
        """
        if self.folder is not None:
            return None
        return [self._numbers[: len(self), number] for number in range(1 + len(self.states))]

    def put(self, places: Array, rows: Array) -> None:
        """Sets the numbers [n, 1 + states, width] of the rows at these places."""
        self._rows.put(places, rows)

    def end_update(self) -> None:
        """Ends an update: if it is time, rows leave, or move to the front of the file. Places change then."""
        if self.folder is not None and self._updated_rows > self._most_touched():
            self._pack()
        if self.rules.shrink_every and self.updates % self.rules.shrink_every == 0:
            self.shrink()

    def _most_touched(self) -> int:
        """The number of updated rows after which the rows in use move to the front; with a limit of memory, of those
        that did not lie there.
        """
        most = self.index.count // SHARE
        if self.limit is None:
            return most
        return min(most, max(self._most_in_memory() // 4, self.index.count >> 10))

    def _most_in_memory(self) -> int:
        """The number of rows in use that fit into memory."""
        share = 0 if self.limit is None else self.limit.share
        return share // max(self._numbers[:1].nbytes, 1)

    def _may_enter(self, ids: Array) -> Array:
        """A mask of the ids without a row that enter the table in this update."""
        rules, chosen = self.rules, np.ones(len(ids), bool)
        if rules.enter_chance < 1:
            assert self.chances is not None
            chosen = self.chances(ids, self.updates) < rules.enter_chance
        if rules.enter_after > 1:
            chosen &= self._waiting_ids.count_gradients(ids, self.updates, rules.enter_after)
            self._waiting_ids.leave(ids[chosen])
        return chosen

    def _add(self, ids: Array) -> None:
        first, total = self.index.count, self.index.count + len(ids)
        self._rows.require(total)
        self.index.add(ids)
        drawn = self._drawn_values.take(ids)
        for piece in self._rows.pieces(len(ids), in_order=True):
            new = self._numbers[first + piece.start : first + piece.stop]
            new[:, 0] = drawn[piece]
            for number, value in enumerate(self.states):
                new[:, 1 + number] = value
        self._last_updates = ensure_capacity(self._last_updates, total)
        if self.keeps_scores:
            self._scores = ensure_capacity(self._scores, total)
            self._scores[first:total] = 0

    def _pack(self) -> None:
        """Moves the rows that were updated since the last call to the front, in pieces."""
        seen = self._last_updates[: self.index.count]
        used, most = seen > self._pack_update, self._most_in_memory()
        if self.limit is not None and np.count_nonzero(used) > most:  # the rows that were updated last
            used &= seen > np.partition(seen, len(seen) - most - 1)[len(seen) - most - 1]
        front = int(np.count_nonzero(used))
        away, here = front + used[front:].nonzero()[0], (~used[:front]).nonzero()[0]
        for start in range(0, len(away), _PIECE):
            one, other = away[start : start + _PIECE], here[start : start + _PIECE]
            self._rows.exchange(one, other)
            for array in (self._last_updates, self._scores):
                if len(array):
                    _exchange(array, one, other)
            self.index.exchange(one, other)
        self._rows.keep_front(front)
        self._pack_update, self._updated_rows = self.updates, 0

    # rows that leave

    def shrink(self, unseen: int | None = None, below: float | None = None) -> int:
        """Makes rows leave by the rules, or by other numbers for `drop_unseen` and `drop_below`.
        Returns how many left.
        """
        unseen = self.rules.drop_unseen if unseen is None else unseen
        below = self.rules.drop_below if below is None else below
        count = self.index.count
        stay = np.ones(count, bool)
        if unseen:
            stay &= self._last_updates[:count].astype(np.int64) + unseen >= self.updates
            self._waiting_ids.drop_before(self.updates - unseen)
        if len(self._scores):
            self._scores[:count] *= np.float32(self.rules.score_decay)
            if below:
                stay &= self._scores[:count] >= below
        return self._leave(stay)

    def shrink_after(self, calls: int) -> int:
        """Makes rows leave that had no gradient since the call before the last `calls` - 1 calls. Returns how many
        left.

        With 1 all rows leave, with 2 those without a gradient since the previous call (Fleet 2.x: `shrink`).
        """
        self._calls.append(self.updates)
        if len(self._calls) < calls:
            return 0
        self._waiting_ids.drop_before(self._calls[-calls] + 1)
        return self._leave(self._last_updates[: self.index.count] > self._calls[-calls])

    def _leave(self, stay: Array) -> int:
        left = len(stay) - int(np.count_nonzero(stay))
        if left:
            self._dropped.append(self.index.ids_by_place[~stay])
            self._keep(stay.nonzero()[0])
        return left

    def _keep(self, places: Array) -> None:
        """Keeps the rows at these ascending places and removes all others. The kept rows move to the
        front, in pieces.
        """
        for start in range(0, len(places), _PIECE):
            chunk = places[start : start + _PIECE]
            for piece in self._rows.pieces(len(chunk), each=2):
                here = slice(start + piece.start, start + piece.stop)
                self._numbers[here] = self._numbers.take(chunk[piece], axis=0)
            for array in (self._last_updates, self._scores):
                if len(array):
                    array[start : start + len(chunk)] = array.take(chunk, axis=0)
        self._rows.truncate(len(places))
        for array in (self._last_updates, self._scores):
            array.resize((min(len(places), len(array)),), refcheck=False)
        self.index.keep(places)

    # all rows

    def order(self) -> Array:
        """The places of all rows in ascending order of their ids."""
        return self.index.ids_by_place.argsort()

    @property
    def keeps_scores(self) -> bool:
        """Whether the rules need scores of rows."""
        return self.rules.drop_below > 0

    def field(self, name: str, places: Array) -> Array:
        """The field `ids`, `numbers`, `seen` or `scores` of the rows at these places."""
        if name == "numbers":
            return self._rows.take(places)
        return {"ids": self.index.ids, "seen": self._last_updates, "scores": self._scores}[name].take(places)

    def without_rows(self) -> TableRows:
        """The content of the table apart from its rows."""
        numbers = np.empty((0, *self._numbers.shape[1:]), self.dtype)
        ids, seen, scores = (np.empty(0, dtype) for dtype in (np.int64, np.uint32, np.float32))
        return TableRows(
            ids, numbers, seen, scores, *self._waiting_ids.rows(), self.dropped_ids(), self.updates, self.saved
        )

    def changed_places(self) -> Array:
        """The places of the rows that changed since changed rows were last saved, in ascending order of their ids."""
        order = self.order()
        return order[self._last_updates[order] > self.saved]

    def dropped_ids(self) -> Array:
        """The ids of rows that have left since changed rows were last saved and do not exist again, in
        ascending order.
        """
        if not self._dropped:
            return np.empty(0, np.int64)
        ids = np.unique(np.concatenate(self._dropped))
        return ids[self.index.find(ids) < 0]

    def mark_saved(self) -> None:
        """Records that changed rows have been saved: only later changes count from now on."""
        self.saved = self.updates
        self._dropped.clear()

    def rows(self) -> TableRows:
        """The content of the table, in new memory, in ascending order of ids."""
        return self.without_rows()._replace(**self._fields(self.order()))

    def values(self) -> tuple[Array, Array]:
        """The ids of the rows that exist, in ascending order, and their values [n, width], in new memory."""
        order = self.order()
        return self.index.ids.take(order), self._rows.values(order)

    def _fields(self, places: Array) -> dict[str, Array]:
        names = ("ids", "numbers", "seen", *(("scores",) if self.keeps_scores else ()))
        return {name: self.field(name, places) for name in names}

    def whole(self, number: int = 0) -> Array:
        """The values of all rows, or state `number` of all rows, [height, width]. Rows that do not exist have the
        values that `look_up` gives, and the initial values of states.
        """
        if number == 0 and self.rules.at_once:
            out = self.initial(np.arange(self.height))
        else:
            out = np.full((self.height, self.width), self.states[number - 1] if number else 0, self.dtype)
        for piece in self._rows.pieces(len(self), in_order=True):
            out[self.index.ids_by_place[piece]] = self._numbers[piece, number]
        return out

    def fill(self, whole: Array) -> None:
        """Creates all rows, with these values [height, width] and the initial values of states. Raises ValueError for
        other dims.
        """
        if whole.shape != (self.height, self.width):
            raise ValueError(f"it has dims {list(whole.shape)}, the table {[self.height, self.width]}")
        self.clear()
        self._add(np.arange(self.height))
        for piece in self._rows.pieces(self.height, in_order=True):
            self._numbers[piece, 0] = whole[piece]
        self._last_updates[: self.height] = 0

    def add_rows(self, rows: TableRows) -> None:
        """Adds rows that do not exist yet, with the content that they have in another table. Raises ValueError for rows
        of other dims, or rows that exist.
        """
        if rows.numbers.shape[1:] != self._numbers.shape[1:]:
            have, want = list(rows.numbers.shape[1:]), list(self._numbers.shape[1:])
            raise ValueError(f"a row there is {have}, one of the table is {want}")
        first, total = self.index.count, self.index.count + len(rows.ids)
        if (self.find(rows.ids) >= 0).any():
            raise ValueError("a row is there twice")
        self._rows.require(total)
        self.index.add(rows.ids)
        self._last_updates = ensure_capacity(self._last_updates, total)
        for piece in self._rows.pieces(total - first, in_order=True):
            self._numbers[first + piece.start : first + piece.stop] = rows.numbers[piece]
        self._last_updates[first:total] = rows.seen
        if self.keeps_scores:
            self._scores = ensure_capacity(self._scores, total)
            self._scores[first:total] = rows.scores if len(rows.scores) else 1
        self._waiting_ids.add(rows.waiting, rows.counts)
        if len(rows.dropped):
            self._dropped.append(rows.dropped)
        self.updates, self.saved = max(self.updates, rows.updates), max(self.saved, rows.saved)

    def set_rows(self, ids: Array, numbers: Array, seen: Array | None = None) -> None:
        """Sets the numbers [n, 1 + states, width] or only the values [n, width] of rows, which are created if
        necessary. The ids must be distinct.

        `seen` is the update that last changed each row (default: the latest update).
        """
        places = self.find(ids)
        new = places < 0
        places[new] = self.index.count + np.arange(np.count_nonzero(new))
        self._add(ids[new])
        for piece in self._rows.pieces(len(places)):
            here, given = places[piece], numbers[piece]
            self._numbers[here, : 1 if numbers.ndim == 2 else None] = given[:, None] if numbers.ndim == 2 else given
        self._last_updates[places] = self.updates if seen is None else seen
        self.updates = max(self.updates, int(self._last_updates[places].max(initial=0)))

    def remove(self, ids: Array) -> None:
        """Removes those of these rows that exist."""
        stay = np.ones(self.index.count, bool)
        places = self.find(ids)
        stay[places[places >= 0]] = False
        if not stay.all():
            self._keep(stay.nonzero()[0])

    def clear(self) -> None:
        """Removes all rows, waiting ids and counts."""
        self.__dict__.update(self.like().__dict__)

    def like(self) -> LargeTable:
        """A table of the same kind without rows."""
        more: Any = {"chances": self.chances, "rules": self.rules, "dtype": self.dtype}
        more.update(folder=self.folder, limit=self.limit)
        other = LargeTable(self.height, self.width, self.initial, any_id=self.any_id, **more)
        for value in self.states:
            other.add_state(value)
        return other

    def copy(self) -> LargeTable:
        """A table that shares no memory with this one."""
        other, order, few = self.like(), self.order(), self.without_rows()
        other.add_rows(few)
        few = few._replace(waiting=few.ids, counts=few.counts[:0], dropped=few.ids)
        for at in range(0, len(order), _PIECE):
            other.add_rows(few._replace(**self._fields(order[at : at + _PIECE])))
        return other
