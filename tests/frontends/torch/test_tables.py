"""Sparse embeddings lie on the servers of a cluster, which look their rows up, whatever the dims of the ids."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import pstranspile as ps  # noqa: E402
import pstranspile.torch as pt  # noqa: E402
from pstranspile.cluster.machines.script import find_exchanges  # noqa: E402


class Tables(nn.Module):
    """Two tables of rows, and the same layer above them."""

    def __init__(self, table):
        super().__init__()
        self.one, self.two = table(), table()
        self.top = nn.Linear(8, 1)

    def forward(self, ids, more):
        rows = torch.cat(
            [self.one(ids).reshape(len(ids), -1, 4).sum(1), self.two(more).reshape(len(ids), -1, 4).sum(1)], 1
        )
        return self.top(rows).squeeze(1)


def embedding():
    return nn.Embedding(50, 4, sparse=True)


def padded():
    return nn.Embedding(50, 4, sparse=True, padding_idx=3)


def bag():
    return nn.EmbeddingBag(50, 4, mode="sum", sparse=True)


@pytest.mark.parametrize(
    ("table", "dims"),
    [(embedding, (6,)), (embedding, (6, 3)), (embedding, (6, 2, 3)), (padded, (6,)), (padded, (6, 3)), (bag, (6, 3))],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_rows_are_looked_up_on_servers_in_one_exchange(table, dims):
    torch.manual_seed(0)
    model = Tables(table)
    batch = (torch.randint(0, 50, dims), torch.randint(0, 50, dims), torch.rand(6))

    def loss(net, ids, more, wanted):
        return nn.functional.mse_loss(net(ids, more), wanted)

    optimizers = [
        torch.optim.SparseAdam([model.one.weight, model.two.weight], lr=0.1),
        torch.optim.SGD(model.top.parameters(), lr=0.1),
    ]
    training = pt.trace(model, batch, loss=loss, optimizer=optimizers)
    compiled = ps.compile(training.module, ps.Job(pservers=2, trainers=2, min_block_size=8))
    assert {name for name, held in compiled.plan.by_name.items() if held.prefetched} == {"one.weight", "two.weight"}
    _, exchanges = find_exchanges(compiled.trainer(0).main)
    assert [len(each.ops) for each in exchanges if each.kind == "distributed_lookup_table"] == [2]
    assert not {"one.weight", "two.weight"}.intersection(*(each.outputs for each in exchanges if each.kind == "recv"))
    report = pt.check_training(training, pservers=2, trainers=2)
    assert report.equal, str(report)
