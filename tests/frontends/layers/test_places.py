"""Ops of a program made with layers name the line of the user's Python that made them."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pstranspile as ps
from pstranspile.cluster.checkpoint.inference import onnx_model
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, draft_of_module, minimize
from pstranspile.frontends.onnx.importing import from_onnx
from pstranspile.ir.model import Op
from pstranspile.tools.cli import main

FILE = """import pstranspile as ps
from pstranspile import layers as L
from pstranspile.autodiff import Adam, ClipByGlobalNorm, Exponential, L2, minimize


def hidden(x):
    return L.fc(x, 4,
                act="tanh")


def training():
    model = L.Draft(seed=1)
    x, y = L.data(model, "x", [-1, 3]), L.data(model, "y", [-1, 1])
    guess = L.fc(hidden(x), 1)
    error = guess - y
    loss = L.mean(L.square(error))
    minimize(loss, Adam(Exponential(0.1, 10, 0.5), clip=ClipByGlobalNorm(1.0), regularizer=L2(0.1)))
    return model.module()


def wrong():
    model = L.Draft(seed=1)
    x, y = L.data(model, "x", [-1, 3]), L.data(model, "y", [-1, 1])
    norm = L.batch_norm(x)
    loss = L.mean(L.square_error_cost(L.fc(norm, 1), y))
    minimize(loss, Adam(0.1))
    return model.module()
"""
JOB = ("--pservers", "2", "--trainers", "2")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "layered", raising=False)
    Path("layered.py").write_text(FILE)
    yield "layered.py"
    sys.modules.pop("layered", None)


def places(text: str) -> dict[str, set[int]]:
    """The lines of layered.py by type of op, in the text of a program whose ops all state one."""
    made: dict[str, set[int]] = {}
    ops = re.sub(r",\n +(?!  *\w+\()", ", ", text).splitlines()
    for line in ops:
        if (op := re.match(r"    (\w+)(?:\(| ->)", line)) is not None:
            place = re.search(r" @layered\.py:(\d+)$", line)
            assert place is not None, line
            made.setdefault(op[1], set()).add(int(place[1]))
    return made


def test_an_imported_program_states_the_lines_of_its_python_file(file: str) -> None:
    assert main(["import", f"{file}:training", "-o", "x.ir"]) == 0
    programs = Path("x.ir").read_text().split("program @")
    (ops,) = (places(text) for text in programs if text.startswith("main"))
    assert (ops["tanh"], ops["mul"], ops["elementwise_sub"]) == ({7}, {7, 14}, {15})
    assert (ops["tanh_grad"], ops["mul_grad"], ops["elementwise_sub_grad"]) == ({7}, {7, 14}, {15})
    assert (ops["mean"], ops["mean_grad"], ops["square_grad"]) == ({16}, {16}, {16})
    assert (ops["adam"], ops["sqrt"], ops["increment"]) == ({17}, {17}, {17})
    (started,) = (places(text) for text in programs if text.startswith("startup"))
    assert (started["uniform_random"], started["fill_constant"]) == ({7, 14}, {7, 14, 17})


def test_text_that_python_prints_states_no_lines(file: str) -> None:
    assert file not in ps.dumps(ps.load(f"{file}:training"))


def test_a_line_of_the_file_is_explained(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", f"{file}:training", "-o", "x.ir"]) == 0
    for given in (f"{file}:training", "x.ir"):
        capsys.readouterr()
        assert main(["explain", given, *JOB, "--line", f"{file}:15"]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"{file}:15\n")
        assert "elementwise_sub(X=%fc_1.tmp_1, Y=%y)" in out
        assert "elementwise_sub_grad(" in out
        assert " mul(" not in out


def test_a_cause_is_told_at_the_line(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{file}:wrong", *JOB]) == 1
    assert f"\n{file}:24: batch_norm makes %batch_norm_0.w_1 differ: " in capsys.readouterr().out


def lines_of(ops: tuple[Op, ...]) -> list[str]:
    """The place of each op, in the words of messages."""
    return [f"{Path(op.location.file).name}:{op.location.line}" if op.location else "none" for op in ops]


def here() -> int:
    """The number of the line that calls this."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_ops_of_loops_and_operators_have_the_line_that_the_user_wrote() -> None:
    """Frames of Python's own library, such as those of context managers, lie between."""
    model = L.Draft(seed=1)
    number, limit = L.fill_constant(model, [1], "i64", 0), L.fill_constant(model, [1], "i64", 3)
    first = here() - 1
    going = L.less_than(number, limit)
    with L.while_(going):
        L.increment(number)
        L.less_than(number, limit, out=going)
    blocks = model.module().main.blocks
    assert lines_of(blocks[0].ops) == [f"test_places.py:{line}" for line in (first, first, first + 2, first + 3)]
    assert lines_of(blocks[1].ops) == [f"test_places.py:{line}" for line in (first + 4, first + 5)]


def test_ops_added_to_a_program_that_was_read_have_their_own_lines() -> None:
    draft = L.Draft(seed=1)
    loss = L.mean(L.fc(L.data(draft, "x", [-1, 3]), 1))
    read = draft_of_module(ps.loads(ps.dumps(draft.module())))
    minimize(L.Value(read, loss.name), SGD(0.1))
    line = here() - 1
    ops = read.module().main.main_block.ops
    by_type = dict(zip((op.type for op in ops), lines_of(ops), strict=True))
    assert by_type["mul"] == by_type["mul_grad"]
    assert by_type["mul"].startswith("<string>:")
    assert by_type["sgd"] == f"test_places.py:{line}"


def test_translated_programs_have_no_lines_of_who_translates_them() -> None:
    draft = L.Draft(seed=1)
    out = L.relu(L.data(draft, "x", [-1, 3]))
    made = from_onnx(onnx_model(draft.module().main, {}, [out.name]), "model.onnx", ".").module
    assert {op.location for op in made.main.main_block.ops} == {None}
