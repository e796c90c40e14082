"""Mode ddp: the programs of grad-allreduce, and sums of sparse gradients."""

from pathlib import Path

import pytest

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, Adagrad, Optimizer, minimize
from pstranspile.ir.model import Module

EXAMPLES = Path(__file__).parents[3] / "examples"


def sparse(optimizer: Optimizer) -> Module:
    """A table whose gradient has the rows of a batch."""
    draft = L.Draft(seed=3)
    words = L.embedding(L.data(draft, "ids", [-1, 1], "i64"), (50, 8), is_sparse=True)
    scores = L.fc(L.reshape(words, [-1, 8]), 4, act="softmax")
    minimize(L.mean(L.cross_entropy(scores, L.data(draft, "label", [-1, 1], "i64"))), optimizer)
    return draft.module()


def test_the_programs_of_dense_gradients_are_those_of_grad_allreduce() -> None:
    module = ps.load(EXAMPLES / "mnist_mlp.ir")
    made, other = (ps.compile(module, ps.Job(trainers=2, mode=mode)) for mode in ("ddp", "grad-allreduce"))
    assert made.plan.mode == "ddp"
    assert [role.main for role in made.roles().values()] == [role.main for role in other.roles().values()]
    assert [role.startup for role in made.roles().values()] == [role.startup for role in other.roles().values()]


@pytest.mark.parametrize("optimizer", [SGD(0.1), Adagrad(0.1)])
@pytest.mark.parametrize("trainers", [2, 3])
def test_sparse_gradients_are_averaged(optimizer: Optimizer, trainers: int) -> None:
    module = sparse(optimizer)
    made = ps.compile(module, ps.Job(trainers=trainers, mode="ddp"))
    assert not made.warnings
    assert ps.check(module, ps.Job(trainers=trainers, mode="ddp"), result=made).holds


def test_a_mean_that_counts_what_each_trainer_has_is_a_difference() -> None:
    draft = L.Draft(seed=3)
    mask = L.data(draft, "mask", [-1, 1])
    error = L.square_error_cost(L.fc(L.data(draft, "x", [-1, 5]), 1), L.data(draft, "y", [-1, 1]))
    loss = L.elementwise_div(L.reduce_sum(L.elementwise_mul(error, mask)), L.reduce_sum(mask))
    minimize(loss, SGD(0.1))
    report = ps.check(draft.module(), ps.Job(trainers=2, mode="ddp"))
    assert not report.holds
    assert report.causes[0].op_type == "reduce_sum"
