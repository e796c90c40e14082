"""The Lark grammar, its location, and its parsers."""

from __future__ import annotations

import json
import os
import re
import zlib
from functools import lru_cache
from typing import Any, NamedTuple

from pstranspile.ir.text.reader import Node, Token, Tree, make_token

# The parse tables that Lark makes of the grammar, stored in a file, and the parser that uses them.
#
# Importing Lark and making the tables takes longer than reading a small program. The file next to the grammar holds the
# tables and the hash of the grammar. If it is missing or the hash differs, Lark itself is used. `python -m
# pstranspile.ir.text.grammar` makes the file anew.

FORMAT = 1
"""Number of the layout of the file."""


def digest(grammar: str) -> str:
    """The hash that the tables are checked by: of the layout version and the text of the grammar."""
    return f"{FORMAT} {len(grammar)} {zlib.crc32(grammar.encode()):08x}"


class Refused(Exception):
    """Raised when the grammar does not accept a text."""


class _Rule(NamedTuple):
    """A reduction: symbols taken off the stack, the children kept of them (True: with its children inlined)."""

    origin: str
    size: int
    keep: list[tuple[int, bool]]
    data: str
    unwrap: bool


class Tables:
    """A parser that runs on tables made by Lark: LALR(1) with a contextual lexer, as Lark's own does."""

    def __init__(self, data: dict[str, Any]):
        self._patterns: list[tuple[str, str]] = data["terminals"]
        self._compiled: dict[int, Any] = {}
        self._ignored = set(data["ignored"])
        self._start: dict[str, int] = data["start"]
        self._end: dict[str, int] = data["end"]
        self._scan: list[list[int]] = data["scan"]
        self._actions: list[dict[str, int]] = data["actions"]
        self._rules = [_Rule(*rule) for rule in data["rules"]]

    def _match(self, state: int, text: str, position: int) -> tuple[str, str]:
        """(terminal, piece of text) at a position, by the terminals that this state of the parser accepts."""
        for terminal in self._scan[state]:
            match = self._compiled.get(terminal)
            name, pattern = self._patterns[terminal]
            if match is None:
                match = self._compiled[terminal] = re.compile(pattern).match
            result = match(text, position)
            if result is not None:
                return name, result.group()
        raise Refused

    def parse(self, text: str, start: str) -> Node:
        """The tree of `text`. Raises Refused, without saying why: Lark can tell."""
        states = [self._start[start]]
        values: list[Token | Tree] = []
        position, line, line_start = 0, 1, 0
        while position < len(text):
            name, piece = self._match(states[-1], text, position)
            if name not in self._ignored:
                token = make_token(name, piece, position, line, position - line_start + 1)
                self._feed(states, values, name)
                values.append(token)
            newlines = piece.count("\n")
            if newlines:
                line += newlines
                line_start = position + piece.rfind("\n") + 1
            position += len(piece)
        self._feed(states, values, "$END", self._end[start])
        tree = values[-1]
        assert isinstance(tree, Tree)
        return tree

    def _feed(self, states: list[int], values: list[Token | Tree], name: str, end: int = -1) -> None:
        """Reduces until the terminal can be shifted (or the text is accepted), and shifts it."""
        while True:
            action = self._actions[states[-1]].get(name)
            if action is None:
                raise Refused
            if action >= 0:
                states.append(action)
                return
            rule = self._rules[-1 - action]
            taken: list[Token | Tree] = []
            if rule.size:
                taken = values[-rule.size :]
                del values[-rule.size :], states[-rule.size :]
            values.append(_reduced(rule, taken))
            states.append(self._actions[states[-1]][rule.origin])
            if states[-1] == end:
                return


def _reduced(rule: _Rule, taken: list[Token | Tree]) -> Token | Tree:
    children: list[Token | Tree] = []
    for index, inline in rule.keep:
        child = taken[index]
        if inline:
            assert isinstance(child, Tree)
            if children:
                children += child.children
            else:  # the list of a left-recursive rule grows, or long lists would take quadratic time
                children = child.children
        else:
            children.append(child)
    return children[0] if rule.unwrap and len(children) == 1 else Tree(rule.data, children)


