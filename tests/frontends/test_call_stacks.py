"""What is kept of the call stacks of ops: the user's own line always, the whole when asked for."""

import gzip
import re
from pathlib import Path

import pytest

import pstranspile as ps
from pstranspile.compiler.verify import verify
from pstranspile.frontends.program_desc import program_to_bytes, user_frame
from pstranspile.ir.attributes import Strings
from pstranspile.ir.diagnostics import DiagnosticError, render
from pstranspile.ir.model import Location
from pstranspile.tools.cli import main
from tests.frontends.recorded import wire_view

DATA = Path(__file__).parent.parent / "data" / "programs"
PLACE = re.compile(r" @[A-Za-z.]+:[0-9]+$", re.MULTILINE)


def frames(*files: str) -> Strings:
    return Strings([f'  File "{file}", line {10 + at}, in f\n    code()\n' for at, file in enumerate(files)])


PADDLE = "/usr/lib/python3.7/site-packages/paddle/fluid/framework.py"
NN = "/usr/lib/python3.7/site-packages/paddle/fluid/layers/nn.py"


@pytest.mark.parametrize(
    ("stack", "place"),
    [
        (frames(PADDLE, NN, "/home/a/nets.py", "/home/a/train.py"), "/home/a/nets.py:12"),
        (frames("/home/a/train.py", "/home/a/nets.py", NN, PADDLE), "/home/a/nets.py:11"),  # the innermost last
        (frames(PADDLE, NN, "<decorator-gen-60>", "train.py"), "train.py:13"),
        (frames(PADDLE, "/usr/lib/python3.7/site-packages/decorator.py", "train.py"), "train.py:12"),
        (frames(PADDLE, "/usr/lib/python3.7/contextlib.py", "train.py"), "train.py:12"),
        (frames(PADDLE, NN, "/home/a/net.py", NN, "/home/a/train.py"), "/home/a/net.py:12"),  # called by a layer
        (frames(PADDLE, "/usr/lib/python3.7/site-packages/mymodels/net.py", "train.py"), None),
        (
            frames("/src/paddle/fluid/framework.py", "/src/paddle/fluid/layers/nn.py", "/src/train.py"),
            "/src/train.py:12",
        ),
        (frames(PADDLE, "/home/paddle/ctr/train.py"), "/home/paddle/ctr/train.py:11"),  # a folder of that name
        (frames("C:\\py\\Lib\\site-packages\\paddle\\fluid\\framework.py", "C:\\a\\train.py"), "C:\\a\\train.py:11"),
        (frames(PADDLE, "<stdin>"), "<stdin>:11"),
        (frames(PADDLE, NN), NN + ":11"),  # nothing but Paddle: the outermost
        (Strings(['  File "train.py", line 3\n', "    loss = f(x)\n"]), "train.py:3"),
    ],
)
def test_the_frame_that_is_the_users_own(stack, place):
    found = user_frame(stack)
    assert str(found) == (place or "/usr/lib/python3.7/site-packages/mymodels/net.py:11")


