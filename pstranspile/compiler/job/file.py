"""Jobs from TOML or JSON files and from `KEY=VALUE` settings, with errors that quote the line at fault."""

from __future__ import annotations

import importlib
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

from pstranspile.compiler.job import BOOLEANS, INTEGERS, KEYS, Job, JobError, describe_value
from pstranspile.compiler.job.modes import SWITCHES, mode_names, settings_of
from pstranspile.ir.argument_checks import check_arguments, expect, path_of
from pstranspile.ir.diagnostics import MAX_FINDINGS, Diagnostic, did_you_mean, error, first_findings
from pstranspile.ir.json_text import json_fault
from pstranspile.ir.model import Location
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.reading import beginning, kind_of, read_regular, reason_for

MAX_BYTES = 16 << 20
"""The largest size of a job file, in bytes."""


@check_arguments
def load_job(
    path: str | Path | None, overrides: Mapping[str, object] | None = None, *, trust_code: bool = False
) -> Job:
    """The job in a TOML or JSON file (None: no file), with the values of `overrides` in place of its own.

    A `mode` among the overrides replaces all keys of the file that choose a mode; `trainers` replaces the
    file's `trainer_endpoints` as well. A file that names code (`split_method = "module:Class"`) is refused unless
    `trust_code`. Raises JobError, with the place in the file where there is one.
    """
    for key in overrides or {}:
        expect(key, str, "load_job", "values by key as overrides")
    text = "" if path is None else job_text(Path(path_of(path, "load_job")))
    return job_of_text(path, text, overrides, trust_code=trust_code)


def job_of_text(
    path: str | Path | None, text: str, overrides: Mapping[str, object] | None = None, *, trust_code: bool = False
) -> Job:
    """The job that `load_job` would return for a file with this text, which need not be saved."""
    given_settings = {key: value for key, value in (overrides or {}).items() if value is not None}
    from_file = {} if path is None else _parse(str(path), text)
    unknown = islice((key for key in (*from_file, *given_settings) if key not in KEYS), MAX_FINDINGS)
    result = [_unknown_key(key, from_file.get(key)) for key in unknown]
    if not (result or trust_code or "split_method" in given_settings):
        result += _own_code(from_file.get("split_method"))
    if result:
        raise JobError(_locate_findings(result, path, text, given_settings))
    if "trainers" in given_settings:
        from_file.pop("trainer_endpoints", None)
    if "mode" in given_settings:
        mode = str(given_settings["mode"])
        fixed = (*settings_of(mode).flags,) if mode in mode_names() else (*SWITCHES, "mode")
        fixed = (*fixed, "collective_mode")
        from_file = {key: value for key, value in from_file.items() if key not in fixed}
    try:
        return Job(**cast("dict[str, Any]", {**from_file, **given_settings}))
    except JobError as problem:
        raise JobError(_locate_findings(problem.diagnostics, path, text, given_settings)) from None


def parse_setting(text: str) -> tuple[str, object]:
    """Key and value of a setting `KEY=VALUE`; the value is converted to the type of the key.

    Raises JobError when there is no `=`, no such key, or the value has the wrong type.
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not key:
        raise JobError([error("job-value", f"{text!r} is not of the form KEY=VALUE")])
    if key not in KEYS:
        raise JobError([_unknown_key(key)])
    if key in BOOLEANS:
        if value.lower() not in ("true", "false"):
            raise JobError([error("job-type", f"{key} takes true or false, not {value!r}", focus=key)])
        return key, value.lower() == "true"
    if key in INTEGERS:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", value):
            raise JobError([error("job-type", f"{key} takes a whole number, not {value!r}", focus=key)])
        return key, int(value)
    return key, value


def _own_code(method: object) -> Iterable[Diagnostic]:
    """The finding about a dispatcher that the file itself names, as its code would be run."""
    if isinstance(method, str) and ":" in method:
        message = (
            f"split_method names code to run, {describe_value(method)}, as no job file may unless it is trusted: "
            "--trust-code on the command line, trust_code=True in Python"
        )
        yield error("job-code", message, focus="split_method")


def _unknown_key(key: str, value: object = None) -> Diagnostic:
    if isinstance(value, dict):
        message = f"a job has no tables, such as {describe_value(key)}; its keys stand at the top of the file"
        return error("job-unknown-key", message, focus=key)
    hint = did_you_mean(key[:60].lower(), KEYS) or f"; the keys are {', '.join(KEYS)}"
    return error("job-unknown-key", f"a job has no key {describe_value(key)}{hint}", focus=key)


def job_text(path: Path) -> str:
    """The text of a job file. Raises JobError for what is no regular file of text, or can't be read."""
    where = Location(str(path))
    try:
        return read_regular(path, MAX_BYTES).decode("utf-8-sig")
    except OSError as problem:
        message = f"can't read the job file: {reason_for(problem, path)}"
        raise JobError([error("job-file", message, where)]) from None
    except ValueError as problem:
        if not isinstance(problem, UnicodeDecodeError):  # a path with a NUL
            raise JobError([error("job-file", f"can't read the job file: {problem}", where)]) from None
        kind = kind_of(beginning(str(path)), str(path))
        other = kind is not None and not kind.is_job
        message = f"not a job file: {kind}" if other else f"not a text file: byte {problem.start} is not UTF-8"
        raise JobError([error("job-file", message, where)]) from None


