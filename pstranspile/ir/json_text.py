"""Writes JSON text that diffs well, and describes the errors of text that should be JSON in plain words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

# JSON as it is written: one key per line, and one line per object of a list.


def json_text(value: Mapping[str, Any]) -> str:
    """JSON text that ends with a line end; lists of objects have an object per line."""
    lines = [f"  {json.dumps(key)}: {_value(item)}" for key, item in value.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _value(value: object) -> str:
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in cast("list[object]", value)):
        items = ",\n".join(f"    {json.dumps(item)}" for item in cast("list[object]", value))
        return f"[\n{items}\n  ]"
    return json.dumps(value)


# Errors in text that is read as JSON.

_EXPECTED = {
    "Expecting value": "a value is expected",
    "Expecting property name enclosed in double quotes": "a key in double quotes is expected",
    "Illegal trailing comma before end of object": "a key in double quotes is expected after the comma",
    "Illegal trailing comma before end of array": "a value is expected after the comma",
    "Expecting ':' delimiter": "a colon is expected after a key",
    "Expecting ',' delimiter": "a comma or a closing bracket is expected",
    "Extra data": "nothing more is expected after the value",
}
"""What Python's reader expected where it stopped, in plain words, by the reader's message."""

_WRONG = {
    "Unterminated string": "a string begins that does not end",
    "Invalid control character": "a control character stands in a string; JSON writes it with a backslash",
    "Invalid \\escape": "no such escape may follow a backslash in a string",
    "Invalid \\u": "four hexadecimal digits are expected after \\u",
    "Unexpected UTF-8 BOM": "the text begins with a byte order mark",
}
"""The error where Python's reader stopped, in plain words, by the beginning of the reader's message."""

LONGEST = 20
"""The number of characters of a text that a message quotes."""


class JsonFault(NamedTuple):
    """An error in JSON text, and its place: a line and a column, counted from 1. Both are 0 if it concerns the whole
    text.
    """

    reason: str
    line: int = 0
    column: int = 0


def json_fault(problem: ValueError | RecursionError) -> JsonFault:
    """The error in a text for which `json.loads` raised this exception."""
    if isinstance(problem, RecursionError):
        return JsonFault("nested too deeply")
    if isinstance(problem, UnicodeDecodeError):
        return JsonFault(f"byte {problem.start} is not UTF-8")
    if not isinstance(problem, json.JSONDecodeError):  # a number of thousands of digits, or an error raised by a hook
        digits = "int_max_str_digits" in str(problem) or "integer string conversion" in str(problem)
        return JsonFault("a number has thousands of digits" if digits else str(problem))
    where = problem.lineno, problem.colno
    for message, reason in _WRONG.items():
        if problem.msg.startswith(message):
            return JsonFault(reason, *where)
    rest = problem.doc[problem.pos :].split("\n", 1)[0]
    found = "the text ends" if not problem.doc[problem.pos :].strip() else f"{_quote_word(rest)} is there"
    return JsonFault(f"{_EXPECTED.get(problem.msg, 'this is not as JSON is written')}, {found}", *where)


def _quote_word(text: str) -> str:
    word = text.split(maxsplit=1)[0] if text.strip() else text
    short = word[:LONGEST] + ("..." if len(word) > LONGEST else "")
    return ascii(short) if not short.isprintable() else f"`{short}`"


def describe_json_error(problem: ValueError | RecursionError) -> str:
    """The error in a text for which `json.loads` raised this exception, and its place, in one sentence."""
    fault = json_fault(problem)
    return fault.reason if not fault.line else f"line {fault.line}, column {fault.column}: {fault.reason}"
