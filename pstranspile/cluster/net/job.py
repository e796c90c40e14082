"""A compiled job in a folder: the programs and names of all machines."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, cast

from pstranspile.cluster.machines.cluster import Cluster, shared_seed
from pstranspile.cluster.machines.communicator import Settings
from pstranspile.cluster.machines.server import listening_op, mode_of
from pstranspile.compiler.folders import load_role, report_changed, roles_in
from pstranspile.compiler.link import LinkError, link
from pstranspile.compiler.plan.plan import fingerprint
from pstranspile.frontends.loading import LARGEST, Report
from pstranspile.ir.diagnostics import DiagnosticError, Note, error, name_list
from pstranspile.ir.json_text import describe_json_error
from pstranspile.ir.model import MAIN, STARTUP, FrozenMap, Location, Module, Role
from pstranspile.ir.reading import read_regular
from pstranspile.runtime.files.outputs import PLAN_FILE, START_FILE, is_role
from pstranspile.runtime.run.files import read_arrays

GEO = 3
"""The `distributed_mode` of servers in mode geo."""

PUSH_EVERY = 100
"""The default number of steps between two exchanges in mode geo."""


class JobFolder(NamedTuple):
    """The programs of a job by role. `hash` identifies the job, `push_every` is for geo jobs, `start` is the file of
    the initial values ("": none).
    """

    roles: dict[str, Role]
    hash: str
    push_every: int
    start: str = ""

    @property
    def fingerprint(self) -> str:
        """The hash of the job's programs that `job_fingerprint` gives."""
        serving = [op for role in self.roles.values() if (op := listening_op(role.main)) is not None]
        return job_fingerprint(self.roles, self.push_every if any(mode_of(op) == GEO for op in serving) else None)

    def values(self) -> dict[str, Any]:
        """The initial values that come with the job, by name. Raises DiagnosticError if their file can't be read."""
        return dict(read_arrays(self.start)) if self.start else {}

    def cluster(self, **options: Any) -> Cluster:
        """A cluster of the job's machines, none of which has begun."""
        options["seed"] = shared_seed(self.roles, options.get("seed"), lambda: int(self.hash[:15], 16))
        return Cluster(self.roles, settings=Settings(push_every=self.push_every), **options)

    def addresses(self) -> dict[str, str]:
        """The addresses at which machines listen, from their programs: those of servers, or of trainers in jobs without
        servers.
        """
        ops = {name: (listening_op(role.main), role) for name, role in self.roles.items()}
        addresses = {n: _trainer_address(r) if op is None else str(op.attrs["endpoint"]) for n, (op, r) in ops.items()}
        return {name: address for name, address in addresses.items() if address}


def job_fingerprint(roles: Mapping[str, Role], push_every: int | None) -> str:
    """`sha256:` and a hash of the programs of all machines, and of the number of steps between exchanges of a geo job
    (None: it is none): the same for the same job, in whatever form its programs were written.
    """
    digest = sha256()
    for name, role in sorted(roles.items()):
        digest.update(f"{name} {fingerprint(role.module)}\n".encode())
    if push_every is not None:
        digest.update(b"push_every %d\n" % push_every)
    return "sha256:" + digest.hexdigest()


def _trainer_address(role: Role) -> str:
    """The address of a trainer in the ops that set up its rings; "" if there are none."""
    for op in role.startup.main_block.ops:
        if op.type == "c_gen_nccl_id":
            return str(op.attrs["endpoint"])
        if op.type == "gen_nccl_id":
            number, trainers = op.attrs["trainer_id"], op.attrs["trainers"]
            if isinstance(trainers, tuple) and isinstance(number, int) and 0 <= number < len(trainers):
                return str(trainers[number])
    return ""


def load_job_folder(
    folder: str | os.PathLike[str], push_every: int | None = None, report: Report | None = None
) -> JobFolder:
    """The job in a folder that `compile -o` wrote, or to which programs of Fluid were exported.

    `push_every` is the number of steps between exchanges of a geo job without plan.json; `report` is told of programs
    that were edited after their compile. Raises DiagnosticError.
    """
    files = roles_in(folder)
    _require_machines(folder, list(files))
    plan = _read_plan(folder, list(files))
    roles: dict[str, Role] = {}
    modules: dict[str, Module] = {}
    digest = sha256()
    for name, paths in files.items():
        modules[name] = module = load_role(paths)
        missing = next((program for program in (MAIN, STARTUP) if program not in module.programs), None)
        if missing is not None:
            raise _folder_error(f"the programs of {name} lack @{missing}", paths[0])
        others = {key: program for key, program in module.programs.items() if key not in (MAIN, STARTUP)}
        roles[name] = Role(name, module[MAIN], module[STARTUP], FrozenMap(others))
        for path in paths:
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    if plan is not None:
        report_changed(plan, files, modules, report)
        _require_fit(folder, roles)
    pushes = _pushes(folder, roles, plan, push_every)
    if push_every is not None:
        digest.update(b"push_every %d\0" % pushes)
    return JobFolder(roles, digest.hexdigest(), pushes, _start_of(folder, plan))


