"""The job: how many machines, where they are, and how they work together.

A Job holds what Fluid spreads over `DistributeTranspilerConfig` and the arguments of `transpile`, under the same names,
checked once and consistent from then on. The mode of distribution is worked out here and nowhere else: every later
stage reads `job.mode`.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, cast

from pstranspile.compiler.job.modes import (
    CONFIG_MODES,
    PARTICULAR,
    derive_mode,
    flag_conflicts,
    mode_names,
    resolved_flags,
    settings_of,
)
from pstranspile.ir.argument_checks import is_whole, suggesting
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, nearest, warning, wrong_codes
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.table_rules import parse_table

__all__ = ["Job", "JobError", "job_warnings"]

# The machines of a job: their numbers, and their addresses `host:port` in canonical form.

FIRST_PORT = 6174
"""The port of the first parameter server when only their number is given (Fluid's default port)."""

LAST_PORT = 65535

LONGEST = 300
"""The most characters of an endpoint; the name of a host has 253 at most."""

MAX_MACHINES = 10_000
"""The most trainers, and the most servers, of a job. More are assumed to be a mistake, as every machine has its own
programs.
"""

_HOST = Pattern(r"[^\s:/,\[\]\"'%]+")


def parse_endpoint(text: str) -> str:
    """One endpoint, trimmed and in canonical spelling (`10.0.0.1:6174`, `[::1]:6174`).

    Raises ValueError with a sentence on the mistake: not `host:port`, a port outside 1..65535, an
    IPv6 address without brackets.
    """
    trimmed = text.strip()
    if len(trimmed) > LONGEST:
        raise ValueError(f"{trimmed[:40]!r}... is too long for host:port")
    host, colon, port = trimmed.rpartition(":")
    scheme, is_url, address = trimmed.partition("://")
    if is_url:
        instead = f"; did you mean {address.split('/')[0]}?" if scheme.isalpha() and address.strip("/") else ""
        raise ValueError(f"{trimmed!r} is a URL; write host:port{instead}")
    if not trimmed:
        raise ValueError("an endpoint is empty; write host:port")
    if not colon and _HOST.fullmatch(trimmed):
        raise ValueError(f"{trimmed!r} lacks its port: write host:port; did you mean {trimmed}:{FIRST_PORT}?")
    if not colon or not host or not port:
        raise ValueError(f"{trimmed!r} is not of the form host:port")
    if host.startswith("[") and host.endswith("]"):
        host = f"[{_ipv6(host[1:-1], trimmed)}]"
    elif ":" in host and (joined := _comma_separated(trimmed)):
        raise ValueError(f"{trimmed!r}: endpoints are separated by commas; write {joined}")
    elif ":" in host:
        raise ValueError(f"{trimmed!r}: an IPv6 address stands in brackets, as in [::1]:{FIRST_PORT}")
    elif not _HOST.fullmatch(host):
        raise ValueError(f"{trimmed!r}: {host!r} is not a host name")
    if not (port.isascii() and port.isdigit()):
        raise ValueError(f"{trimmed!r}: the port {port!r} is not a number")
    if not 1 <= int(port[:9]) <= LAST_PORT or len(port) > 9:
        raise ValueError(f"{trimmed!r}: the port {port} is outside 1..{LAST_PORT}")
    return f"{host}:{int(port)}"


def _comma_separated(text: str) -> str:
    """The endpoints in a text that are separated by something other than commas, joined by commas; "" if the text is no
    such list.
    """
    parts = [part for part in re.split(r"[;|\s]+", text) if part]
    names = all(re.fullmatch(r"[^:]+:[0-9]+", part) for part in parts)
    return ",".join(parts) if len(parts) > 1 and names else ""


def _ipv6(address: str, whole: str) -> str:
    import ipaddress  # only addresses in brackets need it

    try:
        return str(ipaddress.IPv6Address(address))
    except ValueError:
        raise ValueError(f"{whole!r}: {address!r} is not an IPv6 address") from None


def duplicates(endpoints: Iterable[str]) -> tuple[str, ...]:
    """The endpoints that occur again, in order; host names are compared without regard to case."""
    seen: set[str] = set()
    names: list[str] = []
    for endpoint in endpoints:
        key = endpoint.lower()
        if key in seen:
            names.append(endpoint)
        seen.add(key)
    return tuple(names)


def local_endpoints(count: int, first_port: int = FIRST_PORT) -> tuple[str, ...]:
    """`count` endpoints on this machine, on consecutive ports.

    Raises ValueError when the count is not positive or the ports run out.
    """
    if count < 1:
        raise ValueError(f"{count} machines; there must be at least 1")
    if first_port + count - 1 > LAST_PORT:
        raise ValueError(
            f"{count} machines do not fit on one: ports {first_port}..{LAST_PORT} give {LAST_PORT - first_port + 1}"
        )
    return tuple(f"127.0.0.1:{first_port + i}" for i in range(count))


def describe_value(value: object) -> str:
    """A short description of a value, however large or deeply nested it is."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, list | tuple | dict):
        held = cast("Sequence[object] | dict[object, object]", value)
        return f"{'a table' if isinstance(value, dict) else 'a list'} of {len(held)}"
    text = repr(value[:60]) if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def endpoints_of(key: str, value: object, findings: list[Diagnostic]) -> tuple[str, ...]:
    """The endpoints in a value of `pservers` or `trainer_endpoints`; errors are added to `findings`."""
    if value is None:
        return ()
    value = _count_if_number(value)
    if isinstance(value, int):
        if key != "pservers":
            message = f"{key} takes host:port, not a number"
            findings.append(error("job-type", message, focus=key))
            return ()
        if not 1 <= value <= MAX_MACHINES:
            limit = "at least 1" if value < 1 else f"at most {MAX_MACHINES}"
            findings.append(error("job-value", f"{key} is {describe_value(value)}; it must be {limit}", focus=key))
            return ()
        return local_endpoints(value)
    texts: Sequence[str] = value.split(",") if isinstance(value, str) else value  # type: ignore[assignment]
    if isinstance(value, str) and not value.strip():
        texts = ()
    if len(texts) > MAX_MACHINES:
        message = f"{key} lists {len(texts)} endpoints; it must be at most {MAX_MACHINES}"
        findings.append(error("job-value", message, focus=key))
        return ()
    parsed: list[str] = []
    for text in texts:
        try:
            parsed.append(parse_endpoint(text))
        except ValueError as problem:
            alone = key != "trainer_endpoints" and len(texts) == 1 and ":" not in text and text.strip()
            sentence = (
                f"{describe_value(text.strip())} is neither a number nor of the form host:port" if alone else problem
            )
            if alone and _HOST.fullmatch(text.strip()) and not re.match("[-+.0-9]", text.strip()):
                sentence = f"{sentence}; did you mean {text.strip()}:{FIRST_PORT}?"
            findings.append(error("job-endpoint", f"{key}: {sentence}", focus=key))
    for endpoint in dict.fromkeys(duplicates(parsed)):
        message = f"{key}: {endpoint} stands there twice; every machine needs an address of its own"
        findings.append(error("job-endpoint", message, focus=key))
    return tuple(parsed)


def _count_if_number(value: object) -> object:
    return int(value) if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,4000}\s*", value) else value


def trainers_of(given: Mapping[str, object], findings: list[Diagnostic]) -> tuple[int, tuple[str, ...]]:
    """The number of trainers and their endpoints, where these are known."""
    value = given.get("trainers", 1 if "trainer_endpoints" not in given else None)
    listed = endpoints_of("trainer_endpoints", given.get("trainer_endpoints"), findings)
    value = _count_if_number(value)
    if isinstance(value, int):
        if not 1 <= value <= MAX_MACHINES:
            limit = "at least 1" if value < 1 else f"at most {MAX_MACHINES}"
            findings.append(
                error("job-value", f"trainers is {describe_value(value)}; it must be {limit}", focus="trainers")
            )
        if listed and len(listed) != value:
            message = f"trainers is {value}, but trainer_endpoints lists {len(listed)}"
            findings.append(error("job-conflict", message, focus="trainer_endpoints"))
        return value, listed
    if value is None:
        return len(listed), listed
    endpoints = endpoints_of("trainers", value, findings)
    if not endpoints and not any(d.focus == "trainers" for d in findings):
        findings.append(error("job-value", "trainers is empty; there must be at least 1", focus="trainers"))
    if listed and listed != endpoints:
        message = "trainers and trainer_endpoints list different endpoints"
        findings.append(error("job-conflict", message, focus="trainer_endpoints"))
    return len(endpoints), endpoints


COST = "cost"
"""The `split_method` that cuts and places parameters so that the busiest server moves as few bytes as possible."""

SPLIT_METHODS = ("RoundRobin", "HashName", COST)
"""The built-in ways to choose a server for a slice; a user's own dispatcher is named `module:Class`."""

DISTRIBUTED_TABLES = ("modulo", "rows")
"""The ways to distribute tables marked `is_distributed`.

`modulo`, as Fluid does: one table, row i on server i modulo servers, updated by sgd. `rows`: any number of tables, cut
into ranges of rows like other sparse tables, updated as the program says.
"""


class JobError(DiagnosticError):
    """The job can't be used. The `focus` of each finding is the key concerned."""


@suggesting
@dataclass(frozen=True, init=False)
class Job:
    """A cluster and the choices of its distribution. Frozen, checked, every value filled in.

    `pservers` are endpoints in order of their index. `trainers` is the number of trainers, `trainer_endpoints` their
    endpoints (empty where only the number was given, in modes with servers). `mode` is one of
    `pstranspile.compiler.job.modes.mode_names()`. `batch_rows` are the rows of a trainer's batch, `id_counts` is a file
    of counts of ids, and `server_memory` the MiB that a server has for variables (0: any number), which `split_method`
    `cost` takes into account. The other fields are those of Fluid's configuration, with its defaults; the switches that
    choose a mode (`sync_mode`, `half_async`, ...) agree with `mode`.
    """

    pservers: tuple[str, ...]
    trainers: int
    mode: str
    trainer_endpoints: tuple[str, ...]
    sync_mode: bool
    slice_var_up: bool = True
    split_method: str = "RoundRobin"
    min_block_size: int = 8192
    distributed_table: str = "modulo"
    large_tables: tuple[str, ...] = ()
    batch_rows: int = 512
    id_counts: str = ""
    server_memory: int = 0
    enable_dc_asgd: bool = False
    runtime_split_send_recv: bool
    half_async: bool
    completely_not_async: bool
    geo_sgd_mode: bool
    geo_sgd_need_push_nums: int = 100
    collective_mode: str | None
    nccl_comm_num: int = 1
    use_hierarchical_allreduce: bool = False
    hierarchical_allreduce_inter_nranks: int = 0
    wait_port: bool = True
    strict: bool = False
    allow: tuple[str, ...] = ()
    trainer_id: int = 0
    current_endpoint: str = ""

    def __init__(
        self,
        pservers: str | int | Sequence[str] | None = None,
        trainers: str | int | Sequence[str] | None = None,
        *,
        mode: str | None = None,
        trainer_endpoints: str | Sequence[str] | None = None,
        sync_mode: bool | None = None,
        slice_var_up: bool | None = None,
        split_method: str | None = None,
        min_block_size: int | None = None,
        distributed_table: str | None = None,
        large_tables: str | Sequence[str] | None = None,
        batch_rows: int | None = None,
        id_counts: str | None = None,
        server_memory: int | None = None,
        enable_dc_asgd: bool | None = None,
        runtime_split_send_recv: bool | None = None,
        half_async: bool | None = None,
        completely_not_async: bool | None = None,
        geo_sgd_mode: bool | None = None,
        geo_sgd_need_push_nums: int | None = None,
        collective_mode: str | None = None,
        nccl_comm_num: int | None = None,
        use_hierarchical_allreduce: bool | None = None,
        hierarchical_allreduce_inter_nranks: int | None = None,
        wait_port: bool | None = None,
        strict: bool | None = None,
        allow: str | Sequence[str] | None = None,
        trainer_id: int | None = None,
        current_endpoint: str | None = None,
    ) -> None:
        """None stands for a value that is not given: it then follows from the others, or is Fluid's default.

        `pservers` and `trainers` take a number, a list of endpoints or a comma-separated string of them; a number of
        servers means 127.0.0.1:6174, 6175 and so on. `mode` takes a mode's own name (`sync`, `geo`, ...) or Fluid's
        `pserver`, `nccl2`, `collective`, which leave the rest to the switches.

        Raises JobError with every value that is wrong, by key.
        """
        given = {name: _number(value) for name, value in locals().items() if name != "self" and value is not None}
        for name, value in _resolve(given).items():
            object.__setattr__(self, name, value)

    def __str__(self) -> str:
        """The job as a TOML file, which `load_job` reads: machines, mode, and what is not at its default."""
        own = self.trainer_endpoints not in ((), local_endpoints(self.trainers))
        left_out = {"pservers"} if not self.pservers else set[str]()
        left_out.add("trainers" if own else "trainer_endpoints")
        usual = {**DEFAULTS, **resolved_flags(self.mode, {"mode": self.mode})}
        values = {key: value for key, value in self.as_dict().items() if key not in left_out}
        usual = {key: _plain(value) for key, value in usual.items()}
        differing = {key: value for key, value in values.items() if key not in usual or value != usual[key]}
        return "\n".join(f"{key} = {_toml(value)}" for key, value in differing.items())

    def as_dict(self) -> dict[str, Any]:
        """Every value by key, in the order of the fields, tuples as lists."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


def _number(value: object) -> object:
    """Integers of other types than `int`, such as numpy's, as `int`; other values as they are."""
    return value if isinstance(value, int) or not is_whole(value) else operator.index(cast("Any", value))


def _toml(value: object) -> str:
    """A value of a job in TOML: texts and lists of texts are written as in JSON."""
    return json.dumps(value, ensure_ascii=False)


def _plain(value: object) -> object:
    return [*value] if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownVariableType]


