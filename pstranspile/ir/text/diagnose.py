"""Explains, with Lark's parser of `grammar/ir.lark`, what is wrong with a statement that the grammar refuses.

The grammar puts one statement on a line, so reading resumes at the next line after an error, and one run reports all
errors (up to a limit).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, cast

import lark
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error
from pstranspile.ir.layout import BLANKS, begins_statement, statement_length
from pstranspile.ir.model import Location
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.text.literals import VERSION, quote
from pstranspile.ir.text.statement import Context, did_you_mean

GRAMMAR = "ir.lark"
"""The file of the grammar, in the folder `grammar` of the installed package or of the checkout."""

OPTIONS: dict[str, Any] = {
    "parser": "lalr",
    "lexer": "contextual",
    "start": ["module", "statement"],
    "maybe_placeholders": False,
    "propagate_positions": False,
}
"""How the grammar is loaded; the tests add `strict=True`."""


def grammar_text() -> str:
    """The text of the grammar. Raises FileNotFoundError."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    for folder in (package, os.path.dirname(package)):
        path = os.path.join(folder, "grammar", GRAMMAR)
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                return file.read()
    raise FileNotFoundError(f"the grammar {GRAMMAR} is missing from the installation of pstranspile")


@lru_cache(maxsize=1)
def grammar_parser() -> Any:
    """Lark's parser of the grammar; `start` is the rule for a whole text, `module`, or `statement`."""
    return lark.Lark(grammar_text(), **OPTIONS)


# Invisible characters: control characters, blanks of Unicode, marks without width.
_UNSEEN = Pattern(
    "[\x00-\x1f\x7f-\xa0\xad\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff\ufffd\ud800-\udfff]"
)
_CONTROL = Pattern("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffd\udc80-\udcff]")

_WORDS = {
    "WORD": "a name",
    "VAR": "a variable (`%name`)",
    "PROGRAM": "a program (`@name`)",
    "LABEL": "a block (`^n`)",
    "STRING": "a string",
    "FLOAT": "a number",
    "INT": "a number",
    "CLOSE": "`}`",
    "_OPEN": "`{`",
    "_LPAR": "`(`",
    "_LSQB": "`[`",
    "_LBRACE": "`{`",
    "_COMMA": "`,`",
    "_RPAR": "`)`",
    "_RSQB": "`]`",
    "_RBRACE": "`}`",
    "_NL": "the end of the line",
    "$END": "the end of the line",
    "EQUAL": "`=`",
    "COLON": "`:`",
    "VBAR": "`|`",
    "MINUS": "`-`",
    "__ANON_0": "`->`",
}


def _in_words(expected: Iterable[str]) -> str:
    known = set(expected) - {"SPACE", "COMMENT"}
    if {"INT", "FLOAT", "STRING", "WORD"} <= known:
        known = known - {"INT", "FLOAT", "STRING", "WORD", "LABEL"} | {"a literal"}
    words = [words for words in dict.fromkeys(_WORDS.values()) if any(_WORDS.get(t, t) == words for t in known)]
    words += ["a literal"] if "a literal" in known else []
    if not words:  # nothing can follow: the lexer does not name the end of the text
        return "the end of the line"
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _description_at(text: str, position: int) -> tuple[str, str]:
    """(description of the token at a position of a statement, the text to mark)."""
    rest = text[position:].split("\n", 1)[0]
    if not rest.strip(BLANKS):
        return "the end of the line", ""
    if rest[0] in '"%@' and '"' in rest[:2] and not re.match(r'[%@]?"[^"\\]*(?:\\.[^"\\]*)*"', rest):
        return "a string that is not closed", rest
    match = re.match(r'[%@^]?[\w.@/-]+|->|[%@]?"[^"\\]*(?:\\.[^"\\]*)*"|.', rest)
    piece = match.group() if match else rest[0]
    if _UNSEEN.match(piece):
        kind = "control character" if _CONTROL.match(piece) else "character"
        return f"the {kind} U+{ord(piece[0]):04X}", piece
    return f"`{piece}`", piece


