"""Sessions with the language server, over stdio as editors hold them."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pstranspile.ops.textual import parse
from tests.devices import PIPES
from tests.tools.lsp.client import Editor

pytest.importorskip("pygls", reason="the extra `lsp` is not installed")

ROOT = Path(__file__).parents[3]
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


def replace(editor: Editor, uri: str, edit: dict[str, Any]) -> None:
    """Makes an edit of one line, as the editor does."""
    start, end = edit["range"]["start"], edit["range"]["end"]
    editor.type(uri, start["line"], start["character"], end["character"], edit["newText"])


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
    with editor.at_once():
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
    others = editor.at("references", uri, *spot("mul(X=%x", "%w", 1), context={"includeDeclaration": False})
    assert len(others) == len(places) - TEXT.count("param %w")
    assert not [place for place in others if "param" in LINES[place["range"]["start"]["line"]]]
    program = spot("program @startup", "@startup", 1)
    assert editor.at("references", uri, *program, context={"includeDeclaration": False}) == []
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


def test_what_is_refused_is_not_logged_as_a_fault(tmp_path: Path):
    """It is told to the editor."""
    with (tmp_path / "log").open("w") as log, Editor(log=log) as editor:
        uri = editor.open(tmp_path / "net.ir", TEXT)
        with pytest.raises(LookupError, match="there is a variable %b already"):
            editor.at("rename", uri, *spot("mul(X=%x", "%w", 1), newName="b")
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_formatting(editor: Editor, tmp_path: Path):
    uri = editor.open(tmp_path / "net.ir", TEXT.replace("    mul(X=%x,", "  mul( X = %x,"))
    options = {"tabSize": 2, "insertSpaces": True}
    (edit,) = editor.request("textDocument/formatting", {"textDocument": {"uri": uri}, "options": options})
    assert edit["newText"] == TEXT


def test_formatting_keeps_the_ends_of_lines(editor: Editor, tmp_path: Path):
    options = {"tabSize": 2, "insertSpaces": True}
    uri = editor.open(tmp_path / "ends.ir", TEXT.replace("\n", "\r\n"))
    assert editor.request("textDocument/formatting", {"textDocument": {"uri": uri}, "options": options}) == []
    editor.type(uri, MUL, 0, 4, "")
    (edit,) = editor.request("textDocument/formatting", {"textDocument": {"uri": uri}, "options": options})
    assert edit["newText"] == TEXT.replace("\n", "\r\n")


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


def test_a_finding_is_mended_by_what_its_message_proposes(editor: Editor, tmp_path: Path):
    text = TEXT.replace("square(X=%error)", "sqare(X=%eror)").replace("{axis=1}", "{axis: 1}", 1)
    lines = text.split("\n")
    uri = editor.open(tmp_path / "fix.ir", text)
    editor.published(uri)
    whole = {"start": {"line": 0, "character": 0}, "end": {"line": len(lines), "character": 0}}
    asked = {"textDocument": {"uri": uri}, "range": whole, "context": {"diagnostics": []}}
    (action,) = editor.request("textDocument/codeAction", asked)
    assert action["title"] == "Replace with `axis=1`"
    assert action["kind"] == "quickfix"
    assert action["diagnostics"][0]["code"] == "syntax"
    (edit,) = action["edit"]["changes"][uri]
    assert cut(edit["range"], lines) == "axis: 1"
    replace(editor, uri, edit)
    editor.published(uri)
    actions = editor.request("textDocument/codeAction", asked)
    assert [action["title"] for action in actions] == ["Replace with `%error`", "Replace with `square`"]
    for action in actions:  # from right to left
        (edit,) = action["edit"]["changes"][uri]
        place = edit["range"]
        editor.type(
            uri, place["start"]["line"], place["start"]["character"], place["end"]["character"], edit["newText"]
        )
    assert editor.request("textDocument/codeAction", asked) == []
    only = {**asked, "context": {"diagnostics": [], "only": ["refactor"]}}
    assert editor.request("textDocument/codeAction", only) == []


def test_a_key_of_a_job_file_is_mended(editor: Editor, tmp_path: Path):
    text = 'pservers = "a:1"\ntrainer = 2\n'
    uri = editor.open(tmp_path / "job.toml", text)
    editor.published(uri)
    line = {"start": {"line": 1, "character": 0}, "end": {"line": 1, "character": 3}}
    asked = {"textDocument": {"uri": uri}, "range": line, "context": {"diagnostics": []}}
    (action,) = editor.request("textDocument/codeAction", asked)
    assert action["edit"]["changes"][uri][0]["newText"] == "trainers"
    assert cut(action["edit"]["changes"][uri][0]["range"], text.split("\n")) == "trainer"
    other = {**asked, "range": {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 3}}}
    assert editor.request("textDocument/codeAction", other) == []


def test_the_outline_names_programs_blocks_what_is_kept_and_ops(editor: Editor, tmp_path: Path):
    uri = editor.open(tmp_path / "outline.ir", TEXT)
    main, startup = editor.request("textDocument/documentSymbol", {"textDocument": {"uri": uri}})
    assert (main["name"], startup["name"]) == ("@main", "@startup")
    (block,) = main["children"]
    assert (block["name"], block["detail"]) == ("^0", "13 ops")
    named = [(symbol["name"], symbol.get("detail")) for symbol in block["children"]]
    assert named[:5] == [
        ("%w", "f32[1000, 20]"),
        ("%b", "f32[20]"),
        ("%lr", "f32[1]"),
        ("mul", "-> %xw"),
        ("elementwise_add", "-> %prediction"),
    ]
    for symbol in block["children"]:
        assert cut(symbol["selectionRange"]) == symbol["name"]
        assert symbol["range"]["start"]["line"] <= symbol["selectionRange"]["start"]["line"]
    assert (
        editor.request("textDocument/documentSymbol", {"textDocument": {"uri": (tmp_path / "job.toml").as_uri()}})
        is None
    )


def test_words_are_coloured_by_what_they_are(editor: Editor, tmp_path: Path):
    text = TEXT.replace("# Linear", "# \U0001d465 Linear").replace("%w :", '%"\U0001d465 w" :')
    text = text.replace("    mul(X=%x, Y=%w) -> Out=%xw", '    mul(X=%x, Y=%"\U0001d465 w") -> Out=%xw  # first')
    lines = text.split("\n")
    uri = editor.open(tmp_path / "colours.ir", text)
    legend = editor.capabilities["semanticTokensProvider"]["legend"]
    data = editor.request("textDocument/semanticTokens/full", {"textDocument": {"uri": uri}})["data"]
    line = column = 0
    found: list[tuple[int, str, str, int]] = []
    for at in range(0, len(data), 5):
        down, along, width, kind, modifiers = data[at : at + 5]
        line, column = line + down, along if down else column + along
        units = lines[line].encode("utf-16-le")
        word = units[2 * column : 2 * (column + width)].decode("utf-16-le")
        found.append((line, word, legend["tokenTypes"][kind], modifiers))
    by_line = {number: [(word, kind) for at, word, kind, _ in found if at == number] for number in range(len(lines))}
    assert by_line[0] == [(lines[0], "comment")]
    assert by_line[5] == [
        ("param", "keyword"),
        ('%"\U0001d465 w"', "variable"),
        ("f32", "type"),
        ("1000", "number"),
        ("20", "number"),
    ]
    mul = next(number for number, content in enumerate(lines) if "mul(X=" in content)
    assert by_line[mul] == [
        ("mul", "function"),
        ("X", "property"),
        ("%x", "variable"),
        ("Y", "property"),
        ('%"\U0001d465 w"', "variable"),
        ("->", "operator"),
        ("Out", "property"),
        ("%xw", "variable"),
        ("# first", "comment"),
    ]
    role = next(words for words in by_line.values() if words and words[0] == ("fill_constant", "function"))
    assert role[-2:] == [("backward", "modifier"), ("loss", "modifier")]
    declared = [word for _, word, _, modifiers in found if modifiers & 1]
    assert declared[:3] == ["@main", "^0", '%"\U0001d465 w"']
    some = {"start": {"line": mul, "character": 0}, "end": {"line": mul, "character": 9}}
    part = editor.request("textDocument/semanticTokens/range", {"textDocument": {"uri": uri}, "range": some})["data"]
    assert (part[0], len(part)) == (mul, 5 * len(by_line[mul]))


@PIPES
def test_pipes_and_devices_are_not_read(editor: Editor, tmp_path: Path):
    pipe = tmp_path / "pipe.ir"
    os.mkfifo(pipe)
    os.mkfifo(tmp_path / "job.toml")
    for path in (pipe, Path("/dev/zero"), tmp_path):
        assert editor.at("hover", path.as_uri(), 0, 0) is None
        document = {"textDocument": {"uri": path.as_uri()}}
        assert editor.request("textDocument/documentSymbol", document) == []
        assert editor.request("textDocument/foldingRange", document) == []
    uri = editor.open(tmp_path / "net.ir", TEXT)
    assert editor.published(uri) == []
    (finding,) = editor.published(uri)
    assert finding["message"].startswith("job.toml: can't read the job file: it is a pipe or a device")
    assert editor.at("hover", uri, *spot("param %w", "%w", 1)) is not None


def test_files_that_no_editor_has_open_are_read(editor: Editor, tmp_path: Path):
    (tmp_path / "closed.ir").write_text(TEXT, encoding="utf-8")
    shown = editor.at("hover", (tmp_path / "closed.ir").as_uri(), *spot("param %w", "%w", 1))
    assert "param %w" in shown["contents"]["value"]


@pytest.mark.parametrize("folder", ["a b", "100%25", "\u00e9\U0001d4b3", "a,b&c"])
def test_a_text_counts_as_typed_wherever_its_file_is(editor: Editor, tmp_path: Path, folder: str):
    (tmp_path / folder).mkdir()
    path = tmp_path / folder / "net.ir"
    path.write_text("what was saved", encoding="utf-8")
    (tmp_path / folder / "job.toml").write_text(JOB)
    uri = editor.open(path, TEXT)
    assert editor.published(uri, 2) == []
    assert "b:2" in editor.at("hover", uri, *spot("param %w", "%w", 1))["contents"]["value"]
    line, column = spot("mul(X=%x", "%x", 1)
    editor.type(uri, line, column, column + 1, "xx")
    assert [finding["code"] for finding in editor.published(uri)] == ["undeclared-variable"]
    editor.type(uri, line, column, column + 2, "x")
    job = editor.open(tmp_path / folder / "job.toml", JOB.replace("b:2", "c:3"))
    assert editor.published(job) == []
    assert editor.published(uri) == []
    assert "c:3" in editor.at("hover", uri, *spot("param %w", "%w", 1))["contents"]["value"]


@pytest.mark.parametrize("uri", ["file:///c%3A/net.ir", "file:///C:/net.ir", "untitled:1", "file:///a%FFb%00.ir"])
def test_a_text_counts_as_typed_whatever_its_uri(editor: Editor, uri: str):
    item = {"uri": uri, "languageId": "pstranspile-ir", "version": 1, "text": TEXT.replace("axis=1", "axxis=1")}
    editor.notify("textDocument/didOpen", {"textDocument": item})
    assert {finding["code"] for finding in editor.published(uri)} == {"unknown-attribute"}
    editor.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
    assert editor.published(uri) == []


def test_what_ends_no_line_of_the_editor_moves_nothing(editor: Editor, tmp_path: Path):
    uri = editor.open(tmp_path / "separators.ir", f"# a \u2028 b \u0085\n{TEXT}")
    assert editor.published(uri, 1) == []
    editor.type(uri, MUL + 1, 4, 7, "mull")
    (finding,) = editor.published(uri)
    assert finding["message"].startswith("mull: ")
    assert (finding["range"]["start"]["line"], finding["range"]["end"]["character"]) == (MUL + 1, 8)


def test_a_wrong_job_is_told_in_its_program(editor: Editor, tmp_path: Path):
    file = tmp_path / "net.job.toml"
    file.write_text("pservers = 2\ntrainer = 2\n")
    (tmp_path / "job.json").write_text('{"pservers": 2, "trainers": 2}')
    uri = editor.open(tmp_path / "net.ir", TEXT)
    (finding,) = editor.published(uri, 2)
    assert finding["code"] == "job-unknown-key"
    assert finding["message"] == "net.job.toml:2:1: a job has no key 'trainer'; did you mean trainers?"
    assert finding["range"]["start"]["line"] == 0
    context = {"diagnostics": [finding]}
    asked = {"textDocument": {"uri": uri}, "range": finding["range"], "context": context}
    assert editor.request("textDocument/codeAction", asked) == []  # the text to replace is in another file
    job = editor.open(file, JOB)
    assert editor.published(uri) == []
    editor.notify("textDocument/didClose", {"textDocument": {"uri": job}})
    assert len(editor.published(uri)) == 1


def test_a_job_that_is_not_readable_is_told_in_its_program(editor: Editor, tmp_path: Path):
    for number, content in enumerate([b"pservers = 2 # \xff\n", None]):
        file = tmp_path / f"net{number}.job.toml"
        if content is None:
            file.mkdir()
        else:
            file.write_bytes(content)
        uri = editor.open(tmp_path / f"net{number}.ir", TEXT)
        (finding,) = editor.published(uri, 2)
        assert finding["code"] == "job-file"
        assert finding["message"].startswith(f"net{number}.job.toml: ")
        assert "not UTF-8" in finding["message"] or "directory" in finding["message"]


def test_what_compile_refuses_for_servers_is_told_without_a_job(editor: Editor, tmp_path: Path):
    uri = editor.open(tmp_path / "alone.ir", TEXT.replace("program @startup", "program @other"))
    assert editor.published(uri) == []
    (finding,) = editor.published(uri)
    assert finding["code"] == "no-program"
    assert finding["severity"] == 2
