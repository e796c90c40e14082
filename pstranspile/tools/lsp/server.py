"""The language server: the protocol around the features. Only this module needs pygls, from the extra `lsp`."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import pstranspile
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError
from pstranspile.ir.reading import read_regular
from pstranspile.ops.textual import format_text
from pstranspile.tools.lsp.colours import MODIFIERS, TYPES, tokens
from pstranspile.tools.lsp.completion import TRIGGERS, complete
from pstranspile.tools.lsp.fixes import fixes
from pstranspile.tools.lsp.hover import hover
from pstranspile.tools.lsp.jobs import complete_job, hover_job
from pstranspile.tools.lsp.names import Named, definitions, named_at, references, rename
from pstranspile.tools.lsp.outline import Outline
from pstranspile.tools.lsp.placement import hints, is_job_file, job_files
from pstranspile.tools.lsp.protocol import Protocol
from pstranspile.tools.lsp.symbols import symbols
from pstranspile.tools.lsp.values import Refused, Span, Spot
from pstranspile.tools.lsp.workspace import Workspace

QUIET = 0.03
"""Seconds without a further change after which a text is read: keystrokes that come together are read once."""

MOST_READ = 64 << 20
"""Bytes of a file that is read though no editor has it open; of a larger one nothing is answered."""

QUIET_JOB = 0.4
"""Seconds without a further change after which a program is compiled for its job."""


class Server:
    """Answers the requests of one editor. `types` and `pygls` are the modules of the libraries."""

    def __init__(self) -> None:
        self.types: Any = importlib.import_module("lsprotocol.types")
        self.pygls: Any = importlib.import_module("pygls.lsp.server")
        self.server: Any = self.pygls.LanguageServer("pstranspile", pstranspile.__version__)
        self.protocol = Protocol(self.types, self.server)
        self.uris: dict[Path, str] = {}
        self.ended = False
        self.workspace = Workspace(self._opened)
        self._register()
        logging.getLogger("pygls.protocol.json_rpc").addFilter(_is_no_refusal)

    def start(self) -> bool:
        """Serves the editor at stdin and stdout until it leaves; whether it took its leave before."""
        output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")  # the library closes what it writes to
        self.server.start_io(sys.stdin.buffer, output)
        return self.ended

    def _end(self, _: Any) -> None:
        self.ended = True

    def _register(self) -> None:
        t = self.types
        features: dict[str, Callable[..., Any]] = {
            t.SHUTDOWN: self._end,
            t.TEXT_DOCUMENT_DID_OPEN: self.did_open,
            t.TEXT_DOCUMENT_DID_CHANGE: self.did_change,
            t.TEXT_DOCUMENT_DID_CLOSE: self.did_close,
            t.WORKSPACE_DID_CHANGE_WATCHED_FILES: self.did_change_files,
            t.TEXT_DOCUMENT_HOVER: self.hover,
            t.TEXT_DOCUMENT_DEFINITION: self.definition,
            t.TEXT_DOCUMENT_REFERENCES: self.references,
            t.TEXT_DOCUMENT_RENAME: self.rename,
            t.TEXT_DOCUMENT_FORMATTING: self.formatting,
            t.TEXT_DOCUMENT_FOLDING_RANGE: self.folding,
            t.TEXT_DOCUMENT_INLAY_HINT: self.inlay_hints,
            t.TEXT_DOCUMENT_DOCUMENT_SYMBOL: self.document_symbols,
        }
        for name, handler in features.items():
            self.server.feature(name)(_function(handler))
        options = t.CompletionOptions(trigger_characters=list(TRIGGERS))
        self.server.feature(t.TEXT_DOCUMENT_COMPLETION, options)(_function(self.completion))
        options = t.CodeActionOptions(code_action_kinds=[t.CodeActionKind.QuickFix])
        self.server.feature(t.TEXT_DOCUMENT_CODE_ACTION, options)(_function(self.code_actions))
        legend = t.SemanticTokensLegend(token_types=list(TYPES), token_modifiers=list(MODIFIERS))
        for name, handler in (
            (t.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL, self.semantic_tokens),
            (t.TEXT_DOCUMENT_SEMANTIC_TOKENS_RANGE, self.semantic_tokens_of_range),
        ):
            self.server.feature(name, legend)(_function(handler))
        options = t.RenameOptions(prepare_provider=True)
        self.server.feature(t.TEXT_DOCUMENT_PREPARE_RENAME)(_function(self.prepare_rename))

    # Documents.

    def _opened(self, path: Path) -> str | None:
        uri = self.uris.get(path)
        return self._text(uri) if uri is not None else None

    def _text(self, uri: str) -> str:
        """The text of an open file or of a regular one; else empty. A mark of the byte order counts as a blank.

        Pipes and devices are not read: the other end of a pipe may never come.
        """
        document = self.server.workspace.text_documents.get(uri)
        try:
            text: str = read_regular(path_of(uri), MOST_READ).decode() if document is None else document.source
        except (OSError, ValueError):  # a file that is gone, no UTF-8, a name that no file has
            return ""
        return f" {text[1:]}" if text.startswith("\ufeff") else text

    def _version(self, uri: str) -> int | None:
        document = self.server.workspace.text_documents.get(uri)
        return document.version if document is not None else None

    def _lines(self, uri: str) -> list[str]:
        return self._text(uri).replace("\r\n", "\n").split("\n")

    def _outline(self, uri: str) -> Outline | None:
        """The outline of a program; None for a job file."""
        path = path_of(uri)
        return None if is_job_file(path) else self.workspace.outline(path, self._text(uri))

    async def did_open(self, params: Any) -> None:
        """Reads a text and compiles it for its job."""
        uri = params.text_document.uri
        self.uris[path_of(uri)] = uri
        await self._look(uri)

    async def did_change(self, params: Any) -> None:
        """Reads a text once it has not changed for a moment, and compiles it when it has not for a longer one."""
        await self._look(params.text_document.uri)

    def did_close(self, params: Any) -> None:
        """Forgets a text, and takes back its findings."""
        uri = params.text_document.uri
        self.uris.pop(path_of(uri), None)
        self.workspace.close(path_of(uri))
        self._publish(uri, (), [], None)

    async def did_change_files(self, params: Any) -> None:
        """Compiles the programs again whose job files changed on disk."""
        for change in params.changes:
            await self._job_changed(path_of(change.uri))

    async def _look(self, uri: str) -> None:
        path, version = path_of(uri), self._version(uri)
        await asyncio.sleep(QUIET)
        if self._version(uri) != version:
            return
        text = self._text(uri)
        if is_job_file(path):
            self._publish(uri, self.workspace.job_findings(path, text), self._lines(uri), version)
            await self._job_changed(path)
            return
        reading = self.workspace.reading(path, text)
        self._publish(uri, reading.findings, reading.outline.lines, version)
        await asyncio.sleep(QUIET_JOB)
        if self._version(uri) == version:
            self._compile(uri, text, version)

    def _compile(self, uri: str, text: str, version: int | None) -> None:
        """Publishes findings of a program with those of compiling it for its job."""
        path = path_of(uri)
        reading, placement = self.workspace.reading(path, text), self.workspace.placement(path, text)
        if placement is not None:
            self._publish(uri, (*reading.findings, *placement.findings), reading.outline.lines, version)
            capabilities = self.server.client_capabilities.workspace
            if capabilities and capabilities.inlay_hint and capabilities.inlay_hint.refresh_support:
                self.server.workspace_inlay_hint_refresh(None)

    async def _job_changed(self, path: Path) -> None:
        for program, uri in list(self.uris.items()):
            if not is_job_file(program) and path in job_files(program):
                self._compile(uri, self._text(uri), self._version(uri))

    def _publish(self, uri: str, findings: Sequence[Diagnostic], lines: list[str], version: int | None) -> None:
        t = self.types
        diagnostics = [self.protocol.diagnostic(uri, finding, lines) for finding in findings]
        self.server.text_document_publish_diagnostics(
            t.PublishDiagnosticsParams(uri=uri, diagnostics=diagnostics, version=version)
        )

    # Features.

    def _spot(self, uri: str, position: Any) -> Spot:
        return self.protocol.spot(self._lines(uri), position)

    def hover(self, params: Any) -> Any:
        """What stands at a place."""
        uri = params.text_document.uri
        spot, outline = self._spot(uri, params.position), self._outline(uri)
        lines = self._lines(uri) if outline is None else outline.lines
        if outline is None:
            shown = hover_job(lines, spot)
        else:
            shown = hover(outline, spot, self.workspace.last_placement(path_of(uri)))
        if shown is None:
            return None
        return self.protocol.hover(lines, shown)

    def completion(self, params: Any) -> Any:
        """What can be typed at a place."""
        uri = params.text_document.uri
        path, spot, outline = path_of(uri), self._spot(uri, params.position), self._outline(uri)
        lines = self._lines(uri) if outline is None else outline.lines
        if outline is None:
            proposals = complete_job(lines, spot, json=path.suffix == ".json")
        else:
            proposals = complete(outline, spot)
        width = len(str(len(proposals)))
        items = [self.protocol.item(lines, p, f"{number:0{width}}") for number, p in enumerate(proposals)]
        return self.types.CompletionList(is_incomplete=False, items=items)

    def definition(self, params: Any) -> Any:
        """Where a name is declared."""
        return self._named(params, definitions)

    def references(self, params: Any) -> Any:
        """Where a name stands."""
        return self._named(params, references)

    def _named(self, params: Any, find: Callable[..., list[Span]]) -> Any:
        outline, named = self._name_at(params)
        if outline is None or named is None:
            return None
        return self.protocol.locations(params.text_document.uri, outline.lines, find(outline, named))

    def _name_at(self, params: Any) -> tuple[Outline | None, Named | None]:
        """The outline of a program, and the name at a place of it."""
        uri = params.text_document.uri
        outline = self._outline(uri)
        return outline, None if outline is None else named_at(outline, self._spot(uri, params.position))

    def prepare_rename(self, params: Any) -> Any:
        """The name that would be renamed."""
        outline, named = self._name_at(params)
        if outline is None or named is None or named.kind != "variable":
            return None
        return self.protocol.range(outline.lines, named.span)

    def rename(self, params: Any) -> Any:
        """The edits that rename a variable."""
        outline, named = self._name_at(params)
        if outline is None or named is None:
            return None
        try:
            changes = rename(outline, named, params.new_name)
        except Refused as problem:
            raise _failure(str(problem)) from problem
        ranges = [(self.protocol.range(outline.lines, span), text) for span, text in changes]
        edits = [self.types.TextEdit(range=place, new_text=text) for place, text in ranges]
        return self.types.WorkspaceEdit(changes={params.text_document.uri: edits})

    def formatting(self, params: Any) -> Any:
        """The canonical form of a program; nothing for one with errors, which are reported as findings."""
        uri = params.text_document.uri
        if self._outline(uri) is None:
            return None
        text, lines = self._text(uri), self._lines(uri)
        try:
            formatted = format_text(text.replace("\r\n", "\n"), uri)
        except DiagnosticError:
            return None
        if formatted == text:
            return []
        end = self.protocol.position(lines, len(lines) - 1, len(lines[-1]))
        whole = self.types.Range(start=self.types.Position(line=0, character=0), end=end)
        return [self.types.TextEdit(range=whole, new_text=formatted)]

    def folding(self, params: Any) -> Any:
        """What can be folded."""
        outline = self._outline(params.text_document.uri)
        folds = outline.folds() if outline is not None else []
        return [self.types.FoldingRange(start_line=fold.first, end_line=fold.last) for fold in folds]

    def document_symbols(self, params: Any) -> Any:
        """The outline of a program."""
        outline = self._outline(params.text_document.uri)
        if outline is None:
            return None
        return [self.protocol.symbol(outline.lines, symbol) for symbol in symbols(outline)]

    def semantic_tokens(self, params: Any) -> Any:
        """What the words of a program are."""
        return self._tokens(params, 0, sys.maxsize)

    def semantic_tokens_of_range(self, params: Any) -> Any:
        """What the words of some lines of a program are."""
        return self._tokens(params, params.range.start.line, params.range.end.line)

    def _tokens(self, params: Any, first: int, last: int) -> Any:
        outline = self._outline(params.text_document.uri)
        if outline is None:
            return None
        return self.types.SemanticTokens(data=self.protocol.tokens(outline.lines, tokens(outline, first, last)))

    def code_actions(self, params: Any) -> Any:
        """What mends the findings of some lines, where their messages propose it."""
        t, uri = self.types, params.text_document.uri
        only = params.context.only
        if only is not None and not any(t.CodeActionKind.QuickFix.value.startswith(_text_of(kind)) for kind in only):
            return []
        path, text = path_of(uri), self._text(uri)
        if is_job_file(path):
            findings, lines = self.workspace.job_findings(path, text), self._lines(uri)
        else:
            reading = self.workspace.reading(path, text)
            findings, lines = reading.findings, reading.outline.lines
        return [
            t.CodeAction(
                title=fix.title,
                kind=t.CodeActionKind.QuickFix,
                diagnostics=[self.protocol.diagnostic(uri, fix.finding, lines)],
                is_preferred=True,
                edit=t.WorkspaceEdit(
                    changes={uri: [t.TextEdit(range=self.protocol.range(lines, fix.span), new_text=fix.text)]}
                ),
            )
            for fix in fixes(findings, lines, params.range.start.line, params.range.end.line)
        ]

    def inlay_hints(self, params: Any) -> Any:
        """Where variables will live."""
        uri = params.text_document.uri
        outline = self._outline(uri)
        if outline is None:
            return []
        placement = self.workspace.placement(path_of(uri), self._text(uri))
        if placement is None:
            return []
        shown = hints(outline, placement, params.range.start.line, params.range.end.line)
        return [self.protocol.hint(outline.lines, hint) for hint in shown]


def path_of(uri: str) -> Path:
    """The file that a URI names; for other URIs than files a path that names no file."""
    parts = urlsplit(uri)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else Path(unquote(parts.path) or uri)


def _function(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method as the function of one argument that pygls registers."""
    if asyncio.iscoroutinefunction(method):

        async def later(params: Any) -> Any:
            return await method(params)

        return later

    def now(params: Any) -> Any:
        return method(params)

    return now


def _text_of(kind: Any) -> str:
    """A word of the protocol, which the library gives as a value of an enum or as text."""
    return getattr(kind, "value", kind)


def _failure(message: str) -> Exception:
    exceptions: Any = importlib.import_module("pygls.exceptions")
    return exceptions.JsonRpcInvalidParams(message)


def _is_no_refusal(record: logging.LogRecord) -> bool:
    """Whether a record of the library belongs in the log: what is refused is told to the editor, and is no fault."""
    problem = record.exc_info[1] if record.exc_info else None
    return problem is None or not isinstance(problem.__cause__, Refused)
