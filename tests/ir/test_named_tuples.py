"""Named tuples of the package are those of `typing` in everything but the time that their definition takes."""

from __future__ import annotations

import copy
import inspect
import pickle
import typing
from typing import Any, Generic, TypeVar

import pytest

from pstranspile.ir.model import Location
from pstranspile.ir.patterns import NamedTuple

Kind = TypeVar("Kind")


class Quick(NamedTuple):
    """A value."""

    name: str
    lines: tuple[int, ...] = ()
    before: Quick | None = None

    @property
    def last(self) -> int:
        return self.lines[-1]


class Usual(typing.NamedTuple):
    """A value."""

    name: str
    lines: tuple[int, ...] = ()
    before: Usual | None = None

    @property
    def last(self) -> int:
        return self.lines[-1]


class Holder(NamedTuple, Generic[Kind]):
    held: Kind


class Empty(NamedTuple):
    pass


def test_a_class_has_what_that_of_typing_has():
    assert set(dir(Usual)) <= set(dir(Quick))
    assert (type(Quick), Quick.__bases__, Quick.__doc__) == (type(Usual), Usual.__bases__, Usual.__doc__)
    for name in ("_fields", "_field_defaults", "__match_args__", "__slots__", "__module__"):
        assert getattr(Quick, name) == getattr(Usual, name), name
    signature = "(name: 'str', lines: 'tuple[int, ...]' = (), before: 'Quick | None' = None)"
    assert str(inspect.signature(Quick)) == signature
    assert typing.get_type_hints(Quick) == {"name": str, "lines": tuple[int, ...], "before": Quick | None}


def test_a_value_is_that_of_typing():
    quick, usual = Quick("net", before=Quick("x")), Usual("net", before=Usual("x"))
    assert quick == usual
    assert hash(quick) == hash(usual)
    assert repr(quick) == repr(usual).replace("Usual", "Quick")
    assert quick._asdict() == usual._asdict()
    assert quick._replace(lines=(1, 2)).last == 2
    assert Quick._make(["net", (3,), None]) == Quick("net", (3,))
    assert not hasattr(quick, "__dict__")
    match quick:
        case Quick(name, (), Quick(before)):
            assert (name, before) == ("net", "x")
        case _:
            raise AssertionError(quick)
    for again in (pickle.loads(pickle.dumps(quick)), copy.copy(quick), copy.deepcopy(quick)):
        assert (type(again), again) == (Quick, quick)


@pytest.mark.parametrize("values", [((), {}), (("a", (), None, 4), {}), (("a",), {"line": 1}), (("a",), {"name": 1})])
def test_wrong_arguments_are_told_in_the_same_words(values: tuple[tuple[Any, ...], dict[str, Any]]):
    told: list[str] = []
    for kind in (Quick, Usual):
        with pytest.raises(TypeError) as error:
            kind(*values[0], **values[1])
        told.append(str(error.value))
    assert told[0] == told[1].replace("Usual", "Quick")


def test_wrong_fields_are_refused():
    with pytest.raises(TypeError, match="Expected 3 arguments, got 1"):
        Quick._make(["a"])
    with pytest.raises(ValueError, match=r"Got unexpected field names: \['line'\]"):
        Quick("a")._replace(line=1)  # pyright: ignore[reportCallIssue]


def test_wrong_definitions_are_refused():
    with pytest.raises(TypeError, match="Late: a field without a default follows one that has a default"):
        exec("class Late(NamedTuple):\n  a: int = 1\n  b: int", {"NamedTuple": NamedTuple, "__name__": __name__})
    with pytest.raises(TypeError, match="Own: a named tuple has its own _replace"):
        exec("class Own(NamedTuple):\n  a: int\n  _replace = 1", {"NamedTuple": NamedTuple, "__name__": __name__})


def test_kinds_and_no_fields():
    assert Holder(3).held == 3
    assert typing.get_origin(Holder[int]) is Holder
    assert typing.get_args(Holder[int]) == (int,)
    assert Empty() == ()
    assert repr(Empty()) == "Empty()"


def test_other_methods_of_a_class_stay():
    assert str(Location("net.ir", 3)) == "net.ir:3"
    assert repr(Location("net.ir", 3)) == "Location(file='net.ir', line=3, column=0, script=None)"


class Below(Quick):
    """A class that derives from one."""

    def twice(self) -> str:
        return self.name * 2


def test_a_class_derives_from_one():
    assert Below("a").twice() == "aa"
    assert type(Below("a")._replace(name="b")) is Below
