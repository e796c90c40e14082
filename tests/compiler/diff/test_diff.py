"""What is a difference, what is none, and how differences look."""

import random

import pytest

import pstranspile as ps
from pstranspile.compiler.diff import align, diff, diff_modules, diff_programs, render
from pstranspile.ir.model import Module
from pstranspile.ops.textual import parse

BASE = """
ir 1
program @main seed=1 {
  block ^0 {
    param %w : f32[4, 2]
    temp %x : f32[-1, 4] feed
    temp %y : f32[-1, 2]
    temp %z : f32[-1, 2]
    temp %__control_var@1 : tensor
    temp %__control_var@2 : tensor
    mul(X=%x, Y=%w) -> Out=%y
    scale(X=%y) -> Out=%z {scale=0.5}
    send(X=[%z]) -> Out=[%__control_var@1] {epmap=["a:1"]} : rpc
    send(X=[%y]) -> Out=[%__control_var@2] {epmap=["a:1"]} : rpc
    send_barrier(X=[%__control_var@1, %__control_var@2]) -> Out=[%__control_var@1] : rpc
  }
}
program @startup {
  block ^0 {
    param %w : f32[4, 2]
    temp %a : f32[1]
    temp %b : f32[1]
    fill_constant -> Out=%w {shape=[4, 2]}
    fake_init -> Out=%a {shape=[1]}
    fake_init -> Out=%b {shape=[1]}
  }
}
"""


def edited(*changes: tuple[str, str]) -> Module:
    text = BASE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse(text, "edited.ir")


def test_differences_print_as_the_command_shows_them():
    a, b = edited(), edited(("{scale=0.5}", "{scale=0.25}"))
    found = diff(a, b)
    assert str(found) == f"{render(found)}1 difference (1 in ops): 1 line less, 1 more"
    assert "-scale(X=%y) -> Out=%z {scale=0.5}" in str(found)
    assert str(diff(a, a)) == "no differences"
    assert diff(a, a) == ()


def lines(a: Module, b: Module) -> list[str]:
    """The lines with a sign, each as `+text`."""
    return [f"{sign}{text}" for found in diff(a, b) for sign, text in found.lines if sign != " "]


SAME = {
    "declarations": [
        ("    temp %y : f32[-1, 2]\n    temp %z : f32[-1, 2]\n", "    temp %z : f32[-1, 2]\n    temp %y : f32[-1, 2]\n")
    ],
    "slots": [("mul(X=%x, Y=%w)", "mul(Y=%w, X=%x)")],
    "default": [("{scale=0.5}", "{scale=0.5, bias=0.0, bias_after_scale=true}")],
    "absent": [("{scale=0.5}", "{scale=0.5, -bias}")],
    "empty slot": [("scale(X=%y)", "scale(X=%y, -ScaleTensor)"), ("mul(X=%x, Y=%w)", "mul(X=%x, Y=%w, Z=[])")],
    "namescope": [("{scale=0.5}", '{scale=0.5, op_namescope="/a/", op_device="gpu"}')],
    "callstack": [("{scale=0.5}", '{scale=0.5, op_callstack=["file.py"]}')],
    "role of no role": [("{scale=0.5}", "{scale=0.5} : norole")],
    "generated": [("__control_var@1", "__control_var@0.25"), ("__control_var@2", "__control_var@z")],
    "generated swapped": [
        ("__control_var@1", "_generated_var_0"),
        ("__control_var@2", "__control_var@1"),
        ("_generated_var_0", "__control_var@2"),
    ],
    "fake_init": [("Out=%a {shape=[1]}", "Out=%q {shape=[1]}"), ("Out=%b ", "Out=%a "), ("%q", "%b")],
    "comments": [("    mul(", "    # a comment\n\n    mul(")],
}


@pytest.mark.parametrize("changes", SAME.values(), ids=SAME)
def test_no_difference(changes: list[tuple[str, str]]):
    assert lines(edited(), edited(*changes)) == []
    assert lines(edited(*changes), edited()) == []


def test_order_of_grad_to_block_id():
    op = "listen_and_serv(X=[]) {grad_to_block_id=[ORDER], optimize_blocks=[]}"
    text = "ir 1\nprogram @main {\nblock ^0 {\n" + op + "\n}\n}\n"
    a, b, c = (parse(text.replace("ORDER", order)) for order in ('"a:1", "b:2"', '"b:2", "a:1"', '"b:1", "a:2"'))
    assert diff(a, b) == ()
    assert diff(a, c) != ()


