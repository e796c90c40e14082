"""The grammar is the definition: strict LALR, found where it is installed, and the reader by hand keeps to it."""

from __future__ import annotations

import random
import re
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lark import Lark
from lark.exceptions import UnexpectedInput

from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.layout import BLANKS
from pstranspile.ir.model import Module
from pstranspile.ir.text import statement
from pstranspile.ir.text.diagnose import OPTIONS, grammar_parser, grammar_text
from pstranspile.ir.text.statement import Context, NotAStatement, Statement
from pstranspile.ops.textual import LANGUAGE, parse, print_module
from tests.hostile.counts import cases
from tests.ir.by_grammar import read
from tests.ir.test_text_mutations import TEXT, mutated
from tests.strategies import exactly, modules

MORE = """ir 1
# every statement that the other text has not
program @"a b" seed=5 version=none {
  distribution {endpoints=["a:1"], is_chief=true}
  placed(Param=%w) -> Slice=%w.block1 {block_id=1, endpoint="b:6174", is_slice=true, offset=7, shape=[6, 1]}
  block ^0 {
    temp %t : tuple(f32, rows) feed written(persistable, lod_level)
    param %w : f32[1, -1,] {learning_rate=inf, is_distributed=true, regularizer="x", persistable=false}
    foo(X=[%a],
      -Y, ) -> O=%z, P=[] {a=true, b:floats=[1, 2.5], "q r"=^1,
 c=nan, d=-inf, -e}: backward|optimize(%a) target @t.py:20
    relu(X=%w) -> Out=%t {x:floats=[ # why
      1,  # and why

      -2.5e3
      ]} @"x y.py":7
    block ^2 in ^0 forward=^0 { # c
    }
    block ^1 {
    "no word"
    }
  }
}
program @main {
  block ^0 {
  }
}
"""
JOINTS = [
    "1e5",
    "lod=1e5",
    "-inf",
    "-",
    "1.",
    "1e",
    "00",
    "(a(b(c)))",
    "f32[1e5]",
    " ",
    "\n",
    "#",
    ",",
    "target",
    "role=1e5",
]


def test_the_grammar_is_strict_lalr():
    """Lark needs interegular (in the extra `test`) to compare the terminals of each state."""
    Lark(grammar_text(), strict=True, **OPTIONS)


def test_the_patterns_of_the_reader_are_those_of_the_grammar():
    """The text is matched by each terminal of the grammar as by the piece of the same name."""
    rng = random.Random(5)
    terminals = {terminal.name.lstrip("_"): terminal.pattern for terminal in grammar_parser().terminals}
    names = {"ARROW": "__ANON_0".lstrip("_"), "OPEN": "LBRACE"}
    scans = [statement._PIECE, statement._LITERAL]
    groups = {name for scan in scans for name in scan.__self__.groupindex}
    by_name = {names.get(name, name) for name in groups} - {"END"}
    assert by_name == set(terminals) - {"OPEN", "CLOSE", "NL", "SPACE", "COMMENT"}
    for _ in range(2000):
        text = mutated(MORE, rng)
        at = rng.randrange(len(text))
        for scan in scans:
            token = scan(text, at)
            if token is not None and token.lastgroup != "END":
                pattern = terminals[names.get(token.lastgroup, token.lastgroup)]
                found = re.compile(pattern.to_regexp()).match(text, token.start(token.lastindex))
                assert found is not None
                assert found.end() == token.end()


def test_the_blanks_of_the_code_are_those_of_the_grammar():
    patterns = {terminal.name: terminal.pattern.to_regexp() for terminal in grammar_parser().terminals}
    space = re.compile(patterns["SPACE"]).fullmatch
    assert "".join(character for character in map(chr, range(0x110000)) if space(character)) == "\t\r "
    assert sorted(BLANKS) == ["\t", "\r", " "]
    assert set(re.findall(r"\[ [^\]]*\]", grammar_text())) == {r"[ \t\r]"}


