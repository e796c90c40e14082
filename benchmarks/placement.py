"""The placement of tables by cost beside Fluid's methods: the busiest server, the time to plan, and a real step.

    python benchmarks/placement.py [--seeds 4] [--step] [--rate 1Gb] [--seed 0] [--torchrec]

Tables have ids that follow Zipf's law with exponents from 1.05 to 1.4, and rows over four decades; their rows are
looked up on the servers. Printed are the bytes of the busiest of 8 servers over the mean of all (goal: 1.05) for 26
tables, and the seconds in which 1,000 tables are placed on 1,000 servers (goal: 5). With `--step` 4 trainers and 4
servers run as processes whose links carry 1 Gb/s (`paced.py`; needs Linux and the rights of root): the seconds of a
step with placement by cost over those with Fluid's default (goal: 0.7).

With `--torchrec` the planner of TorchRec places the same 26 tables on 8 and on 64 ranks. Printed are the rows that the
busiest rank is asked for over the mean of all, as the counts of ids predict it and as one batch has it, and the seconds
to plan. Its planner knows the rows and the width of a table, and no counts of ids; a table that it copies to all ranks
counts as dealt to them evenly. On a machine without a GPU it needs packages that fit together: `pip install
torch==2.13.0 tensordict torchmetrics==1.0.3 iopath pandas tqdm pyre-extensions`, then `pip install --no-deps
torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0`.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from paced import paced
from predicted import joined, measured

import pstranspile as ps
from pstranspile import layers as L
from pstranspile.autodiff import SGD, minimize
from pstranspile.compiler.cost.balance import Item, Moved, balance_items
from pstranspile.compiler.cost.counts import IdCounts, RowCounts, counts_of, counts_text
from pstranspile.compiler.cost.profile import parse_link

LEAST = 16
"""The least numbers of a slice, where tables are placed by cost."""

METHODS = ("RoundRobin", "HashName", "cost")


def drawn(rng: Any, rows: int, exponent: float, count: int) -> Any:
    """So many ids of a table, by Zipf's law: the first rows are the most frequent ones."""
    weights = np.arange(1, rows + 1) ** -exponent
    return np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(count)).clip(0, rows - 1)


def tables(
    seed: int, count: int, most: float, batch: int, width: int
) -> tuple[ps.Module, dict[str, Any], IdCounts, list[str]]:
    """A model of `count` tables: its module, a batch, the counts of ids, and the names of the tables."""
    rng = np.random.default_rng(seed)
    model = L.Draft(seed=1)
    looked: list[Any] = []
    feed: dict[str, Any] = {}
    counts: dict[str, RowCounts] = {}
    for number in range(count):
        rows, exponent = int(10 ** rng.uniform(most - 4, most)), rng.uniform(1.05, 1.4)
        ids = drawn(rng, rows, exponent, batch)
        data = L.data(model, f"id_{number}", [-1, 1], dtype="int64")
        row = L.embedding(data, (rows, width), is_sparse=True, param_attr=L.ParamAttr(name=f"table_{number}"))
        looked.append(row)
        feed[data.name] = ids[:, None]
        unique, times = np.unique(drawn(rng, rows, exponent, 50 * batch), return_counts=True)
        counts[f"table_{number}"] = counts_of(dict(zip(unique.tolist(), times.tolist(), strict=True)))
    minimize(L.mean(L.sums(looked)), SGD(0.1))
    return model.module(), feed, IdCounts(50 * batch, counts), [*counts]


def job_of(method: str, machines: tuple[int, int], batch: int, names: Sequence[str], counts: str) -> ps.Job:
    """The job of so many trainers and servers whose tables are placed by a method; by cost, in slices of any size."""
    trainers, servers = machines
    least: dict[str, Any] = {"min_block_size": LEAST} if method == "cost" else {}
    return ps.Job(
        trainers=trainers,
        pservers=servers,
        batch_rows=batch,
        large_tables=names,
        split_method=method,
        id_counts=counts,
        **least,
    )


def busiest(seed: int, place: Path) -> None:
    """Prints the bytes of the busiest server over the mean, by method."""
    module, _, counts, names = tables(seed, 26, 6.0, 2048, 16)
    place.write_text(counts_text(counts))
    told: list[str] = []
    for method in METHODS:
        start = process_time()
        compiled = ps.compile(module, job_of(method, (4, 8), 2048, names, str(place)))
        took = process_time() - start
        found = ps.cost(compiled)
        told.append(f"{method} {found.of_mean(found.busiest):.3f} ({took:.2f} s to compile)")
    print(f"26 tables, 8 servers, seed {seed}: {', '.join(told)}", flush=True)


def many() -> None:
    """Prints the seconds in which 1,000 tables are placed on 1,000 servers."""
    rng = np.random.default_rng(0)
    items: list[Item] = []
    for number in range(1000):
        ids = drawn(rng, int(10 ** rng.uniform(2, 6)), rng.uniform(1.05, 1.4), 2000)
        unique, times = np.unique(ids, return_counts=True)
        counts = counts_of(dict(zip(unique.tolist(), times.tolist(), strict=True)))
        items.append(Item(str(number), Moved(1_000_000, 0.0, 1e6, counts), 64.0, True))
    start = process_time()
    balance_items(items, 1000)
    print(f"1,000 tables on 1,000 servers: {process_time() - start:.2f} s", flush=True)


Shard = tuple[int, int, int, float]
"""Rows of a table, from the first up to the last, the server or rank that has them, and the share of their columns."""


