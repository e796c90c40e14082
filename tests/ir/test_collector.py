"""The garbage collector while values are made."""

import gc
import subprocess
import sys

import pytest

from pstranspile.ir.model import collector_paused


def test_it_is_paused_and_restored() -> None:
    assert gc.isenabled()
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_restored_after_an_exception() -> None:
    with pytest.raises(KeyError), collector_paused():
        raise KeyError
    assert gc.isenabled()


def test_it_stays_off_for_those_who_keep_it_off() -> None:
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


FROZEN = """
import gc
from pstranspile.ir.model import collector_paused
gc.freeze()
count = gc.get_freeze_count()
with collector_paused():
    pass
assert gc.get_freeze_count() == count > 0
"""
"""Runs in a process of its own: other threads of this one may free what is frozen."""


def test_objects_that_the_caller_froze_stay_frozen() -> None:
    subprocess.run([sys.executable, "-c", FROZEN], check=True)


def test_garbage_is_still_collected() -> None:
    import weakref

    class Node:
        pass

    with collector_paused():
        a = Node()
        a.me = a
        gone = weakref.ref(a)
        del a
    gc.collect()
    assert gone() is None
