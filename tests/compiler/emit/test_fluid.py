"""Proof by comparison: the emitted programs are Fluid's, op for op, wherever Fluid's are right."""

from __future__ import annotations

import json

import pytest

from pstranspile.compiler.compile import compile
from pstranspile.compiler.verify import verify
from pstranspile.ir.diagnostics import DiagnosticError, Severity
from pstranspile.ir.model import Distribution
from tests.recorded_fluid import comparable, job_names, recording

TOGETHER = "must be updated together, but in mode async each gradient is applied as it arrives"
REFUSED = {
    "lookahead_sgd/async_2x2": ("mode-unsupported", TOGETHER),
    "fit_a_line_sgd/rt_with_sync_2x2": (
        "job-conflict",
        "sync_mode = true does not go together with runtime_split_send_recv = true",
    ),
    "fit_a_line_sgd/coll_nomode_2": (
        "job-conflict",
        "mode collective needs it; it takes grad_allreduce, local_sgd, single_process_multi_thread",
    ),
}
"""The recorded jobs that are refused, in the first case because several parameters need one moment of update."""


@pytest.mark.parametrize("name", [name for name in job_names() if name not in REFUSED])
def test_equals_fluid(name: str) -> None:
    recorded = recording(name)
    compiled = compile(recorded.module, recorded.job)
    assert list(compiled.roles()) == [
        *(f"trainer_{i}" for i in range(recorded.job.trainers)),
        *(f"pserver_{i}" for i in range(len(recorded.job.pservers))),
    ]
    if recorded.fault:
        return  # it compiles, which is more than can be said of what Fluid makes of it
    for role in recorded.roles:
        ours = compiled.roles()[role]
        theirs = comparable(recorded.program(role, "main"), recorded.program(role, "startup"))
        assert json.dumps(comparable(ours.main, ours.startup), indent=1) == json.dumps(theirs, indent=1), role


@pytest.mark.parametrize("name", [name for name in job_names() if not recording(name).fault and recording(name).roles])
def test_places_variables_as_fluid(name: str) -> None:
    recorded = recording(name)
    compiled = compile(recorded.module, recorded.job)
    ours = [
        [v.vtype, v.endpoint, v.origin, [*v.origin_shape], v.slice, [*v.slice_shape], v.is_slice, v.block_id, v.offset]
        for v in compiled.distributed_vars
    ]
    for rows in recorded.placed.values():
        assert ours == rows


@pytest.mark.parametrize("name", [name for name in job_names() if recording(name).attributes])
def test_carries_what_fluid_keeps_on_its_programs(name: str) -> None:
    recorded = recording(name)
    compiled = compile(recorded.module, recorded.job)
    for role, attributes in recorded.attributes.items():
        ours = compiled.roles()[role].main.distribution or Distribution()
        kept = {key: getattr(ours, key.removeprefix("_")) for key in attributes}
        assert {key: [*value] if isinstance(value, tuple) else value for key, value in kept.items()} == attributes, role


@pytest.mark.parametrize("name", [name for name in job_names() if name not in REFUSED])
def test_what_is_emitted_is_well_formed(name: str) -> None:
    recorded = recording(name)
    for role in compile(recorded.module, recorded.job).roles().values():
        assert [d.message for d in verify(role.module) if d.severity is Severity.ERROR] == [], role.name


def test_the_archives_are_read() -> None:
    names = job_names()
    assert len(names) == 366
    assert sum(len(recording(name).roles) for name in names if not recording(name).fault) == 1139


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(name: str) -> None:
    code, words = REFUSED[name]
    recorded = recording(name)
    with pytest.raises(DiagnosticError) as refusal:
        compile(recorded.module, recorded.job)
    assert [d.code for d in refusal.value.diagnostics] == [code]
    assert words in refusal.value.diagnostics[0].message
