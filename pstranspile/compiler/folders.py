"""The folder of a compiled job: the programs of its machines and the plan, written and found again.

`files_of` makes the files that `compile -o DIR` writes; `roles_in` and `load_role` find and read the programs in a
folder, and `report_changed` holds them against the plan. What plan.json says of the origins of ops is read by
`explain/folder.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, cast

from pstranspile.frontends.loading import Report, load, require_regular
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, error, warning
from pstranspile.ir.model import MAIN, STARTUP, FrozenMap, Location, Module, Op, Origin
from pstranspile.ir.reading import reason_for

if TYPE_CHECKING:
    from pstranspile.compiler.compile import Compiled

_MAIN, _STARTUP, _META = ".main.pb", ".startup.pb", ".meta.json"
_EXPORTED = (f"{MAIN}.pb", f"{STARTUP}.pb")


def roles_in(folder: str | os.PathLike[str]) -> dict[str, list[Path]]:
    """The files of each role: `<role>.ir`, or `<role>.main.pb` and `<role>.startup.pb`, or `<role>.pb`; in order of
    name.

    `main.pb` and `startup.pb`, as `export` writes them, are the programs of one role, `main`. Raises DiagnosticError
    when the folder can't be read, holds no program, or a role twice.
    """
    place = Location(os.fspath(folder))
    try:
        files = sorted(path for path in Path(folder).iterdir() if path.suffix in (".ir", ".pb"))
    except OSError as problem:
        message = f"the folder can't be read: {reason_for(problem, folder)}"
        raise DiagnosticError([error("folder-without-programs", message, place)]) from None
    exported = {path.name for path in files}.issuperset(_EXPORTED)
    result: dict[str, list[Path]] = {}
    for path in files:
        ending = next(ending for ending in (_MAIN, _STARTUP, ".ir", ".pb") if path.name.endswith(ending))
        role = MAIN if exported and path.name in _EXPORTED else path.name.removesuffix(ending)
        result.setdefault(role, []).append(path)
    if not result:
        raise DiagnosticError([error("folder-without-programs", "no .ir or .pb file in this folder", place)])
    for role, paths in result.items():
        endings = {path.name.removeprefix(role) for path in paths}
        if endings not in ({".ir"}, {".pb"}, {_MAIN}, {_STARTUP}, {_MAIN, _STARTUP}, {".pb", _EXPORTED[1]}):
            names = ", ".join(path.name for path in paths)
            raise DiagnosticError([error("folder-role-twice", f"{role} is here more than once: {names}", place)])
    return result


def load_role(paths: list[Path], report: Report | None = None) -> Module:
    """The programs of one machine, with the metadata next to them. Raises DiagnosticError."""
    require_regular(*paths)
    first, *others = paths
    meta = first.with_name("meta.json" if first.name == _EXPORTED[0] else first.name.removesuffix(_MAIN) + _META)
    module = load(first, others[0] if others else None, meta if meta.is_file() else None, report=report)
    if first.name.endswith(_STARTUP):
        return Module(FrozenMap({STARTUP: module[MAIN]}), module.source)
    return module


# A compiled job as files: what `compile -o` writes.


def files_of(
    result: Compiled, emit: str = "ir", tell: Callable[[str, int, int], object] = lambda _what, _done, _of: None
) -> Iterator[tuple[str, bytes]]:
    """Yields name and content of every file: text (`ir`) or ProgramDescs (`pb`), and the plan. `tell` is called with
    the progress.

    The plan names the file of the job's initial values, if its source has any; the caller writes that file
    (`START_FILE`).
    """
    from pstranspile.compiler.plan.plan import plan_json
    from pstranspile.frontends.meta import meta_of
    from pstranspile.frontends.program_desc import program_to_bytes
    from pstranspile.ir.json_text import json_text
    from pstranspile.ops.textual import print_module
    from pstranspile.runtime.files.outputs import PLAN_FILE, START_FILE

    roles = result.roles()
    programs: dict[str, str] = {}
    for number, (name, role) in enumerate(roles.items(), start=1):
        tell("texts of machines", number, len(roles))
        if emit == "pb":
            main, startup = program_to_bytes(role.main), program_to_bytes(role.startup)
            programs[name] = _hash(main, startup)
            yield f"{name}.main.pb", main
            yield f"{name}.startup.pb", startup
            written = Module(FrozenMap({MAIN: role.main, STARTUP: role.startup}))
            yield f"{name}.meta.json", json_text(meta_of(written)).encode("utf-8")
        else:
            text = print_module(role.module).encode("utf-8")
            programs[name] = _hash(text)
            yield f"{name}.ir", text
    plan = plan_json(result.plan, result.fingerprint, result.distributed_vars)
    start = {"start": START_FILE} if result.source.start else {}
    yield PLAN_FILE, json_text({**plan, **start, "programs": programs, **record(result)}).encode("utf-8")


# Which programs a plan.json was written with: `programs` has the hash of each machine's text or serialized programs.


def _hash(*contents: bytes) -> str:
    """A hash of the contents of files, one after the other."""
    return "sha256:" + sha256(b"".join(contents)).hexdigest()


def report_changed(
    plan: Mapping[str, Any],
    files: Mapping[str, Sequence[Path]],
    modules: Mapping[str, Module],
    report: Report | None = None,
) -> None:
    """Reports the machines whose programs are not those that the plan was written with.

    Comments and layout do not count. A plan of a version that records no programs says nothing of them. Raises
    DiagnosticError if the record is damaged.
    """
    if "programs" not in plan:
        return
    recorded = _recorded_hashes(plan, files)
    if report is None:  # as in a process of `launch`, which has told it
        return
    from pstranspile.runtime.files.outputs import is_role

    found: list[Diagnostic] = []
    for name, module in modules.items():
        place = Location(str(files[name][0]))
        if name in recorded and not _is_recorded(files[name], module, recorded[name]):
            message = f"the programs of {name} are not those that plan.json was written with"
            note = Note("they were edited, or are of another compile; to compile again writes all of them anew")
            found.append(warning("folder-changed", message, place)._replace(notes=(note,)))
        elif name not in recorded and is_role(name):
            found.append(warning("folder-changed", f"plan.json was written without programs of {name}", place))
    if found:
        report(found)


def _recorded_hashes(plan: Mapping[str, Any], files: Mapping[str, Sequence[Path]]) -> Mapping[str, str]:
    """The hash of each machine's programs in a plan. Raises DiagnosticError if the plan is damaged there."""
    held: object = plan["programs"]
    hashes = cast("dict[str, object]", held) if isinstance(held, dict) else {}
    if not hashes or not all(isinstance(digest, str) for digest in hashes.values()):
        place = next(iter(files.values()))[0].with_name("plan.json")
        message = "not a plan: programs is not the hash of each machine's programs; compile again"
        raise DiagnosticError([error("explain-record", message, Location(str(place)))])
    return cast("dict[str, str]", hashes)