DEFAULTS: Mapping[str, Any] = {f.name: f.default for f in fields(Job) if f.default is not MISSING}
"""The defaults of the keys that do not take part in choosing the mode: Fluid's own."""

KEYS: tuple[str, ...] = tuple(f.name for f in fields(Job))
"""Every key of a job."""

BOOLEANS = frozenset(f.name for f in fields(Job) if f.type == "bool")
STRINGS = frozenset(f.name for f in fields(Job) if f.type in ("str", "str | None"))
LISTS: Mapping[str, str] = {"allow": "codes of findings", "large_tables": "names of tables, each with its rules"}
"""The keys whose values are lists of texts (or one text, separated by commas), and the meaning of these."""
INTEGERS: Mapping[str, tuple[int, int]] = {
    "min_block_size": (1, 2**63 - 1),
    "batch_rows": (1, 2**31 - 1),
    "server_memory": (0, 2**43),
    "geo_sgd_need_push_nums": (1, 2**31 - 1),
    "nccl_comm_num": (1, 1024),
    "hierarchical_allreduce_inter_nranks": (0, 2**31 - 1),
    "trainer_id": (0, 2**31 - 1),
}
"""The keys whose values are numbers, with the smallest and the largest valid ones."""


def _resolve(given: Mapping[str, object]) -> dict[str, Any]:
    """The value of every field. Raises JobError with all mistakes."""
    if result := [*_type_errors(given)]:
        raise JobError(result)
    values: dict[str, Any] = {**DEFAULTS, **given}
    result += _range_errors(values)
    mode, errors = derive_mode(given)
    result += (error("job-conflict", d.message, focus=d.key) for d in errors)
    for key in LISTS:
        listed = cast("str | Sequence[str]", values[key])
        items = listed.split(",") if isinstance(listed, str) else listed
        values[key] = tuple([item.strip() for item in items if item.strip()])
    result += wrong_codes(values["allow"], "allow")
    result += _table_errors(values["large_tables"])
    current = endpoints_of("current_endpoint", values["current_endpoint"] or None, result)
    pservers = endpoints_of("pservers", given.get("pservers"), result)
    count, trainer_endpoints = trainers_of(given, result)
    if mode is None or result:
        raise JobError(result)
    result += (error("job-conflict", d.message, focus=d.key) for d in flag_conflicts(mode, given))
    if "trainers" in given and not trainer_endpoints and not settings_of(mode).servers:
        trainer_endpoints = local_endpoints(count)
    values |= resolved_flags(mode, given)
    values |= {"mode": mode, "pservers": pservers, "trainers": count, "trainer_endpoints": trainer_endpoints}
    values["current_endpoint"] = current[0] if current else ""
    result += _cluster_errors(values)
    if result:
        raise JobError(result)
    return {f.name: values[f.name] for f in fields(Job)}


