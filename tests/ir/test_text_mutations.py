"""Damaged texts: nothing but diagnostics is ever raised, and what is read is what the grammar says."""

from __future__ import annotations

import os
import random

import pytest

from pstranspile.ir.diagnostics import DiagnosticError, render
from pstranspile.ir.layout import BLANKS
from pstranspile.ops.textual import format_text, parse
from tests.hostile.counts import cases
from tests.ir import by_grammar
from tests.strategies import exactly

TEXT = """# a small module
ir 1

program @main seed=1 {
  block ^0 {
    param %fc_0.w_0 : f32[13, 1] {learning_rate=0.5, trainable=false}
    temp  %words : i64[-1, 1] lod=1 feed
    state %reader : reader(f32[-1, 784], i64[-1, 1] lod=1)
    temp  %"a b\\n" : rows f32[1000, 16]
    mul(X=%x, Y=%fc_0.w_0) -> Out=%fc_0.tmp_0
    sum(X=[%a, %"a b\\n"]) -> Out=%c : backward  # why
    fill_constant -> Out=%g {shape=[1], value=-1.5, -op_namescope, -str_value} : backward|loss
    foo(X=[%a, %"a, b",
        %c, %d]) -> Out=%c {a=1, s="a, (",
        v=[1,
        2]} : optimize(%w,
        %g)
    sgd(Param=%w, Grad=%g, LearningRate=%lr) -> ParamOut=%w : optimize(%w, %g)
    while(X=%i, Condition=%c) -> Out=%i {sub_block=^1, q:longs=[]} : role=77 target
    block ^1 {
      increment(X=%i) -> Out=%i {step=2.0} : norole
      foo {a="x } # \\xff", b:strings=["1", "{"], c=[^1, ^0], d=[1.5, inf], n:long=-5}
    }
  }
}
"""
JUNK = [*'{}()[]%^@#",:=|-> \n\r\t\\0519.eE+_aZ\x00\udc80é']
JUNK += ["->", "block", "param", "temp", "in", "target", '""', "\\x80", "nan", "-inf", "true", "1e39", "99999999999"]
JUNK += ["\xa0", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u3000", "\ufeff"]
JUNK += ["^1", "%a", "{}", "# c", "feed", "lod=2", " : ", "\\q", '%"a"']


SPACES = [chr(c) for c in range(0x3001) if chr(c).isspace() or len(f"a{chr(c)}b".splitlines()) > 1]
"""Every character that Python strips or splits lines at."""


def mutated(text: str, rng: random.Random) -> str:
    for _ in range(rng.choice([1, 1, 2, 4])):
        at, way, lines = rng.randrange(len(text) + 1), rng.randrange(6), text.split("\n")
        if way == 0:
            text = text[:at] + rng.choice(JUNK) + text[at:]
        elif way == 1:
            text = text[:at] + text[at + rng.choice([1, 1, 2, 5, 20]) :]
        elif way == 2:
            lines.insert(rng.randrange(len(lines)), rng.choice(lines))
            text = "\n".join(lines)
        elif way == 3:
            del lines[rng.randrange(len(lines))]
            text = "\n".join(lines)
        elif way == 4:
            start = rng.randrange(len(text) + 1)
            text = text[:at] + text[start : start + rng.choice([1, 3, 10])] + text[at:]
        else:
            text = text[:at] + rng.choice(JUNK) + text[at + 1 :]
    return text


@pytest.mark.parametrize("seed", range(max(cases(2000) // 1000, 1)))
def test_mutations_raise_nothing_but_diagnostics(seed: int):
    rng = random.Random(seed)
    accepted = 0
    rendered: list[str] = []
    for _ in range(1000):
        text = mutated(TEXT, rng)
        try:
            parse(text, "a.ir")
            accepted += 1
        except DiagnosticError as error:
            rendered.append(render(error.diagnostics, {"a.ir": text}))
    assert all(rendered)
    assert "\n".join(rendered).encode()  # nothing that can't be written out
    assert 50 < accepted < 950


@pytest.mark.parametrize("seed", range(4))
def test_reader_and_grammar_agree_on_mutations(seed: int):
    rng = random.Random(1000 + seed)
    for _ in range(250):
        text = mutated(TEXT, rng)
        try:
            by_hand = parse(text, "a.ir")
        except DiagnosticError:
            by_hand = None
        plain = by_grammar.read(text, "a.ir")
        assert (by_hand is None) == (plain is None), text
        if by_hand is not None:
            assert exactly(by_hand, places=True) == exactly(plain, places=True), text
            formatted = format_text(text)
            assert format_text(formatted) == formatted


@pytest.mark.parametrize("space", SPACES, ids=ascii)
def test_only_blanks_of_the_grammar_are_blanks(space: str):
    """At the ends of lines, alone on a line, and beside a comment.

    CI takes every third line for a character that is no blank, another third for the next one; a campaign all lines.
    """
    lines = TEXT.split("\n")
    whole = space in BLANKS + "\n" or "PSTRANSPILE_CASES" in os.environ
    codes: set[str] = set()
    texts = [TEXT.replace("  # why", f"{space}# why"), TEXT.replace("# why", f"# why{space}")]
    for number, line in enumerate(lines):
        if not whole and number % 3 != SPACES.index(space) % 3:
            continue
        for changed in (space + line, line + space, f"{line}\n{space}"):
            texts.append("\n".join([*lines[:number], changed, *lines[number + 1 :]]))
    for text in texts:
        try:
            plain = parse(text, "a.ir")
        except DiagnosticError as problem:
            plain = None
            codes.add(problem.diagnostics[0].code)
        assert (by_grammar.read(text, "a.ir") is None) == (plain is None), text
        if plain is not None:
            formatted = format_text(text)
            assert format_text(formatted) == formatted
        if space in BLANKS + "\n":
            assert plain is not None, text
    assert codes <= {"syntax", "version-line", "not-text"}


def test_what_is_unseen_is_named():
    for space, named in (("\xa0", "U+00A0"), ("\x0c", "U+000C"), ("\u3000", "U+3000"), ("\u2028", "U+2028")):
        for text in (f"{space}{TEXT}", TEXT.replace("ir 1", f"ir 1{space}"), TEXT.replace("mul(", f"mul{space}(")):
            with pytest.raises(DiagnosticError) as caught:
                parse(text, "a.ir")
            assert named in caught.value.diagnostics[0].message
            assert space not in str(caught.value) or space.isprintable()


def test_a_statement_may_have_any_number_of_lines():
    numbers = "".join(f"      {number},\n" for number in range(3000))
    text = f"ir 1\n\nprogram @main {{\n  block ^0 {{\n    foo {{v=[\n{numbers}    ]}}\n  }}\n}}\n"
    (op,) = parse(text).main.main_block.ops
    assert op.attrs["v"] == tuple(range(3000))
