"""The rejected texts of `golden/rejected`: what their comments mark, and what is found in them."""

import json
import re
from pathlib import Path

import pstranspile as ps
from pstranspile.compiler.verify import verify
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError
from pstranspile.ops.textual import parse

FOLDER = Path(__file__).parents[3] / "golden" / "rejected"
TEXTS = sorted(FOLDER.glob("*.ir"))

MARK = re.compile(r"# (error|warning): ([\w-]+(?:, [\w-]+)*)(?=$| +#)")
JOB = "# job: "


def marked(text: str) -> list[tuple[int, str, str]]:
    """(line, severity, code) of every mark; a mark on a line of its own is of a finding without a line (0)."""
    found: list[tuple[int, str, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        for match in MARK.finditer(line):
            place = 0 if line.lstrip().startswith("#") else number
            found += [(place, match.group(1), code) for code in match.group(2).split(", ")]
    return sorted(found)


def findings_of(text: str, file: str) -> list[Diagnostic]:
    """What reading, verifying and (for a text that opens with `# job:`) compiling finds."""
    found: list[Diagnostic] = []
    try:
        module = parse(text, file)
        found += verify(module)
        if text.startswith(JOB):
            job = ps.Job(**json.loads(text.split("\n")[0].removeprefix(JOB)))
            found += ps.compile(module, job).warnings
    except DiagnosticError as refusal:
        found += refusal.diagnostics
    return found


def places(found: list[Diagnostic]) -> list[tuple[int, str, str]]:
    """(line, severity, code) of findings."""
    return sorted((d.location.line if d.location else 0, d.severity.value, d.code) for d in found)