DIFFERENT = {
    "seed": ("seed=1", "seed=2", ["-program @main seed=1", "+program @main seed=2"]),
    "op type": ("mul(X=%x, Y=%w)", "matmul(X=%x, Y=%w)", None),
    "attribute": ("scale=0.5", "scale=0.25", None),
    "sign of zero": ("{scale=0.5}", "{scale=0.5, bias=-0.0}", None),
    "kind": ('epmap=["a:1"]} : rpc\n    send_b', 'epmap=["a:1"], extra:long=1} : rpc\n    send_b', None),
    "role": ("{scale=0.5}", "{scale=0.5} : backward", None),
    "role variables": ("{scale=0.5}", "{scale=0.5} : backward(%w, %z)", None),
    "target": ("{scale=0.5}", "{scale=0.5} : forward target", None),
    "dtype": ("temp %z : f32[-1, 2]", "temp %z : f64[-1, 2]", ["-temp  %z : f32[-1, 2]", "+temp  %z : f64[-1, 2]"]),
    "shape": ("temp %z : f32[-1, 2]", "temp %z : f32[-1, 3]", None),
    "kind of variable": ("temp %z : f32[-1, 2]", "temp %z : rows f32[-1, 2]", None),
    "persistable": ("temp %z", "state %z", None),
    "feed": (" feed", "", None),
    "parameter": ("param %w : f32[4, 2]\n    temp %x", "param %w : f32[4, 2] {learning_rate=0.5}\n    temp %x", None),
    "declaration": ("temp %z : f32[-1, 2]", "temp %z : f32[-1, 2]\n    temp %new : f32[1]", ["+temp  %new : f32[1]"]),
    "generated used otherwise": (
        "Out=[%__control_var@1] : rpc",
        "Out=[%__control_var@2] : rpc",
        [
            "-send_barrier(X=[%__control_var@1, %__control_var@2]) -> Out=%__control_var@1 : rpc",
            "+send_barrier(X=[%__control_var@1, %__control_var@2]) -> Out=%__control_var@2 : rpc",
        ],
    ),
    "generated of another type": ("temp %__control_var@2 : tensor", "temp %__control_var@2 : raw", None),
    "generated more": ("temp %__control_var@2 :", "temp %__control_var@3 : raw\n    temp %__control_var@2 :", None),
}


@pytest.mark.parametrize(("old", "new", "expected"), DIFFERENT.values(), ids=DIFFERENT)
def test_difference(old: str, new: str, expected: list[str] | None):
    found = lines(edited(), edited((old, new)))
    assert found == expected if expected else found
    back = lines(edited((old, new)), edited())
    assert sorted(back) == sorted(("+" if line[0] == "-" else "-") + line[1:] for line in found)


def test_order_of_ops():
    first, second = "    mul(X=%x, Y=%w) -> Out=%y\n", "    scale(X=%y) -> Out=%z {scale=0.5}\n"
    found = lines(edited(), edited((first + second, second + first)))
    assert len(found) == 2


def test_kinds_of_attributes():
    a = "ir 1\nprogram @main {\nblock ^0 {\nmyop {n=1, m:long=2}\n}\n}\n"
    assert lines(parse(a), parse(a.replace("n=1, m:long=2", "n:long=1, m=2"))) == [
        "-myop {m:long=2, n=1}",
        "+myop {m=2, n:long=1}",
    ]
    assert diff(parse(a), parse(a.replace("n=1", "n:float=1"))) != ()
    nan = a.replace("n=1", "n=nan")
    assert diff(parse(nan), parse(nan)) == ()


def test_blocks():
    text = BASE.replace(
        "    mul(",
        """    temp %go : bool[1]
    temp %s : step_scopes
    conditional_block(Cond=[%go], Input=[]) -> Out=[], Scope=%s {sub_block=^1}
    block ^1 {
      increment(X=%y) -> Out=%y
    }
    mul(""",
    )
    a = parse(text)
    assert lines(a, parse(text.replace("increment", "relu"))) == ["-increment(X=%y) -> Out=%y", "+relu(X=%y) -> Out=%y"]
    assert lines(a, parse(text.replace("block ^1 {", "block ^1 forward=^0 {"))) == [
        "-block ^1 in ^0 {",
        "+block ^1 in ^0 forward=^0 {",
    ]
    assert "-block ^1 in ^0 {" in lines(a, edited())