def _start_of(folder: str | os.PathLike[str], plan: Mapping[str, Any] | None) -> str:
    """The file of a job's initial values, which its plan names. Raises DiagnosticError if it is missing."""
    if plan is None or plan.get("start") != START_FILE:
        return ""
    path = Path(folder, START_FILE)
    if not path.is_file():
        raise _folder_error(
            f"{START_FILE}, with the values that the job starts with, is missing; compile it again", folder
        )
    return str(path)


def _require_machines(folder: str | os.PathLike[str], names: list[str]) -> None:
    """Raises DiagnosticError unless the programs are those of machines numbered from 0, with at least one trainer."""
    strange = [name for name in names if not is_role(name)]
    if strange:
        message = f"this is no job: {name_list(strange)} must be called trainer_0, pserver_0 and so on"
        raise _folder_error(message, folder)
    for kind in ("trainer", "pserver"):
        numbers = {int(name.rpartition("_")[2]) for name in names if name.startswith(kind)}
        gap = next((number for number in range(max(numbers, default=-1)) if number not in numbers), None)
        if gap is not None or (not numbers and kind == "trainer"):
            raise _folder_error(f"the programs of {kind}_{gap or 0} are missing", folder)


_MOST_MISSING = 10_000
"""The most machines missing from a folder that are looked for by name."""


def _read_plan(folder: str | os.PathLike[str], names: list[str]) -> Mapping[str, Any] | None:
    """The plan.json of a folder; None if there is none. Raises DiagnosticError if it is damaged, or has other machines
    than the folder.
    """
    path = Path(folder, PLAN_FILE)
    if not path.exists():
        return None
    try:
        plan: object = json.loads(read_regular(str(path), LARGEST).decode("utf-8"))
    except OSError as problem:
        raise _folder_error(f"can't be read: {problem.strerror or problem}", path) from None
    except (ValueError, RecursionError) as problem:  # no UTF-8, no JSON, or nested without end
        raise _folder_error(f"not JSON: {describe_json_error(problem)}", path) from None
    fields = cast("dict[str, Any]", plan) if isinstance(plan, dict) else {}
    geo: Any = fields.get("geo")
    pushes: Any = cast("dict[str, Any]", geo).get("need_push_nums") if isinstance(geo, dict) else 1
    numbers = (fields.get("trainers"), pushes)
    if not isinstance(fields.get("pservers"), list) or any(type(number) is not int or number < 1 for number in numbers):
        raise _folder_error("this is not the plan of a job", path)
    machines = {"trainer": fields["trainers"], "pserver": len(fields["pservers"])}
    for kind, count in machines.items():
        if count > _MOST_MISSING + len(names):
            there = sum(name.startswith(kind) for name in names)
            message = f"the programs of {there} {kind}s are there, and {PLAN_FILE} says that there are {count:,}"
            raise _folder_error(message, folder)
    wanted = [f"{kind}_{number}" for kind, count in machines.items() for number in range(count)]
    lost, strange = (sorted({*one} - {*other}) for one, other in ((wanted, names), (names, wanted)))
    if lost or strange:
        problem = f"the programs of {name_list(lost)} are missing" if lost else f"the job has no {name_list(strange)}"
        raise _folder_error(f"{problem}: {PLAN_FILE} says which machines there are", folder)
    return fields


def _require_fit(folder: str | os.PathLike[str], roles: Mapping[str, Role]) -> None:
    """Raises DiagnosticError if programs that this package has compiled do not fit together."""
    try:
        link(roles.values())
    except LinkError as problem:
        first = problem.diagnostics[0]
        note = Note(f"the programs are not of one compile, or were changed; `pstranspile verify {folder}` tells all")
        raise DiagnosticError([first._replace(notes=(*first.notes, note))]) from None


def _pushes(
    folder: str | os.PathLike[str], roles: Mapping[str, Role], plan: Mapping[str, Any] | None, given: int | None
) -> int:
    """The number of steps between exchanges of a geo job. Raises DiagnosticError if `given` does not apply."""
    planned: Any = None if plan is None else plan.get("geo")
    if given is None:
        return planned["need_push_nums"] if planned else PUSH_EVERY
    serving = [op for role in roles.values() if (op := listening_op(role.main)) is not None]
    if not any(mode_of(op) == GEO for op in serving):
        raise _folder_error("--push-every is for jobs in mode geo, which this is not", folder)
    if planned:
        message = f"--push-every is for folders without {PLAN_FILE}; this job was compiled with "
        raise _folder_error(f"{message}geo_sgd_need_push_nums={planned['need_push_nums']}", folder)
    return given


def _folder_error(message: str, place: str | os.PathLike[str]) -> DiagnosticError:
    return DiagnosticError([error("start-folder", message, Location(os.fspath(place)))])
