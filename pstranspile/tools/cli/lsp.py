"""`pstranspile lsp`: a language server for editors, for programs and job files."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from pstranspile.ir.diagnostics import installing
from pstranspile.tools.cli.common import make_parser

DESCRIPTION = f"""\
Serves one editor, which starts it, over stdin and stdout with the Language Server Protocol: findings while a program or
a job file is typed, hovering, definitions, references, completion, renaming, formatting, folding, and hints where
parameters will live. The job of net.ir is net.job.toml or job.toml beside it (or .json).

docs/guides/editors.md says how to set editors up. It needs pygls: {installing("lsp")}."""


def run(arguments: Sequence[str]) -> int:
    """Serves until the editor leaves; 1 where it leaves without notice."""
    parser = make_parser("lsp", DESCRIPTION, [""])
    parser.add_argument("--stdio", action="store_true", help="what some editors add; it is the only way there is")
    parser.parse_args(arguments)
    if find_spec("pygls") is None:
        parser.error(f"the language server needs pygls: {installing('lsp')}")
    from pstranspile.tools.lsp.server import Server

    return 0 if Server().start() else 1
