"""Mode local-sgd: trainers update on their own, then their parameters are averaged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pstranspile.compiler.analysis.reductions import Reduction, find_averages, first_updated
from pstranspile.compiler.emit.rules import (
    AVERAGE_PARAMETERS,
    FIRST_SNAPSHOT,
    SUM_DIFFERENCES,
    WAIT_SUMS,
    derived_origin,
    made_of_program,
)
from pstranspile.compiler.job.modes import COLLECTIVE, ModeSettings, Promise
from pstranspile.compiler.modes.shared.without_servers import (
    CollectiveMode,
    scale,
    sum_over_ring,
    wait_for_computing,
    wait_for_rings,
)
from pstranspile.ir.diagnostics import Diagnostic, error
from pstranspile.ir.model import STARTUP, FrozenMap, Module, Op, Origin, Program, TensorType, Var
from pstranspile.ir.types import DType, OpRole
from pstranspile.ops.build import make_op

SNAPSHOT = "@SNAPSHOT"
"""The suffix of the variable with a parameter's value at the end of the last step."""


def snapshot_name(parameter: str) -> str:
    """The name of the variable with the value that all trainers had of a parameter when the step began."""
    return parameter + SNAPSHOT


class LocalSgd(CollectiveMode):
    """Every trainer updates its own parameters; at the end of a step all get the average."""

    settings = ModeSettings(
        "no servers: trainers update locally and average their parameters by collective operators",
        "collective_mode = local_sgd",
        COLLECTIVE,
        options=("nccl_comm_num",),
        servers=False,
        promise=Promise.NEVER,
    )

    def find(self, module: Module, rings: int) -> tuple[tuple[Reduction, ...], list[Diagnostic]]:
        """The parameters to average, and findings."""
        averages, findings = find_averages(module.main, rings)
        return averages, [*findings, *_name_problems(module, averages)]

    def emit_main(self, program: Program, reductions: Sequence[Reduction], trainers: int, rings: int) -> Program:
        """The source's main program, with averages at its end."""
        return average_parameters(program, reductions, trainers, rings)

    def snapshot(self, var: Var, origin: Origin | None) -> tuple[Var, Op]:
        """The snapshot variable of a parameter, and the op that initialises it."""
        name = snapshot_name(var.name)
        op = take_snapshot(var.name, OpRole.FORWARD, derived_origin(origin, FIRST_SNAPSHOT))
        return Var(name, var.kind, var.tensor, persistable=True), op


def average_parameters(program: Program, averages: Sequence[Reduction], trainers: int, rings: int) -> Program:
    """The main program of every trainer.

    After its update a parameter is replaced by its change (its snapshot minus its value), which is summed over the
    trainers. At the end of the step, snapshot minus the mean of these sums is the average of all trainers' values: it
    becomes the parameter and the next snapshot.
    """
    block = program.main_block
    variables = dict(block.vars)
    for average in averages:
        var = variables[average.parameter]
        variables[average.parameter] = _as_fluid_declares(var)
        name = snapshot_name(average.parameter)
        variables[name] = Var(name, tensor=TensorType(DType.BOOL, var.shape), persistable=True)
    first = first_updated(program)
    origin = made_of_program(program, WAIT_SUMS)
    waits = wait_for_rings(first, rings, OpRole.OPTIMIZE, origin) if first else ()
    ops = (*_with_differences(block.ops, averages), *waits, *_closing(block.ops, averages, trainers))
    return program.with_main_block(block._replace(vars=FrozenMap(variables), ops=ops))


def _as_fluid_declares(var: Var) -> Var:
    """A parameter with Fluid's declaration of it: with the element type of a snapshot without a given type, bool.

    Fluid makes the snapshot without an element type, and the results computed from it take the same. At run time the
    element type is that of the value.
    """
    return var._replace(tensor=var.tensor._replace(dtype=DType.BOOL)) if var.tensor else var


def _with_differences(ops: Sequence[Op], averages: Sequence[Reduction]) -> Iterator[Op]:
    after: dict[int, list[Reduction]] = {}
    for average in averages:
        after.setdefault(average.after_op, []).append(average)
    for index, op in enumerate(ops):
        yield op
        origin = derived_origin(op.origin, SUM_DIFFERENCES)
        for average in reversed(after.get(index, ())):
            yield _difference(average.parameter, origin)
            yield wait_for_computing(average.parameter, OpRole.OPTIMIZE, origin)
            yield sum_over_ring(average, OpRole.OPTIMIZE, origin)


def _closing(ops: Sequence[Op], averages: Sequence[Reduction], trainers: int) -> Iterator[Op]:
    for average in reversed(averages):
        name, origin = average.parameter, derived_origin(ops[average.after_op].origin, AVERAGE_PARAMETERS)
        yield scale(name, trainers, OpRole.OPTIMIZE, origin)
        yield _difference(name, origin)
        yield take_snapshot(name, OpRole.OPTIMIZE, origin)


def _difference(parameter: str, origin: Origin | None) -> Op:
    """The op `parameter = snapshot - parameter`."""
    inputs = {"X": [snapshot_name(parameter)], "Y": [parameter]}
    return make_op("elementwise_sub", inputs, {"Out": [parameter]}, role=OpRole.OPTIMIZE, origin=origin)


def take_snapshot(parameter: str, role: OpRole, origin: Origin | None = None) -> Op:
    """The op `snapshot = parameter`."""
    return make_op("assign", {"X": [parameter]}, {"Out": [snapshot_name(parameter)]}, role=role, origin=origin)


def _name_problems(module: Module, averages: tuple[Reduction, ...]) -> list[Diagnostic]:
    """Errors for variables of the program that have the name of a snapshot."""
    named = [average.parameter for average in averages]
    known = {var.name for program in (module.main, module[STARTUP]) for var in program.parameters()}
    named += [name for name in module[STARTUP].main_block.vars if name in known]
    taken = {name for program in module.programs.values() for block in program.blocks for name in block.vars}
    return [
        error(
            "collective-name",
            f"%{snapshot_name(name)} is the name of the snapshot of %{name} in mode local-sgd; "
            "the program uses it for something else: rename it",
            focus=f"%{snapshot_name(name)}",
        )
        for name in dict.fromkeys(named)
        if snapshot_name(name) in taken
    ]


MODE = LocalSgd()