def refusal(problem: UnexpectedInput, text: str, context: Context) -> Diagnostic:
    """The finding for a text that the grammar refuses, which begins at the line `context.first_line`."""
    position = len(text)
    expected: Iterable[str] = ()
    if isinstance(problem, UnexpectedToken):
        found_token = cast(lark.Token, problem.token)  # pyright: ignore[reportUnknownMemberType]
        expected = problem.accepts or problem.expected
        if found_token.type != "$END":
            position = found_token.start_pos or 0
    elif isinstance(problem, UnexpectedCharacters):
        expected = problem.allowed or ()
        position = cast(int, problem.pos_in_stream)  # pyright: ignore[reportUnknownMemberType]
    before = text[:position].rstrip(BLANKS + "\n") if position >= len(text) else text[:position]
    line = context.first_line + before.count("\n")
    column = len(before) - (before.rfind("\n") + 1) + 1
    result, focus = _description_at(text, position)
    message = f"expected {_in_words(expected)}, found {result}"
    first = re.match(rf"[{BLANKS}]*([A-Za-z_]\w*)[{BLANKS}]*([%@^]?)", text)
    if first and first.group(2) and position <= first.end():
        wanted = {"%": ["param", "state", "temp"], "@": ["program"], "^": ["block"]}[first.group(2)]
        message += did_you_mean(first.group(1), wanted)
    hint = _sign_of_comment(text, position) or _equals_for_colon(text, position) or _quoting(text, position)
    hint = hint or _attributes_first(text, position)
    return error("syntax", message + hint, Location(context.file, line, column), focus=focus)


_COMMENT = Pattern(r'//|/\*|\*/|\(\*|<!--|;|--|!|"""|%+(?=[ \t])')
"""Matches what comments begin with in other languages (or end with)."""


def is_comment_elsewhere(line: str) -> bool:
    """Whether a line begins as comments do in other languages."""
    return _COMMENT.match(line.lstrip(BLANKS)) is not None


def _sign_of_comment(text: str, position: int) -> str:
    """A hint how comments are written, where a text is refused for what may be meant as one; "" otherwise."""
    sign = _COMMENT.match(text, position)
    if sign is None or (sign.group() == '"""' and '"' not in text[sign.end() :]):
        return ""
    if sign.group() == ";" and not text[sign.end() :].partition("\n")[0].strip(BLANKS):
        return "; a statement ends with its line"
    return "; comments begin with `#`"


# An attribute with `:` where `=` belongs, up to the place where the text is refused: `{axis: ` or `{axis: true`.
_COLON = Pattern(r'[{,]\s*("[^"\\\n]*(?:\\.[^"\\\n]*)*"|[A-Za-z_][\w.@]*)[ \t]*:[ \t]*([A-Za-z_][\w.@]*)?[ \t]*$')
_VALUE = Pattern(r'\[[^\]\n]*\]|"[^"\\\n]*(?:\\.[^"\\\n]*)*"|[^\s,}"]+')
_SHOWN = 40
"""Characters of a value that a hint quotes."""


def _equals_for_colon(text: str, position: int) -> str:
    """The hint `; did you mean ...` with the attribute as it must be written, if it was written as in JSON or Python:
    with a colon before its value; "" otherwise.
    """
    start = max(text.rfind("{", 0, position), text.rfind(",", 0, position))
    colon = _COLON.match(text, start, position) if start >= 0 else None
    if colon is None:
        return ""
    value = colon.group(2)
    if value is None:
        found = _VALUE.match(text, position)
        if found is None:
            return ""
        value = found.group()
    name = colon.group(1).strip('"') if re.fullmatch(r'"[A-Za-z_][\w.@]*"', colon.group(1)) else colon.group(1)
    return f"; did you mean `{name}={value[:_SHOWN]}{'...' if len(value) > _SHOWN else ''}`?"


_ROLE = Pattern(r"[a-z_]+(?:\|[a-z_]+)*(?:\([^()\n]*\))?")
"""Matches the role of an op, with the variables that it is about."""


def _attributes_first(text: str, position: int) -> str:
    """The hint that attributes stand before the role of an op, if they stand behind it; else nothing."""
    colon = text.rfind(":", 0, position)
    if colon < 0 or text[position : position + 1] != "{":
        return ""
    role = text[colon + 1 : position].strip(BLANKS)
    return f"; attributes stand before the role: `{{...}} : {role}`" if _ROLE.fullmatch(role) else ""


