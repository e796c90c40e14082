"""Programs that Fluid 1.8.5 itself emitted, in every mode, right ones and faulty ones."""

from __future__ import annotations

import tarfile
from functools import cache
from pathlib import Path

from pstranspile.frontends.program_desc import program_from_bytes
from pstranspile.ir.model import Program, Role

ARCHIVE = Path(__file__).parents[2] / "data" / "fluid" / "link.tar.xz"


@cache
def files() -> dict[str, bytes]:
    """The archive: `<case>/<config>/<role>.main.pb` and `.startup.pb`."""
    with tarfile.open(ARCHIVE) as archive:
        return {member.name: file.read() for member in archive if (file := archive.extractfile(member)) is not None}


def names() -> list[str]:
    """Every recorded job, `<case>/<config>`."""
    return sorted({path.rpartition("/")[0] for path in files()})


def program(name: str, role: str, part: str) -> Program:
    """The `main` or `startup` program of a machine of a job."""
    return program_from_bytes(files()[f"{name}/{role}.{part}.pb"], role, part)


@cache
def recorded(name: str) -> dict[str, Role]:
    """The programs of one recorded job, by role."""
    paths = (path.rpartition("/") for path in files())
    roles = sorted({file.split(".")[0] for folder, _, file in paths if folder == name})
    return {role: Role(role, program(name, role, "main"), program(name, role, "startup")) for role in roles}
