"""The manifest of a checkpoint: what it holds, of which job and step, and the hash of every file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeGuard, cast

from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, raise_errors, shell_word
from pstranspile.ir.json_text import describe_json_error
from pstranspile.ir.model import Location
from pstranspile.runtime.arithmetic import arithmetic_name
from pstranspile.runtime.run.frame import DRAWN_FOR_NONE
from pstranspile.runtime.run.step_feeds import Dealing

# Checkpoints record the settings that decide the numbers of a run besides the program, the seed and the data.
#
# A run that goes on has the same ones. They are named and written as the options of the command line are: `arithmetic`,
# `shares`, `program` (which of several programs each step runs), `no-dropout`, `schedule` (the seed of the order of
# events in a simulated cluster), and for rows of files `columns` and `names`. The value of an option that was not given
# is its default, or empty where it has none.

Settings: TypeAlias = Mapping[str, str]
"""Values by the name of an option, without its dashes."""

GIVEN = "given"
"""The value of an option that takes none, where it is given."""


def of_cluster(cluster: Any) -> dict[str, str]:
    """The settings of a simulated cluster, in the arithmetic of this context."""
    result = {"arithmetic": arithmetic_name(), "shares": str(cluster.weighing)}
    given = [trainer.role.turns for trainer in cluster.trainers]
    texts = {"" if one is None else one.text for one in given}
    if len(texts) == 1 and (texts != {""} or given[0] is None):  # functions that name programs can't be compared
        result["program"] = turns(texts.pop())
    return result


def turns(text: str | None) -> str:
    """The value of the setting `program`, in one spelling."""
    return ",".join(item.strip().removeprefix("@") for item in (text or "").split(","))


def require_settings(had: Settings, now: Settings, place: str | os.PathLike[str]) -> None:
    """Raises DiagnosticError for every setting of a resumed run that differs from the value recorded in its checkpoint.

    A setting that only one of the two has is not compared: earlier versions recorded none.
    """
    findings: list[Diagnostic] = []
    for name, value in now.items():
        before = had.get(name, value)
        if before != value:
            earlier, present = _option_phrase(name, before), _option_phrase(name, value)
            message = f"it was run {earlier}, and is to go on {present}: {_mend(name, before)}"
            findings.append(error("checkpoint-model", message, Location(str(place))))
    if findings:
        raise DiagnosticError(findings)


def _option_phrase(name: str, value: str) -> str:
    return f"with {_written(name, value)}" if value else f"without --{name}"


def _written(name: str, value: str) -> str:
    """An option as it is typed."""
    if value == GIVEN:
        return f"--{name}"
    if name == "columns":
        return " ".join(f"--columns {shell_word(part)}" for part in value.split(" "))
    return f"--{name} {shell_word(value)}"


def _mend(name: str, before: str) -> str:
    return f"give {_written(name, before)}" if before else f"leave out --{name}"


# Names of the files of a checkpoint. The file of a variable has the variable's name, as in Fluid's layout.

MANIFEST = "__manifest__.json"
"""The file with the manifest of a checkpoint. A folder is a checkpoint of this program if it contains this file."""

COMBINED = "__params__"
"""The file of all whole variables in the layout `combined`."""

SAFETENSORS = "model.safetensors"
"""The file of all whole variables in the layout `safetensors`."""

TABLES = "__lookup_table__"
"""The folder of the parts of lookup tables, as in Fluid."""

MACHINES = "__machines__"
"""The folder of the values of single machines that differ from the whole variables, by role name."""

MEMORY = "__memory__"
"""The folder of the other state of single machines, by role name."""

RESERVED = (MEMORY, MANIFEST, COMBINED, SAFETENSORS, TABLES, MACHINES, "__model__")


def problem_of(name: str) -> str:
    """The reason why a name can't be that of a file in a folder; empty if it can. A `/` makes folders, as in Fluid."""
    if not name or "\0" in name or any(0xD800 <= ord(c) <= 0xDFFF for c in name):
        return "it is no name of a file"
    if "\\" in name or PurePosixPath(name).is_absolute():
        return "it does not lie in the folder"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "it does not lie in the folder, or has several spellings"
    return ""