def _type_errors(given: Mapping[str, object]) -> Iterable[Diagnostic]:
    for key, value in given.items():
        want = _wanted_type(key, value)
        if want == "strings":
            items = cast("Sequence[object]", value)
            at = next(place for place, item in enumerate(items, 1) if not isinstance(item, str))
            message = f"{key} takes strings, but number {at} of its {len(items)} is {_with_type(items[at - 1])}"
            yield error("job-type", message, focus=key)
        elif want:
            yield error("job-type", f"{key} takes {want}, not {_with_type(value)}", focus=key)


def _wanted_type(key: str, value: object) -> str | None:
    """The expected type of a key in words, if the value has another type; else None."""
    if key in BOOLEANS:
        return None if isinstance(value, bool) else "true or false"
    if key in INTEGERS:
        return None if isinstance(value, int) and not isinstance(value, bool) else "a whole number"
    if key in STRINGS:
        return None if isinstance(value, str) else "a string"
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        return None if all(isinstance(item, str) for item in items) else "strings"
    if key in LISTS and not isinstance(value, str):
        return LISTS[key]
    if isinstance(value, bool) or not isinstance(value, str | int):
        return "a number, a list of endpoints or a comma-separated string of them"
    return None


def _with_type(value: object) -> str:
    return f"{describe_value(value)} ({type(value).__name__})"


