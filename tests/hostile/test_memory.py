"""A process that loads, compiles and simulates again and again does not grow."""

from __future__ import annotations

import subprocess
import sys

from pstranspile.ir.text.literals import SchemaView
from pstranspile.ops import schema_of
from pstranspile.ops.gradient import gradient_rule
from pstranspile.ops.shapes import rule_of
from tests.conftest import ROOT
from tests.hostile.counts import cases

ROUNDS = """
import gc, sys
import pstranspile as ps
from pstranspile.frontends.program_desc import program_to_bytes
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.frontends.loading import load_bytes
from pstranspile.proof.values import make_feeds
from pstranspile.cluster.machines.simulate import cluster_of

kind, count = sys.argv[1], int(sys.argv[2])
text = open(sys.argv[3], encoding="utf-8").read()
module = ps.loads(text)
data = program_to_bytes(module.main)
job = ps.Job(pservers=1, trainers=1)
compiled = ps.compile(module, job)
feeds = make_feeds(module.main, 1, 2, 1)

def simulate():
    cluster = cluster_of(ps.compile(ps.loads(text), job))
    cluster.feed(feeds)
    cluster.run_to(1)
    cluster.finish()

def refused(number):
    misspelt = text.replace("mul(", f"mul_{number}("), text.replace(" %", f" %n{number}_", 1)
    for bad in (text.replace("(X=", "(X", 1), *misspelt):
        try:
            ps.compile(ps.loads(bad), job)
        except DiagnosticError:
            pass

actions = {
    "load": lambda number: ps.loads(text),
    "desc": lambda number: load_bytes(data, "main.pb", report=lambda found: None),
    "refused": refused,
    "simulate": lambda number: simulate(),
}
blocks = []
for number in range(count):
    actions[kind](number)
    if number + 1 in (count // 2, count):
        gc.collect()  # what is only not yet collected is no growth
        blocks.append(sys.getallocatedblocks())
print(*blocks)
"""


def kept(kind: str, count: int) -> tuple[int, int]:
    """The memory blocks that are in use after half of `count` rounds, and after all."""
    program = str(ROOT / "golden" / "linear_regression.ir")
    command = [sys.executable, "-c", ROUNDS, kind, str(count), program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    early, late = map(int, done.stdout.split())
    return early, late


def test_loading_takes_no_more_with_time():
    early, late = kept("load", cases(400))
    assert late < early * 1.02


def test_loading_serialized_programs_takes_no_more_with_time():
    early, late = kept("desc", cases(400))
    assert late < early * 1.02


def test_refusing_takes_no_more_with_time():
    early, late = kept("refused", cases(200))
    assert late < early * 1.02


def test_compiling_and_simulating_takes_no_more_with_time():
    early, late = kept("simulate", cases(200))
    assert late < early * 1.02


def test_nothing_is_kept_of_op_types_that_nobody_declares():
    found: SchemaView | None = schema_of("nobody_s_op")
    assert found is None
    assert rule_of("nobody_s_op") is None
    assert gradient_rule("nobody_s_op") is None
    for module in ("pstranspile.ops.shapes", "pstranspile.ops.gradient"):
        assert "nobody_s_op" not in sys.modules[module]._RESOLVED
