"""The grammar: strict LALR, found where it is installed, and its kept tables are Lark's."""

from __future__ import annotations

import json
import random
import re

from lark import Lark
from lark.exceptions import UnexpectedInput

from pstranspile.ir.layout import BLANKS
from pstranspile.ir.text import grammar
from pstranspile.ir.text.grammar import (
    OPTIONS,
    Refused,
    accepted_statement,
    grammar_text,
    load_tables,
    parse_statement,
    tables_text,
)
from pstranspile.ir.text.reader import Tree
from tests.ir.test_text_mutations import TEXT, mutated


def test_the_grammar_is_strict_lalr():
    """Lark needs interegular (in the extra `test`) to compare the terminals of each state."""
    Lark(grammar_text(), strict=True, **OPTIONS)


def test_the_kept_tables_are_those_of_the_grammar():
    with open(f"{grammar._folder()}/ir.tables.json", encoding="utf-8") as file:
        assert file.read() == tables_text(), "run: python -m pstranspile.ir.text.grammar"


def test_tables_of_another_grammar_are_not_used():
    assert load_tables(tables_text(), grammar_text() + "\n// changed") is None


def test_the_blanks_of_the_code_are_those_of_the_grammar():
    patterns = dict(json.loads(tables_text())["terminals"])
    space = re.compile(patterns["SPACE"]).fullmatch
    assert "".join(character for character in map(chr, range(0x110000)) if space(character)) == "\t\r "
    assert sorted(BLANKS) == ["\t", "\r", " "]
    assert set(re.findall(r"\[ [^\]]*\]", grammar_text())) == {r"[ \t\r]"}


def shape(tree):
    if isinstance(tree, Tree):
        return (str(tree.data), [shape(child) for child in tree.children])
    return (tree.type, str(tree), tree.line, tree.column, tree.start_pos)


def test_the_table_parser_gives_the_result_of_lark():
    rng = random.Random(0)
    tables = load_tables(tables_text(), grammar_text())
    assert tables is not None
    for text in [TEXT, *[mutated(TEXT, rng) for _ in range(150)]]:
        for line in text.split("\n"):
            try:
                expected = shape(parse_statement(line))
            except UnexpectedInput:
                expected = None
            found = accepted_statement(line)
            assert (None if found is None else shape(found)) == expected
        try:
            module = shape(tables.parse(text, "module"))
        except Refused:
            module = None
        try:
            expected = shape(grammar.parse_module(text))
        except UnexpectedInput:
            expected = None
        assert module == expected


def test_without_tables_lark_is_used(monkeypatch):
    monkeypatch.setattr(grammar, "_tables", lambda: None)
    assert shape(accepted_statement("mul(X=%x)")) == shape(parse_statement("mul(X=%x)"))
    assert accepted_statement("mul(X=%x") is None


def test_reading_and_printing_a_small_program_does_not_import_lark():
    import subprocess
    import sys

    code = (
        "import sys; from pstranspile.ops.textual import parse, print_module;"
        "print_module(parse(sys.stdin.read())); print([m for m in ('lark', 'numpy', 'networkx') if m in sys.modules])"
    )
    text = TEXT.split("# a small module\n")[1]
    done = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
