"""Where each op type is declared, written down in `places.json` so that a small program loads few families.

    python -m pstranspile.ops.places

writes the file anew. It is a short cut only (see `pstranspile.ops._load_for`); a test holds it to the families.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path

from pstranspile.ops import FAMILIES, gradient, kernel, schema, shapes

FILE = Path(__file__).with_name("places.json")


def find_places() -> dict[str, list[str]]:
    """Op type -> families to import for its declaration, shape rule, kernel and gradient rule.

    To be called in a process that has not imported any family. Raises RuntimeError otherwise.
    """
    registries = (schema.registered(), shapes.registered_rules(), kernel.registered(), gradient.registered_rules())
    if any(registries):
        raise RuntimeError("families are imported already, so it can't be seen where their op types come from")
    places: dict[str, list[str]] = {}
    seen = [set[str]() for _ in registries]
    for family in FAMILIES:
        importlib.import_module(f"pstranspile.ops.{family}")
        for known, registry in zip(seen, registries, strict=True):
            for op_type in registry.keys() - known:
                families = places.setdefault(op_type, [])
                if family not in families:
                    families.append(family)
            known.update(registry)
    return dict(sorted(places.items()))


def as_text(places: dict[str, list[str]]) -> str:
    """The contents of the file: a line per op type."""
    rows = ",\n".join(f"{json.dumps(op_type)}: {json.dumps(families)}" for op_type, families in places.items())
    return f"{{\n{rows}\n}}\n"


if __name__ == "__main__":
    FILE.write_text(as_text(find_places()))
