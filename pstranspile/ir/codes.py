"""Every diagnostic code, with the plain sentence that `docs/reference/diagnostics.md` gives it.

A code is declared here once; making a Diagnostic with another code raises KeyError.
"""

from __future__ import annotations

CODES: dict[str, str] = {}
"""Code -> what it means."""


def declare(code: str, meaning: str) -> str:
    """Adds a code with its meaning and returns the code. Raises ValueError if it is already declared."""
    if code in CODES:
        raise ValueError(f"diagnostic code {code} is declared twice")
    CODES[code] = meaning
    return code
