"""Lines put in, taken out and moved: what is read of them is what the whole text says, down to places in it."""

import random
from pathlib import Path

import pytest

from pstranspile.compiler.compile import well_formed
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError
from pstranspile.ir.model import Location, Module, Origin
from pstranspile.ops.textual import parse
from pstranspile.tools.lsp.reading import TextReading, read

ROOT = Path(__file__).parents[3]
TEXTS = {
    path.stem: path.read_text()
    for path in (
        *(ROOT / "examples" / f"{name}.ir" for name in ("regression", "word2vec", "gan", "transformer")),
        *(ROOT / "golden" / f"{name}.ir" for name in ("mlp_adam", "sync")),
        ROOT / "tests" / "tools" / "lsp" / "loop.ir",
    )
    if path.exists()
}
ODD = """ir 1  # every layout that the language has
program @main {  # heads may have comments
  block ^0 {
    param %w : f32[4, 2]  # and so may declarations
    temp %x : f32[
      -1, 4
    ] feed
    temp %"a b" : f32[-1, 2]

    mul(X=%x,
        Y=%w) -> Out=%"a b"  # one statement, two lines
    # a line of its own
    scale(  # opened
      X=%"a b"
    ) -> Out=%out,  # a comma, then a comment
         -ScaleTensor
    temp %out : f32[-1, 2]
    scale(X=%out) -> Out=%out {scale=2.0,

      bias=1.0} : forward @train.py:20
    while(X=[], Condition=%c) -> Out=[], StepScopes=[] {sub_block=^1}
    temp %c : bool[1]
  }
  block ^1 in ^0 {  # another
    temp %y : f32[-1, 2]
    scale(X=%out) -> Out=%y @"a b.py":3
  }
}
"""
TEXTS["odd"] = ODD


def places(module: Module) -> list[Origin | Location | None]:
    """Where everything stands, and the order of variables: what takes no part in equality."""
    blocks = [block for program in module.programs.values() for block in program.blocks]
    return [
        *[op.origin for block in blocks for op in block.ops],
        *[var.location for block in blocks for var in block.vars.values()],
        *[block.location for block in blocks],
        *[Location(name) for block in blocks for name in block.vars],
    ]


def said(text: str) -> tuple[Module | None, tuple[Diagnostic, ...]]:
    """What reading and verifying a whole text gives."""
    try:
        module = parse(text, "net.ir")
    except DiagnosticError as problem:
        return None, problem.diagnostics
    return module, well_formed(module)


def expect_same(reading: TextReading, text: str) -> None:
    module, findings = said(text)
    assert reading.findings == findings
    assert reading.module == module
    if module is not None and reading.module is not None:
        assert places(reading.module) == places(module)
        assert reading.module.source == module.source


def with_lines_changed(text: str, random_: random.Random) -> str:
    """A text with some lines put in, taken out, doubled, moved, split, joined or renamed, at up to three places."""
    lines = text.split("\n")
    for _ in range(random_.choice([1, 1, 1, 2, 3])):
        at = random_.randrange(1, len(lines))
        count = random_.choice([1, 1, 1, 2, 5])
        other = lines[random_.randrange(len(lines)) :][:count]
        match random_.randrange(8):
            case 0:
                lines[at:at] = random_.choice(
                    [[""], ["    # note"], ["    scale(X=%w) -> Out=%w"], ["    temp %new : f32[2]"]]
                )
            case 1:
                del lines[at : at + count]
            case 2:
                lines[at:at] = other
            case 3:
                lines[at : at + count] = other
            case 4:
                taken = lines[at : at + count]
                del lines[at : at + count]
                to = random_.randrange(len(lines) + 1)
                lines[to:to] = taken
            case 5:
                cut = random_.randrange(len(lines[at]) + 1)
                lines[at : at + 1] = [lines[at][:cut], lines[at][cut:]]
            case 6:
                lines[at : at + 2] = [" ".join(lines[at : at + 2])]
            case _:
                lines[at] = lines[at].replace(
                    *random_.choice([("%w", "%x"), ("2", "3"), (",", ",  # why"), (")", "\n)")]), 1
                )
        if len(lines) < 3:
            break
    return "\n".join(lines)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("seed", range(4))
def test_changed_lines_give_what_reading_the_whole_gives(name: str, seed: int):
    random_ = random.Random(seed)
    text = original = TEXTS[name]
    if seed == 3:
        text = original = original.replace("\n", "\r\n")
    reading = read(text, "net.ir")
    expect_same(reading, text)
    for _ in range(25 if len(text) < 30_000 else 5):
        text = with_lines_changed(text if random_.random() < 0.6 else original, random_)
        reading = read(text, "net.ir", reading)
        expect_same(reading, text)


EDITS = {
    "a wrong first word declares all the same": ("temp %out :", "am %x :"),
    "a comma before a comment goes on": ("-ScaleTensor", "-ScaleTensor, -Other"),
    "the version line again": ("    # a line of its own", "ir 1"),
    "a head with a comment stays a head": ("temp %y : f32[-1, 2]", "temp %y : f32[-1, 3]\n    temp %z : f32[1]"),
    "a block begins": ("    temp %c : bool[1]", "    block ^2 {\n    temp %c : bool[1]"),
    "a block ends": ("    temp %c : bool[1]", "  }\n    temp %c : bool[1]"),
    "a variable twice, and a mistake": (
        "    temp %c : bool[1]",
        "    temp %c : bool[1]\n    temp %w : f32[1]\n    mul(X=%%)",
    ),
}


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_and_its_undoing(what: str):
    edited = ODD.replace(*EDITS[what])
    assert edited != ODD
    reading = read(ODD, "net.ir")
    for text in (edited, ODD, edited + "\n", edited):
        reading = read(text, "net.ir", reading)
        expect_same(reading, text)
