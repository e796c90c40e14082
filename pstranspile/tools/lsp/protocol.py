"""Values of the features as the types of the protocol, with places as the editor counts them, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pstranspile.ir.diagnostics import Diagnostic, Severity, marked
from pstranspile.tools.lsp.colours import Token
from pstranspile.tools.lsp.symbols import Symbol
from pstranspile.tools.lsp.values import Explained, Hint, Proposal, Span, Spot, without_places


class Protocol:
    """Makes values of the protocol for one editor. `types` is the library's module, `server` its server."""

    def __init__(self, types: Any, server: Any):
        self.types = types
        self.server = server

    def spot(self, lines: Sequence[str], position: Any) -> Spot:
        """The place of a text that the editor names."""
        if position.line >= len(lines):
            return Spot(position.line, 0)
        codec = self.server.workspace.position_codec
        there = codec.position_from_client_units(
            [f"{lines[position.line]}\n"], self.types.Position(line=0, character=position.character)
        )
        number: int = position.line
        return Spot(number, min(int(there.character), len(lines[number])))

    def position(self, lines: Sequence[str], line: int, column: int) -> Any:
        """A place between characters."""
        before = lines[line][:column] if line < len(lines) else ""
        units = column if before.isascii() else self.server.workspace.position_codec.client_num_units(before)
        return self.types.Position(line=line, character=units)

    def range(self, lines: Sequence[str], span: Span) -> Any:
        """A span of one line."""
        start = self.position(lines, span.line, span.start)
        return self.types.Range(start=start, end=self.position(lines, span.line, span.stop))

    def locations(self, uri: str, lines: Sequence[str], spans: Iterable[Span]) -> list[Any]:
        """Places in a file."""
        return [self.types.Location(uri=uri, range=self.range(lines, span)) for span in spans]

    def diagnostic(self, uri: str, finding: Diagnostic, lines: list[str]) -> Any:
        """A finding; one without a place in the text stands on its first line."""
        t, place = self.types, finding.location
        span = Span(0, 0, len(lines[0]) if lines else 0)
        if place is not None and 0 < place.line <= len(lines):
            line, start, width = marked(place, finding.focus, lines)
            span = Span(line, start, start + width)
        related: list[Any] = []
        message = finding.message
        for note in finding.notes:
            if note.location is not None and 0 < note.location.line <= len(lines):
                line, start, width = marked(note.location, note.focus, lines)
                where = t.Location(uri=uri, range=self.range(lines, Span(line, start, start + width)))
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

    def hover(self, lines: Sequence[str], shown: Explained) -> Any:
        """What hovering shows."""
        content = self.types.MarkupContent(kind=self.types.MarkupKind.Markdown, value=shown.text)
        return self.types.Hover(contents=content, range=self.range(lines, shown.span))

    def hint(self, lines: Sequence[str], hint: Hint) -> Any:
        """A few words behind a line."""
        tip = self.types.MarkupContent(kind=self.types.MarkupKind.Markdown, value=hint.tip)
        place = self.position(lines, *hint.spot)
        return self.types.InlayHint(position=place, label=hint.label, tooltip=tip, padding_left=True)

    def symbol(self, lines: Sequence[str], symbol: Symbol) -> Any:
        """An entry of an outline, with those inside it."""
        t = self.types
        end = self.position(lines, symbol.last, len(lines[symbol.last]))
        return t.DocumentSymbol(
            name=symbol.name,
            kind=t.SymbolKind[symbol.kind],
            range=t.Range(start=self.position(lines, symbol.first, 0), end=end),
            selection_range=self.range(lines, symbol.name_at),
            detail=symbol.detail or None,
            children=[self.symbol(lines, inner) for inner in symbol.children],
        )

    def tokens(self, lines: Sequence[str], tokens: Iterable[Token]) -> list[int]:
        """Tokens as the protocol counts them: five numbers each, the first two of them from the token before."""
        units = self.server.workspace.position_codec.client_num_units
        result: list[int] = []
        line = column = read = 0  # where the token before began: its line, in the editor's units and in ours
        for token in tokens:
            text, span = lines[token.span.line], token.span
            if span.line != line:
                column = read = 0
            start = span.start if text.isascii() else column + units(text[read : span.start])
            width = span.stop - span.start if text.isascii() else units(text[span.start : span.stop])
            result += (span.line - line, start - column, width, token.type, token.modifiers)
            line, column, read = span.line, start, span.start
        return result
