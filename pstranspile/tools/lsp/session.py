"""A session with one editor: the frames that it sends, what is answered to requests that can't be served, and the texts
that it has open.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, NamedTuple

from pstranspile.ir.diagnostics import in_one_line
from pstranspile.ir.patterns import Pattern

MOST_OF_A_FRAME = 1 << 30
"""The most bytes of one message of an editor."""

_LENGTH = Pattern(rb"content-length:", re.IGNORECASE)


class Frames:
    """What an editor sends, with a line on stderr about what is no message: a length that is none ends the input, as
    nobody knows where the next message begins; a message that is no JSON object is left out.
    """

    def __init__(self, stream: BinaryIO):
        self._stream = stream

    def readline(self) -> bytes:
        """The next line of a header, with the name of a length as the library looks for it; nothing at the end of the
        input.
        """
        line = self._stream.readline(_LONGEST_HEADER)
        if _LENGTH.match(line):
            number = line.partition(b":")[2].strip()
            if not number.isdigit() or len(number) > 18 or int(number) > MOST_OF_A_FRAME:
                told = line.decode("ascii", "backslashreplace").strip()[:60]
                say(f"`{told}` is no length of a message, so nothing more is read from the editor")
                return b""
            return b"Content-Length: %d\r\n" % int(number)
        return line

    def read(self, size: int) -> bytes:
        """The body of a message."""
        body = self._stream.read(size)
        try:
            held: Any = json.loads(body)
        except (ValueError, RecursionError) as problem:
            why = "is nested too deeply" if isinstance(problem, RecursionError) else f"is no JSON ({problem})"
        else:
            if isinstance(held, dict) and _is_message(held):
                return body
            why = "is no request, notification or answer"
        if body:
            say(f"a message of {len(body)} bytes {why}: it is left out")
        return json.dumps(_NOTHING_ASKED).encode() if body else body


def _is_message(held: Any) -> bool:
    if not isinstance(held.get("id"), (int, str, type(None))):
        return False
    return isinstance(held["method"], str) if "method" in held else "result" in held or "error" in held


_LONGEST_HEADER = 1 << 16

_NOTHING_ASKED: dict[str, Any] = {"jsonrpc": "2.0", "method": "$/nothing", "params": {}}
"""A notification that servers ignore, in place of what is no message."""


def say(text: str) -> None:
    """Tells one line on stderr, which editors keep in a log."""
    print(in_one_line(f"pstranspile lsp: {text}"), file=sys.stderr, flush=True)


_OF_TEXTS = tuple(f"lsp_text_document__did_{what}" for what in ("open", "change", "close"))
"""The methods of the library that keep the texts of documents; texts have other lines there than in the protocol."""


def session_class(protocol: Any, types: Any, exceptions: Any) -> Any:
    """The class of the protocol of one session, derived from that of the library.

    Each request has an answer: one before `initialize`, after `shutdown` or without the parameters of its method is
    refused. The texts of documents are left to the server's own handlers. `types` and `exceptions` are modules of the
    libraries.
    """

    without_texts: Any = type("Library", (protocol,), dict.fromkeys(_OF_TEXTS))

    class Session(without_texts):
        def __init__(self, *arguments: Any):
            library: Any = super()
            library.__init__(*arguments)
            self._state = "new"

        def structure_message(self, data: Any) -> Any:
            """The message in a JSON object; a request without the parameters of its method is refused here."""
            library: Any = super()
            try:
                return library.structure_message(data)
            except exceptions.JsonRpcException:
                if "id" not in data or "method" not in data:
                    raise
                method = str(data["method"])[:60]
                self._refuse(data["id"], types.ErrorCodes.InvalidParams, f"{method}: these are no parameters of it")
                return library.structure_message(_NOTHING_ASKED)

        def handle_message(self, message: Any) -> None:
            """Serves a message, or refuses it where it is not its time."""
            library: Any = super()
            method = getattr(message, "method", None)
            if method is None or method == types.EXIT:
                library.handle_message(message)
                return
            code, why = types.ErrorCodes.InvalidRequest, ""
            if message.jsonrpc != "2.0":
                why = "a message of JSON-RPC 2.0 is expected"
            elif self._state == "ended":
                why = "the server is shut down"
            elif self._state == "new" and method != types.INITIALIZE:
                code, why = types.ErrorCodes.ServerNotInitialized, "the server is not initialized"
            elif self._state != "new" and method == types.INITIALIZE:
                why = "the server is initialized already"
            if why:
                if hasattr(message, "id"):
                    self._refuse(message.id, code, f"{method[:60]}: {why}")
                return
            self._state = {types.INITIALIZE: "serving", types.SHUTDOWN: "ended"}.get(method, self._state)
            library.handle_message(message)

        def _refuse(self, request: Any, code: Any, message: str) -> None:
            self._send_response(request, error=types.ResponseError(code=code, message=message))

    return Session


# The texts that an editor has open, by the URIs that it gives them, as it has changed them.


_ENDS = Pattern(r"\r\n?|\n")
"""What ends a line in the protocol. A form feed or U+2028 ends none."""

Place = tuple[int, int]
"""A line, and how many of the editor's units of it stand before the place."""


class Edit(NamedTuple):
    """A text that stands from one place to another now; it is all there is where there are no places."""

    text: str
    start: Place | None = None
    end: Place | None = None


class Document(NamedTuple):
    """An open text, and the editor's number of its version."""

    text: str
    version: int | None


class Documents:
    """Open texts by URI. `units` is how many of the editor's units some characters are."""

    def __init__(self, units: Callable[[str], int]):
        self._units = units
        self._open_documents: dict[str, Document] = {}

    def get(self, uri: str) -> Document | None:
        """An open text; None where it is not open. The same object until the text changes."""
        return self._open_documents.get(uri)

    def open(self, uri: str, text: str, version: int | None) -> None:
        """Takes a text up."""
        self._open_documents[uri] = Document(text, version)

    def change(self, uri: str, edits: Iterable[Edit], version: int | None) -> bool:
        """Changes a text, one edit after the other; returns whether it is open."""
        document = self._open_documents.get(uri)
        if document is None:
            return False
        text = document.text
        for edit in edits:
            text = apply_edit(text, edit, self._units)
        self._open_documents[uri] = Document(text, version)
        return True

    def close(self, uri: str) -> None:
        """Forgets a text."""
        self._open_documents.pop(uri, None)


def apply_edit(text: str, edit: Edit, units: Callable[[str], int]) -> str:
    """A text after an edit. A place behind the end of a line is the end of that line, one behind all lines the end of
    the text.
    """
    if edit.start is None or edit.end is None:
        return edit.text
    start, end = sorted(_offset(text, place, units) for place in (edit.start, edit.end))
    return f"{text[:start]}{edit.text}{text[end:]}"


def _offset(text: str, place: Place, units: Callable[[str], int]) -> int:
    """The number of characters before a place."""
    line, unit = place
    start, end = _line(text, line)
    if unit <= 0 or start == end:
        return start
    content = text[start:end]
    if content.isascii():
        return min(start + unit, end)
    for count, character in enumerate(content):
        if unit <= 0:
            return start + count
        unit -= units(character)
    return end


def _line(text: str, number: int) -> tuple[int, int]:
    """The beginning and the end of the characters of a line; both are the end of a text without such a line."""
    start, ends = 0, _ENDS.finditer(text)
    for _ in range(number):
        end = next(ends, None)
        if end is None:
            return len(text), len(text)
        start = end.end()
    end = next(ends, None)
    return start, end.start() if end else len(text)
