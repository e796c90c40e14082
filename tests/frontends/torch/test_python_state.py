"""What objects hold is compared and put back whatever they are, and what can't be put back is said."""

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pstranspile.frontends.torch import trial_steps  # noqa: E402
from pstranspile.frontends.torch.trial_steps import HeldState  # noqa: E402


def zero(tensor):
    tensor.zero_()


def first(values):
    values[0] = 5


THINGS = {
    "float32": (lambda: torch.ones(3), zero),
    "nan": (lambda: torch.tensor([float("nan"), 1.0]), zero),
    "bool": (lambda: torch.tensor([True]), zero),
    "uint16": (lambda: torch.tensor([1, 2], dtype=torch.uint16), zero),
    "complex": (lambda: torch.ones(3, dtype=torch.complex64), zero),
    "bfloat16": (lambda: torch.ones(2).bfloat16(), zero),
    "float8": (lambda: torch.ones(2).to(torch.float8_e4m3fn), zero),
    "of rank 0": (lambda: torch.tensor(1.0), zero),
    "sparse": (lambda: torch.eye(2).to_sparse(), zero),
    "rows": (lambda: torch.eye(2).to_sparse_csr(), lambda tensor: tensor.mul_(2)),
    "array": (lambda: np.array([1, np.nan]), first),
    "objects": (lambda: np.array(["a", None], dtype=object), first),
    "list": (lambda: [1, "a"], first),
    "set": (lambda: {1}, lambda values: values.add(2)),
    "dict": (lambda: {0: 1}, first),
    "Random": (lambda: random.Random(1), lambda generator: generator.random()),
    "RandomState": (lambda: np.random.RandomState(1), lambda generator: generator.rand()),
    "Generator": (lambda: np.random.default_rng(1), lambda generator: generator.random()),
    "torch.Generator": (torch.Generator, lambda generator: torch.rand(1, generator=generator)),
}


@pytest.mark.parametrize("kind", THINGS)
def test_a_change_is_seen_and_put_back(kind):
    make, change = THINGS[kind]
    thing = make()
    before = HeldState(torch, [("thing", thing)])
    assert not before.changed_paths()
    change(thing)
    assert before.changed_paths()
    before.put_back()
    assert not before.changed_paths()


@pytest.mark.parametrize(
    "thing",
    [
        lambda: torch.empty(2, device="meta"),
        torch.nn.UninitializedParameter,
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        lambda: torch.zeros(1).expand(3),
    ],
)
def test_what_is_not_changed_is_left(thing, recwarn):
    before = HeldState(torch, [("thing", thing())])
    assert not before.changed_paths()
    before.put_back()
    assert not [one for one in recwarn if "before the trace" in str(one.message)]


def test_what_can_not_be_put_back_is_told():
    values = np.ones(3)
    fixed = values.view()
    fixed.flags.writeable = False
    before = HeldState(torch, [("net.fixed", fixed)])
    values[0] = 2
    with pytest.warns(UserWarning, match=r"^net\.fixed holds another value than before the trace, and can't take"):
        before.put_back()


def test_more_objects_than_are_looked_at_are_told(monkeypatch):
    monkeypatch.setattr(trial_steps, "_MOST", 3)
    with pytest.warns(UserWarning, match="hold over 3 objects; whether steps change the others is not seen"):
        HeldState(torch, [("", [[1], [2], [3], [4]])])
