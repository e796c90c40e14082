"""Scopes hold variables by name."""

import numpy as np
import pytest

from pstranspile.runtime.run.scope import Scope
from pstranspile.runtime.values import LoDTensor, SelectedRows


def test_children_see_their_parents_and_keep_what_they_set():
    parent = Scope()
    parent["a"] = 1
    child = parent.child()
    child["b"] = [1.5, 2.5]
    assert list(child) == ["b", "a"]
    assert len(child) == 2
    assert list(parent) == ["a"]
    child["a"] = 2
    assert (parent["a"].item(), child["a"].item()) == (1, 2)
    del child["a"]
    assert child["a"].item() == 1
    assert repr(parent) == "Scope(a)"


def test_values_are_copied():
    data, rows = np.zeros(3), np.arange(3)
    scope = Scope()
    scope.update(a=data, b=LoDTensor(data, [[0, 3]]), c=SelectedRows(rows, data, 5), d=[data, data])
    data += 1
    rows += 1
    assert not scope["a"].any()
    assert not scope["b"].data.any()
    assert scope["c"].rows.tolist() == [0, 1, 2]
    assert not scope["c"].value.any()
    assert not any(item.any() for item in scope["d"])


def test_put_finds_the_scope_that_holds_the_variable():
    parent = Scope()
    parent["a"] = 1
    child = parent.child()
    child.put("a", 5)
    child.put("b", 6)
    assert parent["a"] == 5
    assert list(parent) == ["a"]
    assert child["b"] == 6


def test_unknown_names():
    with pytest.raises(KeyError):
        Scope()["a"]