def skew(placed: Sequence[Sequence[Shard]], of_rows: Sequence[Callable[[int, int], float]], count: int) -> float:
    """The rows that the busiest of `count` machines is asked for, over the mean of all."""
    loads = [0.0] * count
    for shards, rows in zip(placed, of_rows, strict=True):
        for start, stop, machine, share in shards:
            loads[machine] += share * rows(start, stop)
    return max(loads) * count / sum(loads)


def placed_by_torchrec(sizes: Sequence[int], width: int, ranks: int, batch: int) -> tuple[list[list[Shard]], float]:
    """Where TorchRec's planner places tables with so many rows, and the seconds in which it does."""
    import torch
    from torchrec import EmbeddingBagCollection
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.modules.embedding_configs import EmbeddingBagConfig

    bags = [
        EmbeddingBagConfig(num_embeddings=rows, embedding_dim=width, name=f"table_{n}", feature_names=[f"id_{n}"])
        for n, rows in enumerate(sizes)
    ]
    model = EmbeddingBagCollection(device=torch.device("meta"), tables=bags)
    start = process_time()
    planner = EmbeddingShardingPlanner(topology=Topology(world_size=ranks, compute_device="cpu"), batch_size=batch)
    found = planner.plan(model, [EmbeddingBagCollectionSharder()]).plan[""]
    took = process_time() - start
    placed: list[list[Shard]] = []
    for number, rows in enumerate(sizes):
        sharding = found[f"table_{number}"].sharding_spec
        if sharding is None:
            placed.append([(0, rows, rank, 1 / ranks) for rank in range(ranks)])
            continue
        placed.append([])
        for shard in sharding.shards:
            (first, _), (count, columns) = shard.shard_offsets, shard.shard_sizes
            placed[-1].append((first, first + count, shard.placement.rank(), columns / width))
    return placed, took


def beside_torchrec(seed: int, ranks: int, batch: int, width: int) -> None:
    """Prints the balance of placements by cost and by TorchRec, and the seconds of both planners."""
    module, feed, counts, names = tables(seed, 26, 6.0, batch, width)
    sizes = [module.main.main_block.vars[name].shape[0] for name in names]
    moved = [Moved(rows, 0.0, float(batch), counts.tables[name]) for rows, name in zip(sizes, names, strict=True)]
    start = process_time()
    items = [Item(name, each, 4.0 * width, True, LEAST) for name, each in zip(names, moved, strict=True)]
    ours = [[(*each, 1.0) for each in placed] for placed in balance_items(items, ranks)]
    took = process_time() - start
    theirs, took_theirs = placed_by_torchrec(sizes, width, ranks, batch)

    def of_counts(each: Moved) -> Callable[[int, int], float]:
        return lambda start, stop: each.below(stop) - each.below(start)

    def of_batch(ids: Any) -> Callable[[int, int], float]:
        return lambda start, stop: float(((ids >= start) & (ids < stop)).sum())

    predicted, in_batch = [*map(of_counts, moved)], [of_batch(feed[f"id_{number}"]) for number in range(len(names))]
    for name, placed, seconds in (("cost", ours, took), ("TorchRec", theirs, took_theirs)):
        print(
            f"26 tables, {ranks} ranks, seed {seed}: {name} {skew(placed, predicted, ranks):.3f} of the mean, "
            f"{skew(placed, in_batch, ranks):.3f} in a batch, {seconds:.2f} s to plan",
            flush=True,
        )


def step(rate: str, place: Path, runs: int, seed: int) -> None:
    """Prints the seconds of a real step of 4 trainers and 4 servers, by method."""
    batch, machines = 1024, (4, 4)
    module, feed, counts, names = tables(seed, 26, 4.5, batch, 128)
    place.write_text(counts_text(counts))
    roles = [f"{kind}_{number}" for kind in ("trainer", "pserver") for number in range(4)]
    found = dict.fromkeys(("RoundRobin", "cost"), float("inf"))
    for _ in range(runs):
        for method in found:
            compiled = ps.compile(module, job_of(method, machines, batch, names, str(place)))
            cost = ps.cost(compiled)
            busiest_load = cost.of_mean(cost.busiest)
            with paced(roles, parse_link(rate).bytes_per_second):
                _, took = measured(compiled, joined(feed, 4), 20)
                told = f"{took * 1e3:.1f} ms a step, the busiest server {busiest_load:.2f} of the mean"
                print(f"{method}: {told}", flush=True)
            found[method] = min(found[method], took)
    print(f"a step over {rate} with cost takes {found['cost'] / found['RoundRobin']:.2f} of that with RoundRobin")


def main(words: Sequence[str] | None = None) -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=4, metavar="N", help="how many models of 26 tables (4)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the model of --step (0)")
    parser.add_argument("--step", action="store_true", help="run 4 trainers and 4 servers over links with a rate")
    parser.add_argument("--rate", default="1Gb", help="the rate of these links (1Gb)")
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="how often each job runs; the least counts")
    parser.add_argument("--torchrec", action="store_true", help="place the tables by TorchRec's planner beside")
    options = parser.parse_args(words)
    if options.torchrec:
        try:
            import torchrec  # noqa: F401
        except (ImportError, OSError) as problem:  # OSError: its libraries are those of another torch
            sys.exit(f"TorchRec can't be imported, so nothing is compared: {problem}")
        for seed in range(options.seeds):
            for ranks in (8, 64):
                beside_torchrec(seed, ranks, 2048, 16)
        return
    try:
        parse_link(options.rate)
    except ValueError as problem:
        parser.error(str(problem))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "counts.json"
        if options.step:
            step(options.rate, place, options.runs, options.seed)
            return
        for seed in range(options.seeds):
            busiest(seed, place)
        many()


if __name__ == "__main__":
    main()