def _range_errors(values: Mapping[str, Any]) -> Iterable[Diagnostic]:
    for key, (least, most) in INTEGERS.items():
        if not least <= values[key] <= most:
            limit = f"at least {least}" if values[key] < least else f"at most {most}"
            yield error("job-value", f"{key} is {describe_value(values[key])}; it must be {limit}", focus=key)
    names = tuple(dict.fromkeys((*mode_names(), *CONFIG_MODES)))
    if values.get("mode") is not None and values["mode"] not in names:
        yield error("job-value", _unknown_value_message("mode", values["mode"], names), focus="mode")
    if values["distributed_table"] not in DISTRIBUTED_TABLES:
        message = _unknown_value_message("distributed_table", values["distributed_table"], DISTRIBUTED_TABLES)
        yield error("job-value", message, focus="distributed_table")
    method = values["split_method"]
    module, colon, name = method.partition(":")
    own = colon and all(part.isidentifier() for part in [*module.split("."), name])
    if method not in SPLIT_METHODS and not own:
        message = _unknown_value_message("split_method", method, (*SPLIT_METHODS, "module:Class"))
        yield error("job-value", message, focus="split_method")


def _table_errors(tables: Sequence[str]) -> Iterable[Diagnostic]:
    names: set[str] = set()
    for text in tables:
        try:
            name, _ = parse_table(text)
        except ValueError as problem:
            yield error("job-value", f"large_tables: {problem}", focus="large_tables")
            continue
        if name in names:
            yield error("job-value", f"large_tables names {name} twice", focus="large_tables")
        names.add(name)


