"""What can't be computed is told in words about the op and its inputs, not in those of Python and numpy."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import Op
from pstranspile.runtime.run.bound_ops import is_stated
from pstranspile.runtime.run.frame import Execution, Frame
from pstranspile.runtime.run.scope import Scope, own_copy
from pstranspile.runtime.values import LoDTensor, SelectedRows
from pstranspile.tools.cli import main
from tests import opdata
from tests.ops.computing import compute

FOREIGN = re.compile(
    r"broadcast|ufunc|reshape array|not aligned|core dimension|of size \d+ into|unpack|NoneType|' object|dimensional"
    r"|out of bounds for axis|positional argument|zip\(\)|numpy|iteration over|is not supported, use"
)
"""Words of Python and numpy about arrays."""


def wrong_forms(value: object) -> list[object]:
    """The value with other dims and element types."""
    if isinstance(value, SelectedRows):
        return [value.value]
    data = value.data if isinstance(value, LoDTensor) else value
    assert isinstance(data, np.ndarray)
    forms: list[object] = [np.zeros((), data.dtype), data.ravel(), data[None], data[:0], data.astype("bool")]
    with np.errstate(all="ignore"):
        other = data.astype("float64" if data.dtype.kind in "iu" else "int64")
    return [*forms, np.concatenate([data, data], -1), other]


def first_recordings() -> list[str]:
    """The first recording of each op type that reads something."""
    found: dict[str, str] = {}
    for name in opdata.names():
        meta = opdata.Recording(name).meta
        if meta["kind"] != "program" and meta["inputs"]:
            found.setdefault(meta["type"], name)
    return [*found.values()]


def test_wrong_inputs_of_every_op(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    told: list[str] = []
    for name in first_recordings():
        recording = opdata.Recording(name)
        program, places = opdata.op_program(recording)
        given = {places[key]: recording.value(key) for key in recording.keys("in/")}
        for wrong in given:
            for form in wrong_forms(given[wrong]):
                frame = Frame(Execution(program, Scope(), folder=tmp_path))
                frame.local.update({key: own_copy(form if key == wrong else value) for key, value in given.items()})
                try:
                    with np.errstate(all="ignore"):
                        frame.execute()
                except DiagnosticError as problem:
                    told += [one.message for one in problem.diagnostics]
    assert len(told) > 3000
    assert [message for message in told if FOREIGN.search(message)] == []
    assert [str(warning.message) for warning in recwarn] == []


FORMS = """ir 1

program @main {{
  block ^0 {{
    temp  %x : f32[-1, -1] feed
    temp  %y : f32[-1, -1] feed
    temp  %z : f32[]
    {op} -> Out=%z
  }}
}}
"""


@pytest.mark.parametrize(
    ("op", "y", "told"),
    [
        ("matmul(X=%x, Y=%y)", (5, 4), "matmul: X is f32[2, 3] with 3 columns, Y is f32[5, 4] with 5 rows"),
        ("elementwise_add(X=%x, Y=%y)", (5, 3), "x has 2 rows and y has 5 in step 1"),
    ],
)
def test_a_run_tells_what_does_not_fit(
    op: str, y: tuple[int, int], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows are only blamed where as many would do."""
    path, feed = tmp_path / "net.ir", tmp_path / "feed.npz"
    path.write_text(FORMS.format(op=op))
    np.savez(feed, x=np.ones((1, 2, 3), "float32"), y=np.ones((1, *y), "float32"))
    assert main(["run", str(path), "--feed", str(feed), "--fetch", "z"]) == 1
    error = capsys.readouterr().err
    assert told in error
    assert "net.ir:8:5: error" in error


def test_numbers_of_numpy_are_arrays_without_dims(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, feed = tmp_path / "net.ir", tmp_path / "feed.npz"
    path.write_text(FORMS.format(op="matmul(X=%x, Y=%y)").replace("[-1, -1]", "[]"))
    np.savez(feed, x=np.full(1, 2, "float32"), y=np.full(1, 3, "float32"))
    assert main(["run", str(path), "--feed", str(feed), "--fetch", "z"]) == 0
    assert "z 6" in capsys.readouterr().out


def test_exceptions_of_the_users_own_functions_are_told_as_they_are() -> None:
    """Numpy's words about what a function of the user has called are the user's own matter."""
    with pytest.raises(ValueError, match="broadcast") as caught:
        np.add(np.ones(3), np.ones(4))
    assert is_stated(Op("py_func"), caught.value)
    with pytest.raises(DiagnosticError) as refused:
        compute("dot", {"X": np.ones((2, 3)), "Y": np.ones(5)}, {"Out": "Out"})
    assert refused.value.__cause__ is not None
    assert not is_stated(Op("dot"), refused.value.__cause__)