def _is_recorded(paths: Sequence[Path], module: Module, recorded: str) -> bool:
    """Whether the programs in files are those of a recorded hash."""
    from pstranspile.ops.textual import print_module

    if _hash(*(path.read_bytes() for path in paths)) == recorded:
        return True  # as it was written; to print it would take as long as to read it
    return paths[0].suffix == ".ir" and _hash(print_module(module).encode("utf-8")) == recorded


# What `compile -o` keeps in plan.json so that `explain DIR` can say where every op comes from.
#
# The programs that are written carry no origins. Beside the plan there are
#
# * `settings`: how the job cuts and places,
# * `source_ops`: for each block of the source, its file, the line of its header, and the lines of its ops as runs
#   `[first line, how many]`; and in `texts` the source ops for which others were made, by number,
# * `origins`: for each block of the emitted programs, the machines that have it, and its ops as runs
#   `[rule, first source op, how many]`, followed by program and block of the source where these are not the program
#   of the same name and, for ops of the source itself, the block of the same number, for others block 0.
#
# Source op -1 is a program as a whole. Files are named without their folder: the record is the same on every machine.

Run = list[Any]
"""A run: `[rule, first source op]`, the count unless it is 1, and program and block unless they are the default ones.
"""


def record(compiled: Compiled) -> dict[str, Any]:
    """The entries of plan.json that record the origins of a compile's ops."""
    from pstranspile.compiler.explain.job import settings_of

    blocks: dict[str, dict[str, Any]] = {}
    wanted: set[tuple[str, int, int]] = set()
    for role in compiled.roles().values():
        for name, program in role.module.programs.items():
            for index, block in enumerate(program.blocks):
                if block.ops:
                    runs = _runs(block.ops, name, index)
                    origins = [op.origin for op in block.ops if op.origin is not None and op.origin.rule]
                    wanted.update((o.program, o.block, o.op) for o in origins if o.op >= 0)
                    key = json.dumps([name, index, runs])
                    row = {"machines": [], "program": name, "block": index, "ops": runs}
                    blocks.setdefault(key, row)["machines"].append(role.name)
    return {
        "settings": settings_of(compiled)._asdict(),
        "source_ops": _source_ops(compiled.source, wanted),
        "origins": list(blocks.values()),
    }


