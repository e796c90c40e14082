"""JSON as files hold it: text that diffs well, and what is wrong with a text that should be JSON, in our words."""

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


# What is wrong with a text that is read as JSON.

_EXPECTED = {
    "Expecting value": "a value is expected",
    "Expecting property name enclosed in double quotes": "a key in double quotes is expected",
    "Illegal trailing comma before end of object": "a key in double quotes is expected after the comma",
    "Illegal trailing comma before end of array": "a value is expected after the comma",
    "Expecting ':' delimiter": "a colon is expected after a key",
    "Expecting ',' delimiter": "a comma or a closing bracket is expected",
    "Extra data": "nothing more is expected after the value",
}
"""What Python's reader expected where it stopped, by its message."""

_WRONG = {
    "Unterminated string": "a string begins that does not end",
    "Invalid control character": "a control character stands in a string; JSON writes it with a backslash",
    "Invalid \\escape": "no such escape may follow a backslash in a string",
    "Invalid \\u": "four hexadecimal digits are expected after \\u",
    "Unexpected UTF-8 BOM": "the text begins with a byte order mark",
}
"""What is wrong where Python's reader stopped, by the beginning of its message."""

LONGEST = 20
"""Characters of a text that a message quotes."""


class JsonFault(NamedTuple):
    """What is wrong, and where: a line and a column, counted from 1; both are 0 for all of the text."""

    reason: str
    line: int = 0
    column: int = 0


def json_fault(problem: ValueError | RecursionError) -> JsonFault:
    """What is wrong with a text that `json.loads` has refused with this exception."""
    if isinstance(problem, RecursionError):
        return JsonFault("nested too deeply")
    if isinstance(problem, UnicodeDecodeError):
        return JsonFault(f"byte {problem.start} is not UTF-8")
    if not isinstance(problem, json.JSONDecodeError):  # a number of thousands of digits, or a refusal of a hook
        digits = "int_max_str_digits" in str(problem) or "integer string conversion" in str(problem)
        return JsonFault("a number has thousands of digits" if digits else str(problem))
    where = problem.lineno, problem.colno
    for message, reason in _WRONG.items():
        if problem.msg.startswith(message):
            return JsonFault(reason, *where)
    rest = problem.doc[problem.pos :].split("\n", 1)[0]
    found = "the text ends" if not problem.doc[problem.pos :].strip() else f"{_quoted(rest)} is there"
    return JsonFault(f"{_EXPECTED.get(problem.msg, 'this is not as JSON is written')}, {found}", *where)


def _quoted(text: str) -> str:
    word = text.split(maxsplit=1)[0] if text.strip() else text
    short = word[:LONGEST] + ("..." if len(word) > LONGEST else "")
    return ascii(short) if not short.isprintable() else f"`{short}`"


def told(problem: ValueError | RecursionError) -> str:
    """What is wrong with a text, and where, in one sentence."""
    fault = json_fault(problem)
    return fault.reason if not fault.line else f"line {fault.line}, column {fault.column}: {fault.reason}"
