"""A compiled job as a folder holds it: the programs of all machines, and who they are."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from pstranspile.diff.folders import load_role, roles_in
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import MAIN, STARTUP, Module, Role
from pstranspile.run.cluster.cluster import Cluster
from pstranspile.run.cluster.communicators.companion import Settings


class JobFolder(NamedTuple):
    """The programs by role; `hash` tells the job from every other, `push_every` is a geo job's."""

    roles: dict[str, Role]
    hash: str
    push_every: int

    def cluster(self, **options: Any) -> Cluster:
        """The machines of the job, none of which has begun."""
        if options.get("seed") is None and not any(role.startup.random_seed for role in self.roles.values()):
            options["seed"] = int(self.hash[:15], 16) | 1
        return Cluster(self.roles, settings=Settings(push_every=self.push_every), **options)

    def addresses(self) -> dict[str, str]:
        """Where machines listen, as their programs say: the servers, and trainers that have none."""
        from pstranspile.run.cluster.server import listening_op

        found: dict[str, str] = {}
        for name, role in self.roles.items():
            serving = listening_op(role.main)
            address = _address_among_trainers(role) if serving is None else str(serving.attrs["endpoint"])
            if address:
                found[name] = address
        return found


def _address_among_trainers(role: Role) -> str:
    """Where the other trainers find this one, as what sets up their rings says; empty where they have none."""
    for op in role.startup.main_block.ops:
        if op.type == "c_gen_nccl_id":
            return str(op.attrs["endpoint"])
        if op.type == "gen_nccl_id":
            number, trainers = op.attrs["trainer_id"], op.attrs["trainers"]
            if isinstance(trainers, tuple) and isinstance(number, int) and 0 <= number < len(trainers):
                return str(trainers[number])
    return ""


def load_job_folder(folder: str | os.PathLike[str]) -> JobFolder:
    """What `compile -o` wrote. Raises DiagnosticError."""
    found = roles_in(folder)
    roles: dict[str, Role] = {}
    digest = sha256()
    for name, paths in found.items():
        module: Module = load_role(paths)
        others = {key: program for key, program in module.programs.items() if key not in (MAIN, STARTUP)}
        roles[name] = Role(name, module[MAIN], module[STARTUP], FrozenMap(others))
        for path in paths:
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    push_every = 100
    plan = Path(folder, "plan.json")
    if plan.is_file():
        geo = json.loads(plan.read_bytes()).get("geo")
        push_every = geo["need_push_nums"] if geo else push_every
    return JobFolder(roles, digest.hexdigest(), push_every)
