"""The pipeline of a compile, from top to bottom: verify, facts, plan, roles, link."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple, cast

from pstranspile.compiler.analysis.causes import already_distributed, declared_alike, trained_in_blocks
from pstranspile.compiler.analysis.tables import require_rows, with_large_tables
from pstranspile.compiler.emit.rules import WHOLE
from pstranspile.compiler.job import Job
from pstranspile.compiler.link import link
from pstranspile.compiler.modes import PreparedJob, mode_of
from pstranspile.compiler.plan.plan import Plan
from pstranspile.ir.argument_checks import require_programs
from pstranspile.ir.diagnostics import DiagnosticError, Note, did_you_mean, error, raise_errors
from pstranspile.ir.model import Module, Op, Origin, Program, Role
from pstranspile.ir.passes import Steps
from pstranspile.ops.plugins import call_foreign, load, offers, package_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from pstranspile.compiler.plan.plan_file import PlanFile


class Pass(NamedTuple):
    """A pass: its name and, in a sentence, its effect."""

    name: str
    doc: str


PASSES: tuple[Pass, ...] = (
    # facts
    Pass("find-roles", "optimize-op discovery: updates, learning-rate ops, clips that stay on the trainer"),
    Pass("find-uses", "def-use of the main block: who writes and reads each variable"),
    Pass("find-updates", "parameter/gradient pairs; weight decay and clips attributed to their parameter"),
    Pass("find-lookup-table", "the distributed lookup table, dealt out by id"),
    Pass("group-updates", "union-find over the op graph of the updates: what must stay together"),
    Pass("find-tables", "sparse tables whose lookups are fetched from the servers, and where merged lookups go"),
    Pass("place-collectives", "modes without servers: what is summed over the trainers, after which op, on which ring"),
    # plan
    Pass("slice-variables", "cut parameters and gradients into row slices"),
    Pass("order-sends", "the order in which gradients are dealt out"),
    Pass("place-slices", "choose the server of every slice"),
    Pass("mint-names", "names of slices, sent gradients and control variables: the Plan"),
    # roles
    Pass("emit-trainers", "trainer programs: updates out, split, send, barriers, recv, concat in"),
    Pass("emit-trainer-startups", "trainer start-up programs: fetch every parameter from its servers"),
    Pass("emit-pservers", "server programs: listen_and_serv, learning-rate block, a block per update"),
    Pass("emit-pserver-startups", "server start-up programs: initialise what each server holds"),
    # link
    Pass("link", "check that all emitted programs fit together"),
)
"""Every pass of a compile, in order."""

NAMES = tuple(info.name for info in PASSES)


def distribute(module: Module, job: Job, given: Plan | PlanFile | None, steps: Steps) -> tuple[Module, PreparedJob]:
    """Verifies a module, finds its facts and makes its plan; the emitter of the result makes the roles.

    Returns also the module with the same element type for a shared variable in all programs. Raises DiagnosticError.
    """
    # verify
    require_programs(module)
    module = with_op_numbers(declared_alike(module))
    for name, program in module.programs.items():
        raise_errors(already_distributed(program, name))
        raise_errors(trained_in_blocks(program, name, served=bool(job.pservers)))

    # facts
    mode = mode_of(job.mode)
    module = with_large_tables(module, job.large_tables if "large_tables" in mode.settings.options else ())
    require_rows(module)
    facts = mode.analyze(module, job, steps)

    # plan; the roles are made from it when they are asked for
    if given is not None:
        from pstranspile.compiler.plan.plan_file import require_made_for

        require_made_for(given, module, job)
    return module, mode.prepare(facts, job, given, steps)


def with_op_numbers(module: Module) -> Module:
    """The module in which ops that a script or a traced model has made, with only a line as origin, have their own
    places as well.
    """
    programs: dict[str, Program] = {}
    for name, program in module.programs.items():
        blocks = list(program.blocks)
        for index, block in enumerate(blocks):
            if any(op.origin is not None and op.origin.op == WHOLE for op in block.ops):
                ops = [_at_place(op, name, index, number) for number, op in enumerate(block.ops)]
                blocks[index] = block._replace(ops=tuple(ops))
                programs[name] = program._replace(blocks=tuple(blocks))
    return module.with_programs(programs) if programs else module


def _at_place(op: Op, program: str, block: int, number: int) -> Op:
    origin = op.origin
    if origin is None or origin.op != WHOLE:
        return op
    return op._replace(origin=Origin(program, block, number, origin.location))


def link_roles(roles: Iterable[Role], steps: Steps) -> None:
    """Checks that all programs of a job fit together. Raises LinkError."""
    steps.run("link", link, roles)


# Passes of third parties, found through entry points.
#
# A package offers a pass in the group `pstranspile.passes`: a function from Module to Module, which may raise
# DiagnosticError. It runs on the source, before the compiler's own passes, when it is asked for by name. (Op types come
# in the group `pstranspile.ops`: see `pstranspile.ops`.)

SourcePass = Callable[[Module], Module]
"""A pass of a third party: the module as it is to be compiled."""

GROUP = "pstranspile.passes"


@cache
def _points() -> Mapping[str, tuple[EntryPoint, ...]]:
    """The entry points of third parties by name, in alphabetical order."""
    points: dict[str, tuple[EntryPoint, ...]] = {}
    for point in offers(GROUP, "pass"):
        points[point.name] = (*points.get(point.name, ()), point)
    return points


def installed_passes() -> Mapping[str, EntryPoint]:
    """The installed passes of third parties by name, in alphabetical order; of two with one name, the first by value.

    Raises DiagnosticError (`pass`) if the entry points of a package can't be read.
    """
    return {name: points[0] for name, points in _points().items()}


def load_pass(name: str) -> SourcePass:
    """The pass called `name`. Raises DiagnosticError: `pass-unknown` if it is not offered, `pass` if not loadable."""
    point = installed_passes().get(name)
    if point is None:
        if name in NAMES:
            message = f"{name} is a pass of the compiler itself, which always runs"
        else:
            known = ", ".join(installed_passes()) or "none is installed"
            hint = did_you_mean(name, installed_passes())
            message = f"no installed package offers the pass {name!r} (offered: {known}){hint}"
        raise DiagnosticError([error("pass-unknown", message)])
    same = _points()[name]
    if len(same) > 1:
        whose = " and ".join(f"{package_of(each)} ({each.value})" for each in same)
        raise DiagnosticError([error("pass", f"the pass {name!r} is offered by {whose}: only one may be installed")])
    function = load(point, "the pass", "pass")
    if not callable(function):
        message = f"the pass {name!r} ({point.value}) is not a function"
        raise DiagnosticError([error("pass", message, notes=(Note(f"it is of {package_of(point)}"),))])
    return cast("SourcePass", function)


def run_passes(module: Module, names: Sequence[str]) -> Module:
    """The module after these passes of third parties, in order.

    Raises DiagnosticError: the pass's own, `pass` if it fails in another way or gives something else, `pass-unknown`.
    """
    for name in names:
        function = load_pass(name)
        notes = (Note(f"it is of {package_of(installed_passes()[name])}"),)
        made = call_foreign(partial(function, module), f"the pass {name!r}", "failed", "pass", notes)
        if not isinstance(made, Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            message = f"the pass {name!r} gave {type(made).__name__}, not a Module"
            raise DiagnosticError([error("pass", message, notes=notes)])
        module = made
    return module