def _name_before(text: str, position: int) -> str:
    """The name with its sigil that ends at a position, "" if there is none. The search runs backwards, so that names
    may have any length.
    """
    start = position
    while start and (text[start - 1].isalnum() or text[start - 1] in "_.@/"):
        start -= 1
    if start and text[start - 1] == "%":
        start -= 1
    else:
        start = text.find("@", start, position)
    return text[start:position] if 0 <= start < position - 1 else ""


_QUOTED = Pattern(r'[%@]"[^"\\\n]*(?:\\.[^"\\\n]*)*"$')
_NEAR = 300
"""Characters before an error in which a quoted name that ends there is looked for."""


def _quoting(text: str, position: int) -> str:
    """A hint to quote a text, if missing quotes are the likely cause of an error: names with other characters, or
    strings.
    """
    if text[position : position + 1] == "'":
        return "; strings and names stand in double quotes"
    rest = re.match(r"[^\s,()\[\]{}:=#\"]+", text[position:])
    ended = _QUOTED.search(text[max(position - _NEAR, 0) : position])
    if ended is not None and rest is not None and not rest.group().startswith("->"):
        return f'; all of a name stands in its quotes: {ended.group()[:-1]}{rest.group()}"'
    name = _name_before(text, position)
    if not name or rest is None or rest.group().startswith("->"):
        return ""
    quoted = name[0] + quote(name[1:] + rest.group())
    return f"; a name with other characters than letters, digits and _ . @ / is quoted: {quoted}"


def refused_statement(lines: list[str], at: int, context: Context) -> int:
    """Reports the statement at line index `at`, which the grammar refuses. Returns the number of lines to skip."""
    count = statement_length(lines, at)
    text = "\n".join(lines[at : at + count])
    try:
        grammar_parser().parse(text, start="statement")
    except UnexpectedInput as refused:
        context.findings.append(refusal(refused, text, context))
    else:
        raise AssertionError(f"the grammar accepts what the reader refuses: {text}")
    return next((part for part in range(1, count) if begins_statement(lines[at + part])), count)


def check_start(text: str, context: Context) -> None:
    """Reports a text that does not begin with a version line.

    Raises DiagnosticError if this is not a text of this language at all: one finding instead of one per line.
    """
    file = context.file
    first = re.search(rf"^[{BLANKS}]*([^{BLANKS}\n#][^\n]*)", text, re.MULTILINE)
    if first is None:
        message = f"the text is empty; it opens with the version line `ir {VERSION}`"
        raise DiagnosticError([error("version-line", message, Location(file, 1, 1))])
    junk = _CONTROL.search(text)
    if junk is not None and not first.group(1).startswith("ir"):
        line = text.count("\n", 0, junk.start()) + 1
        place = Location(file, line, junk.start() - text.rfind("\n", 0, junk.start()))
        message = f"this is not the text of a module: it holds U+{ord(junk.group()):04X}, as binary files do"
        raise DiagnosticError([error("not-text", message, place, focus=junk.group())])
    # "ir" and a word with a number are read as version lines
    if not re.match(rf"ir\b|[A-Za-z_]+[{BLANKS}]+[0-9]+[{BLANKS}]*(#|$)", first.group(1)):
        line = text.count("\n", 0, first.start(1)) + 1
        if is_comment_elsewhere(first.group(1)) and re.search(rf"^[{BLANKS}]*ir\b", text, re.MULTILINE):
            return  # the statement is refused with a hint how comments are written; the version line follows
        word = re.split(f"[{BLANKS}]", first.group(1))[0][:40]
        hint = did_you_mean(word, ["ir"]) if len(word) < 4 else ""
        result, _ = _description_at(word, 0) if _UNSEEN.match(word) else (f"`{word}`", "")
        message = f"the text opens with the version line `ir {VERSION}`, found {result}{hint}"
        column = first.start(1) - text.rfind("\n", 0, first.start(1))
        context.findings.append(error("version-line", message, Location(file, line, column), focus=word))
