"""Damage: bytes that are changed at random, and JSON in which something else stands than should."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

BYTES = [b"\x00", b"\xff", b"\x80", b"\x7f", b"\n", b"{", b'"', b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\xc2\xa0"]
BYTES += [b"9" * 25, b"-1", b"\x0a\x00", b"\xe2\x80\xa8", b"[" * 50, b"=", b"#", b"1e999", b"\\u0000", b"0x"]


def changed_bytes(data: bytes, draw: random.Random) -> bytes:
    """The same bytes with one to four faults."""
    for _ in range(draw.choice([1, 1, 2, 4])):
        at, way = draw.randrange(len(data) + 1), draw.randrange(7)
        if way == 0:
            data = data[:at] + draw.choice(BYTES) + data[at:]
        elif way == 1:
            data = data[:at] + data[at + draw.choice([1, 1, 2, 5, 40]) :]
        elif way == 2:
            data = data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
        elif way == 3 and at < len(data):
            data = data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
        elif way == 4:
            start = draw.randrange(len(data) + 1)
            data = data[:at] + data[start : start + draw.choice([1, 4, 30])] + data[at:]
        elif way == 5:
            data = data[:at]
        else:
            found = draw.choice(BYTES)
            data = data[:at] + found + data[at + len(found) :]
    return data


def changed_lines(text: str, draw: random.Random, words: list[str]) -> str:
    """The same text with words and lines left out, doubled, or others in their place."""
    for _ in range(draw.choice([1, 1, 2, 4])):
        lines = text.split("\n")
        at, way = draw.randrange(len(lines)), draw.randrange(5)
        parts = lines[at].split(" ")
        if way == 0:
            del lines[at]
        elif way == 1:
            lines.insert(at, draw.choice(lines))
        elif way == 2:
            parts[draw.randrange(len(parts))] = draw.choice(words)
            lines[at] = " ".join(parts)
        elif way == 3:
            parts.insert(draw.randrange(len(parts) + 1), draw.choice(words))
            lines[at] = " ".join(parts)
        else:
            del parts[draw.randrange(len(parts))]
            lines[at] = " ".join(parts)
        text = "\n".join(lines)
    return text


def _deep() -> Any:
    value: Any = 1
    for _ in range(200):
        value = [value]
    return value


VALUES: list[Any] = [None, True, False, -1, 0, 1, 2, 7, 10**9, 2**31, 2**63, 10**30, 10**4200, 1.5, -0.0, 1e308]
VALUES += [float("nan"), float("inf"), "", "x", "%w", "../x", "a:1", "\x00", "\ud800", "9" * 30, "y" * 3000, [], {}]
VALUES += [[[]], [None], [-1, 2], [10**30], {"a": 1}, {"name": "w"}, ["a:6174", "a:6174"], _deep()]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON value: what holds it, and its key there."""
    found: list[tuple[Any, Any]] = []
    todo = [value]
    while todo:
        held = todo.pop()
        items = held.items() if isinstance(held, dict) else enumerate(held) if isinstance(held, list) else ()
        for key, item in items:
            found.append((held, key))
            todo.append(item)
    return found


def changed_json(value: Any, draw: random.Random) -> Any:
    """The same value with something else at one to three of its places."""
    value = copy.deepcopy(value)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        places = _places(value)
        if not places:
            return draw.choice(VALUES)
        held, key = draw.choice(places)
        way = draw.randrange(6)
        if way == 0:
            del held[key]
        elif way == 1:
            held[key] = copy.deepcopy(draw.choice(places)[0])
        elif way == 2 and isinstance(held, list):
            held.insert(key, copy.deepcopy(held[key]))
        elif way == 2:
            held[f"{key}_"] = held.pop(key)
        elif way == 3 and type(held[key]) is int:
            held[key] += draw.choice([-1, 1, 10, 2**40])
        else:
            held[key] = copy.deepcopy(draw.choice(VALUES))
    return value


def json_bytes(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")