def table_file(table: str, number: int) -> str:
    """The file of a server's part of a table, as in Fluid."""
    return f"{TABLES}/{table}_{number}"


def machine_file(machine: str, variable: str) -> str:
    """The file of a machine's own value of a variable."""
    return f"{MACHINES}/{machine}/{variable}"


def memory_file(machine: str, name: str) -> str:
    """The path of the file of one machine's state besides variables."""
    return f"{MEMORY}/{machine}/{name}"


class Limits(NamedTuple):
    """What the file system of a folder allows: the bytes of a name and of a path in the folder, and whether names that
    differ in upper and lower case alone are the same.
    """

    name: int
    path: int
    ignores_case: bool

    def problem_of(self, name: str) -> str:
        """The reason why no file of the folder can have this name; empty if one can."""
        longest = max(len(os.fsencode(part)) for part in name.split("/"))
        if longest > self.name:
            return f"it has {longest} bytes, and the file system allows names of {self.name}"
        if len(os.fsencode(name)) > self.path:
            return f"it has {len(os.fsencode(name))} bytes, and the file system allows {self.path} below this folder"
        return ""


_WORK = 80
"""The most bytes by which the path of a file is longer while its checkpoint is being written."""


def limits_of(folder: Path) -> Limits:
    """The limits of the file system of a folder that is there."""
    name, path = 255, 4095
    if hasattr(os, "pathconf"):
        name, path = (os.pathconf(folder, limit) for limit in ("PC_NAME_MAX", "PC_PATH_MAX"))
    return Limits(name, path - _WORK - len(os.fsencode(os.path.abspath(folder))), ignores_case(folder))


def ignores_case(folder: Path) -> bool:
    """Whether the file system finds a folder under its name in the other case as well."""
    place = Path(os.path.abspath(folder))
    other = place.with_name(place.name.swapcase())
    try:
        return other != place and os.path.samefile(place, other)
    except OSError:
        return False


def require_names(files: Iterable[str], variables: Iterable[str], place: str, limits: Limits | None = None) -> None:
    """Raises DiagnosticError unless one folder can hold all files, and no variable's file has a reserved name.

    `limits` are those of the folder's file system, if it is there.
    """
    findings: list[Diagnostic] = []
    taken: set[str] = set()
    folders: set[str] = set()
    spelt: dict[str, str] = {}

    def refuse(name: str, reason: str) -> None:
        findings.append(error("checkpoint-name", f"{name!r}: {reason}", Location(place)))

    for name in variables:
        if name.split("/")[0] in RESERVED:
            refuse(name, "a variable of this name can't have a file of its own: the checkpoint needs the name")
    for name in files:
        reason = problem_of(name) or (limits.problem_of(name) if limits is not None else "")
        alike = spelt.setdefault(name.casefold(), name) if limits is not None and limits.ignores_case else name
        if reason:
            refuse(name, reason)
        elif name in taken:
            refuse(name, "two things need this file")
        elif alike != name:
            refuse(name, f"the file system takes it for {alike!r}, which differs in upper and lower case alone")
        else:
            taken.add(name)
            folders.update(str(folder) for folder in PurePosixPath(name).parents)
    for name in sorted(taken & folders):
        refuse(name, "it would be a file and a folder")
    raise_errors(findings)


FORMAT = "pstranspile checkpoint"
VERSION = 1
LAYOUTS = ("files", "combined", "safetensors")


class FileEntry(NamedTuple):
    """A file of the checkpoint: its path in the folder, its size in bytes, and its hash."""

    path: str
    size: int
    sha256: str


class SavedValue(NamedTuple):
    """A saved value: a whole variable, a part of a table (`part` of `parts`), or a machine's own value.

    `offset` counts elements of the whole variable `origin`. Several whole variables may share a file.
    """

    name: str
    file: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    origin: str = ""
    machine: str = ""
    offset: int = 0
    part: int = 0
    parts: int = 0


