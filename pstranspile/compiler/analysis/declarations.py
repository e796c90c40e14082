"""One declaration for what programs share: persistable variables of block 0, by name."""

from __future__ import annotations

from pstranspile.ir.frozen import EMPTY, FrozenMap
from pstranspile.ir.model import MAIN, Module, Program, Var
from pstranspile.ir.types import DType


def declared_alike(module: Module) -> Module:
    """The module with the same element type for a persistable variable in all programs; itself where that is so.

    The declaration in @main counts, unless it is `bool`, which Fluid writes for an unknown type. A variable holds what
    is written to it, so programs with other declarations run, but programs made of several need one.
    """
    main = module.programs[MAIN]
    known = main.main_block.vars if main.blocks else EMPTY
    types: dict[str, DType] = {}
    for name, program in module.programs.items():
        for var in program.main_block.vars.values() if name != MAIN and program.blocks else ():
            mine = known.get(var.name)
            if mine is None or var.dtype is mine.dtype or not (var.persistable and mine.persistable):
                continue
            if var.tensor is not None and mine.tensor is not None:
                types[var.name] = var.tensor.dtype if mine.dtype is DType.BOOL else mine.tensor.dtype
    if not types:
        return module
    return module.with_programs({name: _with_types(program, types) for name, program in module.programs.items()})


def _with_types(program: Program, types: dict[str, DType]) -> Program:
    if not program.blocks:
        return program
    block = program.main_block
    variables = {name: _with_type(var, types.get(name)) for name, var in block.vars.items()}
    return program.with_main_block(block._replace(vars=FrozenMap(variables)))


def _with_type(var: Var, dtype: DType | None) -> Var:
    fits = dtype is not None and var.persistable and var.tensor is not None
    return var._replace(tensor=var.tensor._replace(dtype=dtype)) if fits and var.tensor else var
