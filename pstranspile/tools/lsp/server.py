"""The language server: the protocol around the features. Only this module needs pygls, from the extra `lsp`."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import pstranspile
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Severity, marked_span
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.reading import read_regular
from pstranspile.ops.textual import format_text
from pstranspile.tools.lsp.completion import TRIGGERS, complete, complete_job, hover_job
from pstranspile.tools.lsp.hover import hover
from pstranspile.tools.lsp.names import (
    NameReference,
    definitions,
    hints,
    is_job_file,
    job_files,
    named_at,
    references,
    rename,
    uses,
)
from pstranspile.tools.lsp.outline import MODIFIERS, TYPES, Outline, Symbol, Token, symbols, tokens
from pstranspile.tools.lsp.reading import Workspace
from pstranspile.tools.lsp.session import Documents, Edit, Frames, say, session_class
from pstranspile.tools.lsp.values import (
    Hint,
    HoverText,
    LineSpan,
    Proposal,
    RequestRefused,
    TextPosition,
    without_places,
)

# Quick fixes: an editor offers to replace the text that a finding marks by the text that its message proposes.

_PROPOSED = Pattern(r"; did you mean `((?:[^`\"]|\"(?:[^\"\\]|\\.)*\")+)`\?$")
_PROPOSED_KEY = Pattern(r"; did you mean ([^\s`?;]+)\?$")

_NOT_IN_PLACE = frozenset({"gradient-without-variable"})
"""Codes of findings whose marked text is not the name that their proposal replaces."""


class Fix(NamedTuple):
    """An edit that corrects a finding: `text` replaces the characters of the span."""

    title: str
    span: LineSpan
    text: str
    finding: Diagnostic


def fixes(findings: Iterable[Diagnostic], lines: list[str], first: int, last: int) -> list[Fix]:
    """The fixes of the findings on lines `first` to `last`, which count from 0, in the order of the findings."""
    result: list[Fix] = []
    for finding in findings:
        place = finding.location
        if place is None or not 0 < place.line <= len(lines) or finding.code in _NOT_IN_PLACE:
            continue
        proposed = _PROPOSED.search(finding.message) or _PROPOSED_KEY.search(finding.message)
        if proposed is None or not finding.focus:
            continue
        line, start, width = marked_span(place, finding.focus, lines)
        if not first <= line <= last:
            continue
        text = proposed.group(1)
        span = _replaced_span(lines[line], LineSpan(line, start, start + width), text)
        if span is not None:
            result.append(Fix(f"Replace with `{text}`", span, text, finding))
    return result


def _replaced_span(line: str, span: LineSpan, text: str) -> LineSpan | None:
    """What a proposed text takes the place of: what is marked, or an attribute that is written with a colon.

    None where the line does not hold what the finding is about: the text has changed since.
    """
    name, equals, value = text.partition("=")
    if not equals:
        return span if line[span.start : span.stop] else None
    pattern = rf'"?{re.escape(name)}"?[ \t]*:[ \t]*{re.escape(value)}'
    found = [match for match in re.finditer(pattern, line) if match.start() <= span.start <= match.end()]
    return LineSpan(span.line, found[-1].start(), found[-1].end()) if found else None


# Values of the features as the types of the protocol, with places as the editor counts them, and back.


class Protocol:
    """Makes values of the protocol for one editor. `types` is the library's module, `server` its server."""

    def __init__(self, types: Any, server: Any):
        self.types = types
        self.server = server

    def spot(self, lines: Sequence[str], position: Any) -> TextPosition:
        """The place of a text that the editor names."""
        if position.line >= len(lines):
            return TextPosition(position.line, 0)
        codec = self.server.workspace.position_codec
        there = codec.position_from_client_units(
            [f"{lines[position.line]}\n"], self.types.Position(line=0, character=position.character)
        )
        number: int = position.line
        return TextPosition(number, min(int(there.character), len(lines[number])))

    def position(self, lines: Sequence[str], line: int, column: int) -> Any:
        """A place between characters."""
        before = lines[line][:column] if line < len(lines) else ""
        units = column if before.isascii() else self.server.workspace.position_codec.client_num_units(before)
        return self.types.Position(line=line, character=units)

    def range(self, lines: Sequence[str], span: LineSpan) -> Any:
        """A span of one line."""
        start = self.position(lines, span.line, span.start)
        return self.types.Range(start=start, end=self.position(lines, span.line, span.stop))

    def locations(self, uri: str, lines: Sequence[str], spans: Iterable[LineSpan]) -> list[Any]:
        """Places in a file."""
        return [self.types.Location(uri=uri, range=self.range(lines, span)) for span in spans]

    def diagnostic(self, uri: str, finding: Diagnostic, lines: list[str]) -> Any:
        """A finding; one without a place in the text stands on its first line."""
        t, place = self.types, finding.location
        span = LineSpan(0, 0, len(lines[0]) if lines else 0)
        if place is not None and 0 < place.line <= len(lines):
            line, start, width = marked_span(place, finding.focus, lines)
            span = LineSpan(line, start, start + width)
        related: list[Any] = []
        message = finding.message
        for note in finding.notes:
            if note.location is not None and 0 < note.location.line <= len(lines):
                line, start, width = marked_span(note.location, note.focus, lines)
                where = t.Location(uri=uri, range=self.range(lines, LineSpan(line, start, start + width)))
                related.append(t.DiagnosticRelatedInformation(location=where, message=note.message))
            else:
                message += f"\n{note.message}"
        error = finding.severity is Severity.ERROR
        return t.Diagnostic(
            range=self.range(lines, span),
            message=message,
            severity=t.DiagnosticSeverity.Error if error else t.DiagnosticSeverity.Warning,
            code=finding.code,
            source="pstranspile",
            related_information=related or None,
        )

    def item(self, lines: Sequence[str], proposal: Proposal, order: str) -> Any:
        """A completion, which sorts by `order`."""
        t = self.types
        snippet = proposal.snippet and self._takes_snippets()
        form = t.InsertTextFormat.Snippet if snippet else t.InsertTextFormat.PlainText
        text = proposal.insert if snippet or not proposal.snippet else without_places(proposal.insert)
        return t.CompletionItem(
            label=proposal.label,
            kind=t.CompletionItemKind[proposal.kind],
            detail=proposal.detail or None,
            sort_text=order,
            filter_text=proposal.label,
            insert_text_format=form,
            text_edit=t.TextEdit(range=self.range(lines, proposal.span), new_text=text),
        )

    def _takes_snippets(self) -> bool:
        document = self.server.client_capabilities.text_document
        completion = document.completion if document else None
        return bool(completion and completion.completion_item and completion.completion_item.snippet_support)

    def hover(self, lines: Sequence[str], shown: HoverText) -> Any:
        """The protocol's value of a hover text."""
        content = self.types.MarkupContent(kind=self.types.MarkupKind.Markdown, value=shown.text)
        return self.types.Hover(contents=content, range=self.range(lines, shown.span))

    def hint(self, lines: Sequence[str], hint: Hint) -> Any:
        """A few words behind a line."""
        tip = self.types.MarkupContent(kind=self.types.MarkupKind.Markdown, value=hint.tip)
        place = self.position(lines, *hint.position)
        return self.types.InlayHint(position=place, label=hint.label, tooltip=tip, padding_left=True)

    def symbol(self, lines: Sequence[str], symbol: Symbol) -> Any:
        """An entry of an outline, with those inside it."""
        t = self.types
        end = self.position(lines, symbol.last_line, len(lines[symbol.last_line]))
        return t.DocumentSymbol(
            name=symbol.name,
            kind=t.SymbolKind[symbol.kind],
            range=t.Range(start=self.position(lines, symbol.first_line, 0), end=end),
            selection_range=self.range(lines, symbol.name_at),
            detail=symbol.detail or None,
            children=[self.symbol(lines, inner) for inner in symbol.children],
        )

    def tokens(self, lines: Sequence[str], tokens: Iterable[Token]) -> list[int]:
        """Tokens as the protocol counts them: five numbers each, the first two of them from the token before."""
        units = self.server.workspace.position_codec.client_num_units
        result: list[int] = []
        line = column = read = 0  # start of the previous token: line, column in the editor's units, in characters
        for token in tokens:
            text, span = lines[token.span.line], token.span
            if span.line != line:
                column = read = 0
            start = span.start if text.isascii() else column + units(text[read : span.start])
            width = span.stop - span.start if text.isascii() else units(text[span.start : span.stop])
            result += (span.line - line, start - column, width, token.type, token.modifiers)
            line, column, read = span.line, start, span.start
        return result


