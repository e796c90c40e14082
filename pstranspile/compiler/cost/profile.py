"""What a machine needs for a step, in seconds: its profile, in a JSON file that `pstranspile calibrate` writes.

    {
      "version": 1,
      "processors": 8,
      "measured": {"arithmetic": "numpy", "numpy": "2.3.1", "python": "3.12.4", "pstranspile": "0.1.0"},
      "step": 0.00012,
      "update": 0.00015,
      "wake": 6e-05,
      "wake_long": 0.0003,
      "delay": 4e-05,
      "ask": 3e-08,
      "lookup": 2e-08,
      "wire": {
        "message": 2e-06, "message_of_rows": 8e-06, "frame": 3e-05, "byte": 4e-10,
        "latency": 5e-05, "bytes_per_second": 2500000000.0,
        "tls_frame": 1e-05, "tls_byte": 6e-10
      },
      "families": [
        {"family": "products", "call": 2e-06, "operation": 3e-11, "byte": 1e-10, "first": 3e-06, "far": 0.0}
      ],
      "ops": [
        {"op": "mul", "call": 2e-06, "operation": 2e-11, "byte": 9e-11, "first": 5e-06, "far": 5e-11}
      ],
      "crowded_ops": 1.1,
      "crowded": 1.4,
      "sharing": 1.2
    }

An op takes `call` seconds, `operation` for each of its floating-point operations, and `byte` for each byte that it
reads and writes: those of its own, if `ops` has them, or else those of its family. The first op of a kind in a step
takes `first` seconds more, as its code is not in the caches, and `far` for each byte of inputs that are not. A machine
that has slept until a message came needs `wake` seconds more for its turn, up to `wake_long` where it has slept for
long: nothing is in the caches then, and the processor was at rest. All seconds are of one processor, but for the
latency of the link. Where twice as many machines run on a host as it has processors, they find less in the caches: ops
take `crowded_ops` times as long, all else `crowded` times; more with more machines, in proportion.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, NamedTuple, cast

from pstranspile.ir.diagnostics import DiagnosticError, error, name_list
from pstranspile.ir.json_text import describe_json_error, json_text
from pstranspile.ir.model import EMPTY, FrozenMap, Location
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.reading import read_named
from pstranspile.ops.work import FAMILIES, Family

VERSION = 1
"""The version of the format."""

SHORT_SLEEP = 5e-4
"""The seconds of a sleep after which a machine needs `wake`."""

LONG_SLEEP = 8e-3
"""The seconds of a sleep after which a machine needs `wake_long`."""

MOST_BYTES = 1 << 20
"""The largest size of a profile, in bytes."""

TIMED: tuple[Family, ...] = tuple(family for family in FAMILIES if family != "messages")
"""The families whose ops take time by themselves; the time of messages is that of the wire."""


class Rate(NamedTuple):
    """The seconds of an op of a family: for each call, each floating-point operation and each byte that it touches;
    those that the first op of a kind in a step takes besides, and those of each byte that no op has touched lately.
    """

    call: float
    operation: float
    byte: float
    first: float = 0.0
    far: float = 0.0

    def seconds(self, calls: float, operations: float, touched: float, firsts: float = 0.0, far: float = 0.0) -> float:
        """The seconds of so many calls that have these operations and touch these bytes together; so many of the calls
        are the first ones of their kind, and so many of the bytes are `far`.
        """
        near = calls * self.call + operations * self.operation + touched * self.byte
        return near + firsts * self.first + far * self.far


class Wire(NamedTuple):
    """What messages cost.

    `message`, `frame` and `byte` are seconds of a processor for each message, each frame, which carries the messages of
    a turn, and each byte, at either end; `message_of_rows` those that a message with ids, or rows of a table, takes
    besides. `latency` are the seconds from one end of the link to the other, and
    `bytes_per_second` what it carries in each direction. `tls_frame` and `tls_byte` are the seconds of a processor that
    a frame and a byte take besides under TLS, at either end; both are 0 if that was not measured.
    """

    message: float
    message_of_rows: float
    frame: float
    byte: float
    latency: float
    bytes_per_second: float
    tls_frame: float = 0.0
    tls_byte: float = 0.0


class Profile(NamedTuple):
    """What a machine needs for a step, in seconds. A frozen value.

    `families` has the rates of all families of ops but "messages". `step` are the seconds of a trainer's step beside
    its ops and messages, `update` those of a server's update; `ask` those of a trainer for a row that a server looks
    up, `lookup` those of the server. `processors` is how many the host has, `measured` says with what it was measured.
    `crowded_ops` says how many times slower ops are where twice as many machines run on a host as it has processors,
    `crowded` how many times slower all else. `ops` has the rates of ops that were measured by themselves, by the kind
    of `OpCost`. `wake` are the seconds that a machine needs besides for a turn for which it was asleep: it is scheduled
    again, and finds less in the caches; `wake_long` those after a sleep of `LONG_SLEEP` or more. `delay` are the
    seconds, of no processor, until it is scheduled. `sharing` says how many times longer turns take while more of them
    go on than the host has processors than if these were never idle.
    """

    processors: int
    measured: Mapping[str, str]
    step: float
    update: float
    ask: float
    lookup: float
    wire: Wire
    families: Mapping[Family, Rate]
    crowded_ops: float = 1.0
    crowded: float = 1.0
    ops: Mapping[str, Rate] = EMPTY
    wake: float = 0.0
    delay: float = 0.0
    sharing: float = 1.0
    wake_long: float = 0.0

    def __repr__(self) -> str:
        """`<Profile: 8 processors, numpy>`."""
        return f"<Profile: {self.processors} processors, {self.measured.get('arithmetic', 'unknown arithmetic')}>"


def rate_of(families: Mapping[Family, Rate], ops: Mapping[str, Rate], family: Family, kind: str) -> Rate:
    """The rate of ops of a kind, or else of their family; zeros for messages."""
    return ops.get(kind) or families.get(family) or Rate(0.0, 0.0, 0.0)


def crowded(profile: Profile, machines: int, processors: int) -> Profile:
    """The profile of so many machines that run on a host with fewer processors."""
    more = machines / processors - 1.0
    ops, other = (1.0 + more * (factor - 1.0) for factor in (profile.crowded_ops, profile.crowded))
    wire = profile.wire
    named = ("message", "message_of_rows", "frame", "byte", "tls_frame", "tls_byte")
    busy = {name: getattr(wire, name) * other for name in named}
    beside = {name: getattr(profile, name) * other for name in ("step", "update", "ask", "lookup", "wake", "wake_long")}
    families = {family: _slower(rate, ops) for family, rate in profile.families.items()}
    own = {kind: _slower(rate, ops) for kind, rate in profile.ops.items()}
    return profile._replace(**beside, wire=wire._replace(**busy), families=FrozenMap(families), ops=FrozenMap(own))


def _slower(rate: Rate, factor: float) -> Rate:
    return Rate(*(factor * seconds for seconds in rate))


def profile_text(profile: Profile) -> str:
    """The profile as JSON."""
    families = [{"family": family, **profile.families[family]._asdict()} for family in TIMED]
    ops = [{"op": kind, **rate._asdict()} for kind, rate in sorted(profile.ops.items())]
    return json_text(
        {
            "version": VERSION,
            "processors": profile.processors,
            "measured": dict(sorted(profile.measured.items())),
            "step": profile.step,
            "update": profile.update,
            "ask": profile.ask,
            "lookup": profile.lookup,
            "wake": profile.wake,
            "wake_long": profile.wake_long,
            "delay": profile.delay,
            "wire": profile.wire._asdict(),
            "families": families,
            "ops": ops,
            "crowded_ops": profile.crowded_ops,
            "crowded": profile.crowded,
            "sharing": profile.sharing,
        }
    )


def read_profile(path: str) -> Profile:
    """The profile in a file. Raises DiagnosticError (`cost-profile`, `input-unreadable`) with what is wrong."""
    try:
        data = read_named(path, MOST_BYTES)
    except OSError as problem:
        raise DiagnosticError([error("input-unreadable", problem.strerror or str(problem), Location(path))]) from None
    try:
        return _profile(json.loads(data))
    except _Wrong as problem:
        raise DiagnosticError([error("cost-profile", str(problem), Location(path))]) from None
    except (ValueError, RecursionError) as problem:
        raise DiagnosticError([error("cost-profile", describe_json_error(problem), Location(path))]) from None


class _Wrong(ValueError):
    """A file is no profile, for the reason in the message."""


def _profile(held: object) -> Profile:
    if not isinstance(held, dict):
        raise _Wrong("it holds no profile; `pstranspile calibrate` writes one")
    fields = cast("dict[str, Any]", held)
    if fields.get("version") != VERSION:
        raise _Wrong(f"its version is {fields.get('version')!r}; {VERSION} is read")
    processors, measured, families = (fields.get(name) for name in ("processors", "measured", "families"))
    if not isinstance(processors, int) or isinstance(processors, bool) or processors < 1:
        raise _Wrong("`processors` must be a whole number above 0")
    if not isinstance(measured, dict) or not all(
        isinstance(each, str) for each in cast("dict[str, object]", measured).values()
    ):
        raise _Wrong("`measured` must be an object of texts")
    wire = fields.get("wire")
    wire_fields = cast("dict[str, Any]", wire) if isinstance(wire, dict) else {}
    if not isinstance(families, list):
        raise _Wrong("`families` must be a list")
    found = _families(cast("list[object]", families))
    step, update, ask, lookup = _numbers(fields, ("step", "update", "ask", "lookup"), "")
    of_wire = Wire(*_numbers({"tls_frame": 0.0, "tls_byte": 0.0, **wire_fields}, Wire._fields, "wire."))
    said = FrozenMap(cast("dict[str, str]", measured))
    given = {"crowded_ops": 1.0, "crowded": 1.0, "sharing": 1.0, "wake": 0.0, "delay": 0.0, **fields}
    given.setdefault("wake_long", given["wake"])
    of_ops, other, *later = _numbers(given, ("crowded_ops", "crowded", "wake", "delay", "sharing", "wake_long"), "")
    own = _ops(fields.get("ops", []))
    return Profile(processors, said, step, update, ask, lookup, of_wire, found, of_ops, other, own, *later)


_BY_NAME: Mapping[str, Family] = {family: family for family in TIMED}


def _families(held: Iterable[object]) -> Mapping[Family, Rate]:
    result: dict[Family, Rate] = {}
    for each in held:
        fields = cast("dict[str, Any]", each) if isinstance(each, dict) else {}
        name = _BY_NAME.get(str(fields.get("family")))
        if name is None or name in result:
            raise _Wrong(f"{json.dumps(fields.get('family'))[:60]} is no family of ops, or is there twice")
        result[name] = Rate(*_numbers({"first": 0.0, "far": 0.0, **fields}, Rate._fields, f"{name}."))
    missing = [family for family in TIMED if family not in result]
    if missing:
        raise _Wrong(f"families are missing: {name_list(missing, 4)}")
    return FrozenMap(result)


def _ops(held: object) -> Mapping[str, Rate]:
    if not isinstance(held, list):
        raise _Wrong("`ops` must be a list")
    result: dict[str, Rate] = {}
    for each in cast("list[object]", held):
        fields = cast("dict[str, Any]", each) if isinstance(each, dict) else {}
        kind = fields.get("op")
        if not isinstance(kind, str) or kind in result:
            raise _Wrong(f"{json.dumps(kind)[:60]} is no op, or is there twice")
        result[kind] = Rate(*_numbers({"first": 0.0, "far": 0.0, **fields}, Rate._fields, f"{kind[:60]}."))
    return FrozenMap(result)


def _numbers(held: Mapping[str, Any], names: Iterable[str], where: str) -> list[float]:
    result: list[float] = []
    for name in names:
        value = held.get(name)
        least = 1.0 if name in ("bytes_per_second", "sharing") else 0.0
        if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value) or value < least:
            raise _Wrong(f"`{where}{name}` must be a number {'above' if least else 'of at least'} 0")
        result.append(float(value))
    return result


# The link between machines, as it is asked for.


class Link(NamedTuple):
    """A link between machines: the bytes per second in each direction, and the seconds from one end to the other; and
    whether messages go through TLS.
    """

    bytes_per_second: float
    latency: float
    tls: bool = False


_LINK = Pattern(r"([0-9]+(?:\.[0-9]+)?)(k|M|G|T)(b|B)(?:,([0-9]+(?:\.[0-9]+)?)(us|ms|s))?(,tls)?")
_SCALES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def parse_link(text: str, latency: float = 0.0) -> Link:
    """A link as text: `1Gb,200us` is a rate per second, in bits (b) or bytes (B), and a latency; `1Gb,200us,tls` also
    says that messages go through TLS. Without a latency, it has this `latency`. Raises ValueError for another text.
    """
    match = _LINK.fullmatch(text)
    rate = float(match[1]) * _SCALES[match[2]] / (8 if match[3] == "b" else 1) if match is not None else 0.0
    if match is None or rate < 1 or rate > 1e18:
        raise ValueError(f"{text!r} is no link, such as 1Gb,200us or 125MB,tls: a rate per second, a latency, and TLS")
    return Link(rate, float(match[4]) * _UNITS[match[5]] if match[4] else latency, match[6] is not None)


def with_tls(profile: Profile) -> Profile:
    """The profile of a machine whose messages go through TLS. Raises DiagnosticError (`cost-profile`) if it does not
    say what that costs.
    """
    wire = profile.wire
    if not wire.tls_frame and not wire.tls_byte:
        message = "a profile does not say what TLS costs; `pstranspile calibrate` measures it"
        raise DiagnosticError([error("cost-profile", message)])
    guarded = wire._replace(frame=wire.frame + wire.tls_frame, byte=wire.byte + wire.tls_byte)
    return profile._replace(wire=guarded)


# Machines that are slower than their profile, as they are asked for.


SLOW_LINK = ":link"
"""What follows the name of a machine whose link is meant."""

_SLOW = Pattern(r"((?:trainer|pserver)_(?:0|[1-9][0-9]{0,8})(?::link)?)=([0-9]{1,9}(?:\.[0-9]{1,9})?)x")


def parse_slow(texts: Iterable[str]) -> dict[str, float]:
    """Machines, and links, with how many times slower they are: `trainer_3=2x`, `pserver_0:link=10x`. Raises ValueError
    for another text, for one that is named twice, and for a number outside 1e-6 to 1e6.
    """
    result: dict[str, float] = {}
    for text in texts:
        match = _SLOW.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no slow machine, such as trainer_3=2x, pserver_0=1.5x or trainer_3:link=10x")
        if match[1] in result:
            raise ValueError(f"{match[1]} is given twice")
        result[match[1]] = float(match[2])
        require_factor(match[1], result[match[1]])
    return result


def require_factor(name: str, factor: float) -> None:
    """Raises ValueError for a number that can't say how many times slower a machine is."""
    if not 1e-6 <= factor <= 1e6:
        raise ValueError(f"{name} can't be {factor:g} times as slow; give a number from 1e-6 to 1e6")


