"""Texts of others, such as names in messages and files, as they can be shown on a terminal or in a log."""

from __future__ import annotations

import re

HIDDEN = (
    "\x00-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff"
)
"""What a terminal obeys or does not show, for a class of a regular expression: control characters, the marks that
reorder or hide text, line separators, bytes that are no UTF-8 (as Python reads them), tags.

A fixed list: `str.isprintable` changes with the Unicode tables of the Python that runs.
"""

MOST = 200
"""Characters of a text that are shown."""

_HIDDEN = re.compile(f"[{HIDDEN}]")
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return _SHORT.get(character) or (f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def visible(text: str, most: int = MOST) -> str:
    """The text in one line, with escapes (`\\n`, `\\u001b`) in place of what a terminal obeys or hides. Of a long one,
    the first and the last of `most` characters.
    """
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]}...{text[-half:]}"
    return _HIDDEN.sub(_escape, text)
