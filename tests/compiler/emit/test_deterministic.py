"""The same input gives the same output, under any hash seed, in every mode with servers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

SCRIPT = """
from hashlib import sha256
from pstranspile.frontends.autodiff import L2, Adam, Exponential
from pstranspile.compiler.compile import compile
from pstranspile.compiler.job import Job
from pstranspile.compiler.plan.plan import plan_text
from pstranspile.ops.textual import print_module
from tests.sparse import Look, after_first, distributed, model

tables = [Look(f"t{i % 5}", f"ids{i % 3}", padding_idx=i % 2) for i in range(11)]
plain = model([*tables, Look("t0", after_first)], Adam(Exponential(0.1, 10, 0.5), regularizer=L2(0.1)))
by_id = model([*tables, distributed("big", ids="ids0"), distributed("big", ids="ids1")])
by_rows = model([distributed("one"), distributed("two")])
modes = [
    {"mode": "sync"}, {"mode": "async"}, {"mode": "async", "runtime_split_send_recv": True},
    {"mode": "async", "enable_dc_asgd": True}, {"mode": "half-async"}, {"mode": "fleet-sync"},
    {"mode": "sync", "slice_var_up": False}, {"mode": "sync", "split_method": "HashName"},
]
for mode in modes:
    for module, settings in ((plain, {}), (by_id, {}), (by_rows, {"distributed_table": "rows"})):
        compiled = compile(module, Job(["a:1", "b:2", "c:3"], 2, min_block_size=100, **mode, **settings))
        texts = [print_module(role.module) for role in compiled.roles().values()]
        texts += [plan_text(compiled.plan), *(d.message for d in compiled.warnings)]
        print(sha256("".join(texts).encode()).hexdigest())
"""


def test_under_any_hash_seed() -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "12345")
    }
    (only,) = printed
    assert len(set(only.split())) == 24