def test_programs_on_one_side():
    a = edited()
    b = Module(type(a.programs)({"main": a["main"], "extra": a["main"]}))
    assert lines(a, b) == ["-program @startup (1 block, 3 ops)", "+program @extra seed=1 (1 block, 5 ops)"]


def test_rendering():
    b = edited(("scale=0.5", "scale=0.25"), ("temp %z : f32[-1, 2]", "temp %z : f64[-1, 2]"))
    assert render(diff(edited(), b), names=("old.ir", "new.ir")) == (
        "--- old.ir @main\n"
        "+++ new.ir @main\n"
        "@@ block ^0, variables @@\n"
        "-temp  %z : f32[-1, 2]\n"
        "+temp  %z : f64[-1, 2]\n"
        "@@ block ^0, op 0 @@\n"
        " mul(X=%x, Y=%w) -> Out=%y\n"
        "-scale(X=%y) -> Out=%z {scale=0.5}\n"
        "+scale(X=%y) -> Out=%z {scale=0.25}\n"
        ' send(X=%z) -> Out=%__control_var@1 {epmap=["a:1"]} : rpc\n'
        ' send(X=%y) -> Out=%__control_var@2 {epmap=["a:1"]} : rpc\n'
        " send_barrier(X=[%__control_var@1, %__control_var@2]) -> Out=%__control_var@1 : rpc\n"
    )
    assert "\x1b[31m-scale" in render(diff(edited(), b), colour=True)
    assert render(()) == ""


def chain(ops: list[str]) -> Module:
    return parse("ir 1\nprogram @main {\nblock ^0 {\ntemp %x : f32[1]\n" + "\n".join(ops) + "\n}\n}\n")


def test_hunks_hold_the_ops_around_changes():
    ops = [f"scale(X=%x) -> Out=%x {{scale={n}.5}}" for n in range(30)]
    other = [*ops[:5], "relu(X=%x) -> Out=%x", *ops[5:10], *ops[11:25], *ops[26:]]
    found = diff(chain(ops), chain(other))
    assert [(f.first, f.second, len(f.lines)) for f in found] == [(2, 2, 13), (22, 22, 7)]
    for difference in found:
        for sign, side, start in (("-", ops, difference.first), ("+", other, difference.second)):
            shown = [text for mark, text in difference.lines if mark in (" ", sign)]
            assert shown == side[start : start + len(shown)]


def test_many_changes_in_many_equal_ops():
    """Nothing is unique on either side, so nothing but the ends can be aligned; it still ends soon."""
    ops = ["relu(X=%x) -> Out=%x", "scale(X=%x) -> Out=%x {scale=0.5}"] * 3000
    other = random.Random(1).sample(ops, len(ops))
    found = diff(chain(ops), chain(other))
    kept = sum(sign == " " for f in found for sign, _ in f.lines)
    assert kept <= len(ops)
    assert sum(sign == "-" for f in found for sign, _ in f.lines) == sum(
        sign == "+" for f in found for sign, _ in f.lines
    )


def test_alignment():
    draw = random.Random(7)
    for _ in range(300):
        a = [draw.randrange(6) for _ in range(draw.randrange(20))]
        b = [draw.randrange(6) for _ in range(draw.randrange(20))]
        partner = align(a, b)
        pairs = [(i, j) for i, j in enumerate(partner) if j >= 0]
        assert all(a[i] == b[j] for i, j in pairs)
        assert [j for _, j in pairs] == sorted({j for _, j in pairs})
    assert align([1, 2, 3, 4], [1, 3, 4]) == [0, -1, 1, 2]
    assert align([], [1]) == []


def test_sides_given_in_different_ways(tmp_path):
    path = tmp_path / "base.ir"
    path.write_text(BASE)
    assert diff(path, edited()) == diff(str(path), path) == ()
    assert diff(edited()["main"], edited()["main"]) == diff_programs(edited()["main"], edited()["main"]) == ()
    assert diff_modules(edited(), edited()) == ()
    assert ps.diff(path, path) == ()
    with pytest.raises(TypeError, match="one side is a program"):
        diff(edited(), edited()["main"])
    with pytest.raises(TypeError, match="is a folder"):
        diff(tmp_path, path)