class Manifest(NamedTuple):
    """The manifest of a checkpoint.

    `step` counts the steps that were done; `steps` those of each machine that runs steps, for its random numbers.
    `seed` is the seed the job ran with, None if it was the program's own. `dealing` says how rows of data were dealt to
    trainers, if any were. `settings` are others that decide the run's numbers (see `Settings`); earlier
    versions recorded none.
    """

    layout: str
    fingerprint: str
    mode: str
    pservers: tuple[str, ...]
    trainers: int
    servers: str
    step: int
    steps: dict[str, int]
    seed: int | None
    values: tuple[SavedValue, ...]
    files: tuple[FileEntry, ...]
    dealing: Dealing | None = None
    settings: Mapping[str, str] = {}


def manifest_bytes(manifest: Manifest) -> bytes:
    """The manifest as JSON, with the hash of itself."""
    held: dict[str, Any] = {"format": FORMAT, "version": VERSION, **manifest._asdict()}
    held["values"] = [_plain(value._asdict()) for value in manifest.values]
    held["dealing"] = None if manifest.dealing is None else manifest.dealing._asdict()
    held["settings"] = dict(sorted(manifest.settings.items()))
    held = {key: value for key, value in held.items() if value or key not in ("dealing", "settings")}
    held["files"] = [entry._asdict() for entry in manifest.files]
    held["checksum"] = _checksum(held)
    return (json.dumps(held, indent=1, ensure_ascii=True) + "\n").encode("ascii")


def _plain(held: dict[str, Any]) -> dict[str, Any]:
    defaults = SavedValue._field_defaults
    return {key: value for key, value in held.items() if key not in defaults or value != defaults[key]}


def _checksum(held: dict[str, Any]) -> str:
    text = json.dumps({k: v for k, v in held.items() if k != "checksum"}, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode("ascii")).hexdigest()


def parse_manifest(data: bytes, place: str) -> Manifest:
    """The manifest in `data`. Raises DiagnosticError, naming the file and what is wrong with it."""
    fields = _Fields(_json(data, place), f"{place}/{MANIFEST}")
    if fields.text("format") != FORMAT:
        fields.refuse(f"`format` is not {FORMAT!r}")
    if fields.json_object.get("version") != VERSION:
        fields.refuse(f"version {fields.json_object.get('version')!r} is not known, only {VERSION} is")
    try:
        checksum = _checksum(fields.json_object)
    except RecursionError:
        fields.refuse("it is nested too deeply")
    if fields.text("checksum") != checksum:
        fields.refuse("its checksum is another: it was changed after it was written")
    steps = fields.dict("steps")
    if not all(map(_is_count, steps.values())):
        fields.refuse("`steps` does not hold counts")
    seed = fields.json_object.get("seed")
    if seed is not None and not _is_seed(seed):
        fields.refuse("`seed` is no seed")
    manifest = Manifest(
        fields.text("layout"),
        fields.text("fingerprint"),
        fields.text("mode"),
        tuple(fields.texts("pservers")),
        fields.number("trainers"),
        fields.text("servers"),
        fields.number("step"),
        cast("dict[str, int]", steps),
        seed,
        tuple(_parse_saved(fields.inner(value, "values")) for value in fields.list("values")),
        tuple(_entry(fields.inner(value, "files")) for value in fields.list("files")),
        _dealing(fields.inner(fields.json_object["dealing"], "dealing")) if "dealing" in fields.json_object else None,
        _settings(fields),
    )
    _check(manifest, fields)
    return manifest


def _check(manifest: Manifest, fields: _Fields) -> None:
    if manifest.layout not in LAYOUTS:
        fields.refuse(f"the layout {manifest.layout!r} is not known")
    require_names([*(entry.path for entry in manifest.files), MANIFEST], (), fields.place)
    listed = {entry.path for entry in manifest.files}
    seen: set[tuple[bool, str, str, int]] = set()
    for value in manifest.values:
        if value.file not in listed:
            fields.refuse(f"{value.name} is in {value.file!r}, which it does not list")
        key = (value.kind == "memory", value.name, value.machine, value.part)
        if key in seen:
            fields.refuse(f"it lists {value.name} twice")
        seen.add(key)


