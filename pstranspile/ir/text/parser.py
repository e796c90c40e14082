"""The plain path: Lark parses the whole text, its tree becomes the module."""

from __future__ import annotations

from collections.abc import Iterator

from lark.exceptions import UnexpectedInput

from pstranspile.ir.diagnostics import DiagnosticError, raise_errors
from pstranspile.ir.model import Module, SourceText
from pstranspile.ir.text.assemble import Assembler
from pstranspile.ir.text.diagnose import diagnose, refusal
from pstranspile.ir.text.grammar import parse_module
from pstranspile.ir.text.reader import Context, Node, Token, Tree
from pstranspile.ir.text.schemas import Language


def _statements(tree: Node) -> Iterator[Node | Token]:
    """The statements of a module in order, without recursion: blocks may be nested thousands deep."""
    todo: list[Node | Token] = [tree]
    while todo:
        part = todo.pop()
        if isinstance(part, Tree) and part.data in ("module", "program", "block"):
            todo += reversed(part.children)
        else:
            yield part


def parse_plainly(text: str, file: str, language: Language) -> Module:
    """The module that `text` holds. Raises DiagnosticError with all findings."""
    context = Context(file, language)
    try:
        tree = parse_module(text if text.endswith("\n") else text + "\n")
    except UnexpectedInput as refused:
        diagnose(text, context)
        raise DiagnosticError([refusal(refused, text, context)]) from None
    assembler = Assembler(context)
    for statement in _statements(tree):
        assembler.take(statement)
    module = assembler.finish(SourceText(file, text))
    raise_errors(context.findings)
    return module
