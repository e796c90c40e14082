"""What a plan changes of another: what is added, moved or cut otherwise, and what goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pstranspile.compiler.plan.plan import quoted

_SETTINGS = (
    *("source", "mode", "trainers", "trainer_endpoints"),
    *("distributed_lookup_table", "groups", "geo", "collective"),
)
"""The keys of a plan that are compared as a whole."""
_FIELDS = ("slice", "slice_shape", "offset", "endpoint")


class Change(NamedTuple):
    """One change: `sign` is `+` for an addition, `-` for a removal, `~` for another value; `text` describes it."""

    sign: str
    text: str


def plan_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """What `new` changes of `old`, both as `plan.json` holds them: the job, then every variable on servers."""
    result = [*_settings(old, new), *_endpoints(old["pservers"], new["pservers"])]
    before, after = _rows(old), _rows(new)
    for key in dict.fromkeys([*before, *after]):
        gone = list(before.get(key, ()))
        come: list[Mapping[str, Any]] = []
        for row in after.get(key, ()):
            if row in gone:
                gone.remove(row)
            else:
                come.append(row)
        result += [Change("~", f"{_named(a)}: {_difference(a, b)}") for a, b in zip(gone, come, strict=False)]
        result += [Change("-", f"{_named(row)} {row['slice_shape']} @ {row['endpoint']}") for row in gone[len(come) :]]
        result += [Change("+", f"{_named(row)} {row['slice_shape']} @ {row['endpoint']}") for row in come[len(gone) :]]
    return result


def changes_text(changes: list[Change]) -> str:
    """A line for each change, and a last one that counts them."""
    counts = {sign: sum(change.sign == sign for change in changes) for sign in "+~-"}
    lines = [f"{change.sign} {change.text}" for change in changes]
    last = f"{counts['+']} to add, {counts['~']} to change, {counts['-']} to remove" if changes else "no changes"
    return "\n".join([*lines, last, ""])


def _settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for key in _SETTINGS:
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        if isinstance(before, list | dict) or isinstance(after, list | dict) or key == "source":
            yield Change("~", "the programs" if key == "source" else key)
        else:
            yield Change("~", f"{key}: {before} -> {after}")


def _endpoints(old: list[str], new: list[str]) -> Iterator[Change]:
    yield from (Change("-", f"server {endpoint}") for endpoint in old if endpoint not in new)
    yield from (Change("+", f"server {endpoint}") for endpoint in new if endpoint not in old)
    kept = [endpoint for endpoint in old if endpoint in new]
    if kept != [endpoint for endpoint in new if endpoint in old]:
        yield Change("~", "the order of the servers")


def _rows(plan: Mapping[str, Any]) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    """The variables on servers by what stays the same when they move: origin, kind and number of the slice."""
    result: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in plan["distributed_vars"]:
        result.setdefault((row["origin"], row["vtype"], row["block_id"]), []).append(row)
    return result


def _named(row: Mapping[str, Any]) -> str:
    return f"{quoted(row['slice'])} of {quoted(row['origin'])}" if row["is_slice"] else quoted(row["origin"])


def _difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    parts = [f"{key}: {a[key]} -> {b[key]}" for key in _FIELDS if a[key] != b[key]]
    return ", ".join(parts) or "another declaration"
