"""Steps that a module of another library computes: found by the place of the function that makes it, and called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast
from weakref import WeakValueDictionary

from pstranspile.ir.diagnostics import DiagnosticError, Note, error
from pstranspile.ir.model import Location, Op
from pstranspile.ops.attributes import text
from pstranspile.runtime.files.python_file import calling, value_of
from pstranspile.runtime.kernels.kernel import Run, kernel
from pstranspile.runtime.values import Array, SelectedRows

HERE = "#"
"""The first sign of a source that is a module of this process alone."""


class Given(NamedTuple):
    """What a step is given, as arrays by the module's own names. Of `fixed` values there are no gradients."""

    inputs: Mapping[str, Array]
    parameters: Mapping[str, Array]
    tables: Mapping[str, Array]
    fixed: Mapping[str, Array]
    buffers: Mapping[str, Array]


class Made(NamedTuple):
    """What a step gives: the loss, its gradients, those of tables as sparse rows, and the buffers that it has changed,
    in the order in which they were given.
    """

    loss: Array
    gradients: list[Array]
    rows: list[SelectedRows]
    buffers: list[Array]


class ModuleStep(Protocol):
    """A step of a module of another library."""

    def __call__(self, given: Given) -> Made:
        """What the module gives. Raises DiagnosticError."""
        ...


_STEPS: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""The steps that are at hand in this process, by source."""


def hold(source: str, step: ModuleStep) -> None:
    """Has ops with this source call the step, as long as there is one."""
    _STEPS[source] = step


def find_step(source: str) -> ModuleStep:
    """The step of a source: of this process, or what the function `FILE.py:NAME` gives. Raises DiagnosticError
    (`torch-source`), also with the user's line.
    """
    held = _STEPS.get(source)
    if held is not None:
        return held
    if source.startswith(HERE):
        raise no_source("the step of the program calls a module of PyTorch of the process that has traced it")
    file, _, name = source.rpartition(":")
    try:
        value = value_of(file, name)
    except DiagnosticError as problem:
        if problem.diagnostics[0].code != "input-unreadable":
            raise
        message = f"the step of the program calls {name} of {file}, which is not there"
        note = Note("every process needs the file, at this place from the folder that it runs in")
        raise DiagnosticError([error("torch-source", message, Location(file), notes=[note])]) from None
    made = calling(file, value) if callable(value) and not hasattr(value, "step") else value
    step = getattr(made, "step", None)
    if step is None:
        message = f'{name} gives no model that was traced with step="torch", as the program has it'
        raise DiagnosticError([error("torch-source", message, Location(file))])
    hold(source, step)
    return step


def no_source(message: str) -> DiagnosticError:
    """An error about a module that other processes can't find."""
    note = Note(
        "a function of a file that gives the traced model can be called by every process: FILE.py:NAME, or in Python "
        'trace(..., step="torch", source="FILE.py:NAME")'
    )
    return DiagnosticError([error("torch-source", message, notes=[note])])


@kernel("torch_step", "Out Gradients Rows BufferOut", lod="none")
def torch_step(op: Op) -> Run:
    """A step of a module."""
    source = text(op, "source")
    names = [cast("Sequence[str]", op.attrs[kind]) for kind in ("fed", "parameters", "tables", "fixed", "buffers")]
    held: list[ModuleStep] = []

    def run(X: Any, Param: Any, Table: Any, Fixed: Any, Buffer: Any) -> Any:
        if not held:
            held.append(find_step(source))
        given = zip(names, (X, Param, Table, Fixed, Buffer), strict=True)
        parts = (dict(zip(own, part or (), strict=True)) for own, part in given)
        made = held[0](Given(*parts))
        return made.loss, made.gradients, made.rows, made.buffers

    return run


@kernel("torch_step_grad", "Param@GRAD Table@GRAD", lod="none")
def torch_step_grad(op: Op) -> Run:
    """The gradients that the step has given, times the gradient of its loss."""

    def run(Gradients: Any, Rows: Any, Out_GRAD: Any) -> Any:
        dense = [gradient * Out_GRAD.reshape(()) for gradient in Gradients or ()]
        sparse = [SelectedRows(part.rows, part.value * Out_GRAD.reshape(()), part.height) for part in Rows or ()]
        return dense, sparse

    return run
