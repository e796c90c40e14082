"""An editor for tests: starts `pstranspile lsp` and talks JSON-RPC to it over stdin and stdout."""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[3]


class Editor:
    """One session with a server. Requests wait for their answer; notifications of findings are kept by URI."""

    def __init__(self, encoding: str = "utf-16", *, snippets: bool = True, log: Any = subprocess.DEVNULL):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pstranspile", "lsp"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self._unsent, self._waits = b"", False
        self.number = 0
        self.versions: dict[str, int] = {}
        self.findings: dict[str, list[dict[str, Any]]] = {}
        item = {"completionItem": {"snippetSupport": snippets}}
        capabilities = {
            "general": {"positionEncodings": [encoding]},
            "textDocument": {"completion": item, "publishDiagnostics": {}},
        }
        answer = self.request("initialize", {"processId": None, "rootUri": None, "capabilities": capabilities})
        self.capabilities: dict[str, Any] = answer["capabilities"]
        self.notify("initialized", {})

    def __enter__(self) -> "Editor":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        if kind is None:
            self.request("shutdown", None)
            self.notify("exit", None)
            assert self.process.wait(20) == 0
        else:
            self.process.kill()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()

    def _write(self, message: dict[str, Any]) -> None:
        content = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._unsent += b"Content-Length: %d\r\n\r\n%s" % (len(content), content)
        if not self._waits:
            self._send()

    def _send(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(self._unsent)
        self.process.stdin.flush()
        self._unsent = b""

    @contextmanager
    def at_once(self) -> Generator[None]:
        """What is written here reaches the server together, however busy the machine is."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False
            self._send()

    def _read(self) -> dict[str, Any]:
        out = self.process.stdout
        assert out is not None
        length = 0
        while (line := out.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        message = json.loads(out.read(length))
        if message.get("method") == "textDocument/publishDiagnostics":
            self.findings[message["params"]["uri"]] = message["params"]["diagnostics"]
        return message

    def notify(self, method: str, params: Any) -> None:
        self._write({"method": method, "params": params})

    def request(self, method: str, params: Any) -> Any:
        """The result of a request; raises LookupError with what the server says where it refuses."""
        self.number += 1
        self._write({"id": self.number, "method": method, "params": params})
        while (message := self._read()).get("id") != self.number or "method" in message:
            pass
        if "error" in message:
            raise LookupError(message["error"]["message"])
        return message["result"]

    # What an editor does.

    def open(self, path: Path, text: str) -> str:
        """Opens a file that holds a text; gives its URI."""
        uri = path.as_uri()
        self.versions[uri] = 1
        item = {"uri": uri, "languageId": "pstranspile-ir", "version": 1, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": item})
        return uri

    def type(self, uri: str, line: int, start: int, stop: int, text: str) -> None:
        """Puts a text in the place of characters of a line."""
        self.versions[uri] += 1
        places = {"start": {"line": line, "character": start}, "end": {"line": line, "character": stop}}
        document = {"uri": uri, "version": self.versions[uri]}
        changes = [{"range": places, "text": text}]
        self.notify("textDocument/didChange", {"textDocument": document, "contentChanges": changes})

    def published(self, uri: str, times: int = 1) -> list[dict[str, Any]]:
        """The findings of a file, when they have come so many more times."""
        while times:
            message = self._read()
            times -= message.get("method") == "textDocument/publishDiagnostics" and message["params"]["uri"] == uri
        return self.findings[uri]

    def at(self, what: str, uri: str, line: int, character: int, **more: Any) -> Any:
        """What the server answers about a place."""
        position = {"line": line, "character": character}
        return self.request(f"textDocument/{what}", {"textDocument": {"uri": uri}, "position": position, **more})
