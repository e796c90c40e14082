"""A session with one editor: the frames that it sends, and what is answered to requests that can't be served."""

from __future__ import annotations

import json
import re
import sys
from typing import Any, BinaryIO

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
