"""Statements that continue on the next line."""

from __future__ import annotations

from pstranspile.ir.layout import BLANKS


def is_plain(line: str) -> bool:
    """Whether a line, its attributes taken out, ends its statement and has no other braces."""
    return "{" not in line.replace(" {}", "", 1) and not line.rstrip(BLANKS).endswith((",", "(", "["))


def with_next_lines(lines: list[str], number: int) -> tuple[str, int]:
    """(a line joined with its continuation lines, their number); the line itself if it needs a closer look."""
    parts: list[str] = []
    for at in range(number - 1, len(lines)):
        line = lines[at]
        parts.append(line.lstrip(BLANKS) if parts else line)
        if not line.endswith(",") or "#" in line or "\\" in line or line.count('"') % 2:
            break
    text = " ".join(parts)
    balanced = all(text.count(opening) == text.count(closing) for opening, closing in ("()", "[]", "{}"))
    return (text, len(parts) - 1) if balanced else (lines[number - 1], 0)
