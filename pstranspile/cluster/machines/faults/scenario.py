"""What goes wrong in a run, written down: one line for each thing, steps numbered from 1 (docs/reference/faults.md).

seed 7                                  # of the random choices
delay 0.2 1..40                         # a fifth of all messages takes 1 to 40 ticks longer
drop 0.1                                # is sent again until it arrives
duplicate 0.1
keep 2 in kept                          # servers write their state to files of this folder after every 2 updates
late trainer_1 200                      # starts 200 ticks after the others
slow trainer_2 30                       # takes 30 ticks longer for each step
leave trainer_2 step 5
crash trainer_1 step 3 after 2          # in step 3, when it has sent 2 messages
rejoin trainer_1 step 6
crash pserver_0 step 4 restart 50
partition trainer_0 | pserver_0, pserver_1 from 100 to 300
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

NOTICE = 50
"""The default number of ticks after which the others notice that a machine has crashed."""


class Late(NamedTuple):
    """The trainer starts so many ticks after the others."""

    machine: str
    ticks: int


class Slow(NamedTuple):
    """The trainer takes so many ticks longer for each step."""

    machine: str
    ticks: int


class Leave(NamedTuple):
    """The trainer leaves in good order before the step: its data end."""

    machine: str
    step: int


class Crash(NamedTuple):
    """The machine ends without a word, in a step, when it has sent (a server: taken) `after` messages of that step.
    A server's step is the update that it makes next.

    `notice`: ticks after which the others learn of it, as of a broken connection; None: never. `restart`: ticks after
    which a server is started again; None: never.
    """

    machine: str
    step: int
    after: int = 0
    notice: int | None = NOTICE
    restart: int | None = None


class Rejoin(NamedTuple):
    """The trainer, if it has crashed or left, is started again, and takes part from the step, or as soon as it can."""

    machine: str
    step: int


class Partition(NamedTuple):
    """No message passes between the two sides from a tick to another; `until` None: for ever."""

    one: tuple[str, ...]
    other: tuple[str, ...]
    since: int
    until: int | None = None


Event: TypeAlias = "Late | Slow | Leave | Crash | Rejoin | Partition"


class Scenario(NamedTuple):
    """What goes wrong in a run. `delay`, `drop` and `duplicate` are the chances of each message. Steps count from 1.

    `ticks` are the shortest and the longest delay. `keep` says after how many updates a server's state is kept, to
    which it returns when it is started again; `folder` where, as a file of each server ("": in memory).
    """

    seed: int = 0
    delay: float = 0.0
    ticks: tuple[int, int] = (1, 20)
    drop: float = 0.0
    duplicate: float = 0.0
    keep: int = 1
    folder: str = ""
    events: tuple[Event, ...] = ()

    @property
    def restarts(self) -> bool:
        """Whether a server is started again."""
        return any(isinstance(event, Crash) and event.restart is not None for event in self.events)

    def chance_line(self, name: str) -> str:
        """The line of `delay`, `drop` or `duplicate`."""
        ticks = f" {self.ticks[0]}..{self.ticks[1]}" if name == "delay" else ""
        return f"{name} {getattr(self, name):g}{ticks}"

    def __str__(self) -> str:
        """The text, which `parse_scenario` reads."""
        lines = [f"seed {self.seed}"]
        if self.delay or self.ticks != Scenario().ticks:
            lines.append(self.chance_line("delay"))
        lines += [self.chance_line(name) for name in ("drop", "duplicate") if getattr(self, name)]
        if self.keep != 1 or self.folder:
            lines.append(f"keep {self.keep}" + (f" in {self.folder}" if self.folder else ""))
        return "\n".join([*lines, *map(line_of, self.events)]) + "\n"


def line_of(event: Event) -> str:
    """The line of a scenario that says what happens to machines."""
    if isinstance(event, Late):
        return f"late {event.machine} {event.ticks}"
    if isinstance(event, Slow):
        return f"slow {event.machine} {event.ticks}"
    if isinstance(event, Leave):
        return f"leave {event.machine} step {event.step}"
    if isinstance(event, Rejoin):
        return f"rejoin {event.machine} step {event.step}"
    if isinstance(event, Partition):
        until = "" if event.until is None else f" to {event.until}"
        return f"partition {', '.join(event.one)} | {', '.join(event.other)} from {event.since}{until}"
    text = f"crash {event.machine} step {event.step}"
    if event.after:
        text += f" after {event.after}"
    if event.restart is not None:
        text += f" restart {event.restart}"
    elif event.notice is None:
        text += " unnoticed"
    elif event.notice != NOTICE:
        text += f" notice {event.notice}"
    return text
