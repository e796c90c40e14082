"""Texts that an editor changes: its lines and units are those of the protocol."""

import random

import pytest

from pstranspile.tools.lsp.session import Documents, Edit, apply_edit


def utf16(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


PLACES = [
    ("a\nb\nc", (1, 0), "a\n|b\nc"),
    ("a\r\nb\rc", (2, 1), "a\r\nb\rc|"),
    ("a\r\nb", (0, 9), "a|\r\nb"),
    ("# \u2028 \u000b \u000c \u0085 \u001c\nx y", (1, 1), "# \u2028 \u000b \u000c \u0085 \u001c\nx| y"),
    ("\U0001d4b3\u00e9x", (0, 2), "\U0001d4b3|\u00e9x"),
    ("\U0001d4b3\u00e9x", (0, 3), "\U0001d4b3\u00e9|x"),
    ("a", (7, 3), "a|"),
    ("a\n", (1, 5), "a\n|"),
    ("", (0, 0), "|"),
]
"""A text, a line and unit of it, and the text with `|` put there."""


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_place_is_where_the_protocol_has_it(place: tuple[str, tuple[int, int], str]):
    text, at, expected = place
    assert apply_edit(text, Edit("|", at, at), utf16) == expected


def test_units_are_those_of_the_editor():
    assert apply_edit("\u00e9x", Edit("|", (0, 2), (0, 2)), lambda text: len(text.encode())) == "\u00e9|x"
    assert apply_edit("\u00e9x", Edit("|", (0, 2), (0, 2)), len) == "\u00e9x|"


def test_edits_follow_one_another():
    documents = Documents(utf16)
    assert not documents.change("untitled:1", [Edit("x")], 2)
    documents.open("untitled:1", "one\ntwo\n", 1)
    before = documents.get("untitled:1")
    edits = [Edit("", (0, 0), (1, 0)), Edit("2", (0, 0), (0, 3)), Edit("!", (0, 1), (0, 1))]
    assert documents.change("untitled:1", edits, 2)
    after = documents.get("untitled:1")
    assert after == ("2!\n", 2)
    assert after is not before
    documents.change("untitled:1", [Edit("all of it")], 3)
    assert documents.get("untitled:1") == ("all of it", 3)
    documents.close("untitled:1")
    assert documents.get("untitled:1") is None


@pytest.mark.parametrize("seed", range(5))
def test_edits_by_lines_are_those_by_characters(seed: int):
    drawn = random.Random(seed)
    text = "ab\n\U0001d4b3 \u2028\r\n\u00e9\n\nlast"
    for _ in range(200):
        start, end = sorted(drawn.randint(0, len(text)) for _ in range(2))
        new = drawn.choice(["", "x", "\n", "\U0001d4b3", "\u2028", "q\r\nr", "#\u000b"])
        if "\r\n" in (text[start - 1 : start + 1], text[end - 1 : end + 1]):
            continue  # no place of the protocol is between the two
        edit = Edit(new, *(_place(text, at) for at in (start, end)))
        expected = text[:start] + new + text[end:]
        assert apply_edit(text, edit, utf16) == expected
        text = expected


def _place(text: str, at: int) -> tuple[int, int]:
    before = text[:at].replace("\r\n", "\n").split("\n")
    return len(before) - 1, utf16(before[-1])
