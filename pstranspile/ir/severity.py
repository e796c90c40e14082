"""The severity of findings under `--strict` and `--allow`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from pstranspile.ir.codes import CODES
from pstranspile.ir.diagnostics import Diagnostic, Note, Severity, error
from pstranspile.ir.suggest import did_you_mean

ONLY_DECLARED = frozenset(
    {"type-mismatch", "declared-differently", "role-variable", "role-variable-pair", "unknown-slot", "attribute-kind"}
)
"""Codes of contradictions between declarations that Fluid runs nevertheless: warnings, and errors with `--strict`."""

NEEDED = frozenset({"no-block", "block-parent", "block-cycle", "block-reference", "block-reference-cycle", "nesting"})
"""Codes of programs whose blocks can't be traversed. These errors can't be allowed."""

MOST_ALIKE = 3
"""This many warnings of one code, and errors of the same wording, are printed separately; more are folded."""


def weighed(
    findings: Iterable[Diagnostic], *, strict: bool = False, allow: Collection[str] = ()
) -> Iterator[Diagnostic]:
    """The findings with the requested severity.

    `strict` turns the warnings of ONLY_DECLARED into errors. A code of `allow` turns an error of the verifier into a
    warning, and drops a warning.
    """
    for finding in findings:
        level = Severity.ERROR if strict and finding.code in ONLY_DECLARED else finding.severity
        if finding.code not in allow or finding.code in NEEDED:
            yield finding._replace(severity=level)
        elif level is Severity.ERROR:
            yield finding._replace(severity=Severity.WARNING)


def wrong_codes(codes: Iterable[str], key: str) -> list[Diagnostic]:
    """Errors about codes that don't exist or can't be allowed; `key` is their place."""
    findings: list[Diagnostic] = []
    for code in codes:
        if code in NEEDED:
            message = f"{key}: {code} can't be allowed: blocks that stand in no sound order can't be run"
            findings.append(error("job-value", message, focus=key))
        elif code not in CODES:
            hint = did_you_mean(code, sorted(CODES))
            findings.append(error("job-value", f"{key}: no finding has the code {code!r}{hint}", focus=key))
    return findings


def folded(findings: Iterable[Diagnostic]) -> list[Diagnostic]:
    """The findings with groups of more than MOST_ALIKE similar ones folded into one, with a note of their number."""
    groups: dict[tuple[str, ...], list[Diagnostic]] = {}
    for finding in findings:
        words = finding.message if finding.severity is Severity.ERROR else ""
        groups.setdefault((finding.severity.value, finding.code, words), []).append(finding)
    shown: list[Diagnostic] = []
    for (severity, code, _), alike in groups.items():
        if len(alike) <= MOST_ALIKE:
            shown += alike
            continue
        more = f"and {len(alike) - 1} more findings {severity}[{code}] (`pstranspile verify --all` shows them)"
        shown.append(alike[0]._replace(notes=(*alike[0].notes, Note(more))))
    return shown
