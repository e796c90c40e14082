"""Programs that the real Fluid emitted for clusters, and what they did on real ones."""

from __future__ import annotations

import io
import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pstranspile.frontends.program_desc import program_from_bytes
from pstranspile.ir.model import DistributedVar, Program

ARCHIVE = Path(__file__).parents[2] / "data" / "fluid" / "cluster.tar.xz"


class Role(NamedTuple):
    main: Program
    startup: Program


@cache
def files() -> dict[str, bytes]:
    with tarfile.open(ARCHIVE) as archive:
        return {m.name: f.read() for m in archive.getmembers() if (f := archive.extractfile(m)) is not None}


@cache
def roles(name: str) -> dict[str, Role]:
    """The programs of a recorded job, `<case>/<config>`, by role."""
    found = sorted(p.removesuffix(".main.pb") for p in files() if p.startswith(f"{name}/") and p.endswith(".main.pb"))

    def program(path: str, part: str) -> Program:
        return program_from_bytes(files()[f"{path}.{part}.pb"], f"{path}.{part}.pb", part)

    return {path.rpartition("/")[2]: Role(program(path, "main"), program(path, "startup")) for path in found}


def placed(name: str) -> list[DistributedVar]:
    """Fluid's table of variables on the servers of a recorded job."""
    rows = json.loads(files()[f"{name}/placed.json"])
    return [
        DistributedVar(origin, tuple(whole), part, tuple(shape), cut, block, offset, endpoint, kind)
        for kind, endpoint, origin, whole, part, shape, cut, block, offset in rows
    ]


def arrays(case: str, name: str) -> dict[str, Any]:
    """Feeds, initial values or a recorded run of a case."""
    with np.load(io.BytesIO(files()[f"{case}/{name}.npz"])) as archive:
        return {key: archive[key] for key in archive.files}


def loss_of(case: str) -> str:
    return json.loads(files()[f"{case}/case.json"])["loss"]