@pytest.mark.parametrize("stack", [(), ("file.py",), ("line 5",), ('File "x.py", line 0',)])
def test_what_holds_no_frame_is_no_call_stack(stack):
    assert user_frame(Strings(stack)) is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A CTR model made in Fluid: 26 sparse inputs, dropout, AUC, adam; its scripts are ctr.py and nets.py."""
    folder = tmp_path_factory.mktemp("ctr")
    for name, file in (("main", "ctr_call_stacks.pb.gz"), ("startup", "ctr_call_stacks.startup.pb.gz")):
        (folder / f"{name}.pb").write_bytes(gzip.decompress((DATA / file).read_bytes()))
    return folder


@pytest.fixture(scope="module")
def module(folder):
    return ps.load(folder / "main.pb", startup=folder / "startup.pb")


def test_a_real_program_is_readable(module):
    text = ps.dumps(module)
    assert "op_callstack" not in text
    lines = text.split("\n")
    assert next(line for line in lines if "lookup_table(" in line).endswith(" @nets.py:6")
    plain = PLACE.sub("", text)
    assert len(text) <= 1.2 * len(plain)
    assert ps.dumps(ps.loads(text)) == text
    places = [op.origin.location.script for op in ps.loads(text).main.main_block.ops]
    assert places == [op.origin.location.script for op in module.main.main_block.ops]
    assert {place.file for place in places if place} == {"nets.py", "ctr.py"}


def test_declarations_are_sorted(module):
    names = list(module.main.main_block.vars)
    kept = [name for name in names if module.main.main_block.vars[name].persistable]
    assert names[: len(kept)] == kept
    assert kept[:2] == ["SparseFeatFactors", "SparseFeatFactors_beta1_pow_acc_0"]
    inputs = [name for name in names if re.fullmatch("C[0-9]+", name)]
    assert inputs == [f"C{number}" for number in range(1, 27)]


def test_all_is_kept_when_asked_for(folder, tmp_path):
    text = tmp_path / "net.ir"
    command = ["import", str(folder / "main.pb"), "--startup", str(folder / "startup.pb")]
    assert main([*command, "--call-stacks", "-o", str(text)]) == 0
    assert main(["export", str(text), "--to", "pb", "-o", str(tmp_path / "pb")]) == 0
    for name in ("main.pb", "startup.pb"):
        assert wire_view((tmp_path / "pb" / name).read_bytes()) == wire_view((folder / name).read_bytes())


def test_the_place_in_the_script_survives_export(module, tmp_path):
    again = {}
    for name, program in module.programs.items():
        file = tmp_path / f"{name}.pb"
        file.write_bytes(program_to_bytes(program))
        again[name] = file
    assert b'  File "nets.py", line 6\n' in again["main"].read_bytes()
    assert ps.dumps(ps.load(again["main"], startup=again["startup"])) == ps.dumps(module)


def test_findings_name_the_script(module):
    broken = ps.dumps(module).replace("Out=%concat_0.tmp_0 ", "Out=%concat_0.tmp ")
    found = [d for d in verify(ps.loads(broken)) if d.code == "undeclared-variable"]
    assert "\nnets.py:12: note: made here" in render(found)


def test_explain_names_the_script(folder, tmp_path, capsys):
    job = ["--startup", str(folder / "startup.pb"), "--pservers", "2", "--trainers", "2"]
    assert main(["compile", str(folder / "main.pb"), *job, "-o", str(tmp_path)]) == 0
    lines = (tmp_path / "trainer_0.ir").read_text().split("\n")
    assert next(line for line in lines if " send(" in line).endswith(".py:16")
    for command in (["explain", str(folder / "main.pb"), *job], ["explain", str(tmp_path)]):
        capsys.readouterr()
        assert main([*command, "--role", "trainer_0"]) == 0
        assert "send-gradient for @main^0#" in (out := capsys.readouterr().out)
        assert ", main.pb, made at nets.py:16" in out or "/main.pb, made at nets.py:16" in out


def test_names_of_scripts_stay_apart(tmp_path):
    """Two files whose short names are equal keep their long ones."""
    text = """ir 1

program @main {
  block ^0 {
    relu(X=%a) -> Out=%a @"/x/a-b.py":1
    relu(X=%a) -> Out=%a @"/usr/lib/python3.7/site-packages/a-b.py":2
  }
}
"""
    file = tmp_path / "main.pb"
    file.write_bytes(program_to_bytes(ps.loads(text).main))
    ops = ps.load(file).main.main_block.ops
    assert [op.origin.location.script.line for op in ops] == [1, 2]
    assert ops[0].origin.location.script != ops[1].origin.location.script


def test_a_script_in_the_text():
    text = """ir 1

program @main {
  block ^0 {
    relu(X=%a) -> Out=%b @train.py:20
    relu(X=%a) -> Out=%"b c" {x:int=1} : backward target @"my net.py":3
    relu -> Out=%b
  }
}
"""
    module = ps.loads(text)
    scripts = [op.origin.location.script for op in module.main.main_block.ops]
    assert scripts == [Location("train.py", 20), Location("my net.py", 3), None]
    assert ps.dumps(module) == text
    for other in (
        text.replace(" @t", "\t@t"),
        text.replace("-> Out=%b @", "-> Out=[%b]@"),
        text.replace("%b @train.py:20", "%b @train.py:020 # see @x.py:3"),
        text.replace("(X=%a) -> Out=%b @", "(X=%a\n) -> Out=%b @"),
    ):
        assert ps.dumps(ps.loads(other)) == text


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("@x.py:0", "number-range"),
        ("@x.py:99999999999999999999", "number-range"),
        ("@x.py", "syntax"),
        ("@x.py:1 @x.py:1", "syntax"),
        ('@"\\q":1', "syntax"),
        ("} @x.py:1", "syntax"),
    ],
)
def test_what_is_no_place_in_a_script(place, code):
    with pytest.raises(DiagnosticError) as refusal:
        ps.loads(f"ir 1\nprogram @main {{\nblock ^0 {{\nrelu(X=%a) -> Out=%b {place}\n}}\n}}\n")
    assert refusal.value.diagnostics[0].code == code
    with pytest.raises(DiagnosticError):  # only ops have one
        ps.loads(f"ir 1\nprogram @main {{\nblock ^0 {{\ntemp %a : f32[1] {place}\n}}\n}}\n")
