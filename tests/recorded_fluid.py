"""The recorded programs of the real Fluid, and what it means to equal them."""

from __future__ import annotations

import json
import math
import re
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pstranspile.compiler.job import Job
from pstranspile.frontends.meta import apply_meta, parse_meta
from pstranspile.frontends.program_desc import program_from_bytes
from pstranspile.ir.model import MAIN, STARTUP, FrozenMap, Module, Op, Program, Var
from pstranspile.ops import schema_of

DATA = Path(__file__).parent / "data" / "fluid"
ARCHIVES = ("dense", "sparse", "geo", "collective", "random")
"""The archives of recorded jobs; a job's source programs may be in an earlier one than its output."""
GENERATED = re.compile(r"^__control_var@|^_generated_var|^tmp_dc_output")
NOT_COMPARED = {"op_callstack", "op_namescope", "op_device"}


@cache
def files() -> dict[str, bytes]:
    held: dict[str, bytes] = {}
    for name in ARCHIVES:
        with tarfile.open(DATA / f"{name}.tar.xz") as archive:
            held.update((m.name, f.read()) for m in archive.getmembers() if (f := archive.extractfile(m)) is not None)
    return held


class Recording(NamedTuple):
    name: str
    settings: dict[str, Any]
    roles: tuple[str, ...]
    fault: str | None

    @property
    def job(self) -> Job:
        return Job(**self.settings)

    @property
    def module(self) -> Module:
        return source(self.name.partition("/")[0])

    def program(self, role: str, part: str) -> Program:
        path = f"{self.name}/{role}.{part}.pb"
        return program_from_bytes(files()[path], path, part)

    @property
    def placed(self) -> dict[str, list[list[Any]]]:
        """Per role, the variables on servers; nothing for a job without servers."""
        return json.loads(files().get(f"{self.name}/placed.json", b"{}"))

    @property
    def attributes(self) -> dict[str, dict[str, Any]]:
        """Per role, what Fluid keeps on the Python object of the main program; recorded for some of the jobs."""
        return json.loads(files().get(f"{self.name}/attrs.json", b"{}"))


def job_names() -> list[str]:
    return sorted(path.removesuffix("/job.json") for path in files() if path.endswith("/job.json"))


def recording(name: str) -> Recording:
    held = json.loads(files()[f"{name}/job.json"])
    return Recording(name, held["job"], tuple(held["roles"]), held["fault"])


@cache
def source(case: str) -> Module:
    programs = {
        name: program_from_bytes(files()[f"{case}/{name}.pb"], f"{case}/{name}.pb", name) for name in (MAIN, STARTUP)
    }
    meta = parse_meta(files()[f"{case}/meta.json"].decode(), "meta.json")
    found = apply_meta(Module(FrozenMap(programs)), meta)
    return found[0] if isinstance(found, tuple) else found


class Spelling:
    """Gives generated names one spelling, by order of first use."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        return self.names.setdefault(name, f"generated.{len(self.names)}") if GENERATED.search(name) else name


def comparable(main: Program, startup: Program) -> list[Any]:
    """A role's programs as plain data in which only what counts is left: two equal roles give equal data."""
    spell = Spelling()
    return [_program(program, spell) for program in (main, startup)]


def _program(program: Program, spell: Spelling) -> Any:
    # Ops first: names are numbered by use.
    ops = [_settle_fake_init([_op(op, spell) for op in block.ops]) for block in program.blocks]
    variables = [
        [_var(var, spell) for var in sorted(block.vars.values(), key=_by_use(spell))] for block in program.blocks
    ]
    return [(block.parent, *rest) for block, *rest in zip(program.blocks, ops, variables, strict=True)]


def _settle_fake_init(ops: list[Any]) -> list[Any]:
    """The ops with their fake_inits in order of the tables' names; in Fluid's it is that of a hash set."""
    at = [i for i, op in enumerate(ops) if op[0] == "fake_init"]
    for i, op in zip(at, sorted((ops[i] for i in at), key=lambda op: str(op[2])), strict=True):
        ops[i] = op
    return ops


def _by_use(spell: Spelling) -> Callable[[Var], tuple[str, str, str]]:
    return lambda var: (spell.names.get(var.name, "~"), str(_described(var)), var.name)


def _op(op: Op, spell: Spelling) -> Any:
    schema = schema_of(op.type)
    defaults = schema.defaults if schema else {}
    attrs = {}
    for name, value in sorted(op.attrs.items()):
        if name in NOT_COMPARED or (name in defaults and _same(value, defaults[name])):
            continue
        attrs[name] = sorted(value) if name == "grad_to_block_id" else value
    sides = [
        {s: [spell(n) for n in names] for s, names in sorted(side.items()) if names} for side in (op.inputs, op.outputs)
    ]
    return [op.type, *sides, attrs, int(op.role or 0), [spell(n) for n in op.role_vars or ()]]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12)
    return a == b


def _described(var: Var) -> Any:
    tensor = var.tensor
    described = (tensor.dtype.text, list(tensor.shape), tensor.lod_level) if tensor else ("bool", [], 0)
    return [var.kind.name, *described, var.persistable]


def _var(var: Var, spell: Spelling) -> Any:
    return [spell(var.name), *_described(var)]
