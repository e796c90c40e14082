"""The ops that a line of the source has become."""

from pathlib import Path

import pytest

import pstranspile as ps
from pstranspile.compiler.explain import (
    ExplainedJob,
    LineAnswer,
    UnknownNameError,
    answer_json,
    answer_text,
    explain_line,
    explain_op,
    of_compiled,
    read_folder,
)
from pstranspile.compiler.folders import files_of
from pstranspile.ir.model import FrozenMap, Location, Module, Origin, Program
from tests.cluster.data.tables import module as made_in_python
from tests.compiler.explain.jobs import ALL, TWO, explained


def scripted(module: Module, *files: str, line: int = 0) -> Module:
    """The module as a script makes it, whose ops state their lines only: op n stands at line n + 1, or at `line`, in
    each of `files` in turn.
    """
    programs = {}
    for name, program in module.programs.items():
        ops = [
            op._replace(origin=Origin("main", 0, -1, Location(files[number % len(files)], line or number + 1)))
            for number, op in enumerate(program.main_block.ops)
        ]
        programs[name] = program.with_main_block(program.main_block._replace(ops=tuple(ops)))
    return module.with_programs(programs)


def job(*files: str) -> ps.Compiled:
    return ps.compile(scripted(made_in_python(), *files), ps.Job(pservers=TWO, trainers=2))


@pytest.mark.parametrize("name", ALL)
def test_every_op_with_a_line_is_found_at_it(name: str):
    known = explained(name)
    for machine in known.machines:
        for place in known.places(machine):
            origin = known.op(place).origin
            if origin is not None and origin.op >= 0 and origin.location is not None and origin.location.line:
                answer = explain_line(known, str(origin.location.line), machine)
                assert place in [op.place for op in answer.ops]
                assert {op.place.machine for op in answer.ops} == {machine}


def test_the_ops_of_a_script_have_their_own_places():
    known = of_compiled(job("net.py"))
    answer = explain_op(known, "trainer_0", "2")
    assert answer.source is not None
    assert (answer.source.op, answer.source.file, answer.source.line) == ("@main^0#2", "net.py", 3)
    told = [op for op in explain_line(known, "net.py:3").ops if op.place.machine.startswith("trainer")]
    assert {(op.place.machine, op.place.number) for op in told if op.place.program == "main"} == {
        ("trainer_0", 2),
        ("trainer_1", 2),
    }


def test_an_answer_as_text_and_as_json():
    answer = explain_line(explained("mlp_adam"), "net.ir:54")
    assert isinstance(answer, LineAnswer)
    assert answer_text(answer).startswith("net.ir:54\n\nof the source\n    trainer_0, trainer_1 @main^0#")
    plain = answer_json(answer)
    assert (plain["kind"], plain["file"], plain["line"]) == ("line", "net.ir", 54)
    assert len(plain["ops"]) == len(answer.ops)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("x", "'x' is no line; write 22 or train.py:22"),
        ("net.ir:", "'net.ir:' is no line"),
        ("-3", "'-3' is no line"),
        ("9" * 5000, "is no line"),
        ("1", "no op comes from line 1 of net.ir; the nearest lines with ops are "),
        ("other.ir:40", "no op comes from other.ir; the source is net.ir"),
    ],
)
def test_lines_without_ops(line: str, told: str):
    with pytest.raises(UnknownNameError) as caught:
        explain_line(explained("mlp_adam"), line)
    assert told in str(caught.value)


def test_programs_without_lines():
    """Programs that are translated from a model of ONNX, for instance."""
    programs: dict[str, Program] = {}
    for name, program in made_in_python().programs.items():
        block = program.main_block
        ops = tuple(op._replace(origin=None) for op in block.ops)
        programs[name] = program.with_main_block(block._replace(ops=ops))
    bare = ps.compile(Module(FrozenMap(programs)), ps.Job(pservers=TWO, trainers=2))
    with pytest.raises(UnknownNameError, match="the programs state no lines of a source"):
        explain_line(of_compiled(bare), "3")


def test_lines_of_several_files(tmp_path: Path):
    compiled = job("a/model.py", "b/train.py", "b/train.py")
    for name, content in files_of(compiled):
        (tmp_path / name).write_bytes(content)
    for known, folder in ((of_compiled(compiled), True), (read_folder(tmp_path), False)):
        assert lines_of(known, "train.py:2") == [2]
        assert explain_line(known, "4").file == ("a/model.py" if folder else "model.py")
        with pytest.raises(UnknownNameError, match=r"no op comes from line 2 of .*model\.py; the nearest .* are 1, 4"):
            explain_line(known, "model.py:2")


def lines_of(known: ExplainedJob, line: str) -> list[int]:
    """The numbers of the ops of trainer_0 that a line has become."""
    return [op.place.number + 1 for op in explain_line(known, line, "trainer_0").ops if op.place.program == "main"]


def test_one_line_of_two_files():
    module = scripted(made_in_python(), "a/net.py", "b/net.py", line=5)
    known = of_compiled(ps.compile(module, ps.Job(pservers=TWO, trainers=2)))
    with pytest.raises(UnknownNameError, match=r"several files have ops of a line 5: a/net\.py:5, b/net\.py:5"):
        explain_line(known, "net.py:5")
    assert explain_line(known, "b/net.py:5").file == "b/net.py"
