"""A draft over two of Fluid's programs: ops and variables made in the draft are in the programs at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pstranspile
from pstranspile.fluid import unique_name
from pstranspile.frontends.layers.draft import Draft, Names_, Scopes, Value
from pstranspile.ir.diagnostics import DiagnosticError, at_op
from pstranspile.ir.model import MAIN, STARTUP, FrozenMap, Location, Module, Op, Origin, TensorType
from pstranspile.ir.model import Program as FrozenProgram
from pstranspile.ir.types import OpRole
from pstranspile.ir.warned import warn
from pstranspile.ops.shapes import ShapeError, Types, infer_types

_HERE = str(Path(pstranspile.__file__).parent) + os.sep


def script_line() -> Location | None:
    """The line that is being run in the innermost frame outside of this package; None if there is none."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_code.co_filename.startswith(_HERE):
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return Location(frame.f_code.co_filename, frame.f_lineno)


_WITHOUT_DEVICE = frozenset(
    {
        *("feed", "fetch", "recurrent", "conditional_block", "while", "send", "recv", "listen_and_serv"),
        *("fl_listen_and_serv", "checkpoint_notify", "gen_nccl_id", "c_gen_nccl_id", "c_comm_init"),
        *("c_sync_calc_stream", "c_sync_comm_stream"),
    }
)
"""Op types that the executor's thread carries out, on whatever device the other ops run."""

SCOPES = [Scopes()]
"""The name scopes in use, shared by all programs as in Fluid."""


class DoesNotFit(DiagnosticError, ShapeError):
    """The error that an op which a script makes has inputs that don't fit together; it names the script's line."""

    def __init__(self, op: Op, problem: ShapeError):
        ShapeError.__init__(self, problem.message, problem.slot, problem.gives)
        focus = op.input(problem.slot) if problem.slot in op.inputs else None
        DiagnosticError.__init__(self, [at_op("type-mismatch", problem.message, op, focus=focus or "")])


class LiveDraft(Draft):
    """The draft of a main and a start-up program of Fluid's interface. All of its state is in these programs."""

    def __init__(self, program: Any, startup_program: Any):
        self.program = program
        self.startup_program = startup_program
        self.blocks = program.drafts
        self.startup = startup_program.drafts[0]
        self.stop_gradient = program.stopped
        self.clips = program.clips
        self.regularizers = program.regularizers
        self.unaveraged = program.unaveraged

    @property
    def origin(self) -> Origin:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The origin of ops made now: the script's current line, which diagnostics about these ops name."""
        return Origin(MAIN, self.program.current_block_idx, -1, script_line())

    @property
    def names(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The counters for unique names that are in use."""
        return unique_name.generator()

    @property
    def scopes(self) -> Scopes:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The name scopes in use."""
        return SCOPES[0]

    @property
    def current(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The index of the block that ops are made in."""
        return self.program.current_block_idx

    @current.setter
    def current(self, block: int) -> None:
        self.program.current_block_idx = block

    def make(
        self,
        op_type: str,
        inputs: Mapping[str, Names_] | None,
        outputs: Mapping[str, Names_],
        attrs: Mapping[str, object] | None = None,
    ) -> Op:
        """An op, made as in any draft. Warns where the device in use has no effect, or where it
        overrides `force_cpu`.
        """
        given, device = attrs or {}, self.scopes.device
        if device is not None and op_type in _WITHOUT_DEVICE:
            warn(f"The Op({op_type}) is not support to set device.")  # scripts compare with this message
            with self.scopes.on(None):
                return super().make(op_type, inputs, outputs, attrs)
        if device is not None and (given.get("force_cpu") or (op_type == "less_than" and "force_cpu" in given)):
            reason = f"'device_guard' has higher priority when they are used at the same time. ({op_type})"
            warn(f"force_cpu is given inside of a device_guard: {reason}")  # scripts compare with this message too
        return super().make(op_type, inputs, outputs, attrs)

    def type_outputs(self, op: Op) -> None:
        """Declares the dims of an op's outputs, as in any draft. Raises DoesNotFit if its inputs don't fit together."""
        try:
            super().type_outputs(op)
        except ShapeError as problem:
            raise DoesNotFit(op, problem) from None

    def inferred(self, op: Op) -> Types:
        """The types of an op's outputs. If the inputs don't fit, but Fluid refuses only to run the op, they are the
        types that Fluid declares.

        Some of Fluid's ops declare dims of 0 where the dims are unknown, so a dim of 0 fits any. Raises ShapeError
        where Fluid refuses to make the op.
        """
        try:
            return super().inferred(op)
        except ShapeError as problem:
            if problem.declares is not None:
                return problem.declares
            held = map(self.type_of, op.input_names)
            if not any(0 in tensor.shape for tensor in held if tensor is not None):
                raise
            return infer_types(op, self._type_without_zeros)

    def seen(self, name: str) -> TensorType | None:
        """A variable's type as the shape rules see it: as in Fluid, a variable without declared dims has one dim of
        length 0.
        """
        held = self.type_of(name)
        return held if held is None or held.shape else held._replace(shape=(0,))

    def _type_without_zeros(self, name: str) -> TensorType | None:
        held = self.type_of(name)
        return held and held._replace(shape=tuple(dim or -1 for dim in held.shape))

    @property
    def gradient_calls(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """How often `gradients` has appended to the program."""
        return self.program.gradient_calls

    @gradient_calls.setter
    def gradient_calls(self, calls: int) -> None:
        self.program.gradient_calls = calls

    @property
    def role(self) -> OpRole:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The role of ops made now."""
        return self.program.role

    @role.setter
    def role(self, role: OpRole) -> None:
        self.program.role = role

    @property
    def role_vars(self) -> tuple[str, ...]:  # pyright: ignore
        """The role variables of ops made now."""
        return self.program.role_vars

    @role_vars.setter
    def role_vars(self, names: tuple[str, ...]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.program.role_vars = names

    @property
    def seed(self) -> int:
        """The random seed of the start-up program."""
        return self.startup_program.random_seed

    @property
    def main_seed(self) -> int:
        """The random seed of the main program."""
        return self.program.random_seed

    def main(self) -> FrozenProgram:
        """The main program as a frozen value."""
        return self.program.freeze()

    def module(self) -> Module:
        """Both programs as frozen values."""
        return Module(FrozenMap({MAIN: self.program.freeze(), STARTUP: self.startup_program.freeze()}))

    def sibling(self) -> Draft:
        """A draft of another, empty main program with the same start-up program."""
        other = type(self.program)()
        other.random_seed = self.program.random_seed
        return LiveDraft(other, self.startup_program)

    def value(self, name: str) -> Value:
        """A variable of the main program as the value that layers take."""
        return Value(self, name)
