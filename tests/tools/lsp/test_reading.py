"""What is read as one types is what the whole text says."""

import json
import random
from pathlib import Path

import pytest

from pstranspile.compiler.compile import well_formed
from pstranspile.ir.diagnostics import DiagnosticError, Severity
from pstranspile.ir.model import Module
from pstranspile.ops.textual import parse
from pstranspile.tools.cli import main
from pstranspile.tools.lsp.outline import Outline
from pstranspile.tools.lsp.reading import Workspace, read

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
            assert reading.findings == well_formed(module)


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


WITHOUT_VALUE = TEXTS["regression"].replace("    uniform_random() -> Out=%w", "    #")
COMPARED = {
    **{path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "golden" / "rejected").glob("*.ir"))},
    "without-value": WITHOUT_VALUE,
    "without-startup": TEXTS["regression"].replace("@startup", "@other"),
    "exchanged": TEXTS["regression"].replace("@startup", "@a").replace("@main", "@startup").replace("@a", "@main"),
    "nothing": "ir 1\n",
}


@pytest.mark.parametrize("name", COMPARED)
def test_the_editor_finds_what_verify_finds(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "net.ir"
    path.write_text(COMPARED[name], encoding="utf-8")
    main(["verify", str(path), "--json"])
    told = [
        (d["code"], d["severity"], d["message"], d["line"]) for d in json.loads(capsys.readouterr().out)["findings"]
    ]
    found = Workspace(lambda _: None).findings(path, COMPARED[name])
    assert [
        (d.code, d.severity.name.lower(), d.message, d.location.line or None if d.location else None) for d in found
    ] == told


def test_what_is_told_where_it_is_declared_is_not_told_again_of_the_job(tmp_path: Path):
    path = tmp_path / "net.ir"
    (tmp_path / "job.toml").write_text("pservers = 2\ntrainers = 2\n")
    (finding,) = Workspace(lambda _: None).findings(path, WITHOUT_VALUE)
    assert finding.code == "parameter-without-value"
    assert finding.severity is Severity.ERROR


def test_an_error_of_the_job_takes_the_place_of_a_warning(tmp_path: Path):
    path = tmp_path / "net.ir"
    (tmp_path / "job.toml").write_text("pservers = 2\ntrainers = 2\n")
    (finding,) = Workspace(lambda _: None).findings(path, COMPARED["without-startup"])
    assert finding.code == "no-program"
    assert finding.severity is Severity.ERROR
