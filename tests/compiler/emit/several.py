"""Modules with several programs: a generative adversarial pair, a shared encoder, a model with its evaluation."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import Adam, Optimizer, minimize
from pstranspile.ir.model import FrozenMap, Module

DISCRIMINATOR = ("d0_w", "d0_b", "d1_w", "d1_b")
GENERATOR = ("g0_w", "g0_b", "g1_w", "g1_b")


def dense(x: L.Value, size: int, name: str, act: str | None = None) -> L.Value:
    return L.fc(x, size, act=act, param_attr=f"{name}_w", bias_attr=f"{name}_b")


def joined(**modules: Module) -> Module:
    """The main programs under their names, and one start-up program with the initialisers of all."""
    first, *others = modules.values()
    assert first.startup is not None
    block = first.startup.main_block
    variables, ops = dict(block.vars), list(block.ops)
    made = {name for op in ops for name in op.output_names}
    for module in others:
        assert module.startup is not None
        more = module.startup.main_block
        variables = {**more.vars, **variables}
        ops += (op for op in more.ops if not set(op.output_names) <= made)
        made.update(name for op in more.ops for name in op.output_names)
    startup = first.startup._replace(blocks=(block._replace(vars=FrozenMap(variables), ops=tuple(ops)),))
    programs = {name: module.main for name, module in modules.items()}
    return Module(FrozenMap({**programs, "startup": startup}))


def adversarial(d_optimizer: Optimizer | None = None, g_optimizer: Optimizer | None = None) -> Module:
    """@main trains the discriminator, @generator the generator; each reads the parameters of the other."""

    def discriminate(x: L.Value) -> L.Value:
        return dense(dense(x, 100, "d0", "relu"), 1, "d1", "sigmoid")

    def generate(draft: L.Draft) -> L.Value:
        return dense(dense(L.data(draft, "noise", [-1, 8]), 160, "g0", "relu"), 200, "g1")

    d = L.Draft(seed=1)
    loss = L.mean(discriminate(generate(d))) - L.mean(discriminate(L.data(d, "real", [-1, 200])))
    minimize(loss, d_optimizer or Adam(0.001), DISCRIMINATOR)
    g = L.Draft(seed=1)
    minimize(0 - L.mean(discriminate(generate(g))), g_optimizer or Adam(0.001), GENERATOR)
    return joined(main=d.module(), generator=g.module())


def two_tasks(optimizers: Sequence[Optimizer]) -> Module:
    """Two losses over one encoder, whose weights both programs train."""
    modules: list[Module] = []
    for task, optimizer in zip(("a", "b"), optimizers, strict=True):
        draft = L.Draft(seed=1)
        hidden = dense(L.data(draft, "x", [-1, 120]), 200, "encoder", "tanh")
        loss = L.mean(L.square_error_cost(dense(hidden, 1, task), L.data(draft, "y", [-1, 1])))
        minimize(loss, optimizer)
        modules.append(draft.module())
    return joined(main=modules[0], second=modules[1])


def with_evaluation(is_distributed: bool = False) -> Module:
    """A sparse model, and a program that only looks up and scores."""

    def score(draft: L.Draft) -> L.Value:
        ids = L.data(draft, "ids", [-1, 1], "i64")
        words = L.embedding(ids, (1000, 64), is_sparse=True, is_distributed=is_distributed, param_attr="words")
        return dense(words, 1, "score")

    train = L.Draft(seed=1)
    minimize(L.mean(L.square_error_cost(score(train), L.data(train, "y", [-1, 1]))), Adam(0.001))
    test = L.Draft(seed=1)
    score(test)
    return joined(main=train.module(), evaluation=test.module())
