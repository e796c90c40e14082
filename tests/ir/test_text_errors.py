"""What is said of texts that can't be read: every case of `rejected/`, and the hopeless ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from pstranspile.ir.diagnostics import MAX_FINDINGS, DiagnosticError, render
from pstranspile.ops.textual import parse
from tests.codes import codes_in

CASES = sorted((Path(__file__).parent / "rejected").glob("*.ir"))
HEAD, TAIL = "ir 1\nprogram @main {\nblock ^0 {\n", "}\n}\n"


def findings(text: str) -> DiagnosticError:
    with pytest.raises(DiagnosticError) as caught:
        parse(text, "a.ir")
    return caught.value


@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_what_is_said(path: Path, golden):
    text = path.read_text(encoding="utf-8")
    golden(path.with_suffix(".expected"), render(findings(text).diagnostics, {"a.ir": text}) + "\n")


def test_every_code_of_the_text_has_a_case():
    seen = {finding.code for path in CASES for finding in findings(path.read_text(encoding="utf-8")).diagnostics}
    assert codes_in("ir/text") - codes_in("compiler/verify") - seen == {"not-text"}  # below, as is `nesting`


@pytest.mark.parametrize(
    "text", ["\x7fELF\x02\x01\x01\x00\x00", "\n\x08\x00\x10\xff junk", "PK\x03\x04", "\udc89PNG\r\n\x1a"]
)
def test_binary_files_get_one_finding(text: str):
    (finding,) = findings(text).diagnostics
    assert finding.code == "not-text"
    assert "as binary files do" in finding.message
    assert render([finding], {"a.ir": text}).isprintable() or "\n" in render([finding], {"a.ir": text})
    render([finding], {"a.ir": text}).encode()  # nothing that a terminal can't take


def test_blocks_nested_ten_thousand_deep_get_one_finding():
    text = HEAD + "".join([f"block ^{i} {{\n" for i in range(1, 10_000)]) + "}\n" * 10_001
    (finding,) = findings(text).diagnostics
    assert (finding.code, finding.message) == ("nesting", "blocks stand inside each other more than 100 deep")
    assert finding.location is not None
    assert finding.location.line == 103


@pytest.mark.parametrize("opening", ["foo {a=" + "[" * 10_000, "foo" + "(" * 10_000, "foo " + "{" * 10_000])
def test_brackets_nested_ten_thousand_deep_get_one_finding(opening: str):
    (finding,) = findings(HEAD + opening + "\n" + TAIL).diagnostics
    assert finding.code == "syntax"


def test_a_number_of_a_million_digits_is_out_of_range():
    (finding,) = findings(HEAD + "foo {a=" + "9" * 1_000_000 + "}\n" + TAIL).diagnostics
    assert finding.code == "number-range"


def test_findings_are_limited_and_say_so():
    diagnostics = findings(HEAD + "foo(X=\n" * 500 + TAIL).diagnostics
    assert len(diagnostics) == MAX_FINDINGS
    assert diagnostics[-1].notes[-1].message == "there may be more findings; these are the first ones"


def test_a_long_line_is_shown_around_the_place():
    text = HEAD + "foo(" + "X=%a, " * 1000 + "Y=)\n" + TAIL
    shown = render(findings(text).diagnostics[:1], {"a.ir": text}).split("\n")
    assert shown[0] == "a.ir:4:6007: error[duplicate-name]: slot `X` is written twice" or "found `)`" in shown[0]
    assert len(shown[1]) < 220


def test_a_long_line_ends_where_it_ends():
    text = f"ir 1\n\nprogram @main {{\n  block ^0 {{\n    my_op {{v=[{'1, ' * 200}1}}\n  }}\n}}\n"
    shown = render(findings(text).diagnostics, {"a.ir": text}).split("\n")
    assert shown[1].startswith("    5 | ..., 1, ")
    assert shown[1].endswith(", 1}")
    assert shown[2].index("^") == len(shown[1]) - 1


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        (
            "temp %fc-0.w : f32[1]",
            '; a name with other characters than letters, digits and _ . @ / is quoted: %"fc-0.w"',
        ),
        ("relu(X=%a+b) -> Out=%c", 'is quoted: %"a+b"'),
        ('relu(X=%"a-b"@GRAD) -> Out=%c', '; all of a name stands in its quotes: %"a-b@GRAD"'),
        ('relu(X=%c) -> Out=%"a\\"b"_0', '; all of a name stands in its quotes: %"a\\"b_0"'),
        ("relu(X=%caf\u00e9) -> Out=%c", 'is quoted: %"caf\u00e9"'),
        ("my_op {a='x'}", "found `'`; strings and names stand in double quotes"),
        ("relu(X=%a)-> Out:%b", "expected `=`, found `:`"),
    ],
)
def test_what_lacks_quotes(line: str, hint: str):
    (found,) = findings(HEAD + line + "\n" + TAIL).diagnostics
    assert found.message.endswith(hint)


NET = (Path(__file__).parents[2] / "examples" / "regression.ir").read_text()
LOSS = "    mean(X=%squared_error) -> Out=%loss : loss\n"
HINT = "; comments begin with `#`"


@pytest.mark.parametrize("comment", ["// note", "//note", "/* note */", "; note", "-- note", "% note", "! note"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", NET),
        (f"# one\n\n{NET.partition(LOSS)[0]}", LOSS + NET.partition(LOSS)[2]),
        (f"{NET.partition(LOSS)[0]}{LOSS[:-1]} ", NET.partition(LOSS)[2]),
        (NET.partition("{axis=1}")[0] + "{axis=1 ", NET.partition("{axis=1}")[2]),
    ],
    ids=["first", "line", "behind", "inside"],
)
def test_comments_of_other_languages(comment: str, before: str, after: str):
    with pytest.raises(DiagnosticError) as caught:
        parse(f"{before}{comment}\n{after}", "net.ir")
    first = caught.value.diagnostics[0]
    assert first.code == "syntax"
    assert first.message.endswith(HINT)
    assert first.location is not None
    assert first.location.line == before.count("\n") + 1
    if not before.endswith("{axis=1 "):
        assert len(caught.value.diagnostics) == 1


def test_a_semicolon_at_the_end_of_a_statement():
    with pytest.raises(DiagnosticError) as caught:
        parse(NET.replace(LOSS, f"{LOSS[:-1]};\n"), "net.ir")
    (only,) = caught.value.diagnostics
    assert only.message.endswith("found `;`; a statement ends with its line")
