"""Writing a `--meta` file: what ProgramDescs do not carry of a module."""

from __future__ import annotations

from typing import Any

from pstranspile.frontends.meta_distribution import distribution_json
from pstranspile.ir.model import MAIN, Module


def meta_of(module: Module) -> dict[str, Any]:
    """What ProgramDescs do not carry of a module, with the keys of a `--meta` file.

    The seed is that of `@main`, or of the first program where there is none of that name.
    """
    programs = module.programs
    first = programs.get(MAIN) or next(iter(programs.values()), None)
    params = {
        var.name: {"name": var.name, **var.parameter._asdict()}
        for program in programs.values()
        for var in program.parameters()
        if var.parameter is not None
    }
    meta: dict[str, Any] = {"random_seed": first.random_seed if first else 0, "params": [*params.values()]}
    if module.startup is not None:
        meta["startup_parameter_order"] = [var.name for var in module.startup.parameters()]
    meta["declarations_in_order"] = True
    distributions = {
        name: distribution_json(program.distribution)
        for name, program in programs.items()
        if program.distribution is not None
    }
    if distributions:
        meta["distribution"] = distributions
    return meta
