"""Where variables live: every part of every variable of every machine, and nothing that lasts a step only."""

from math import prod
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.checkpoint.api import load_checkpoint, save_checkpoint, scopes_of
from pstranspile.cluster.checkpoint.inference import save_inference_model
from pstranspile.cluster.checkpoint.layout import Layout, VariablePart, layout_of
from pstranspile.cluster.checkpoint.state import gather
from pstranspile.cluster.machines.simulate import cluster_of
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.types import VarKind
from pstranspile.runtime.files.variables import persistable_names
from tests.cluster.checkpoint import recorded
from tests.cluster.checkpoint.jobs import codes, job, model
from tests.compiler.emit.several import adversarial
from tests.compiler.emit.test_trains_alike import CASES
from tests.recorded_fluid import source


def parts(layout: Layout, name: str) -> list[tuple[str, str, int]]:
    return [(part.machine, part.name, part.offset) for part in layout.variables[name].parts]


def test_parts_of_a_cut_variable_and_of_its_moments():
    layout = layout_of(recorded.job())
    assert layout.machines == ("pserver_0", "pserver_1", "trainer_0", "trainer_1")
    assert parts(layout, "fc_0.w_0") == [("pserver_1", "fc_0.w_0.block0", 0), ("pserver_0", "fc_0.w_0.block1", 10000)]
    moment = "fc_0.w_0_moment1_0"
    assert parts(layout, moment) == [("pserver_1", moment, 0), ("pserver_0", moment, 10000)]
    power = layout.variables["fc_0.w_0_beta1_pow_acc_0"]
    assert [part.machine for part in power.parts] == ["pserver_0"]
    assert [part.machine for part in power.other_parts] == ["pserver_1"]
    counter = layout.variables["@LR_DECAY_COUNTER@"]
    assert counter.parts[0].machine == "pserver_0"
    assert not [name for name in layout.variables if "GRAD" in name]


def test_several_slices_on_one_server_have_names_of_their_own():
    layout = layout_of(job(1, 1, "momentum", slice_var_up=True, min_block_size=4))
    assert len(layout.variables["fc_0.w_0"].parts) == 1
    compiled = ps.compile(model("momentum"), ps.Job(["a:1", "b:2"], 1, min_block_size=4, split_method="HashName"))
    layout = layout_of(compiled)
    crowded = [
        placed
        for placed in layout.variables.values()
        if placed.name.endswith("velocity_0") and len({part.machine for part in placed.parts}) < len(placed.parts)
    ]
    assert crowded, "no server has two slices of one variable"
    for placed in crowded:
        declared = compiled.pserver(compiled.plan.pservers[int(placed.parts[0].machine[-1])]).main.main_block.vars
        assert all(declared[part.name].shape == part.shape for part in placed.parts)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("servers", [1, 3])
def test_everything_the_source_keeps_has_a_place(case: str, servers: int):
    module = source(case)
    compiled = ps.compile(module, ps.Job([f"s{n}:1" for n in range(servers)], 2, min_block_size=10))
    layout = layout_of(compiled)
    kept = persistable_names(module.main)
    assert [name for name, placed in layout.variables.items() if not placed.optional] == list(kept)
    for placed in layout.variables.values():
        assert sum(prod(part.shape) for part in placed.parts) == prod(placed.shape)
        for part in placed.holders:
            roles = compiled.roles()[part.machine]
            assert roles.main.main_block.vars[part.name].shape == part.shape


def test_copies_for_delay_compensation():
    """Each trainer's copies of a parameter are parts of a whole copy, so they move to other servers too."""
    layouts = [layout_of(job(n, 2, "sgd", mode="async", enable_dc_asgd=True)) for n in (2, 3)]
    for number, layout in zip((2, 3), layouts, strict=True):
        for trainer in (0, 1):
            placed = layout.variables[f"fc_0.w_0.trainer_{trainer}_bak"]
            assert len(placed.parts) == number
            assert placed.shape == (6, 10)
            offsets = [part.offset for part in layout.variables["fc_0.w_0"].parts]
            assert [part.offset for part in placed.parts] == offsets