QUIET = 0.03
"""Seconds without a change after which a text is read, so that a burst of keystrokes is read once."""

MOST_READ = 64 << 20
"""The most bytes of a file that is read without being open in the editor; a larger one counts as empty."""

QUIET_JOB = 0.4
"""Seconds without a further change after which a program is compiled for its job."""


class Server:
    """Answers the requests of one editor. `types` and `pygls` are the modules of the libraries."""

    def __init__(self) -> None:
        self.types: Any = importlib.import_module("lsprotocol.types")
        self.pygls: Any = importlib.import_module("pygls.lsp.server")
        library: Any = importlib.import_module("pygls.protocol")
        session = session_class(library.LanguageServerProtocol, self.types, importlib.import_module("pygls.exceptions"))
        self.server: Any = self.pygls.LanguageServer("pstranspile", pstranspile.__version__, protocol_cls=session)
        self.protocol = Protocol(self.types, self.server)
        self.documents = Documents(lambda text: self.server.workspace.position_codec.client_num_units(text))
        self.uris: dict[Path, str] = {}
        self.ended = False
        self.workspace = Workspace(self._text_if_open)
        self._register()
        logging.getLogger("pygls.protocol.json_rpc").addFilter(_is_no_refusal)
        for library in ("pygls.protocol.json_rpc", "pygls.io_", "pygls.server", "pygls.lsp.server"):
            logging.getLogger(library).addFilter(_is_told_shortly)

    def start(self) -> bool:
        """Serves the editor at stdin and stdout until it exits; returns whether it sent `shutdown` before."""
        if sys.stdin.isatty():
            say("waits for what an editor sends; docs/guides/editors.md says how to set one up")
        output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")  # the library closes what it writes to
        self.server.start_io(Frames(sys.stdin.buffer), output)
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

    def _text_if_open(self, path: Path) -> str | None:
        uri = self.uris.get(path)
        return self._text(uri) if uri is not None else None

    def _text(self, uri: str) -> str:
        """The text of an open file or of a regular one; else empty. A mark of the byte order counts as a blank.

        Pipes and devices are not read: the other end of a pipe may never come.
        """
        document = self.documents.get(uri)
        try:
            text = read_regular(path_of(uri), MOST_READ).decode() if document is None else document.text
        except (OSError, ValueError):  # a file that is gone, no UTF-8, a name that no file has
            return ""
        return f" {text[1:]}" if text.startswith("\ufeff") else text

    def _version(self, uri: str) -> int | None:
        document = self.documents.get(uri)
        return document.version if document is not None else None

    def _lines(self, uri: str) -> list[str]:
        return self._text(uri).replace("\r\n", "\n").split("\n")

    def _outline(self, uri: str) -> Outline | None:
        """The outline of a program; None for a job file."""
        path = path_of(uri)
        return None if is_job_file(path) else self.workspace.outline(path, self._text(uri))

    async def did_open(self, params: Any) -> None:
        """Reads a text and compiles it for its job."""
        item = params.text_document
        self.documents.open(item.uri, item.text, item.version)
        self.uris[path_of(item.uri)] = item.uri
        await self._look(item.uri)

    async def did_change(self, params: Any) -> None:
        """Reads a text once it has not changed for a moment, and compiles it when it has not for a longer one."""
        uri = params.text_document.uri
        if self.documents.change(uri, map(_edit, params.content_changes), params.text_document.version):
            await self._look(uri)
        else:
            say(f"a text that is not open is changed: {uri}")

    async def did_close(self, params: Any) -> None:
        """Forgets a text, and takes back its findings. The file of a job counts again."""
        uri = params.text_document.uri
        self.documents.close(uri)
        self.uris.pop(path_of(uri), None)
        self.workspace.close(path_of(uri))
        self._publish(uri, (), [], None)
        if is_job_file(path_of(uri)):
            await self._job_changed(path_of(uri))

    async def did_change_files(self, params: Any) -> None:
        """Compiles the programs again whose job files changed on disk."""
        for change in params.changes:
            await self._job_changed(path_of(change.uri))

    async def _look(self, uri: str) -> None:
        path, document = path_of(uri), self.documents.get(uri)
        await asyncio.sleep(QUIET)
        if document is None or self.documents.get(uri) is not document:
            return
        text, version = self._text(uri), document.version
        if is_job_file(path):
            self._publish(uri, self.workspace.job_findings(path, text), self._lines(uri), version)
            await self._job_changed(path)
            return
        reading = self.workspace.reading(path, text)
        self._publish(uri, reading.findings, reading.outline.lines, version)
        await asyncio.sleep(QUIET_JOB)
        if self.documents.get(uri) is document:
            self._compile(uri, text, version)

    def _compile(self, uri: str, text: str, version: int | None) -> None:
        """Publishes findings of a program with those of compiling it, for servers and for its job."""
        path = path_of(uri)
        reading, placement = self.workspace.reading(path, text), self.workspace.placement(path, text)
        findings = self.workspace.findings(path, text)
        if placement is not None or findings != reading.findings:
            self._publish(uri, findings, reading.outline.lines, version)
        if placement is not None:
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

    def _spot(self, uri: str, position: Any) -> TextPosition:
        return self.protocol.spot(self._lines(uri), position)

    def hover(self, params: Any) -> Any:
        """The hover text at a place."""
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
        """The completions at a place."""
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
        """The declarations of a name."""
        return self._locations_of_name(params, definitions)

    def references(self, params: Any) -> Any:
        """The references to a name, with its declarations where the editor asks for them."""
        return self._locations_of_name(params, references if params.context.include_declaration else uses)

    def _locations_of_name(self, params: Any, find: Callable[..., list[LineSpan]]) -> Any:
        outline, named = self._name_at(params)
        if outline is None or named is None:
            return None
        return self.protocol.locations(params.text_document.uri, outline.lines, find(outline, named))

    def _name_at(self, params: Any) -> tuple[Outline | None, NameReference | None]:
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
        except RequestRefused as problem:
            raise _failure(str(problem)) from problem
        ranges = [(self.protocol.range(outline.lines, span), text) for span, text in changes]
        edits = [self.types.TextEdit(range=place, new_text=text) for place, text in ranges]
        return self.types.WorkspaceEdit(changes={params.text_document.uri: edits})

    def formatting(self, params: Any) -> Any:
        """The canonical form of a program, with the line ends that it has; nothing for one with errors, which are
        reported as findings.
        """
        uri = params.text_document.uri
        if self._outline(uri) is None:
            return None
        text, lines = self._text(uri), self._lines(uri)
        try:
            formatted = format_text(text.replace("\r\n", "\n"), uri)
        except DiagnosticError:
            return None
        if "\r\n" in text:
            formatted = formatted.replace("\n", "\r\n")
        if formatted == text:
            return []
        end = self.protocol.position(lines, len(lines) - 1, len(lines[-1]))
        whole = self.types.Range(start=self.types.Position(line=0, character=0), end=end)
        return [self.types.TextEdit(range=whole, new_text=formatted)]

    def folding(self, params: Any) -> Any:
        """The ranges of lines that can be folded."""
        outline = self._outline(params.text_document.uri)
        folds = outline.folds() if outline is not None else []
        return [self.types.FoldingRange(start_line=fold.first_line, end_line=fold.last_line) for fold in folds]

    def document_symbols(self, params: Any) -> Any:
        """The outline of a program."""
        outline = self._outline(params.text_document.uri)
        if outline is None:
            return None
        return [self.protocol.symbol(outline.lines, symbol) for symbol in symbols(outline)]

    def semantic_tokens(self, params: Any) -> Any:
        """The semantic tokens of a program."""
        return self._tokens(params, 0, sys.maxsize)

    def semantic_tokens_of_range(self, params: Any) -> Any:
        """The semantic tokens of a range of lines of a program."""
        return self._tokens(params, params.range.start.line, params.range.end.line)

    def _tokens(self, params: Any, first: int, last: int) -> Any:
        outline = self._outline(params.text_document.uri)
        if outline is None:
            return None
        return self.types.SemanticTokens(data=self.protocol.tokens(outline.lines, tokens(outline, first, last)))

    def code_actions(self, params: Any) -> Any:
        """The quick fixes for the findings on a range of lines."""
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
        """Hints of the machines on which variables will live."""
        uri = params.text_document.uri
        outline = self._outline(uri)
        if outline is None:
            return []
        placement = self.workspace.placement(path_of(uri), self._text(uri))
        if placement is None:
            return []
        shown = hints(outline, placement, params.range.start.line, params.range.end.line)
        return [self.protocol.hint(outline.lines, hint) for hint in shown]