def accepted(text: str) -> bool:
    try:
        Statement(text, Context("a.ir", LANGUAGE)).read()
    except NotAStatement:
        return False
    return True


def by_lark(text: str) -> bool:
    try:
        grammar_parser().parse(text, start="statement")
    except UnexpectedInput:
        return False
    return True


def joined(text: str, rng: random.Random) -> str:
    """A text with pieces put in or taken out where pieces meet, which is where the lexer has to choose."""
    joints = [0, *[match.start() for match in re.finditer(r"\b|(?<=\W)(?=\W)", text)]]
    at = rng.choice(joints)
    return text[:at] + rng.choice(JOINTS) + text[rng.choice([at, at, at + 1, *joints]) :]


@pytest.mark.parametrize("seed", range(max(cases(2000) // 1000, 1)))
def test_reader_and_grammar_accept_the_same_statements(seed: int):
    """Damaged statements, one line and several, with their damage where pieces meet and elsewhere."""
    rng = random.Random(seed)
    lines = list(filter(by_lark, [*TEXT.split("\n"), *MORE.split("\n")]))
    lines += [MORE[MORE.index("foo(") : MORE.index("    relu")], MORE[MORE.index("relu(") : MORE.index("    block ^2")]]
    both = 0
    for _ in range(2500):
        text = rng.choice(lines)
        text = joined(text, rng) if rng.random() < 0.7 else mutated(text, rng)
        assert accepted(text) == by_lark(text), text
        both += accepted(text)
    assert 250 < both < 2250


def same(text: str) -> bool:
    """Whether reader and grammar read the text, having checked that they do so alike."""
    try:
        by_hand = parse(text, "a.ir")
    except DiagnosticError:
        by_hand = None
    module = read(text, "a.ir")
    assert (by_hand is None) == (module is None), text
    if by_hand is not None:
        assert exactly(by_hand, places=True) == exactly(module, places=True), text
    return by_hand is not None


@settings(
    max_examples=cases(40), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(modules, st.integers(0, 2**32))
def test_reader_and_grammar_give_the_same_values(module: Module, seed: int):
    text, rng = print_module(module), random.Random(seed)
    assert same(text)
    for _ in range(3):
        same(mutated(text, rng))
        same(joined(text, rng))


@pytest.mark.parametrize("seed", range(4))
def test_reader_and_grammar_give_the_same_values_of_damaged_texts(seed: int):
    rng = random.Random(1000 + seed)
    assert same(TEXT)
    assert same(MORE)
    for _ in range(150):
        same(mutated(rng.choice([TEXT, MORE]), rng))
        same(joined(rng.choice([TEXT, MORE]), rng))


def test_groups_in_groups_are_read_to_any_depth():
    text = "temp %x : " + "a(" * 20_000 + ")" * 20_000
    assert accepted(text)
    assert not accepted(text[:-1])
    assert [accepted(f"temp %x : a({inner})") for inner in ("", "b,", "b, c(d,), e f", ",", "b,,", "b c,d")] == [
        by_lark(f"temp %x : a({inner})") for inner in ("", "b,", "b, c(d,), e f", ",", "b,,", "b c,d")
    ]


def test_reading_and_printing_a_small_program_does_not_import_lark():
    code = (
        "import sys; from pstranspile.ops.textual import parse, print_module;"
        "print_module(parse(sys.stdin.read())); print([m for m in ('lark', 'numpy', 'networkx') if m in sys.modules])"
    )
    text = TEXT.split("# a small module\n")[1]
    done = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("braces", ["\t{step=2.0}", "{step=2.0}", " { step=2.0}", " {step = 2.0 }", "  {step=2.0,}"])
def test_blanks_around_braces_do_not_matter(braces: str):
    text = f"ir 1\nprogram @main {{\n  block ^0 {{\n    increment(X=%i) -> Out=%i{braces}\n  }}\n}}\n"
    assert same(text)
    assert parse(text) == parse(text.replace(braces, " {step=2.0}"))
    assert parse(text).main.main_block.ops[0].attrs["step"] == 2.0