def test_counters_of_asynchronous_trainers():
    layout = layout_of(job(2, 2, "adam with decay", mode="async"))
    counter = layout.variables["@LR_DECAY_COUNTER@.trainer_1"]
    assert counter.optional
    assert {part.machine for part in counter.holders} == {"pserver_0", "pserver_1", "trainer_0", "trainer_1"}


def test_one_machine():
    layout = layout_of(model())
    assert layout.machines == ("machine",)
    assert layout.fingerprint == layout_of(job()).fingerprint
    assert list(layout.variables) == list(persistable_names(model().main))


def test_what_a_layout_of_servers_is_known_by():
    assert layout_of(job(2)).servers == layout_of(job(2, 3)).servers
    assert layout_of(job(2)).servers != layout_of(job(3)).servers


def test_parts_that_do_not_make_up_the_whole():
    from pstranspile.cluster.checkpoint.layout import _MachineVar, _put_together
    from pstranspile.ir.model import TensorType
    from pstranspile.ir.types import DType

    whole = TensorType(DType.FP32, (6, 10))
    held = [
        _MachineVar("fc_0.w_0", VariablePart(f"pserver_{n}", f"w.block{n}", 30 * n, (2, 10)), whole) for n in (0, 1)
    ]
    with pytest.raises(DiagnosticError, match="30 to 50 on pserver_1") as problem:
        _put_together(held, model())
    assert codes(problem.value) == {"checkpoint-place"}


def test_a_job_without_servers():
    compiled = ps.prepare(model("sgd"), ps.Job(trainers=["a:1", "b:2"], mode="grad-allreduce"))
    layout = layout_of(compiled)
    assert layout.machines == ("trainer_0", "trainer_1")
    assert parts(layout, "fc_0.w_0") == [("trainer_0", "fc_0.w_0", 0)]
    assert [part.machine for part in layout.variables["fc_0.w_0"].other_parts] == ["trainer_1"]
    assert np.prod(layout.variables["fc_0.w_0"].shape) == 60


def test_jobs_of_several_programs(tmp_path: Path):
    """What any program of the module keeps has its place, and goes on on other servers."""
    jobs = [ps.compile(adversarial(), ps.Job(servers, 2, min_block_size=1000)) for servers in (["a:1", "b:2"], 3)]
    kept = {
        var.name
        for name in ("main", "generator")
        for var in adversarial()[name].main_block.vars.values()
        if var.persistable and var.kind is VarKind.LOD_TENSOR
    }
    layouts = [layout_of(job) for job in jobs]
    for layout in layouts:
        assert {name for name, placed in layout.variables.items() if not placed.optional} == kept
    assert len(layouts[0].variables["g1_w"].parts) == 2
    moment = next(name for name in kept if name.startswith("g1_w_moment1"))
    assert len(layouts[0].variables[moment].parts) == 2
    clusters = [cluster_of(job) for job in jobs]
    for cluster in clusters:
        cluster.start()
    for server in clusters[0].servers:
        for name in server.scope:
            if "moment" in name:
                server.scope[name] = np.random.RandomState(1).uniform(size=server.scope[name].shape).astype("float32")
    save_checkpoint(clusters[0], jobs[0], tmp_path / "c")
    load_checkpoint(clusters[1], jobs[1], tmp_path / "c")
    one, other = (gather(layout, scopes_of(cluster)) for layout, cluster in zip(layouts, clusters, strict=True))
    assert one.values[moment].tobytes() == other.values[moment].tobytes()
    assert one.values[moment].any()
    targets = save_inference_model(clusters[1], jobs[1], tmp_path / "m", ["noise"], ["fc_1.tmp_1"], program="generator")
    assert len(targets) == 1
    assert {path.name for path in (tmp_path / "m").iterdir()} == {"__model__", "g0_w", "g0_b", "g1_w", "g1_b"}
    with pytest.raises(DiagnosticError, match="no program @teacher"):
        save_inference_model(clusters[1], jobs[1], tmp_path / "m", ["noise"], ["fc_1.tmp_1"], program="teacher")
