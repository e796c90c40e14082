"""Training of a model by torch itself and by its program, side by side."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pstranspile.frontends.torch.training import Training, trace  # noqa: E402

ROWS = 8


class Trained(NamedTuple):
    """What both sides made: the losses of each, their model and its program."""

    ours: list[float]
    theirs: list[float]
    model: Any
    training: Training

    def apart(self, prefix: str = "") -> float:
        """The largest difference between parameters and buffers whose names begin so, relative to those above 1."""
        state = self.training.state
        found = [name for name in self.model.state_dict() if name.startswith(prefix) and name in state]
        assert found, prefix
        return max(_apart(state[name], self.model.state_dict()[name].numpy()) for name in found)

    def losses_apart(self) -> float:
        return _apart(np.array(self.ours), np.array(self.theirs))


def _apart(ours: Any, theirs: Any) -> float:
    assert ours.shape == theirs.shape
    apart = np.abs(ours.astype("float64") - theirs) / np.maximum(1, np.abs(theirs))
    return float(np.max(apart, initial=0.0))


def in_doubles(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return {name: in_doubles(value) for name, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(map(in_doubles, batch))
    return batch.double() if batch.is_floating_point() else batch


def step(model: Any, batch: Any, loss: Any, optimizers: Sequence[Any], before_update: Any = None) -> float:
    """A step of torch's own on a batch."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    keywords = batch if isinstance(batch, Mapping) else {}
    values = () if keywords else batch
    made = model(*values, **keywords) if loss is None else loss(model, *values, **keywords)
    made.backward()
    if before_update is not None:
        before_update()
    for optimizer in optimizers:
        optimizer.step()
    return made.item()


def trained(
    model: Any,
    batch_of: Callable[[], Any],
    loss: Any = None,
    optimizer: Any = None,
    *,
    count: int = 6,
    double: bool = True,
    torch_loss: Any = None,
    before_update: Any = None,
    after_update: Any = None,
    **options: Any,
) -> Trained:
    """Both sides after some steps with the same batches, from the same start."""
    torch.manual_seed(0)
    model = model.double() if double else model
    made = optimizer(model) if optimizer else torch.optim.SGD(model.parameters(), lr=0.05)
    batches = [in_doubles(batch_of()) if double else batch_of() for _ in range(count)]
    training = trace(model, batches[0], loss=loss, optimizer=made, **options)
    ours = training.train(batches)
    listed = made if isinstance(made, list) else [made]
    theirs: list[float] = []
    for batch in batches:
        theirs.append(step(model, batch, torch_loss or loss, listed, before_update and (lambda: before_update(model))))
        if after_update is not None:
            after_update()
    return Trained(ours, theirs, model, training)


class Together(torch.nn.Module):
    """Several modules, each on a tensor of its own kind; the loss is the sum of what they make, so that each is trained
    for itself."""

    def __init__(self, parts: Mapping[str, Any]):
        super().__init__()
        self.parts = torch.nn.ModuleDict(parts)

    def forward(self, **batch: Any) -> Any:
        made = [part(*(batch[name] for name in part.reads)) for part in self.parts.values()]
        return torch.stack([one.reshape(()) for one in made]).sum()


@cache
def _once(family: Callable[[], tuple[Mapping[str, Any], Callable[[], Any]]]) -> Trained | Exception:
    torch.manual_seed(1)
    parts, batch_of = family()
    try:
        return trained(Together(parts), batch_of, count=4)
    except Exception as problem:  # told by every test of the family
        return problem


def assert_part_alike(family: Any, name: str, most: float = 1e-9) -> None:
    """Holds one of the modules that a family has to torch's; all of them are trained at once."""
    made = _once(family)
    if isinstance(made, Exception):
        raise made
    assert made.apart(f"parts.{name}.") < most
