"""Colours programs in the site: a lexer of Pygments made of the TextMate grammar that colours them in VS Code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pygments.lexer import Lexer
from pygments.lexers import LEXERS
from pygments.token import Comment, Keyword, Name, Number, Operator, String, Text

__all__ = ["IrLexer"]

ROOT = Path(__file__).parent.parent
GRAMMAR = ROOT / "examples" / "editors" / "vscode" / "syntaxes" / "pstranspile-ir.tmLanguage.json"

TOKENS = {
    "comment.line": Comment.Single,
    "constant.language": Keyword.Constant,
    "constant.numeric": Number,
    "entity.name.function": Name.Function,
    "entity.name.label": Name.Label,
    "entity.name.namespace": Name.Namespace,
    "keyword.control": Keyword,
    "keyword.operator": Operator,
    "storage.modifier": Keyword.Pseudo,
    "storage.type": Keyword.Declaration,
    "string.quoted": String.Double,
    "support.type": Keyword.Type,
    "variable.other": Name.Variable,
    "variable.parameter": Name.Attribute,
}
"""The token for each scope of the grammar, by the beginning of its name."""


class Rule(NamedTuple):
    """What is looked for, and the token of each group; 0 is all of it."""

    pattern: re.Pattern[str]
    tokens: dict[int, Any]


def rules(grammar: dict[str, Any]) -> list[Rule]:
    """The rules of a TextMate grammar that has matches and repositories of matches."""
    result: list[Rule] = []
    for entry in grammar["patterns"]:
        if "include" in entry:
            result += rules(grammar["repository"][entry["include"].removeprefix("#")])
        else:
            groups = {int(n): token_of(scope["name"]) for n, scope in entry.get("captures", {}).items()}
            result.append(Rule(re.compile(entry["match"]), groups or {0: token_of(entry["name"])}))
    return result


def token_of(scope: str) -> Any:
    """The token of a scope. Raises LookupError for one that `TOKENS` has nothing for."""
    for beginning, token in TOKENS.items():
        if scope.startswith(beginning + "."):
            return token
    raise LookupError(f"{scope} has no colour")


class IrLexer(Lexer):
    """Programs as text, coloured as editors do: of each line the leftmost match, of several the first rule's."""

    name = "pstranspile IR"
    aliases = ["ir"]
    filenames = ["*.ir"]
    known = rules(json.loads(GRAMMAR.read_text(encoding="utf-8")))

    def get_tokens_unprocessed(self, text: str) -> Iterator[tuple[int, Any, str]]:
        """The place of each piece, its token, and its text."""
        start = 0
        for line in text.splitlines(keepends=True):
            for at, token, piece in pieces(self.known, line):
                yield start + at, token, piece
            start += len(line)


def pieces(known: list[Rule], line: str) -> Iterator[tuple[int, Any, str]]:
    """The pieces of a line."""
    at = 0
    while at < len(line):
        matches = [(m.start(), n, m) for n, rule in enumerate(known) if (m := rule.pattern.search(line, at)) and m[0]]
        if not matches:
            break
        _, number, match = min(matches, key=lambda entry: entry[:2])
        for group, token in known[number].tokens.items():
            if match.start(group) > at:
                yield at, Text, line[at : match.start(group)]
            yield match.start(group), token, match[group]
            at = match.end(group)
    if at < len(line):
        yield at, Text, line[at:]


def on_config(config: Any) -> Any:
    """Called by mkdocs at the beginning: from now on Pygments knows the lexer by its name."""
    LEXERS[IrLexer.__name__] = (__name__, IrLexer.name, tuple(IrLexer.aliases), tuple(IrLexer.filenames), ())
    return config
