"""The files for editors say what the language has."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pstranspile.ir.text.literals import KIND_WORDS, NO_ROLE, ROLE_WORDS, STORAGE_CLASSES
from pstranspile.ir.types import DTYPES

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "editors" / "vscode"
GRAMMAR = json.loads((FOLDER / "syntaxes" / "pstranspile-ir.tmLanguage.json").read_text())
RULES = [r for r in (*GRAMMAR["patterns"], *GRAMMAR["repository"]["pieces"]["patterns"]) if "match" in r]


def coloured(line: str) -> list[tuple[str, str]]:
    """The pieces of a line with their scope, as an editor finds them: the leftmost, of several the first rule's."""
    result: list[tuple[str, str]] = []
    at = 0
    while at < len(line):
        matches = [
            (m.start(), number, m)
            for number, rule in enumerate(RULES)
            if (m := re.compile(rule["match"]).search(line, at))
        ]
        if not matches:
            break
        _, number, match = min(matches, key=lambda entry: entry[:2])
        rule = RULES[number]
        if "captures" in rule:
            result += [(match[int(group)], scope["name"]) for group, scope in rule["captures"].items()]
        else:
            result.append((match[0], rule["name"]))
        at = max(match.end(), at + 1)
    return [(text, scope.split(".")[0] + "." + scope.split(".")[1]) for text, scope in result]


def test_a_statement_is_coloured():
    line = (
        '    mul_grad(X=%x, Y=[%"a b"]) -> X@GRAD=%x@GRAD {axis=-1, s="#", on=true} : backward(%w) @train.py:20  # why'
    )
    assert [piece for piece in coloured(line) if piece[1] != "keyword.operator"] == [
        ("mul_grad", "entity.name"),
        ("X", "variable.parameter"),
        ("%x", "variable.other"),
        ("Y", "variable.parameter"),
        ('%"a b"', "variable.other"),
        ("X@GRAD", "variable.parameter"),
        ("%x@GRAD", "variable.other"),
        ("axis", "variable.parameter"),
        ("-1", "constant.numeric"),
        ("s", "variable.parameter"),
        ('"#"', "string.quoted"),
        ("on", "variable.parameter"),
        ("true", "constant.language"),
        ("backward", "storage.modifier"),
        ("%w", "variable.other"),
        ("@train.py:20", "comment.line"),
        ("# why", "comment.line"),
    ]


@pytest.mark.parametrize("word", STORAGE_CLASSES)
def test_declarations_are_coloured(word: str):
    assert coloured(f"  {word} %x : f32[1]")[:2] == [(word, "storage.type"), ("%x", "variable.other")]


def test_every_word_of_the_language_is_coloured():
    for word in DTYPES:
        assert (word, "support.type") in coloured(f"temp %x : {word}[1]"), word
    for word in KIND_WORDS:
        assert (word, "support.type") in coloured(f"temp %x : {word}"), word
    for word in (*ROLE_WORDS, NO_ROLE):
        assert (word, "storage.modifier") in coloured(f"mul -> Out=%x : {word}"), word


def test_the_extension_starts_the_server_for_the_files_of_the_language():
    package = json.loads((FOLDER / "package.json").read_text())
    (language,) = package["contributes"]["languages"]
    (grammar,) = package["contributes"]["grammars"]
    assert (language["id"], language["extensions"]) == ("pstranspile-ir", [".ir"])
    assert (FOLDER / grammar["path"]).exists()
    assert grammar["scopeName"] == GRAMMAR["scopeName"]
    assert (FOLDER / language["configuration"]).exists()
    assert 'args: ["lsp"]' in (FOLDER / package["main"]).read_text()
    json.loads((FOLDER / "language-configuration.json").read_text())


def test_the_site_colours_programs_as_editors_do():
    """The lexer of the site finds the pieces that are found here, and leaves nothing out."""
    pytest.importorskip("pygments", reason="the extra docs is not installed")
    spec = importlib.util.spec_from_file_location("colours", ROOT / "docs" / "colours.py")
    assert spec is not None
    assert spec.loader is not None
    colours = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(colours)
    text = (ROOT / "examples" / "gan.ir").read_text()
    found = [(piece, str(token)) for _, token, piece in colours.IrLexer().get_tokens_unprocessed(text)]
    assert "".join(piece for piece, _ in found) == text
    expected = [piece for line in text.splitlines() for piece, _ in coloured(line)]
    assert [piece for piece, token in found if token != "Token.Text"] == expected


def _ended(*frames: bytes) -> tuple[int, str, bytes]:
    """How the server ends after these frames and a shutdown: status, stderr and stdout."""

    def framed(message: dict[str, object]) -> bytes:
        return _frame(json.dumps({"jsonrpc": "2.0", **message}).encode())

    begun = {"processId": None, "rootUri": None, "capabilities": {}}
    sent = [framed({"id": 1, "method": "initialize", "params": begun}), *frames]
    sent += [framed({"id": 77, "method": "shutdown"}), framed({"method": "exit"})]
    command = [sys.executable, "-m", "pstranspile", "lsp"]
    done = subprocess.run(command, input=b"".join(sent), capture_output=True, timeout=60)
    return done.returncode, done.stderr.decode(), done.stdout


def _frame(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def test_frames_that_are_no_messages_are_told_in_a_line_each_and_left_out():
    bodies = [b"{{{", b"\xff\xfe", b"[]", b"null", b'{"jsonrpc": "2.0", "id": 5}', b"[" * 200_000 + b"]" * 200_000]
    hover = b'{"jsonrpc": "2.0", "id": 6, "method": "textDocument/hover", "params": {"a": 1}}'
    status, told, answers = _ended(*map(_frame, [*bodies, hover]))
    assert status == 0
    assert b'"id": 77' in answers
    lines = told.splitlines()
    assert len(lines) == len(bodies) + 1
    assert all(line.startswith("pstranspile lsp: a message of ") for line in lines), told


@pytest.mark.parametrize("length", [b"abc", b"-5", b"99999999999"])
def test_a_length_that_is_none_ends_the_server_and_is_told(length: bytes):
    status, told, answers = _ended(b"Content-Length: " + length + b"\r\n\r\n{}")
    assert (status, b'"id": 77' in answers) == (1, False)
    said = f"pstranspile lsp: `Content-Length: {length.decode()}` is no length of a message, so nothing more is read"
    assert told == f"{said} from the editor\n"