def _parse(file: str, text: str) -> dict[str, object]:
    is_json = file.endswith(".json") or (not file.endswith(".toml") and text.lstrip()[:1] in ("{", "["))
    try:
        value = _parse_json(file, text) if is_json else _parse_toml(file, text)
    except JobError:
        kind = kind_of(text.encode("utf-8", errors="replace"), file)
        if kind is None or kind.is_job:
            raise
        raise JobError([error("job-file", f"not a job file: {kind}", Location(file))]) from None
    except RecursionError:
        raise JobError([error("job-file", "nested too deeply to be a job", Location(file))]) from None
    if not isinstance(value, dict):
        raise JobError([error("job-file", "a job is a table of keys and values", Location(file, 1, 1))])
    return {k: v for k, v in cast("dict[str, object]", value).items() if v is not None}


def _parse_json(file: str, text: str) -> object:
    import json

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        seen = dict(pairs)
        if len(seen) != len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            message = f"{describe_value(twice)} stands twice"
            raise JobError(_locate_findings([error("job-file", message, focus=twice)], file, text, {}))
        return seen

    try:
        return json.loads(text, object_pairs_hook=unique)
    except JobError:
        raise
    except ValueError as problem:
        fault = json_fault(problem)
        where = Location(file, fault.line, fault.column)
        raise JobError([error("job-file", f"not valid JSON: {fault.reason}", where)]) from None


_DEEP = Pattern(r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){128}""")
"""Matches a dotted key for which the TOML library would take minutes and gigabytes; a job has no tables at all."""


def _parse_toml(file: str, text: str) -> object:
    deep = _DEEP.search(text)
    if deep is not None:
        where = Location(file, text.count("\n", 0, deep.start()) + 1, deep.start() - text.rfind("\n", 0, deep.start()))
        raise JobError([error("job-file", "nested too deeply to be a job", where)])
    library: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        return library.loads(text)
    except library.TOMLDecodeError as problem:
        place = re.search(r"\(at line (\d+), column (\d+)\)", str(problem))
        message = re.sub(r"\s*\(at .*\)$", "", str(problem))
        message = _OF_TOML.get(message, message)
        if "Cannot overwrite" in message:
            message = "this key stands twice"
        where = Location(file, int(place[1]), 1 if "twice" in message else int(place[2])) if place else Location(file)
        if "end of document" in str(problem):
            where = Location(file, text.rstrip().count("\n") + 1, 1)
        raise JobError([error("job-file", f"not valid TOML: {message}", where)]) from None
    except ValueError:
        raise JobError([error("job-file", f"not valid TOML: {_DIGITS}", Location(file))]) from None


_OF_TOML = {
    "Invalid statement": "`key = value` is expected",
    "Invalid value": "a value is expected: a number, true, false, a text in quotes or a list",
    "Expected '=' after a key in a key/value pair": "`=` is expected after a key",
    "Expected newline or end of document after a statement": "the line is expected to end after a value",
    "Unclosed array": "a list begins that does not end",
    "Unterminated string": "a text begins that does not end",
}
"""The explanation of an error in TOML, by the message of Python's reader."""

