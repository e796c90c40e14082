"""Sessions with the language server, over stdio as editors hold them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pstranspile.ops.textual import parse
from tests.lsp.client import Editor

pytest.importorskip("pygls", reason="the extra `lsp` is not installed")

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "examples" / "regression.ir").read_text()
LINES = TEXT.split("\n")
MUL = LINES.index("    mul(X=%x, Y=%w) -> Out=%xw")
JOB = 'pservers = "a:1,b:2"\ntrainers = 2\n'


@pytest.fixture(scope="module")
def editor() -> Iterator[Editor]:
    with Editor() as editor:
        yield editor


def spot(text: str, what: str, offset: int = 0) -> tuple[int, int]:
    """Line and column of a text in the example."""
    line = next(number for number, content in enumerate(LINES) if text in content)
    return line, LINES[line].index(what, LINES[line].index(text)) + offset


def cut(range_: dict[str, Any], lines: list[str] = LINES) -> str:
    """The characters of a range on one line."""
    return lines[range_["start"]["line"]][range_["start"]["character"] : range_["end"]["character"]]


def test_findings_come_and_go_as_one_types(editor: Editor, tmp_path: Path):
    uri = editor.open(tmp_path / "net.ir", TEXT)
    assert editor.published(uri) == []
    line, column = spot("mul(X=%x", "%x", 1)
    editor.type(uri, line, column, column + 1, "xx")
    (finding,) = editor.published(uri)
    assert finding["code"] == "undeclared-variable"
    assert finding["severity"] == 1
    assert cut(finding["range"], [*LINES[:line], LINES[line].replace("%x,", "%xx,"), *LINES[line + 1 :]]) == "%xx"
    editor.type(uri, line, column - 1, column + 2, "%%")
    (finding,) = editor.published(uri)
    assert finding["code"] == "syntax"
    assert finding["range"]["start"]["line"] == line
    editor.type(uri, line, column - 1, column + 1, "%x")
    assert editor.published(uri) == []


def test_only_the_last_of_quick_keystrokes_is_looked_at(editor: Editor, tmp_path: Path):
    uri = editor.open(tmp_path / "quick.ir", TEXT)
    assert editor.published(uri) == []
    for count in range(20):
        editor.type(uri, MUL, 4, 4 + count, "q" * (count + 1))
    (finding,) = editor.published(uri)
    assert "q" * 20 in finding["message"]


def test_a_job_beside_a_program_is_compiled_and_hints_where_it_lives(editor: Editor, tmp_path: Path):
    (tmp_path / "job.toml").write_text(JOB + "min_block_size = 8192\n")
    uri = editor.open(tmp_path / "net.ir", TEXT)
    assert editor.published(uri, 2) == []
    whole = {"start": {"line": 0, "character": 0}, "end": {"line": len(LINES), "character": 0}}
    hints = editor.request("textDocument/inlayHint", {"textDocument": {"uri": uri}, "range": whole})
    shown = {LINES[hint["position"]["line"]].split()[1]: hint["label"] for hint in hints}
    assert shown == {"%w": "→ b:2 rows 0..500, a:1 rows 500..1000", "%b": "→ a:1"}
    text = editor.at("hover", uri, *spot("param %w", "%w", 1))["contents"]["value"]
    assert "param %w : f32[1000, 20]" in text
    assert "`a:1`: rows 500 to 1000, as `%w.block1`" in text


def test_what_the_job_can_not_do_is_told_in_the_program(editor: Editor, tmp_path: Path):
    (tmp_path / "net.job.toml").write_text(JOB)
    text = TEXT.replace("program @startup", "program @other")
    uri = editor.open(tmp_path / "net.ir", text)
    (finding,) = editor.published(uri, 2)
    assert finding["code"] == "no-program"


def test_a_job_that_is_not_saved_counts(editor: Editor, tmp_path: Path):
    uri = editor.open(tmp_path / "net.ir", TEXT.replace("program @startup", "program @other"))
    assert editor.published(uri) == []
    job = editor.open(tmp_path / "job.toml", JOB)
    assert editor.published(job) == []
    (finding,) = editor.findings[uri] or editor.published(uri)
    assert finding["code"] == "no-program"


def test_mistakes_of_a_job_file(editor: Editor, tmp_path: Path):
    uri = editor.open(tmp_path / "job.toml", 'pservers = 2\nmode = "snyc"\n')
    (finding,) = editor.published(uri)
    assert finding["code"] == "job-value"
    assert finding["range"]["start"]["line"] == 1
    items = editor.at("completion", uri, 1, 7)["items"]
    assert '"geo"' in [item["label"] for item in items]
    keys = [item["label"] for item in editor.at("completion", uri, 2, 0)["items"]]
    assert "min_block_size" in keys
    assert "a list of endpoints" in editor.at("hover", uri, 0, 2)["contents"]["value"]


@pytest.fixture(scope="module")
def uri(editor: Editor, tmp_path_factory: pytest.TempPathFactory) -> str:
    return editor.open(tmp_path_factory.mktemp("open") / "net.ir", TEXT)


def test_definition_and_references(editor: Editor, uri: str):
    (place,) = editor.at("definition", uri, *spot("mul(X=%x", "%w", 1))
    assert place["range"]["start"]["line"] == spot("param %w", "%w")[0]
    places = editor.at("references", uri, *spot("mul(X=%x", "%w", 1), context={"includeDeclaration": True})
    texts = [cut(place["range"]) for place in places]
    assert texts == ["%w"] * TEXT.replace("%w@GRAD", "").count("%w")
    (head,) = editor.at("definition", uri, *spot("block ^0", "^0", 1))
    assert cut(head["range"]) == "^0"
    assert editor.at("definition", uri, *spot("mul(X=%x", "mul", 1)) is None


def test_hovering_over_ops_slots_and_attributes(editor: Editor, uri: str):
    op = editor.at("hover", uri, *spot("mul(X=%x", "mul", 1))["contents"]["value"]
    assert "mul(X, Y) -> Out" in op
    assert "x_num_col_dims: int = 1" in op
    assert "An input of `mul`: one variable." in editor.at("hover", uri, *spot("mul(X=%x", "X"))["contents"]["value"]
    attribute = editor.at("hover", uri, *spot("{axis=1}", "axis", 1))["contents"]["value"]
    assert "axis: int = -1" in attribute
    assert editor.at("hover", uri, 2, 0) is None


COMPLETIONS = {
    "": {"mul", "param", "temp"},
    "mul(": {"X", "Y"},
    "mul(X=%x, ": {"Y"},
    "mul(X=%": {"%x", "%w", "%loss@GRAD"},
    "mul(X=%x, Y=%w) -> ": {"Out"},
    "mul(X=%x, Y=%w) -> Out=%xw {": {"x_num_col_dims", "op_namescope"},
    "mul(X=%x, Y=%w) -> Out=%xw {x_num_col_dims=": {"1"},
    "mul(X=[%x, %w], ": {"Y"},
    "dropout(X=%x) -> Out=%xw {is_test=": {"true", "false"},
    "elementwise_add(X=%x, Y=%w) -> Out=%xw {axis=": {"1", "-1"},
    "mul(X=%x, Y=%w) -> Out=%xw : ": {"backward", "optimize", "lr_sched"},
    "mul(X=%x, Y=%w) -> Out=%xw : optimize(": {"%w"},
    "while(X=%x) -> Out=%xw {sub_block=": {"^0"},
    "temp %q : ": {"f32", "rows"},
}


@pytest.mark.parametrize("typed", COMPLETIONS, ids=str)
def test_completion(editor: Editor, tmp_path: Path, typed: str):
    uri = editor.open(tmp_path / "net.ir", TEXT)
    editor.type(uri, MUL, 0, len(LINES[MUL]), f"    {typed}")
    items = editor.at("completion", uri, MUL, 4 + len(typed))["items"]
    labels = {item["label"] for item in items}
    assert labels >= COMPLETIONS[typed]
    if typed.endswith(", "):
        assert "X" not in labels  # it is there already


def test_a_completed_op_fills_what_it_must_have(editor: Editor, uri: str):
    items = editor.at("completion", uri, *spot("mul(X=%x", "mul"))["items"]
    (mul,) = [item for item in items if item["label"] == "mul"]
    assert mul["textEdit"]["newText"] == "mul(X=%$1, Y=%$2) -> Out=%$3"
    assert mul["insertTextFormat"] == 2


def test_renaming_a_variable_gives_the_same_program(editor: Editor, uri: str):
    edits = editor.at("rename", uri, *spot("mul(X=%x", "%w", 1), newName="weight")["changes"][uri]
    lines = list(LINES)
    for edit in reversed(edits):
        at, start, stop = edit["range"]["start"]["line"], *(edit["range"][e]["character"] for e in ("start", "end"))
        lines[at] = lines[at][:start] + edit["newText"] + lines[at][stop:]
    assert "%weight@GRAD" in "\n".join(lines)
    back = "\n".join(lines).replace("%weight", "%w")
    assert parse(back) == parse(TEXT)
    assert parse("\n".join(lines)).main.main_block.vars.keys() >= {"weight", "weight@GRAD"}


def test_renaming_to_a_name_that_is_taken_is_refused(editor: Editor, uri: str):
    with pytest.raises(LookupError, match="there is a variable %b already"):
        editor.at("rename", uri, *spot("mul(X=%x", "%w", 1), newName="b")


def test_formatting(editor: Editor, tmp_path: Path):
    uri = editor.open(tmp_path / "net.ir", TEXT.replace("    mul(X=%x,", "  mul( X = %x,"))
    options = {"tabSize": 2, "insertSpaces": True}
    (edit,) = editor.request("textDocument/formatting", {"textDocument": {"uri": uri}, "options": options})
    assert edit["newText"] == TEXT


def test_folding(editor: Editor, uri: str):
    folds = editor.request("textDocument/foldingRange", {"textDocument": {"uri": uri}})
    assert [LINES[fold["startLine"]].strip() for fold in folds] == [
        "program @main seed=1 {",
        "block ^0 {",
        "program @startup seed=1 {",
        "block ^0 {",
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_columns_are_counted_as_the_editor_does(encoding: str, tmp_path: Path):
    text = TEXT.replace("%x,", '%"\U0001f600x",', 1)
    line = next(number for number, content in enumerate(text.split("\n")) if "\U0001f600" in content)
    with Editor(encoding, snippets=False) as editor:
        assert editor.capabilities["positionEncoding"] == encoding
        uri = editor.open(tmp_path / "net.ir", text)
        findings = editor.published(uri)
        (finding,) = [f for f in findings if f["code"] == "undeclared-variable"]
        ends = {"utf-8": 5, "utf-16": 3, "utf-32": 2}[encoding] + 3
        start = LINES[line].index("%x")
        assert [finding["range"][end]["character"] for end in ("start", "end")] == [start, start + ends]
        items = editor.at("completion", uri, line, 4)["items"]
        assert next(i for i in items if i["label"] == "mul")["textEdit"]["newText"] == "mul(X=%, Y=%) -> Out=%"


def test_a_mark_of_the_byte_order_is_no_mistake(editor: Editor, tmp_path: Path):
    uri = editor.open(tmp_path / "marked.ir", f"\ufeff{TEXT}")
    assert editor.published(uri) == []
    editor.type(uri, 0, 1, 1, "!")
    assert editor.published(uri)[0]["range"]["start"] == {"line": 0, "character": 1}


def test_what_is_asked_of_a_file_that_is_gone_has_an_empty_answer(editor: Editor, tmp_path: Path):
    uri = editor.open(tmp_path / "gone.ir", TEXT)
    assert editor.published(uri) == []
    editor.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
    assert editor.published(uri) == []
    assert editor.at("hover", uri, MUL, 5) is None
    assert editor.at("definition", uri, MUL, 5) is None
    other = (tmp_path / "binary.ir").as_uri()
    (tmp_path / "binary.ir").write_bytes(b"\xff\x00")
    assert editor.at("hover", other, 0, 0) is None