def _runs(ops: Sequence[Op], program: str, block: int) -> list[Run]:
    """The origins of ops in order, as runs: adjacent ops of one rule whose source ops are consecutive form a run."""
    from pstranspile.compiler.emit.rules import WHOLE

    runs: list[Run] = []
    before: Origin | None = None
    for op in ops:
        origin = op.origin or Origin(program, block, WHOLE)
        if (
            before is not None
            and origin.op == before.op + 1
            and before.op >= 0
            and (origin.rule, origin.program, origin.block) == (before.rule, before.program, before.block)
        ):
            runs[-1][2] += 1
        else:
            runs.append([origin.rule, origin.op, 1, origin.program, origin.block])
        before = origin
    return [_short(run, program, block) for run in runs]


def _short(run: Run, program: str, block: int) -> Run:
    """A run without the parts that have their default value."""
    if run[3:] == [program, block if run[0] == "" else 0]:
        return run[:2] if run[2] == 1 else run[:3]
    return run


def _source_ops(module: Module, wanted: Iterable[tuple[str, int, int]]) -> list[dict[str, Any]]:
    from pstranspile.compiler.explain.job import source_line_of

    texts: dict[tuple[str, int], list[int]] = {}
    for program, block, number in sorted(wanted):
        texts.setdefault((program, block), []).append(number)
    line = source_line_of(module)
    rows: list[dict[str, Any]] = []
    for name, program in module.programs.items():
        for index, block in enumerate(program.blocks):
            if not block.ops:
                continue
            first = block.ops[0].origin
            file = first.location.file if first and first.location else ""
            origins_of = {n: block.ops[n].origin for n in texts.get((name, index), ()) if n < len(block.ops)}
            rows.append(
                {
                    "program": name,
                    "block": index,
                    "file": PurePath(file.replace("\\", "/")).name,
                    "line": block.location.line if block.location else 0,
                    "lines": _line_runs(block.ops, file),
                    "texts": {str(n): line(origin) for n, origin in origins_of.items() if origin is not None},
                }
            )
    return rows


def _line_runs(ops: Iterable[Op], file: str) -> list[list[Any]]:
    """The lines of ops as runs `[first line, how many]`, followed by the file if it is another than `file`.

    Line 0 stands for ops without one, and does not go up.
    """
    runs: list[list[Any]] = []
    for op in ops:
        place = op.origin.location if op.origin else None
        line = place.line if place else 0
        other = [PurePath(place.file.replace("\\", "/")).name] if place and line and place.file != file else []
        if runs and line == (runs[-1][0] + runs[-1][1] if runs[-1][0] else 0) and runs[-1][2:] == other:
            runs[-1][1] += 1
        else:
            runs.append([line, 1, *other])
    return runs