_DIGITS = "a number has thousands of digits"
"""The message in place of Python's own about such a number, which is for programmers."""


def _locate_findings(
    findings: Sequence[Diagnostic], path: str | Path | None, text: str, overrides: Mapping[str, object]
) -> Sequence[Diagnostic]:
    """The first findings, each with the place of the file that is wrong, unless an override gave it: a value, an item
    of a list, or a key.
    """
    findings = first_findings(findings)
    if path is None:
        return findings
    return [d if d.focus in overrides or not d.focus else _at_fault(d, str(path), text) for d in findings]


_ABOUT_KEYS = frozenset({"job-unknown-key", "job-file"})
"""Codes of findings about keys, whatever their values are."""


def _at_fault(finding: Diagnostic, file: str, text: str) -> Diagnostic:
    """A finding about a key with the place of what is wrong, which becomes its focus as far as it is on one line."""
    key, at = finding.focus, _key_at(text, finding.focus)
    if at < 0:
        return finding._replace(location=Location(file))
    start, stop = at, at + len(key)
    value = None if finding.code in _ABOUT_KEYS else _VALUE(text, stop)
    if value is not None:
        start, stop = _item_at_fault(finding.message, text, *value.span(1))
    if stop - start > 1 and text[start] in "\"'" and text[start] == text[stop - 1]:
        start, stop = start + 1, stop - 1
    marked = text[start:stop].partition("\n")[0].rstrip() or text[start : start + 1].strip()
    where = Location(file, text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start))
    return finding._replace(location=where, focus=marked or key)


_STRING = r"""\"(?:\\.|[^"\\\n])*\"|'[^'\n]*'"""
_VALUE = Pattern(rf"[\"']?\s*[=:]\s*({_STRING}|\[(?:{_STRING}|#[^\n]*|[^\]\"'#])*\]?|[^\s,}}\]#]+)").match
_ITEM = Pattern(rf"({_STRING})|#[^\n]*|([^\s,\[\]\"'#]+)")
_PIECE = Pattern(r"[^,]+|(?<=,)(?=,)")
_NUMBERED = Pattern(r"number (\d+) of its \d+ is")


def _item_at_fault(message: str, text: str, start: int, stop: int) -> tuple[int, int]:
    """The place of the item of a list, or of a text with commas, that a message is about; else that of the whole."""
    if text[start] == "[":
        spans = [match.span(match.lastindex) for match in _ITEM.finditer(text[:stop], start + 1) if match.lastindex]
    elif text[start] in "\"'":
        spans = [match.span() for match in _PIECE.finditer(text[: stop - 1], start + 1)]
    else:
        return start, stop
    numbered = _NUMBERED.search(message)
    if numbered and int(numbered[1]) <= len(spans):
        return spans[int(numbered[1]) - 1]
    named = [span for span in spans if _names(message, text[slice(*span)].strip().strip("\"'").strip())]
    if not named or (len(spans) == 1 and text[start] != "["):
        return start, stop
    first, last = named[-1]  # of those that stand twice, the second
    while text[first : first + 1].isspace():
        first += 1
    return first, last


def _names(message: str, item: str) -> bool:
    """Whether a message is about an item of a list: it has the item as a whole word."""
    if not item or item not in message:
        return False
    return re.search(rf"(?<![\w.:-]){re.escape(item)}(?![\w.-]|:\w)", message) is not None


def _key_at(text: str, key: str) -> int:
    """The place of a key: its first occurrence at the start of a line or after `{` or `,`, before `=` or `:`; -1 if it
    does not occur.
    """
    at = text.find(key)
    while at >= 0 and not (_is_entry_start(text, at) and _GIVES(text, at + len(key))):
        at = text.find(key, at + 1)
    return at


_GIVES = Pattern(r"[\"']?\s*[=:\].]").match


def _is_entry_start(text: str, at: int) -> bool:
    before = at - (text[at - 1 : at] in ('"', "'"))
    while text[before - 1 : before] in (" ", "\t", "["):
        before -= 1
    return text[before - 1 : before] in ("", "\n", "{", ",")
