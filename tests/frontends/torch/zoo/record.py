"""Records what DDP really does with every setup of the zoo: `python -m tests.frontends.torch.zoo.record`.

Two processes with gloo, and one process on whole batches, train in double precision from the same start. Where
parameters and buffers end apart, DDP trains otherwise. Needs torch.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

from tests.frontends.torch.zoo.kinds import CASES
from tests.frontends.torch.zoo.setups import RANKS

TRUTH = Path(__file__).with_name("truth.json")
"""How far DDP ends from one process, by the name of a setup: relative to what was trained."""

SAME = 1e-9
"""What rounding in double precision comes to, at most."""


class Step(torch.nn.Module):
    """A model with its loss."""

    def __init__(self, model, loss, parts):
        super().__init__()
        self.model, self.loss, self.parts = model, loss, parts

    def forward(self, batch):
        if self.parts == 1:
            return self.of(batch)
        rows = [batch[name] for name in batch] if isinstance(batch, dict) else batch
        dealt = [tensor.chunk(self.parts) for tensor in rows]
        return sum(self.of([part[at] for part in dealt]) for at in range(self.parts)) / self.parts

    def of(self, batch):
        if isinstance(batch, dict):
            return self.model(**batch) if self.loss is None else self.loss(self.model, **batch)
        return self.model(*batch) if self.loss is None else self.loss(self.model, *batch)


def wide(value):
    """A tensor in double precision, or a batch of them."""
    if isinstance(value, dict):
        return {name: wide(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [wide(one) for one in value]
    return value.double() if value.is_floating_point() else value


def share(batch, rank):
    """The rows of a rank."""
    if isinstance(batch, dict):
        return dict(zip(batch, share(list(batch.values()), rank), strict=True))
    return [tensor[rank * len(tensor) // RANKS : (rank + 1) * len(tensor) // RANKS] for tensor in batch]


def trained(case, rank=None):
    """What a process ends with: every parameter and buffer. Of the whole batch without a rank."""
    torch.set_default_dtype(torch.float32)  # for the same numbers as a check has
    setup = case.setup()
    model = setup.model.double()
    torch.set_default_dtype(torch.float64)
    step = Step(model, setup.loss, setup.options.get("accumulate", 1))
    run = step if rank is None else DistributedDataParallel(step, find_unused_parameters=True)
    clip, schedule = setup.options.get("clip"), setup.options.get("schedule")
    for batch in setup.batches:
        setup.optimizer.zero_grad()
        batch = wide(batch)
        run(batch if rank is None else share(batch, rank)).backward()
        if clip is not None and hasattr(clip, "high"):
            torch.nn.utils.clip_grad_value_(model.parameters(), clip.high)
        elif clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip.max_norm)
        setup.optimizer.step()
        if schedule is not None:
            schedule.step()
    return {name: tensor.detach().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def of_rank(rank, meeting, file, names):
    """What a rank of DDP ends with, of all setups, into a file."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    ends = {name: trained(CASES[name], rank) for name in names}
    if rank == 0:
        torch.save(ends, file)
    distributed.destroy_process_group()


def apart(ends, wanted, start):
    """The largest difference of a parameter or a buffer, relative to the largest change."""
    most = max(float((wanted[name] - start[name]).abs().max()) for name in wanted)
    return max(float((ends[name] - wanted[name]).abs().max()) for name in wanted) / most


def main(names):
    """Records setups, all without names."""
    names = names or list(CASES)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/ends.pt"
        multiprocessing.spawn(of_rank, (f"{folder}/meeting", file, names), RANKS)
        ends = torch.load(file)
    truth = json.loads(TRUTH.read_text()) if TRUTH.exists() else {}
    for name in names:
        wanted = trained(CASES[name])
        torch.set_default_dtype(torch.float32)
        model = CASES[name].setup().model.double()
        start = {key: one.detach().clone() for key, one in (*model.named_parameters(), *model.named_buffers())}
        truth[name] = float(f"{apart(ends[name], wanted, start):.1e}")
        if (truth[name] > SAME) != bool(CASES[name].words):
            print(f"{name} is {truth[name]}, which is not what it is listed as", file=sys.stderr)
    TRUTH.write_text(json.dumps({name: truth[name] for name in CASES if name in truth}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
