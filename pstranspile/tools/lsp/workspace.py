"""The texts that an editor has open: their readings, and their jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pstranspile.compiler.job.file import MAX_BYTES
from pstranspile.ir.diagnostics import Diagnostic, Severity
from pstranspile.ir.model import Module
from pstranspile.ir.reading import read_regular
from pstranspile.tools.lsp.outline import Outline
from pstranspile.tools.lsp.placement import Placement, check_job, job_files, place
from pstranspile.tools.lsp.reading import Reading, read


class _Placed(NamedTuple):
    module: Module
    path: Path
    text: str
    placement: Placement


class Workspace:
    """Open texts by path. `opened` gives the text of a file as the editor has it, None where it is not open."""

    def __init__(self, opened: Callable[[Path], str | None]):
        self._opened = opened
        self._readings: dict[Path, tuple[str, Reading]] = {}
        self._outlines: dict[Path, tuple[str, Outline]] = {}
        self._placed: dict[Path, _Placed] = {}

    def outline(self, path: Path, text: str) -> Outline:
        """The outline of a program's text."""
        known = self._outlines.get(path)
        if known is None or known[0] != text:
            known = self._outlines[path] = (text, Outline(text.replace("\r\n", "\n").split("\n")))
        return known[1]

    def reading(self, path: Path, text: str) -> Reading:
        """The reading of a program's text."""
        known = self._readings.get(path)
        if known is None or known[0] != text:
            reading = read(text, str(path), known[1] if known else None)
            known = self._readings[path] = (text, reading)
            self._outlines[path] = (text, reading.outline)
        return known[1]

    def close(self, path: Path) -> None:
        """Forgets a program."""
        for known in (self._readings, self._outlines, self._placed):
            known.pop(path, None)

    def placement(self, path: Path, text: str) -> Placement | None:
        """The placement of the program by its job; None without a job, or with errors in either."""
        reading = self.reading(path, text)
        if reading.module is None or any(f.severity is Severity.ERROR for f in reading.findings):
            return None
        for file in job_files(path):
            content = self._content(file)
            if content is None:
                continue
            known = self._placed.get(path)
            if known is None or known[0] is not reading.module or known[1:3] != (file, content):
                job = check_job(file, content)[0]
                if job is None:
                    return None
                known = self._placed[path] = _Placed(reading.module, file, content, place(reading.module, job))
            return known.placement
        return None

    def last_placement(self, path: Path) -> Placement | None:
        """What was last made of a program, also when the text has changed since."""
        known = self._placed.get(path)
        return known.placement if known else None

    def job_findings(self, path: Path, text: str) -> tuple[Diagnostic, ...]:
        """What is wrong with a job file's text."""
        return check_job(path, text)[1]

    def _content(self, path: Path) -> str | None:
        text = self._opened(path)
        if text is not None:
            return text
        try:
            return read_regular(path, MAX_BYTES).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError):
            return None