def _edit(change: Any) -> Edit:
    """A change of the protocol; one of the whole text has no range."""
    places = getattr(change, "range", None)
    if places is None:
        return Edit(change.text)
    start, end = ((place.line, place.character) for place in (places.start, places.end))
    return Edit(change.text, start, end)


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

    def call_now(params: Any) -> Any:
        return method(params)

    return call_now


def _text_of(kind: Any) -> str:
    """A word of the protocol, which the library gives as a value of an enum or as text."""
    return getattr(kind, "value", kind)


def _failure(message: str) -> Exception:
    exceptions: Any = importlib.import_module("pygls.exceptions")
    return exceptions.JsonRpcInvalidParams(message)


def _is_told_shortly(record: logging.LogRecord) -> bool:
    """A filter of the library's log: a message that can't be decoded is one line without a traceback, and
    cancellations that come after the answer are not logged.
    """
    if "$/nothing" in record.getMessage() or record.getMessage().startswith("Cancel notification for unknown"):
        return False
    if str(record.msg).startswith("Unable to deserialize message"):
        record.msg, record.args = "pstranspile lsp: a message of the editor has no form of the protocol", None
        return True
    problem = record.exc_info[1] if record.exc_info else None
    is_told = type(problem).__name__ in ("JsonRpcInvalidParams", "JsonRpcInternalError")
    return not (is_told and record.msg == "Unable to handle message")


def _is_no_refusal(record: logging.LogRecord) -> bool:
    """Whether a log record of the library is kept: refusals are left out, as the editor gets them as answers."""
    problem = record.exc_info[1] if record.exc_info else None
    return problem is None or not isinstance(problem.__cause__, RequestRefused)
