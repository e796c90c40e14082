"""Runs a single op on the variables of a scope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pstranspile.fluid import executor, proto
from pstranspile.fluid.framework import Place
from pstranspile.fluid.graph.values import dtype_of
from pstranspile.fluid.missing import unsupported_error
from pstranspile.fluid.running.communicating import Talker, talks
from pstranspile.fluid.scope import Scope
from pstranspile.frontends.layers.draft import attributes
from pstranspile.ir.model import Block, FrozenMap, Op, Program, TensorType, Var
from pstranspile.ir.types import VarKind
from pstranspile.ops.build import make_op
from pstranspile.ops.shapes import infer_types
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.run import run
from pstranspile.runtime.values import LoDTensor, SelectedRows

# The executor of Fluid's core: it reads a program's variables from a scope, and writes results to it.


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
        """Runs block 0 once. Raises NotHere for other blocks, DiagnosticError for a program that can't be run.

        Without `create_local_scope`, the scope then has all variables of the block. Those that are persistable or in
        `skip_ref_cnt_vars` have values; the others have none, because they were released.
        """
        if block_id:
            raise unsupported_error(f"core.Executor.run of block {block_id}", "an op of block 0 runs the other blocks")
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


_FIELDS = ("i", "f", "s", "ints", "floats", "strings", "b", "bools", "block_idx", "l", "blocks_idx", "longs")
"""The field of an attribute's value, by the attribute's kind."""
_OF_ALL = ("op_role", "op_role_var", "op_callstack")


class Operator:
    """An op outside of any program; `run` reads and writes the variables of a scope."""

    def __init__(self, op: Op):
        self._op = op
        self._programs: dict[object, Program] = {}

    @staticmethod
    def create(serialized: bytes) -> Operator:
        """The op of a serialized OpDesc. Raises KeyError and TypeError for attributes that its type does not have."""
        desc = proto.OpDesc.FromString(serialized)
        attrs: list[Any] = [attr for attr in desc.attrs if attr.name not in _OF_ALL]
        given: dict[str, Any] = {attr.name: getattr(attr, _FIELDS[int(attr.type)]) for attr in attrs}
        plain: dict[str, Any] = {
            name: value if isinstance(value, int | float | str) else [*value] for name, value in given.items()
        }
        inputs, outputs = ({slot.parameter: [*slot.arguments] for slot in side} for side in (desc.inputs, desc.outputs))
        return Operator(make_op(desc.type, inputs, outputs, attributes(desc.type, plain)))

    def type(self) -> str:
        """The op type."""
        return self._op.type

    def inputs(self) -> dict[str, list[str]]:
        """The variables of every input slot, by slot."""
        return {slot: list(names) for slot, names in sorted(self._op.inputs.items())}

    def outputs(self) -> dict[str, list[str]]:
        """The variables of every output slot, by slot."""
        return {slot: list(names) for slot, names in sorted(self._op.outputs.items())}

    def input_vars(self) -> list[str]:
        """The names of all variables that the op reads."""
        return list(self._op.input_names)

    def output_vars(self) -> list[str]:
        """The names of all variables that the op writes."""
        return list(self._op.output_names)

    def __str__(self) -> str:
        inputs, outputs = (
            ", ".join(f"{slot}[{', '.join(names)}]" for slot, names in side.items())
            for side in (self.inputs(), self.outputs())
        )
        return f"Op({self.type()}), inputs:{{{inputs}}}, outputs:{{{outputs}}}."

    def run(self, scope: Scope, _place: Any = None) -> None:
        """Runs the op once. Raises DiagnosticError if it can't be run."""
        read = {name: declaration_of_value(name, scope.core.get(name)) for name in self._op.input_names}
        key = tuple(read.items())
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = self._program(read)
        if talks(program):
            Talker().run(program, {}, (), scope.core)
        else:
            run(program, {}, (), scope.core)

    def _program(self, read: Mapping[str, Var]) -> Program:
        def type_of(name: str) -> TensorType | None:
            return read[name].tensor if name in read else None

        types = infer_types(self._op, type_of)
        vars = dict(read)
        for slot, names in self._op.outputs.items():
            given = types.get(slot, ())
            for place, name in enumerate(names):
                tensor = given[place] if place < len(given) else None
                vars.setdefault(name, Var(name, tensor=tensor, persistable=True))
        return Program((Block(FrozenMap(vars), (self._op,)),))


def declaration_of_value(name: str, value: Value) -> Var:
    """A declaration of a persistable variable with the kind, element type and dims of a value."""
    if isinstance(value, SelectedRows):
        tensor = TensorType(dtype_of(value.value.dtype), (int(value.height), *value.value.shape[1:]))
        return Var(name, VarKind.SELECTED_ROWS, tensor, persistable=True)
    if isinstance(value, list):
        return Var(name, VarKind.LOD_TENSOR_ARRAY, persistable=True)
    data, levels = (value.data, len(value.lod)) if isinstance(value, LoDTensor) else (value, 0)
    if not isinstance(data, np.ndarray):
        return Var(name, persistable=True)
    return Var(name, tensor=TensorType(dtype_of(data.dtype), tuple(data.shape), levels), persistable=True)
