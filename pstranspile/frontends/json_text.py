"""JSON as it is written to files: one key per line, and one line per object of a list, so that it diffs well."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast


def json_text(value: Mapping[str, Any]) -> str:
    """JSON text that ends with a line end; lists of objects have an object per line."""
    lines = [f"  {json.dumps(key)}: {_value(item)}" for key, item in value.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _value(value: object) -> str:
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in cast("list[object]", value)):
        items = ",\n".join(f"    {json.dumps(item)}" for item in cast("list[object]", value))
        return f"[\n{items}\n  ]"
    return json.dumps(value)
