"""Findings about programs and inputs: what is wrong, where, how severe it is, and how it is printed.

The layout is `file:line:col: error[code]: message`, then the source line with carets, then notes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Literal, NamedTuple, TypeAlias, cast

from pstranspile.ir.codes import CODES, Code
from pstranspile.ir.layout import statement_length
from pstranspile.ir.model import Location, Op, Origin
from pstranspile.ir.patterns import Pattern

# Text from elsewhere, such as names in messages and files, made safe for a terminal or a log.

HIDDEN = (
    "\x00-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff"
)
"""The characters that a terminal obeys or does not show, as the content of a character class of a regular expression:
control characters, marks that reorder or hide text, line separators, bytes that are not UTF-8 (as Python reads
them), and tags.

The list is fixed because `str.isprintable` changes with the Unicode tables of the Python that runs.
"""

MOST = 200
"""The number of characters of a text that `visible` shows by default."""

_HIDDEN = Pattern(f"[{HIDDEN}]")
"""Matches one of these characters: a file may contain anything, but a terminal must not get it."""

_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return _SHORT.get(character) or (f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def visible(text: str, most: int = MOST) -> str:
    """The text in one line, with escapes (`\\n`, `\\u001b`) in place of characters that a terminal obeys or hides. Of a
    text longer than `most`, only the first and the last `most // 2` characters are shown.
    """
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]}...{text[-half:]}"
    return _HIDDEN.sub(_escape, text)


def in_one_line(text: str) -> str:
    """The text as `visible` shows it, of any length."""
    return visible(text, len(text))


def shell_word(text: str) -> str:
    """The text as one word of a command that can be typed into a shell, in one line, without hidden characters."""
    from shlex import quote  # imported here because few commands that end well show one

    if not _HIDDEN.search(text):
        return quote(text)
    return "$'" + "".join(map(_shell_escape, text)) + "'"


def _shell_escape(character: str) -> str:
    """A character between the quotes of `$'...'`, where hidden ones are their bytes, in octal."""
    if character in "\\'":
        return f"\\{character}"
    if not _HIDDEN.match(character):
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))


def shell_line(words: Iterable[str]) -> str:
    """Words as a command that can be typed into a shell, in one line, without hidden characters."""
    return " ".join(map(shell_word, words))


# Suggestions for misspelt names.


def nearest(given: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name most similar to the given one: one that differs in capitals alone, else one with two neighbouring
    letters exchanged, else one with similar letters; None if none is similar, or if what is given is no text. `cutoff`
    is from 0 (anything) to 1; a name that begins with another letter, as few misspelt ones do, must be more similar.
    """
    if not isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance] (a key of a user's dict)
        return None
    from difflib import get_close_matches  # imported here because the import takes as long as reading a small program

    names = list(known)
    same = (name for name in names if name.casefold() == given.casefold())
    exchanged = (name for name in names if _is_exchanged(name, given))
    near = next(same, None) or next(exchanged, None)
    if near is None:
        surely = get_close_matches(given, names, 1, max(cutoff, _OTHER_FIRST))
        near = next((n for n in get_close_matches(given, names, 5, cutoff) if n in surely or n[:1] == given[:1]), None)
    return near


_OTHER_FIRST = 0.75
"""The least similarity of a name that begins with another letter."""


def _is_exchanged(one: str, other: str) -> bool:
    """Whether two neighbouring letters of a word are exchanged in another, as in `sgd` and `sdg`."""
    if len(one) != len(other) or one == other:
        return False
    at = next(place for place, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    return one[at : at + 2] == other[at : at + 2][::-1] and one[at + 2 :] == other[at + 2 :]


def similar_names(given: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """The known names most similar to the given one, three at most, the most similar one first: those that differ in
    capitals alone, else those with similar letters.
    """
    from difflib import get_close_matches

    names = list(known)
    return [n for n in names if n.casefold() == given.casefold()][:3] or get_close_matches(given, names, 3, cutoff)


def did_you_mean(given: str, known: Iterable[str], show: Callable[[str], str] = str) -> str:
    """`; did you mean x?` if a known name, written by `show`, is similar to the given one; else nothing."""
    near = nearest(given, known)
    return "" if near is None else f"; did you mean {show(near)}?"


# Counts of things in messages.


def quantity(count: int, noun: str) -> str:
    """A count with its noun: `1 trainer`, `2 trainers`, `12,000 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def lasting(seconds: float) -> str:
    """A duration in words: `1 second`, `0.5 seconds`, `30 seconds`."""
    return f"{seconds:g} second{'' if seconds == 1 else 's'}"


def name_list(names: Iterable[str], most: int = 12) -> str:
    """Names as a list for a message: the first `most`, and how many more there are."""
    held = list(names)
    shown = ", ".join(held[:most])
    return shown if len(held) <= most else f"{shown} and {len(held) - most:,} more"


def cluster_of(trainers: int, servers: int, joined: str = ", ") -> str:
    """The size of a cluster in words: `2 trainers, 1 server`; without servers, only the trainers."""
    return joined.join([quantity(trainers, "trainer"), *([quantity(servers, "server")] if servers else [])])


class Severity(Enum):
    """The severity of a finding: an ERROR ends the command with exit code 1, a WARNING does not."""

    __hash__ = object.__hash__  # Enum calls the built-in hash, which a script may replace

    ERROR = "error"
    WARNING = "warning"


class Note(NamedTuple):
    """An additional line of a diagnostic, with a place of its own if it has one."""

    message: str
    location: Location | None = None
    focus: str = ""


class Diagnostic(NamedTuple):
    """One finding. `focus` is the piece of the source line that the carets mark (empty: from the column on).

    `subject` describes the place if there is no text to quote (`@main^0#17 sgd`).
    """

    code: str
    message: str
    location: Location | None = None
    focus: str = ""
    severity: Severity = Severity.ERROR
    notes: tuple[Note, ...] = ()
    subject: str = ""

    def __str__(self) -> str:
        """The finding as it is printed, but without the quoted source line, which needs the text of the file.

        Raises TypeError if a field is of another type.
        """
        _require_fields(self)
        return render([self])


def error(
    code: Code,
    message: str,
    place: Location | Origin | None = None,
    *,
    focus: str = "",
    notes: Iterable[Note] = (),
) -> Diagnostic:
    """An error finding at a place in a file, or at the source op that the origin of an op names (`op.origin`).

    Raises TypeError for arguments of other types, ValueError for a code that is not of words in
    lower case, joined by hyphens.
    """
    location, subject = _resolve_place(place, "error")
    _require_texts("error", code=code, message=message, focus=focus)
    _require_code("error", code)
    return Diagnostic(code, message, location, focus, Severity.ERROR, _notes(notes), subject)


def warning(code: Code, message: str, place: Location | Origin | None = None, *, focus: str = "") -> Diagnostic:
    """A warning at a place in a file, or at the source op that the origin of an op names (`op.origin`).

    Raises TypeError for arguments of other types, ValueError for a code that is not of words in
    lower case, joined by hyphens.
    """
    location, subject = _resolve_place(place, "warning")
    _require_texts("warning", code=code, message=message, focus=focus)
    _require_code("warning", code)
    return Diagnostic(code, message, location, focus, Severity.WARNING, (), subject)


def _resolve_place(place: object, caller: str) -> tuple[Location | None, str]:
    """(location of a place, its description for when there is no text to quote). Raises TypeError for other values."""
    if isinstance(place, Origin):
        return place.location, str(place)
    if place is None or isinstance(place, Location):
        return place, ""
    instead = "; op.origin is that of an op" if isinstance(place, Op) else ""
    raise TypeError(f"{caller} takes a Location or an Origin, not a value of type {type(place).__name__}{instead}")


def _require_texts(caller: str, **texts: object) -> None:
    """Raises TypeError unless these arguments are texts."""
    for name, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"{caller} takes text as {name}, not a value of type {type(text).__name__}")


def _require_code(caller: str, code: str) -> None:
    """Raises ValueError unless the code is known, or a word or words of a form that other packages can have."""
    if code not in CODES and not _CODE.fullmatch(code):
        hint = did_you_mean(code, CODES)
        raise ValueError(f"{caller} takes a code of words in lower case, such as 'my-rule', not {code!r}{hint}")


_CODE = Pattern(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
"""The form of a code: words in lower case that are joined by hyphens."""


def _notes(given: object) -> tuple[Note, ...]:
    """Notes as a tuple. Raises TypeError for anything else."""
    wanted = "error takes a list of Notes as notes, such as [Note(message)]"
    if not isinstance(given, Iterable) or isinstance(given, Note | str):
        raise TypeError(f"{wanted}, not a value of type {type(given).__name__}")
    result = tuple(cast("Iterable[object]", given))
    for one in result:
        if not isinstance(one, Note) or not isinstance(one.message, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{wanted}; one is of type {type(one).__name__}")
    return cast("tuple[Note, ...]", result)


def at_op(
    code: Code,
    message: str,
    op: Op,
    *,
    focus: str = "",
    severity: Severity = Severity.ERROR,
    notes: Iterable[Note] = (),
) -> Diagnostic:
    """A finding about an op, at the place of the op, or of the op it was made from, in the source."""
    origin: Origin | None = op.origin
    location = origin.location if origin else None
    return Diagnostic(code, f"{op.type}: {message}", location, focus, severity, tuple(notes), subject_of(op))


def file_of(ops: Iterable[Op]) -> Location | None:
    """The file that ops come from, as the place of findings about their program as a whole; None if it is unknown."""
    places = (op.origin.location for op in ops if op.origin is not None and op.origin.location is not None)
    first = next(places, None)
    return None if first is None else Location(first.file)


def subject_of(op: Op) -> str:
    """The description of an op's place, as findings use it."""
    return f"{op.origin} {op.type}" if op.origin else op.type


def _as_findings(given: object) -> tuple[Diagnostic, ...]:
    """Findings as a tuple; a single one counts as a list of one. Raises TypeError for anything else."""
    alone = isinstance(given, Diagnostic) or not isinstance(given, Iterable)
    result: tuple[object, ...] = (cast("object", given),) if alone else tuple(cast("Iterable[object]", given))
    other = next((one for one in result if not isinstance(one, Diagnostic)), None)
    if other is not None or result == (None,):
        raise TypeError(f"DiagnosticError takes findings, such as error(code, message), not {type(other).__name__}")
    for one in cast("tuple[Diagnostic, ...]", result):
        _require_fields(one)
    return cast("tuple[Diagnostic, ...]", result)


def _require_fields(finding: Diagnostic) -> None:
    """Raises TypeError unless the fields of a finding, which anyone can make, are of their types."""
    texts = {"code": finding.code, "message": finding.message, "focus": finding.focus, "subject": finding.subject}
    _require_texts("Diagnostic", **texts)
    _resolve_place(finding.location, "Diagnostic")
    _notes(finding.notes)


class DiagnosticError(Exception):
    """Raised when an input can't be used; carries every finding, so that several are reported per run.

    Raises TypeError for anything but findings.
    """

    def __init__(self, diagnostics: Iterable[Diagnostic] | Diagnostic):
        self.diagnostics = _as_findings(diagnostics)
        super().__init__(render(self.diagnostics))


def raise_errors(diagnostics: Iterable[Diagnostic]) -> None:
    """Raises DiagnosticError with all findings, equal ones once, if any of them is an error."""
    result = tuple(dict.fromkeys(diagnostics))
    if any(d.severity is Severity.ERROR for d in result):
        raise DiagnosticError(result)


MAX_FINDINGS = 20
"""How many findings of one kind a run reports."""


def first_findings(findings: Sequence[Diagnostic]) -> Sequence[Diagnostic]:
    """At most MAX_FINDINGS findings. If there may be more, the last one has a note about this."""
    if len(findings) < MAX_FINDINGS:
        return findings
    last = findings[MAX_FINDINGS - 1]
    more = Note("there may be more findings; these are the first ones")
    return [*findings[: MAX_FINDINGS - 1], last._replace(notes=(*last.notes, more))]


_COLOURS = {"error": "\x1b[1;31m", "warning": "\x1b[1;33m", "note": "\x1b[1;36m"}
_RESET = "\x1b[0m"


def _place(location: Location | None, column: int, subject: str) -> str:
    if location is None:
        return subject
    if location.line == 0:
        return f"{location.file}: {subject}" if subject else location.file
    return f"{location.file}:{location.line}:{column}" if column else f"{location.file}:{location.line}"


def _find(text: str, focus: str, start: int) -> int:
    """The column of `focus` in a line as a whole name, not as part of a longer one; -1 if it does not occur."""
    at = text.find(focus, start)
    while at >= 0:
        before, after = text[at - 1 : at] if at else "", text[at + len(focus) : at + len(focus) + 1]
        if not (_in_name(before) and _in_name(focus[0])) and not (_in_name(after) and _in_name(focus[-1])):
            return at
        at = text.find(focus, at + 1)
    return -1


def _in_name(character: str) -> bool:
    return character.isalnum() or character in {"_", ".", "@", "/"}


def marked_span(location: Location, focus: str, lines: list[str]) -> tuple[int, int, int]:
    """(line index, first column, number of characters) that a finding marks.

    Columns count from 0. Without a focus the mark extends from the finding's column, or from the first character that
    is no blank, to the end.
    """
    location, result = _find_focus(location, focus, lines)
    text = lines[location.line - 1]
    begin = location.column or len(text) - len(text.lstrip()) + 1
    start = result if result >= 0 else begin - 1
    width = len(focus) if result >= 0 else 1
    if result < 0 and not focus:
        width = max(len(text.rstrip()) - start, 1)
    return location.line - 1, start, width


def _find_focus(location: Location, focus: str, lines: list[str]) -> tuple[Location, int]:
    """(location, column index of `focus`) of the first line of the statement at a location that contains `focus`; the
    given location and -1 if no line does.
    """
    at, start = location.line - 1, max(location.column - 1, 0)
    result = _find(lines[at], focus, start) if focus else -1
    if focus and result < 0:
        for further in range(at + 1, at + statement_length(lines, at)):
            result = _find(lines[further], focus, 0)
            if result >= 0:
                return location._replace(line=further + 1), result
    return location, result


def _message_lines(
    label: str,
    tag: str,
    message: str,
    location: Location | None,
    focus: str,
    subject: str,
    lines: Mapping[str, list[str]],
    colour: bool,
) -> list[str]:
    quoted: list[str] = []
    column = location.column if location else 0
    if location is not None and 0 < location.line <= len(lines.get(location.file, ())):
        line, start, width = marked_span(location, focus, lines[location.file])
        text = lines[location.file][line]
        location, column = location._replace(line=line + 1), start + 1
        shown = _HIDDEN.sub("?", text.removesuffix("\r").replace("\t", " "))
        margin = f"{location.line:>5} | "
        if len(shown) > 200:  # a long line: only the part around the mark
            cut = max(start - 60, 0)
            before, after = ("..." if cut else ""), ("..." if len(shown) > cut + 180 else "")
            shown, start = before + shown[cut : cut + 180] + after, start - cut + len(before)
            width = min(width, max(len(shown) - start, 1))
        quoted = [margin + shown.rstrip(), " " * (len(margin) - 2) + "| " + " " * start + "^" * width]
    head = f"{label}{tag}:"
    if colour:
        head = f"{_COLOURS[label]}{head}{_RESET}"
    place = in_one_line(_truncate(_place(location, column, subject)))
    # Only a note may have several lines, such as those of a traceback.
    parts = message.split("\n") if label == "note" else [message]
    message = "\n".join([in_one_line(_truncate(part)) for part in parts])
    return [f"{place}: {head} {message}" if place else f"{head} {message}", *quoted]


_LONGEST = 8000
"""The most characters of a line of a message that are printed: a message may quote long text from a file."""


def _truncate(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def render(diagnostics: Iterable[Diagnostic], sources: Mapping[str, str] | None = None, *, colour: bool = False) -> str:
    """The findings as text; `sources` maps file names to their text, for quoting lines.

    A finding about an op whose place in a script is known gets a note with that place.
    """
    lines = {name: text.split("\n") for name, text in (sources or {}).items()}
    out: list[str] = []
    for d in diagnostics:
        out += _message_lines(d.severity.value, f"[{d.code}]", d.message, d.location, d.focus, d.subject, lines, colour)
        script = d.location.script if d.location else None
        for note in (*d.notes, *([Note("made here", script)] if script else [])):
            out += _message_lines("note", "", note.message, note.location, note.focus, "", lines, colour)
    return "\n".join(out)


# The severity of findings under `--strict` and `--allow`.

ONLY_DECLARED = frozenset(
    {"type-mismatch", "declared-differently", "role-variable", "role-variable-pair", "unknown-slot", "attribute-kind"}
)
"""Codes of contradictions between declarations that Fluid runs nevertheless: warnings, and errors with `--strict`."""

NEEDED = frozenset({"no-block", "block-parent", "block-cycle", "block-reference", "block-reference-cycle", "nesting"})
"""Codes of programs whose blocks can't be traversed. These errors can't be allowed."""

MOST_ALIKE = 3
"""The number of warnings of one code, or of errors with the same wording, that are printed separately; further ones are
folded into one.
"""


def adjust_severities(
    findings: Iterable[Diagnostic], *, strict: bool = False, allow: Collection[str] = ()
) -> Iterator[Diagnostic]:
    """The findings with the severity that the options request.

    `strict` turns the warnings of ONLY_DECLARED into errors. A code of `allow` turns an error of the verifier into a
    warning, and drops a warning.
    """
    for finding in findings:
        level = Severity.ERROR if strict and finding.code in ONLY_DECLARED else finding.severity
        if finding.code not in allow or finding.code in NEEDED:
            yield finding._replace(severity=level)
        elif level is Severity.ERROR:
            yield finding._replace(severity=Severity.WARNING)


def not_told_by(findings: Iterable[Diagnostic], others: Iterable[Diagnostic]) -> list[Diagnostic]:
    """The findings that others do not tell already: with another severity or other notes, or, of a variable without an
    initial value, where it is declared or at the op that reads it.
    """
    told = set(map(_cause, others))
    return [finding for finding in findings if _cause(finding) not in told]


_WITHOUT_VALUE = frozenset({"parameter-without-value", "not-initialised"})
"""Codes of a kept variable that nothing initialises: where it is declared, and where an op on a server reads it."""


def _cause(finding: Diagnostic) -> object:
    """What two findings have in common that tell the same."""
    if finding.code in _WITHOUT_VALUE and finding.focus:
        return finding.focus
    return finding._replace(severity=Severity.ERROR, notes=())


def wrong_codes(codes: Iterable[str], key: str) -> list[Diagnostic]:
    """Errors about codes that don't exist or can't be allowed; `key` is their place."""
    findings: list[Diagnostic] = []
    for code in dict.fromkeys(codes):
        if code in NEEDED:
            message = f"{key}: {code} can't be allowed: blocks that stand in no sound order can't be run"
            findings.append(error("job-value", message, focus=key))
        elif code not in CODES:
            hint = did_you_mean(code, sorted(CODES))
            findings.append(error("job-value", f"{key}: no finding has the code {code!r}{hint}", focus=key))
    return findings


_NOT_OF_PROGRAMS = ("data-", "run-", "cluster-", "checkpoint-", "job-", "values-", "output-")
"""The beginnings of codes of findings that are not about programs. `verify` never reports these."""


def _how_to_see_all(code: str) -> str:
    """The command that shows all findings of a code, or a hint what to do about them."""
    if code == "data-row":
        return " (`--bad-rows skip` leaves such rows out)"
    return "" if code.startswith(_NOT_OF_PROGRAMS) else " (`pstranspile verify --all` shows them)"


def fold_similar(findings: Iterable[Diagnostic]) -> list[Diagnostic]:
    """The findings in their order, with groups of more than MOST_ALIKE similar ones folded into the first of them, with
    a note of their number.
    """
    ordered_findings = tuple(findings)
    groups: dict[tuple[str, ...], list[int]] = {}
    for at, finding in enumerate(ordered_findings):
        words = finding.message if finding.severity is Severity.ERROR else ""
        groups.setdefault((finding.severity.value, finding.code, words), []).append(at)
    shown: dict[int, Diagnostic] = {}
    for (severity, code, _), alike in groups.items():
        if len(alike) <= MOST_ALIKE:
            shown |= {at: ordered_findings[at] for at in alike}
            continue
        more = f"and {len(alike) - 1} more findings {severity}[{code}]{_how_to_see_all(code)}"
        first = ordered_findings[alike[0]]
        shown[alike[0]] = first._replace(notes=(*first.notes, Note(more)))
    return [shown[at] for at in sorted(shown)]


# How the packages are installed that some functions need, and that the project calls extras.


Extra: TypeAlias = Literal["cluster", "data", "live", "lsp", "metrics", "onnx", "plot", "ray", "torch"]
"""The extras that messages name, as `pyproject.toml` does."""


def installing(extra: Extra) -> str:
    """The command that installs an extra, and where it is run: `pip install '.[data]' in the folder of pstranspile`."""
    return f"pip install '.[{extra}]' in the folder of pstranspile"
