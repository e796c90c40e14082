"""Fluid's executor of its core: it takes what a program reads from a scope, and leaves there what is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pstranspile.fluid import executor
from pstranspile.fluid.missing import refused
from pstranspile.fluid.places import Place
from pstranspile.fluid.scope import Scope


class Executor:
    """Runs programs by their descriptions."""

    def __init__(self, place: Place | None = None):
        self._runs = executor.Executor(place)

    def run(
        self,
        desc: Any,
        scope: Scope,
        block_id: int = 0,
        create_local_scope: bool = True,
        create_vars: bool = True,
        skip_ref_cnt_vars: Sequence[str] = (),
    ) -> None:
        """Runs block 0 once. Raises NotHere for others, DiagnosticError for what can't be run.

        Without `create_local_scope` all variables are then known in the scope. Values have those that are persistable
        or are named by `skip_ref_cnt_vars`; all others were let go.
        """
        if block_id:
            raise refused(f"core.Executor.run of block {block_id}", "an op of block 0 runs the other blocks")
        program = desc._program
        main = program.freeze().main_block
        written: set[str] = set()
        fed: dict[str, Any] = {}
        for op in main.ops:
            for name in op.input_names:
                held = None if name in written else scope.find_var(name)
                if held is not None and name in main.vars and not main.vars[name].persistable:
                    fed[name] = held.get_tensor()
            written.update(op.output_names)
        kept = list(skip_ref_cnt_vars)
        made = self._runs.run(program, fed, kept, scope=scope, return_numpy=False)
        if not create_local_scope:
            scope.declare(frozenset(main.vars))
            scope.let_go(fed)
            for name, value in zip(kept, made, strict=True):
                scope.var(name).get_tensor().set(value.data)
                scope.var(name).get_tensor().set_lod(value.lod())
