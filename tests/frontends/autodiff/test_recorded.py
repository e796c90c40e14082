"""Every training program that Fluid built: taken apart to its forward part, and put together again."""

import pytest

from pstranspile.frontends.autodiff import draft_of_module
from pstranspile.frontends.layers import Value
from tests.training import CASES, add_training, case, forward_part, module_differences, recorded


@pytest.mark.parametrize("name", CASES)
def test_training_ops_are_fluids(name: str):
    draft = draft_of_module(forward_part(name))
    add_training(Value(draft, case(name)["loss"]), case(name)["optimizer"])
    assert module_differences(draft.module(), recorded(name)) == []


def test_all_recordings_are_there():
    assert len(CASES) == 77
