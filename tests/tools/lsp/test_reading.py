"""What is read as one types is what the whole text says."""

import random
from pathlib import Path

import pytest

from pstranspile.compiler.verify import verify
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import Module
from pstranspile.ops.textual import parse
from pstranspile.tools.lsp.outline import Outline
from pstranspile.tools.lsp.reading import read

ROOT = Path(__file__).parents[3]
NAMES = ("regression", "word2vec", "gan")
TEXTS = {name: (ROOT / "examples" / f"{name}.ir").read_text() for name in NAMES}
LOOP = (ROOT / "tests" / "tools" / "lsp" / "loop.ir").read_text()


def edited(text: str, random_: random.Random) -> str:
    """A text after one edit: characters exchanged, a line taken out, put in twice, joined or split."""
    lines = text.split("\n")
    at = random_.randrange(1, len(lines) - 1)
    choice = random_.randrange(7)
    if choice < 3:
        start = random_.randrange(len(lines[at]) + 1)
        put = random_.choice(["%x", "", ",", "(", "}", "\n", "  ", "# note", "%w", "1"])
        lines[at] = lines[at][:start] + put + lines[at][start + random_.randrange(4) :]
    elif choice == 3:
        del lines[at]
    elif choice == 4:
        lines.insert(at, lines[random_.randrange(len(lines))])
    elif choice == 5:
        lines[at] = lines[random_.randrange(1, len(lines))]
    else:
        lines[at : at + 2] = [", ".join(lines[at : at + 2])]
    return "\n".join(lines)


def whole(text: str) -> Module | None:
    """The module of a text, None if it has mistakes."""
    try:
        return parse(text, "net.ir")
    except DiagnosticError:
        return None


@pytest.mark.parametrize("name", [*NAMES, "loop"])
@pytest.mark.parametrize("seed", range(3))
def test_any_edit_gives_what_reading_the_whole_gives(name: str, seed: int):
    random_ = random.Random(seed)
    original = TEXTS.get(name, LOOP)
    reading = read(original, "net.ir")
    text = original
    for _ in range(25):
        text = edited(text, random_) if random_.random() < 0.8 else original
        reading = read(text, "net.ir", reading)
        module = whole(text)
        if module is None:
            assert reading.module is None
            assert reading.findings
        else:
            assert reading.module == module
            assert reading.findings == verify(module)


def test_a_changed_statement_is_put_in_the_place_of_the_old_one():
    before = read(TEXTS["regression"], "net.ir")
    changed = TEXTS["regression"].replace("square(", "relu(", 1)
    after = read(changed, "net.ir", before)
    assert after.module == parse(changed)
    assert before.module is not None
    assert after.module is not None
    old, new = ([op for p in m.programs.values() for op in p.main_block.ops] for m in (before.module, after.module))
    assert sum(one is not other for one, other in zip(old, new, strict=True)) == 1


def test_the_outline_knows_blocks_while_a_statement_is_open():
    outline = Outline(LOOP.replace("increment(X=%i)", "increment(X=[%i").split("\n"))
    assert [(s.program, s.block, s.parent) for s in outline.sections] == [
        ("main", -1, -1),
        ("main", 0, -1),
        ("main", 1, 0),
        ("startup", -1, -1),
        ("startup", 0, -1),
    ]


def test_an_inner_name_hides_an_outer_one():
    outline = Outline(LOOP.split("\n"))
    inner = next(n for n, line in enumerate(outline.lines) if "scale(X=%t)" in line)
    outer = next(n for n, line in enumerate(outline.lines) if "mean(X=%t)" in line)
    assert [outline.declaration("t", line).section.block for line in (inner, outer)] == [1, 0]  # pyright: ignore
    assert outline.declaration("i", inner).section.block == 0  # pyright: ignore
