"""What a process of a job tells: reports to the process that started it, as lines of JSON on a pipe; and lines on
stderr about the events of a machine, such as the processes that it refuses, and what it can't do.

Other processes decide on texts in the lines on stderr, and on their number. So each message is printed as one line,
control characters are escaped, and of many similar lines only some are printed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TextIO
from weakref import WeakSet

from pstranspile.ir.diagnostics import visible

# Lines on stderr about the events of a machine.


MOST = 4000
"""The most characters of a line."""

AT_ONCE = 20
"""The most lines that are printed at once."""

SECONDS = 10.0
"""Seconds between two lines after that; a line says how many were omitted before it."""


def print_machine_message(role: str, text: str) -> None:
    """Prints a line about the machine `role`."""
    print(f"pstranspile start: {visible(role)}: {visible(text, MOST)}", file=sys.stderr, flush=True)


class RateLimitedPrinter:
    """Prints lines about the machine `role`, at a limited rate, as others can cause any number. `clock` gives
    seconds.
    """

    def __init__(self, role: str, clock: Callable[[], float]):
        self._role, self._clock = role, clock
        self._room, self._last_look = float(AT_ONCE), clock()
        self._left_out = 0

    def __call__(self, text: str) -> None:
        """Prints a line, or counts it as omitted if there were too many."""
        now = self._clock()
        self._room = min(self._room + (now - self._last_look) / SECONDS, float(AT_ONCE))
        self._last_look = now
        if self._room < 1.0:
            self._left_out += 1
            return
        self._room -= 1.0
        more = f" ({self._left_out} lines like this were left out)" if self._left_out else ""
        self._left_out = 0
        print_machine_message(self._role, text + more)


# Fetched values for display: a few numbers are shown one by one; of more, the smallest, the mean and the largest.

FEW = 4
"""The most numbers that are shown one by one."""


class DisplayedValue(NamedTuple):
    """The displayed form of a value, or of the values of several trainers together.

    `form` is "" for a number, else element type and dims: `f32[20, 3]`. `numbers` are those of a value with at most
    `FEW`; `low`, `mean` and `high` are of all numbers, or None where there are none.
    """

    form: str
    numbers: tuple[float, ...] = ()
    low: float | None = None
    mean: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        """`0.25`, `f32[2, 1]: 0.25 0.5`, `f32[20, 3] min 0.1 mean 0.25 max 0.4`, or `min 0.1 mean 0.25 max 0.4`."""
        if self.numbers:
            return (f"{self.form}: " if self.form else "") + " ".join(f"{number:.6g}" for number in self.numbers)
        if self.mean is None:
            return self.form
        return f"{self.form} min {self.low:.6g} mean {self.mean:.6g} max {self.high:.6g}".lstrip()


NOTHING = DisplayedValue("no rows")
"""The displayed form for a trainer that was fed no rows."""


def displayed_value(value: Any) -> DisplayedValue:
    """The displayed form of one fetched value: an array, a LoDTensor, SelectedRows or anything else; None: there were
    no rows.
    """
    if value is None:
        return NOTHING
    import numpy as np

    from pstranspile.runtime.run.feeds import describe, is_number, numbers_of

    numbers = numbers_of(value)
    if numbers is None or numbers.dtype.kind not in "biuf" or not numbers.size:
        return DisplayedValue(describe(value))
    few = tuple(map(float, numbers.ravel())) if numbers.size <= FEW else ()
    with np.errstate(all="ignore"):  # the mean of infinity and its negative is NaN
        extent = float(numbers.min()), float(numbers.mean(dtype="float64")), float(numbers.max())
    return DisplayedValue("" if is_number(value) else describe(value), few, *extent)


def merge_displayed_values(values: Iterable[DisplayedValue]) -> DisplayedValue:
    """The displayed form of the values of one name on several trainers."""
    known = [value for value in values if value is not NOTHING] or [NOTHING]
    forms = list(dict.fromkeys(value.form for value in known if value.form))
    form = forms[0] + (" ..." if len(forms) > 1 else "") if forms else ""
    means = [value.mean for value in known if value.mean is not None]
    if not means:
        return DisplayedValue(form)
    low = min(value.low for value in known if value.low is not None)
    high = max(value.high for value in known if value.high is not None)
    return DisplayedValue(form, (), low, sum(means) / len(means), high)


def values_text(values: Mapping[str, DisplayedValue], prefix: str = "") -> str:
    """`loss 0.25  accuracy 0.9`, each name after the prefix."""
    return "  ".join(f"{prefix}{visible(name)} {value}" for name, value in values.items())


def numbers_first(values: Mapping[str, DisplayedValue]) -> dict[str, DisplayedValue]:
    """The values, single numbers first, for lines whose end may be cut off."""
    return dict(sorted(values.items(), key=lambda item: item[1].form != ""))


STATUS = "PSTRANSPILE_STATUS"
"""The environment variable with the number of the pipe to write reports to."""

PARENT = "PSTRANSPILE_PARENT"
"""The environment variable that says whether stdin ends when the parent does."""

WATCHED = "PSTRANSPILE_WATCHED"
"""The environment variable that says whether the parent displays the process at work."""

WAITING = "waiting"
"""The state of a process that waits for others."""

TRAINING = "training"
"""The state of a trainer in its steps."""

SERVING = "serving"
"""The state of a server that takes messages."""

DONE = "done"
"""The state of a process whose part is done."""


class StatusPipe:
    """Sends reports to the parent, if there is one."""

    def __init__(self) -> None:
        number = os.environ.get(STATUS, "")
        self._lock = threading.Lock()
        self.watched = os.environ.get(WATCHED) == "1"
        """Whether the parent wants more than steps and states."""
        self.last_reports: dict[str, Any] = {}
        """The last value of each field."""
        self._stream: TextIO | None = os.fdopen(int(number), "w", buffering=1) if number.isdecimal() else None
        self.has_reader: bool = self._stream is not None
        """Whether a parent has started this process and shows its reports to the user."""
        self._waits: Callable[[], Sequence[str]] = tuple
        if self._stream is not None:
            os.set_inheritable(self._stream.fileno(), False)
            _OPEN.add(self)

    def leave(self) -> None:
        """Lets go of the pipe in a process that was forked from this one, which may live longer than this one."""
        if self._stream is not None:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self._stream.fileno(), inheritable=False)  # the stream itself may be in use by a thread
            os.close(nothing)

    def ask_for_waits(self, waits: Callable[[], Sequence[str]]) -> None:
        """Sets the function that any thread may call to find out what the process waits for."""
        self._waits = waits

    def waits(self) -> Sequence[str]:
        """A sentence for each present wait of the process, as far as another thread can see it."""
        try:
            return self._waits()
        except (RuntimeError, LookupError):  # the machines have changed meanwhile, so nothing waits
            return ()

    def __call__(self, **fields: Any) -> None:
        """Sends one line, from any thread, with the seconds of CPU used and the time. Does nothing if the parent is
        gone, as this process then ends anyway.
        """
        fields["cpu"] = round(time.process_time(), 4)
        fields["clock"] = time.perf_counter()  # of several reports that are read at one moment, the order in time
        self.last_reports = {**self.last_reports, **fields}
        if self._stream is None:
            return
        line = json.dumps(fields, separators=(",", ":")) + "\n"
        try:
            with self._lock:
                self._stream.write(line)
        except OSError:
            self._stream = None


_OPEN: WeakSet[StatusPipe] = WeakSet()


def _leave_all() -> None:
    for pipe in list(_OPEN):
        pipe.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all)


AGAIN = 10.0
"""Seconds after which a process that still runs after its parent's end is sent the signal again."""


def end_with_parent() -> None:
    """Ends this process as by SIGTERM when its stdin is closed, in whatever way the parent ends.

    The pipe moves to another descriptor: whoever reads stdin, as a function that makes batches may, finds it empty.
    """
    if os.environ.get(PARENT) != "1":
        return
    parent, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def watch() -> None:
        while os.read(parent, 1024):
            pass
        while True:  # repeated, as an exception from a signal handler is lost in a finalizer
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(AGAIN)

    threading.Thread(target=watch, daemon=True).start()