# A machine that crashes, as it is asked for.


class Crash(NamedTuple):
    """A machine that crashes, and what decides on its cost.

    `restart` are the seconds until its process runs again, `lease` those after which a trainer that was not heard is
    given up. A server writes its state every `state_every` updates. A job without servers has a checkpoint every
    `checkpoint_every` steps (0: none).
    """

    machine: str
    restart: float = 5.0
    lease: float = 30.0
    state_every: int = 20
    checkpoint_every: int = 0


_CRASH = Pattern(r"((?:trainer|pserver)_(?:0|[1-9][0-9]{0,8}))((?:,[a-z_]+=[0-9]{1,9}(?:\.[0-9]{1,9})?s?)*)")


def parse_crash(text: str) -> Crash:
    """A crash as text: `pserver_0`, `trainer_1,restart=2s,lease=10s`, `trainer_0,checkpoint_every=100`. Raises
    ValueError for another text.
    """
    match = _CRASH.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no crash, such as pserver_0 or trainer_1,restart=2s,lease=10s")
    given: dict[str, Any] = {}
    for part in match[2].split(",")[1:]:
        name, _, value = part.partition("=")
        if name not in Crash._fields[1:] or name in given:
            raise ValueError(
                f"{text!r}: {name} is {'given twice' if name in given else 'unknown'}; a crash has "
                f"{', '.join(Crash._fields[1:])}"
            )
        if name in ("restart", "lease"):
            given[name] = float(value.removesuffix("s"))
        elif not value.isdigit() or (name == "state_every" and not int(value)):
            raise ValueError(f"{text!r}: {name} is a whole number{' above 0' if name == 'state_every' else ''}")
        else:
            given[name] = int(value)
    return Crash(match[1], **given)


# The profiles of a job's machines.


class Profiles(NamedTuple):
    """The profiles of a job's trainers and servers."""

    trainers: Profile
    servers: Profile


def profile_files(text: str) -> tuple[str, str]:
    """The files of trainers and servers that a text names: `host.json`, or `trainers=gpu.json,servers=cpu.json`.

    Raises ValueError for a text that names a kind of machines twice, or only one.
    """
    if not text.startswith(("trainers=", "servers=")):
        return text, text
    named: dict[str, str] = {}
    for part in text.split(","):
        kind, equals, path = part.partition("=")
        if kind not in Profiles._fields or not equals or not path or kind in named:
            raise ValueError(f"{text!r}: name a file, or trainers=FILE,servers=FILE")
        named[kind] = path
    if len(named) != len(Profiles._fields):
        raise ValueError(f"{text!r}: name a file, or trainers=FILE,servers=FILE")
    return named["trainers"], named["servers"]


def read_profiles(text: str) -> Profiles:
    """The profiles in the files that a text names. Raises DiagnosticError as `read_profile` does, and ValueError as
    `profile_files`.
    """
    of_trainers, of_servers = profile_files(text)
    return Profiles(read_profile(of_trainers), read_profile(of_servers))
