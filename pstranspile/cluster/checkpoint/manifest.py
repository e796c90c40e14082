"""The manifest of a checkpoint: what it holds, of which job and step, and the hash of every file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple, NoReturn, TypeGuard, cast

from pstranspile.cluster.checkpoint.names import MANIFEST, require_names
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location
from pstranspile.runtime.run.row_source import Dealing

FORMAT = "pstranspile checkpoint"
VERSION = 1
LAYOUTS = ("files", "combined", "safetensors")


class FileEntry(NamedTuple):
    """A file of the checkpoint: its path in the folder, its size in bytes, and its hash."""

    path: str
    size: int
    sha256: str


class Saved(NamedTuple):
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
    trainers, if any were. `settings` are others that decide the run's numbers (`checkpoint/settings.py`); earlier
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
    values: tuple[Saved, ...]
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
    defaults = Saved._field_defaults
    return {key: value for key, value in held.items() if key not in defaults or value != defaults[key]}


def _checksum(held: dict[str, Any]) -> str:
    text = json.dumps({k: v for k, v in held.items() if k != "checksum"}, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode("ascii")).hexdigest()


def parse_manifest(data: bytes, place: str) -> Manifest:
    """The manifest in `data`. Raises DiagnosticError, naming the file and what is wrong with it."""
    fields = _Fields(_json(data, place), f"{place}/{MANIFEST}")
    if fields.text("format") != FORMAT:
        fields.refuse(f"`format` is not {FORMAT!r}")
    if fields.held.get("version") != VERSION:
        fields.refuse(f"version {fields.held.get('version')!r} is not known, only {VERSION} is")
    try:
        checksum = _checksum(fields.held)
    except RecursionError:
        fields.refuse("it is nested too deeply")
    if fields.text("checksum") != checksum:
        fields.refuse("its checksum is another: it was changed after it was written")
    steps = fields.dict("steps")
    if not all(map(_is_count, steps.values())):
        fields.refuse("`steps` does not hold counts")
    seed = fields.held.get("seed")
    if seed is not None and not _is_count(seed):
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
        tuple(_saved(fields.inner(value, "values")) for value in fields.list("values")),
        tuple(_entry(fields.inner(value, "files")) for value in fields.list("files")),
        _dealing(fields.inner(fields.held["dealing"], "dealing")) if "dealing" in fields.held else None,
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


def _saved(fields: _Fields) -> Saved:
    shape = fields.list("shape")
    if not all(map(_is_count, shape)):
        fields.refuse("`shape` does not hold dims")
    return Saved(
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
    settings = fields.texts("settings") if "settings" in fields.held else []
    if len(settings) in (1, 2):  # the batch, the order, and then files
        fields.refuse("`settings` does not list the files")
    return Dealing(fields.text("data"), tuple((step, trainers) for step, trainers in pairs), tuple(settings))


def _settings(fields: _Fields) -> dict[str, str]:
    held = fields.dict("settings") if "settings" in fields.held else {}
    if not all(isinstance(value, str) for value in held.values()):
        fields.refuse("`settings` does not hold texts")
    return cast("dict[str, str]", held)


def _is_count(value: object) -> TypeGuard[int]:
    """Whether a value is a number from 0 on, as files and tensors can have of anything."""
    return type(value) is int and 0 <= value < 1 << 63


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
            [error("checkpoint-manifest", f"it is not the JSON it should be: {problem}", where)]
        ) from None
    if not isinstance(held, dict):
        raise DiagnosticError([error("checkpoint-manifest", "it is not a JSON object", where)])
    return cast("dict[str, Any]", held)


class _Fields:
    """A JSON object of a manifest, its values checked as they are read."""

    def __init__(self, held: dict[str, Any], place: str):
        self.held, self.place = held, place

    def refuse(self, reason: str) -> NoReturn:
        raise DiagnosticError([error("checkpoint-manifest", reason, Location(self.place))])

    def text(self, key: str, default: str | None = None) -> str:
        value = self.held.get(key, default)
        return value if isinstance(value, str) else self.refuse(f"`{key}` is not a text")

    def number(self, key: str, default: int | None = None) -> int:
        value = self.held.get(key, default)
        return value if _is_count(value) else self.refuse(f"`{key}` is not a count")

    def list(self, key: str) -> list[Any]:
        value = self.held.get(key)
        return cast("list[Any]", value) if isinstance(value, list) else self.refuse(f"`{key}` is not a list")

    def texts(self, key: str) -> list[str]:
        result = self.list(key)
        return result if all(isinstance(text, str) for text in result) else self.refuse(f"`{key}` does not hold texts")

    def dict(self, key: str) -> dict[str, Any]:
        value = self.held.get(key)
        return cast("dict[str, Any]", value) if isinstance(value, dict) else self.refuse(f"`{key}` is not an object")

    def inner(self, value: Any, key: str) -> _Fields:
        if not isinstance(value, dict):
            self.refuse(f"`{key}` holds what is not an object")
        return _Fields(cast("dict[str, Any]", value), self.place)
