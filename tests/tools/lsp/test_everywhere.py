"""Every feature at any place of any text: nothing fails, and renaming keeps what a program means."""

import random
from pathlib import Path

import pytest

from pstranspile.compiler.verify import verify
from pstranspile.ops.textual import parse
from pstranspile.tools.lsp.completion import complete
from pstranspile.tools.lsp.hover import hover
from pstranspile.tools.lsp.names import NameReference, definitions, named_at, references, rename
from pstranspile.tools.lsp.outline import Outline
from pstranspile.tools.lsp.values import LineSpan, RequestRefused, TextPosition
from tests.tools.lsp.test_reading import edited

ROOT = Path(__file__).parents[3]
TEXTS = [*sorted((ROOT / "golden").glob("*.ir")), *sorted((ROOT / "golden" / "rejected").glob("*.ir"))]


@pytest.mark.parametrize("seed", range(25))
def test_nothing_fails_wherever_one_looks(seed: int):
    random_ = random.Random(seed)
    text = random_.choice(TEXTS).read_text(errors="replace")
    for _ in range(random_.randrange(4)):
        text = edited(text, random_) if text.count("\n") > 3 else text
    outline = Outline(text.split("\n"))
    for fold in outline.folds():
        assert 0 <= fold.first_line <= fold.last_line < len(outline.lines)
    for _ in range(20):
        line = random_.randrange(len(outline.lines))
        spot = TextPosition(line, random_.randrange(len(outline.lines[line]) + 1))
        hover(outline, spot)
        complete(outline, spot)
        named = named_at(outline, spot)
        if named is not None:
            spans = references(outline, named)
            assert {*definitions(outline, named)} <= {*spans}
            changes(outline, named, "renamed")


def changes(outline: Outline, named: NameReference, name: str) -> list[tuple[LineSpan, str]]:
    """What renaming changes; nothing where it is refused."""
    try:
        return rename(outline, named, name)
    except RequestRefused:
        return []


def changed(text: str, name: str, new: str) -> str:
    """A text in which a variable has another name."""
    outline = Outline(text.split("\n"))
    lines = list(outline.lines)
    declared = outline.declarations[name][0]
    for span, put in reversed(changes(outline, NameReference("variable", name, declared.span), new)):
        lines[span.line] = lines[span.line][: span.start] + put + lines[span.line][span.stop :]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "file", [ROOT / "examples" / "gan.ir", ROOT / "tests" / "tools" / "lsp" / "loop.ir"], ids=lambda f: f.stem
)
def test_renaming_keeps_what_a_program_means(file: Path):
    text = file.read_text()
    before = [finding.code for finding in verify(parse(text))]
    names = [name for name in Outline(text.split("\n")).declarations if "@GRAD" not in name]
    for name in names[::4]:
        renamed = changed(text, name, "a new name")
        assert renamed != text
        module = parse(renamed)
        assert [finding.code for finding in verify(module)] == before
        assert changed(renamed, "a new name", name) == text or name == "t"  # %t of another block has the old name still