def _parse_saved(fields: _Fields) -> SavedValue:
    shape = fields.list("shape")
    if not all(map(_is_count, shape)):
        fields.refuse("`shape` does not hold dims")
    return SavedValue(
        fields.text("name"),
        fields.text("file"),
        fields.text("kind"),
        fields.text("dtype"),
        tuple(shape),
        fields.text("origin", ""),
        fields.text("machine", ""),
        fields.number("offset", 0),
        fields.number("part", 0),
        fields.number("parts", 0),
    )


def _dealing(fields: _Fields) -> Dealing:
    pairs = fields.list("dealt")
    if not all(type(pair) is list and len(pair) == 2 and all(map(_is_count, pair)) for pair in pairs):
        fields.refuse("`dealt` does not hold steps and numbers of trainers")
    if not pairs or pairs[0][0] or sorted(pairs) != pairs or not all(trainers for _, trainers in pairs):
        fields.refuse("`dealt` does not say from the first step on how many trainers there were")
    settings = fields.texts("settings") if "settings" in fields.json_object else []
    if len(settings) in (1, 2):  # the batch, the order, and then files
        fields.refuse("`settings` does not list the files")
    return Dealing(fields.text("data"), tuple((step, trainers) for step, trainers in pairs), tuple(settings))


def _settings(fields: _Fields) -> dict[str, str]:
    held = fields.dict("settings") if "settings" in fields.json_object else {}
    if not all(isinstance(value, str) for value in held.values()):
        fields.refuse("`settings` does not hold texts")
    return cast("dict[str, str]", held)


def _is_count(value: object) -> TypeGuard[int]:
    """Whether a value is a number from 0 on, as files and tensors can have of anything."""
    return type(value) is int and 0 <= value < 1 << 63


def _is_seed(value: object) -> TypeGuard[int]:
    """Whether a value is a seed: one that was given, or one that a run has drawn."""
    return type(value) is int and abs(value) < 2 * DRAWN_FOR_NONE


def _entry(fields: _Fields) -> FileEntry:
    return FileEntry(fields.text("path"), fields.number("size"), fields.text("sha256"))


def _json(data: bytes, place: str) -> dict[str, Any]:
    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("a key occurs twice")
        return result

    where = Location(f"{place}/{MANIFEST}")
    try:
        held: Any = json.loads(data.decode("utf-8"), object_pairs_hook=distinct)
    except (ValueError, RecursionError) as problem:
        raise DiagnosticError(
            [error("checkpoint-manifest", f"it is not the JSON it should be: {describe_json_error(problem)}", where)]
        ) from None
    if not isinstance(held, dict):
        raise DiagnosticError([error("checkpoint-manifest", "it is not a JSON object", where)])
    return cast("dict[str, Any]", held)


class _Fields:
    """A JSON object of a manifest; each value is checked when it is read."""

    def __init__(self, held: dict[str, Any], place: str):
        self.json_object, self.place = held, place

    def refuse(self, reason: str) -> NoReturn:
        raise DiagnosticError([error("checkpoint-manifest", reason, Location(self.place))])

    def text(self, key: str, default: str | None = None) -> str:
        value = self.json_object.get(key, default)
        return value if isinstance(value, str) else self.refuse(f"`{key}` is not a text")

    def number(self, key: str, default: int | None = None) -> int:
        value = self.json_object.get(key, default)
        return value if _is_count(value) else self.refuse(f"`{key}` is not a count")

    def list(self, key: str) -> list[Any]:
        value = self.json_object.get(key)
        return cast("list[Any]", value) if isinstance(value, list) else self.refuse(f"`{key}` is not a list")

    def texts(self, key: str) -> list[str]:
        result = self.list(key)
        return result if all(isinstance(text, str) for text in result) else self.refuse(f"`{key}` does not hold texts")

    def dict(self, key: str) -> dict[str, Any]:
        value = self.json_object.get(key)
        return cast("dict[str, Any]", value) if isinstance(value, dict) else self.refuse(f"`{key}` is not an object")

    def inner(self, value: Any, key: str) -> _Fields:
        if not isinstance(value, dict):
            self.refuse(f"`{key}` holds what is not an object")
        return _Fields(cast("dict[str, Any]", value), self.place)