def make_tables(grammar: str, options: dict[str, Any]) -> dict[str, Any]:
    """The content of the file, from Lark. Raises lark.exceptions.GrammarError for a faulty grammar."""
    import lark

    made: Any = lark.Lark(grammar, **options)
    table = made.parser.parser._parse_table
    lexers = made.parser.lexer.lexers
    numbers = _numbered_states(table)
    terminals = sorted({t.name: t.pattern.to_regexp() for lexer in lexers.values() for t in lexer.terminals}.items())
    terminal_number = {name: number for number, (name, _) in enumerate(terminals)}
    rules: list[list[Any]] = []
    rule_number: dict[Any, int] = {}
    actions: list[dict[str, int]] = []
    for state in numbers:
        row: dict[str, int] = {}
        for symbol, (action, argument) in sorted(table.states[state].items(), key=lambda item: item[0]):
            if action.name == "Shift":
                row[symbol] = numbers[argument]
            else:
                if argument not in rule_number:
                    rule_number[argument] = len(rules)
                    rules.append(_rule(argument))
                row[symbol] = -1 - rule_number[argument]
        actions.append(row)
    return {
        "digest": digest(grammar),
        "terminals": terminals,
        "ignored": sorted(made.ignore_tokens),
        "start": {name: numbers[state] for name, state in sorted(table.start_states.items())},
        "end": {name: numbers[state] for name, state in sorted(table.end_states.items())},
        "scan": [[terminal_number[t.name] for t in lexers[state].terminals] for state in numbers],
        "rules": rules,
        "actions": actions,
    }


def _numbered_states(table: Any) -> dict[int, int]:
    """The states in the order in which they are reached; Lark's own numbers vary with the hash seed."""
    order = [state for _, state in sorted(table.start_states.items())]
    for state in order:  # grows while it is walked
        for _, (action, argument) in sorted(table.states[state].items(), key=lambda item: item[0]):
            if action.name == "Shift" and argument not in order:
                order.append(argument)
    return {state: number for number, state in enumerate(order)}


def _rule(rule: Any) -> list[Any]:
    """A rule as Lark's tree builder treats it: filtered tokens dropped, rules with an underscore inlined."""
    keep = [
        (index, not symbol.is_term and symbol.name.startswith("_"))
        for index, symbol in enumerate(rule.expansion)
        if rule.options.keep_all_tokens or not (symbol.is_term and symbol.filter_out)
    ]
    unwrap = bool(rule.options.expand1 and not rule.alias)
    return [rule.origin.name, len(rule.expansion), keep, rule.alias or rule.origin.name, unwrap]


def load_tables(content: str, grammar: str) -> Tables | None:
    """The parser of a file's content; None when it was made from another grammar."""
    data = json.loads(content)
    return Tables(data) if data.get("digest") == digest(grammar) else None


_GRAMMAR, _TABLES = "ir.lark", "ir.tables.json"

OPTIONS: dict[str, Any] = {
    "parser": "lalr",
    "lexer": "contextual",
    "start": ["module", "statement"],
    "maybe_placeholders": False,
    "propagate_positions": False,
    "tree_class": Tree,
}
"""How the grammar is loaded; the tests load it with `strict=True` besides."""


@lru_cache(maxsize=1)
def _folder() -> str:
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    for folder in (os.path.join(package, "grammar"), os.path.join(os.path.dirname(package), "grammar")):
        if os.path.isfile(os.path.join(folder, _GRAMMAR)):
            return folder
    raise FileNotFoundError(f"the grammar {_GRAMMAR} is missing from the installation of pstranspile")


def _read(name: str) -> str:
    with open(os.path.join(_folder(), name), encoding="utf-8") as file:
        return file.read()


def grammar_text() -> str:
    """The text of the grammar, from the installed package or from the checkout. Raises FileNotFoundError."""
    return _read(_GRAMMAR)


@lru_cache(maxsize=1)
def _lark() -> Any:
    import lark

    return lark.Lark(grammar_text(), **OPTIONS)


@lru_cache(maxsize=1)
def _tables() -> Tables | None:
    """The parser on the tables kept in a file; None when they are missing or of another grammar."""
    try:
        content = _read(_TABLES)
    except FileNotFoundError:
        return None
    return load_tables(content, grammar_text())


def tables_text() -> str:
    """The content that the file of tables should have."""

    data = make_tables(grammar_text(), OPTIONS)
    rows = [f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in data.items()]
    return "{\n" + ",\n".join(rows) + "\n}\n"


def write_tables() -> None:
    """Makes the file of tables anew, after a change of the grammar."""
    with open(os.path.join(_folder(), _TABLES), "w", encoding="utf-8", newline="\n") as file:
        file.write(tables_text())


def parse_module(text: str) -> Node:
    """The tree of a whole text, by Lark. Raises lark.exceptions.UnexpectedInput."""
    return _lark().parse(text, start="module")


def parse_statement(text: str) -> Node:
    """The tree of one statement, by Lark. Raises lark.exceptions.UnexpectedInput."""
    return _lark().parse(text, start="statement")


def accepted_statement(text: str) -> Node | None:
    """The tree of one statement, None if the grammar refuses it; Lark is imported only if necessary."""
    tables = _tables()
    if tables is not None:
        try:
            return tables.parse(text, "statement")
        except Refused:
            return None
    from lark.exceptions import UnexpectedInput

    try:
        return parse_statement(text)
    except UnexpectedInput:
        return None


if __name__ == "__main__":
    write_tables()
