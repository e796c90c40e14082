"""Models with sparse tables, for tests: any number of lookups, and one layer on top."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, Optimizer, minimize
from pstranspile.frontends.layers.draft import Value
from pstranspile.ir.model import MAIN, FrozenMap, Module, Op, Program
from pstranspile.ops.textual import parse, print_module

SIZE = (200, 8)


class Look(NamedTuple):
    """One lookup. `ids` is the name of a feed, or a function of what the lookups before it found."""

    table: str = "table"
    ids: str | Callable[[Sequence[Value]], Value] = "ids"
    size: tuple[int, int] = SIZE
    padding_idx: int | None = None
    is_sparse: bool = True
    is_distributed: bool = False
    v2: bool = False


def distributed(table: str = "table", **settings: object) -> Look:
    return Look(table, is_distributed=True, **settings)  # pyright: ignore[reportArgumentType]


def model(
    looks: Sequence[Look],
    optimizer: Optimizer | None = None,
    *,
    ids_shape: Sequence[int] = (-1, 1),
    extra: Callable[[L.Draft], Value] | None = None,
) -> Module:
    """A training module of these lookups; what they find is joined, with what `extra` makes, under one layer.

    The optimizer updates distributed tables too, where `minimize` would take plain SGD for them as Fluid does.
    The module went through its text, so that findings have lines.
    """
    draft = L.Draft(seed=1)
    feeds: dict[str, Value] = {}
    found: list[Value] = []
    marked: set[str] = set()
    for look in looks:
        if isinstance(look.ids, str):
            ids = feeds.get(look.ids) or feeds.setdefault(look.ids, L.data(draft, look.ids, ids_shape, "i64"))
        else:
            ids = look.ids(found)
        embed = L.embedding_v2 if look.v2 else L.embedding
        rows = embed(
            ids,
            look.size,
            is_sparse=look.is_sparse,
            padding_idx=look.padding_idx,
            param_attr=look.table,
        )
        if look.is_distributed:
            marked.add(rows.name)
        found.append(L.reshape(rows, [-1, look.size[1]]) if look.v2 or len(ids_shape) != 2 else rows)
    if extra is not None:
        found.append(extra(draft))
    prediction = L.fc(L.concat(found, axis=1), 1, param_attr="weight", bias_attr="bias")
    loss = L.mean(L.square_error_cost(prediction, L.data(draft, "y", [-1, 1], "f32")))
    minimize(loss, optimizer or SGD(0.1))
    module = draft.module()
    main = module.main.main_block
    ops = tuple(_distributed(op) if marked.intersection(op.output_names) else op for op in main.ops)
    program = module.main._replace(blocks=(main._replace(ops=ops), *module.main.blocks[1:]))
    return parse(print_module(Module(FrozenMap({**module.programs, MAIN: program}))), "net.ir")


def _distributed(op: Op) -> Op:
    return op._replace(attrs=FrozenMap({**op.attrs, "is_distributed": True, "remote_prefetch": False}))


def after_first(found: Sequence[Value]) -> Value:
    """Ids that depend on what the first lookup found."""
    return L.reshape(L.arg_max(found[0], axis=1), [-1, 1])


def of_type(program: Program, *types: str) -> list[Op]:
    """The ops of block 0 of these types, in order."""
    return [op for op in program.main_block.ops if op.type in types]


def kinds(program: Program, block: int = 0) -> list[str]:
    """The types of the ops of a block, in order."""
    return [op.type for op in program.blocks[block].ops]