def _unknown_value_message(key: str, value: str, names: Sequence[str]) -> str:
    near = nearest(value[:60].lower(), [n.lower() for n in names])
    hint = next((f" (did you mean {n}?)" for n in names if n.lower() == near), "")
    return f"{key} is {describe_value(value)}; it takes {', '.join(names[:-1])} or {names[-1]}{hint}"


def _cluster_errors(values: Mapping[str, Any]) -> Iterable[Diagnostic]:
    mode, trainers = values["mode"], values["trainers"]
    if values["trainer_id"] >= trainers:
        message = f"trainer_id is {values['trainer_id']}; trainers is {trainers}, numbered from 0"
        yield error("job-value", message, focus="trainer_id")
    if settings_of(mode).servers:
        if not values["pservers"]:
            message = f"pservers: mode {mode} needs at least one parameter server; none is given"
            yield error("job-missing", message, focus="pservers")
        shared = duplicates([*values["pservers"], *values["trainer_endpoints"]])
        if shared:
            message = f"trainers: {shared[0]} is also the address of a parameter server"
            yield error("job-endpoint", message, focus="trainers")
        return
    if values["pservers"]:
        yield error("job-conflict", f"pservers: mode {mode} has no parameter servers", focus="pservers")
    if not values["trainer_endpoints"]:
        message = f"trainers: mode {mode} needs the trainers, as a number or as endpoints; none are given"
        yield error("job-missing", message, focus="trainers")
    current = values["current_endpoint"]
    if current and values["trainer_endpoints"] and current not in values["trainer_endpoints"]:
        message = f"current_endpoint: {current} is none of the trainers ({', '.join(values['trainer_endpoints'])})"
        yield error("job-value", message, focus="current_endpoint")
    ranks = values["hierarchical_allreduce_inter_nranks"]
    if values["use_hierarchical_allreduce"] and (ranks < 2 or trainers <= ranks or trainers % ranks):
        key = "hierarchical_allreduce_inter_nranks"
        message = (
            f"{key} is {ranks}; use_hierarchical_allreduce needs a number of at least 2 that is "
            f"smaller than the number of trainers ({trainers}) and divides it"
        )
        yield error("job-value", message, focus=key)


def job_warnings(job: Job) -> tuple[Diagnostic, ...]:
    """Warnings about settings that have no effect in the job's mode, so that none is ignored silently."""
    options = settings_of(job.mode).options
    result = [
        warning("job-unused", f"{key} has no effect in mode {job.mode}", focus=key)
        for key in PARTICULAR
        if key not in options and getattr(job, key) != DEFAULTS[key]
    ]
    if "server_memory" in options and job.server_memory and job.split_method != COST:
        message = f'server_memory has an effect with split_method = "{COST}" alone, and it is {job.split_method}'
        result.append(warning("job-unused", message, focus="server_memory"))
    if job.mode == "sync" and job.completely_not_async and not job.runtime_split_send_recv:
        message = (
            "completely_not_async without runtime_split_send_recv is compiled as mode sync; Fluid's trainers would "
        )
        message += "send no barriers to servers that wait for them"
        result.append(warning("job-unused", message, focus="completely_not_async"))
    return tuple(result)
