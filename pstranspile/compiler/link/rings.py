"""How trainers meet: the same list of trainers everywhere, a rank for each, every ring made before it is used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pstranspile.compiler.link.base import described, finding
from pstranspile.compiler.link.machines import Cluster, Trainer
from pstranspile.ir.diagnostics import Diagnostic
from pstranspile.ir.model import Op
from pstranspile.ir.types import VarKind
from pstranspile.ops.attributes import int_attr, strings_attr

SHARED = ("trainers", "nccl_comm_num", "use_hierarchical_allreduce", "hierarchical_allreduce_inter_nranks")
"""What all trainers must say alike in gen_nccl_id."""


def check_meeting(trainers: Sequence[Trainer]) -> Iterator[Diagnostic]:
    """Mode nccl2: one gen_nccl_id per trainer, alike but for the rank; the steps are the same ops."""
    model: tuple[Trainer, Op] | None = None
    taken: dict[int, str] = {}
    if not any(trainer.startup.of("gen_nccl_id") for trainer in trainers):
        return
    for trainer in trainers:
        role, result = trainer.role, trainer.startup.of("gen_nccl_id")
        op = result[0].op if result else Op("gen_nccl_id")
        if len(result) != 1:
            yield finding("link-ring", role, op, f"{len(result)} gen_nccl_id ops at start-up, must be 1")
            continue
        yield from _check_ids(trainer, op)
        rank = int_attr(op, "trainer_id", -1)
        if not 0 <= rank < len(trainers) or rank in taken:
            other = f", as {taken[rank]}" if rank in taken else ""
            yield finding(
                "link-ring", role, op, f"trainer_id is {rank} of {len(trainers)}{other}", op.output("NCCLID") or ""
            )
        taken.setdefault(rank, role.name)
        if len(strings_attr(op, "trainers")) != len(trainers):
            message = f"it meets {list(strings_attr(op, 'trainers'))}, there are {len(trainers)} trainers"
            yield finding("link-ring", role, op, message, op.output("NCCLID") or "")
        model = model or (trainer, op)
        for name in SHARED:
            if op.attrs.get(name) != model[1].attrs.get(name):
                here, there = op.attrs.get(name), model[1].attrs.get(name)
                message = f"{name} is {here!r}, in {model[0].role.name} it is {there!r}"
                yield finding("link-ring", role, op, message, op.output("NCCLID") or "")
        yield from _check_same_step(trainer, model[0])


def _check_ids(trainer: Trainer, op: Op) -> Iterator[Diagnostic]:
    """A RAW variable for the id of every communicator, for both levels of a hierarchy."""
    count, inner = int_attr(op, "nccl_comm_num", 1), int_attr(op, "hierarchical_allreduce_inter_nranks", -1)
    names = ["NCCLID", *[f"NCCLID_{i}" for i in range(1, count)]]
    if op.attrs.get("use_hierarchical_allreduce") is True:
        ranks = len(strings_attr(op, "trainers"))
        if not 1 < inner < ranks or ranks % inner:
            message = f"groups of {inner} do not divide {ranks} trainers (hierarchical_allreduce_inter_nranks)"
            yield finding("link-ring", trainer.role, op, message, "NCCLID")
        for level in ("inter", "exter"):
            names += [f"Hierarchical_{level}_NCCLID_{i}" for i in range(count)]
    for name in names:
        var = trainer.startup.vars.get(name)
        if var is None or var.kind is not VarKind.RAW or not var.persistable:
            yield finding(
                "link-ring", trainer.role, op, f"%{name} is {described(var)}, must be a RAW persistable", name
            )
    if op.outputs.get("NCCLID") != ("NCCLID",):
        yield finding("link-ring", trainer.role, op, "it does not make %NCCLID", "NCCLID")


def _check_same_step(trainer: Trainer, model: Trainer) -> Iterator[Diagnostic]:
    """Each trainer's executor reduces the gradients of the same ops in the same order."""
    mine, theirs = trainer.main.program.main_block.ops, model.main.program.main_block.ops
    if mine is theirs or mine == theirs:
        return
    pairs = zip(mine, theirs, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(mine), len(theirs)))
    op = mine[at] if at < len(mine) else Op("no op")
    message = f"op {at} of the step is another one than in {model.role.name}"
    yield finding("link-collective", trainer.role, op, message, next(op.output_names, ""))


def check_rings(cluster: Cluster) -> Iterator[Diagnostic]:
    """Mode collective: every ring is joined once, by every trainer, under the same list of endpoints."""
    model: tuple[Trainer, dict[int, tuple[str, ...]]] | None = None
    ranks: dict[int, str] = {}
    for trainer in cluster.trainers:
        own: dict[int, tuple[str, ...]] = {}
        ranks_given: set[int] = set()
        yield from _join(trainer, len(cluster.trainers), own, ranks_given)
        if not ranks_given:
            if model is not None:
                yield finding(
                    "link-ring", trainer.role, Op("c_comm_init"), f"it joins no ring, {model[0].role.name} does"
                )
            continue
        rank = min(ranks_given)
        op = trainer.startup.of("c_comm_init")[0].op
        if len(ranks_given) > 1 or rank in ranks or not 0 <= rank < len(cluster.trainers):
            other = f", as {ranks[rank]}" if rank in ranks else ""
            message = f"it says it is rank {', '.join(map(str, sorted(ranks_given)))} of {len(cluster.trainers)}{other}"
            yield finding("link-ring", trainer.role, op, message, op.input("X") or "")
        ranks.setdefault(rank, trainer.role.name)
        model = model or (trainer, own)
        if own != model[1]:
            message = f"it joins the rings {_rings(own)}, {model[0].role.name} joins {_rings(model[1])}"
            yield finding("link-ring", trainer.role, op, message, op.input("X") or "")


def _rings(rings: dict[int, tuple[str, ...]]) -> str:
    return "; ".join([f"{ring} of {', '.join(members)}" for ring, members in sorted(rings.items())]) or "none"


def _join(
    trainer: Trainer, trainers: int, own: dict[int, tuple[str, ...]], ranks_given: set[int]
) -> Iterator[Diagnostic]:
    """The rings one trainer joins: ring -> all endpoints in the order of ranks; the ranks it gives itself."""
    role, startup = trainer.role, trainer.startup
    made = {name: item for item in startup.of("c_gen_nccl_id") for name in item.op.output_names}
    for position, op in startup.of("c_comm_init"):
        ring, rank, name = int_attr(op, "ring_id"), int_attr(op, "rank", -1), op.input("X") or ""
        ranks_given.add(rank)
        source = made.get(name)
        if source is None or source.position > position:
            yield finding(
                "link-ring", role, op, f"ring {ring} is joined with %{name}, which no c_gen_nccl_id made before", name
            )
            continue
        others = list(strings_attr(source.op, "other_endpoints"))
        if int_attr(source.op, "rank", -1) != rank:
            yield finding("link-ring", role, op, f"rank {rank} of ring {ring} has the id %{name} of another rank", name)
        if int_attr(op, "nranks", -1) != trainers or len(others) + 1 != trainers or ring in own:
            message = (
                f"ring {ring} has {int_attr(op, 'nranks')} ranks, {len(others) + 1} endpoints, for {trainers} trainers"
            )
            yield finding("link-ring", role, op, message + (", and is joined twice" if ring in own else ""), name)
        place = min(max(rank, 0), len(others))
        own[ring] = (*others[:place], str(source.op.attrs.get("endpoint", "")), *others[place:])
