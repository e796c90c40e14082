"""How long a step takes: exact sums from a profile that is written by hand, and what every profile has to keep."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pstranspile as ps
from pstranspile import layers as L
from pstranspile.autodiff import SGD, minimize
from pstranspile.compiler.cost.profile import (
    TIMED,
    Profile,
    Profiles,
    Rate,
    Wire,
    parse_link,
    profile_text,
    read_profile,
    read_profiles,
)
from pstranspile.compiler.cost.seconds import format_seconds, job_seconds, terms_of
from pstranspile.ir.model import FrozenMap
from pstranspile.tools.cli import main

NOTHING = Rate(0.0, 0.0, 0.0)


def profile(families: Mapping[Any, Rate] | None = None, wire: Wire | None = None, **more: float) -> Profile:
    """A profile in which everything takes no time but what is given."""
    numbers = {"step": 0.0, "update": 0.0, "ask": 0.0, "lookup": 0.0, **more}
    rates = {**dict.fromkeys(TIMED, NOTHING), **(families or {})}
    return Profile(4, FrozenMap(arithmetic="numpy"), **numbers, wire=wire or LINE, families=FrozenMap(rates))


LINE = Wire(0.0, 0.0, 0.0, 0.0, 0.0, 1e30)
"""A wire on which everything is free."""

REAL = profile(
    dict.fromkeys(TIMED, Rate(2e-6, 5e-11, 1e-10)),
    Wire(4e-6, 5e-6, 6e-5, 2e-10, 1e-5, 2e9),
    step=1e-4,
    update=5e-5,
    ask=1e-8,
    lookup=1e-8,
)
"""The profile of some host."""


def dense() -> ps.Module:
    """One weight of 10 x 20 elements, 800 bytes."""
    model = L.Draft(seed=1)
    minimize(L.mean(L.fc(L.data(model, "x", [-1, 10]), 20, bias_attr=False)), SGD(0.1))
    return model.module()


def sparse() -> ps.Module:
    """A table of 1,000 rows of 8 numbers, looked up once for each row of a batch."""
    model = L.Draft(seed=1)
    rows = L.embedding(L.data(model, "id", [-1, 1], "int64"), [1000, 8], is_sparse=True)
    minimize(L.mean(rows), SGD(0.1))
    return model.module()


def compiled(module: ps.Module | None = None, **more: Any) -> ps.Compiled:
    options = {"pservers": 1, "trainers": 2, "batch_rows": 16, **more}
    return ps.compile(module or dense(), ps.Job(**options))


def seconds(job: ps.Compiled, of: Profile | Profiles, **more: Any) -> Any:
    found = ps.cost(job, profile=of, **more).seconds
    assert found is not None
    return found


def test_ops_take_the_seconds_of_their_families():
    job = compiled()
    work = ps.cost(job).work
    assert work is not None
    trainer = terms_of(work.steps[0])
    assert trainer["products"][0] == 2
    assert trainer["products"][1] == 2 * 2.0 * 16 * 10 * 20
    calls = profile({"products": Rate(1.0, 0.0, 0.0)})
    assert seconds(job, calls).machines[0].computing == 2.0
    assert seconds(job, calls).step == 2.0
    operations = profile({"products": Rate(0.0, 1e-3, 0.0)})
    assert seconds(job, operations).machines[0].computing == pytest.approx(2 * 6.4)
    assert terms_of(work.steps[1])["updates"][0] == 1
    assert seconds(job, profile({"updates": Rate(3.0, 0.0, 0.0)})).machines[1].computing == 3.0


def test_a_step_and_an_update_take_time_beside_ops():
    found = seconds(compiled(), profile(step=1.0, update=0.25))
    assert found.step == 1.25
    assert [machine.computing for machine in found.machines] == [1.0, 0.25]
    assert (found.machine, found.part, found.share) == ("trainer_0 to 1", "processor", 0.8)
    assert found.verdict == "a step takes 1.25 s; the bottleneck is trainer_0 to 1: its processor (80% of the step)"
    assert found.rows_per_second == 32 / 1.25
    assert found.machine_seconds == pytest.approx(3 * 1.25 / 32 * 1e6)


def test_a_link_carries_gradients_and_parameters_one_after_the_other():
    found = seconds(compiled(), profile(), link="1kB")
    # A trainer has its parameters, and sends its gradients, while the other one gets its parameters.
    assert found.step == pytest.approx(3 * 800 / 1000)
    assert [machine.link for machine in found.machines] == pytest.approx([0.8, 1.6])
    assert (found.machine, found.part) == ("pserver_0", "link")


def test_messages_and_bytes_are_those_of_both_ends():
    job = compiled()
    found = seconds(job, profile(wire=LINE._replace(byte=1e-3)))
    assert [(machine.sending, machine.receiving) for machine in found.machines] == [(0.8, 0.8), (1.6, 1.6)]
    counted = ps.cost(job)
    by_message = seconds(job, profile(wire=LINE._replace(message=1.0)))
    for machine, one in zip(counted.machines, by_message.machines, strict=True):
        assert machine.messages == one.processor


def test_latency_comes_with_each_answer_that_a_trainer_waits_for():
    one = seconds(compiled(), profile(step=1.0), link="1TB,1s")
    assert one.step == pytest.approx(1.0 + 2.0)
    assert (one.machine, one.part) == ("trainer_0 to 1", "latency")
    assert "its link's latency (67% of the step)" in one.verdict
    assert seconds(compiled(sparse()), profile(step=1.0), link="1TB,1s").step >= 3.0


def test_rows_that_servers_look_up():
    job = compiled(sparse())
    found = seconds(job, profile(lookup=1.0, ask=0.5))
    assert [machine.computing for machine in found.machines] == pytest.approx([16 * 0.5, 2 * 16])
    assert found.step == pytest.approx(8 + 32)


def test_without_a_barrier_the_busiest_server_bounds_the_step():
    given = profile(step=1.0, update=2.0)
    assert seconds(compiled(), given).step == 3.0
    found = seconds(compiled(mode="async"), given)
    assert found.step == 4.0  # an update for each of two trainers
    assert (found.machine, found.part) == ("pserver_0", "processor")
    assert seconds(compiled(mode="half-async"), given).step == 4.0
    assert seconds(compiled(mode="fleet-sync"), given).step == 3.0
    alone = seconds(compiled(mode="async", trainers=1), profile(step=3.0, update=2.0))
    assert alone.step == 5.0  # the answer comes after the update, which servers make as gradients come


def test_geo_exchanges_once_in_so_many_steps():
    job = compiled(mode="geo", geo_sgd_need_push_nums=10)
    assert seconds(job, profile(step=1.0, update=2.0)).machines[1].computing == pytest.approx(2 * 2.0 / 10)
    slow = seconds(job, profile(step=1.0), link="1kB")
    assert slow.step == 1.0  # the communicator exchanges while the trainer goes on
    slower = seconds(job, profile(step=1.0), link="0.1kB")
    assert slower.step == pytest.approx((8 + 8) / 10)  # it waits for the last answer before it sends again


@pytest.mark.parametrize("mode", ["ddp", "grad-allreduce"])
def test_without_servers_gradients_are_summed(mode: str):
    job = compiled(pservers=(), mode=mode)
    found = seconds(job, profile(step=1.0), link="1kB")
    (machine,) = found.machines
    assert machine.link == pytest.approx(ps.cost(job).machines[0].moved / 2 / 1000)
    assert found.step == pytest.approx(1.0 + machine.link)


def test_machines_of_one_host_share_its_processors():
    job, given = compiled(trainers=4), profile(step=1.0, update=0.5)
    assert seconds(job, given).step == 1.5
    found = seconds(job, given, processors=2)
    assert found.step == pytest.approx(4 * 1.0 / 2 + 0.5)  # the update has one processor
    assert found.verdict.endswith("the bottleneck is the host: its processors (90% of the step)")
    assert seconds(job, given, processors=16).step == 1.5


JOBS = {
    mode: compiled(sparse() if mode in ("sync", "async") else dense(), mode=mode, **more)
    for mode, more in {"sync": {}, "async": {}, "half-async": {}, "geo": {}, "ddp": {"pservers": ()}}.items()
}


@pytest.mark.parametrize("mode", [*JOBS])
@given(rate=st.floats(1e3, 1e12), slower=st.floats(1.0, 1e3), latency=st.floats(0.0, 1.0))
def test_a_slower_link_is_never_faster(mode: str, rate: float, slower: float, latency: float):
    work, plan = ps.cost(JOBS[mode]).work, JOBS[mode].plan
    assert work is not None
    link = parse_link("1GB")._replace(bytes_per_second=rate, latency=latency)
    steps = [
        job_seconds(plan, work, 16, Profiles(REAL, REAL), each).step
        for each in (link, link._replace(bytes_per_second=rate / slower), link._replace(latency=latency + 1.0))
    ]
    assert steps[0] <= steps[1]
    assert steps[0] <= steps[2]


@pytest.mark.parametrize("mode", [*JOBS])
def test_twice_the_seconds_of_everything_are_twice_the_step(mode: str):
    rates = {family: Rate(*(2 * each for each in rate)) for family, rate in REAL.families.items()}
    wire = Wire(*(2 * each for each in REAL.wire))._replace(bytes_per_second=REAL.wire.bytes_per_second / 2)
    twice = REAL._replace(families=FrozenMap(rates), wire=wire, step=2e-4, update=1e-4, ask=2e-8, lookup=2e-8)
    assert seconds(JOBS[mode], twice).step == pytest.approx(2 * seconds(JOBS[mode], REAL).step)


@pytest.mark.parametrize("mode", [*JOBS])
def test_more_rows_never_take_less(mode: str):
    job = JOBS[mode].job
    assert job is not None
    more = ps.compile(JOBS[mode].source, replace(job, batch_rows=64))
    assert seconds(more, REAL).step >= seconds(JOBS[mode], REAL).step


# Profiles and links as texts.


def test_a_profile_is_read_as_it_was_written(tmp_path: Path):
    (tmp_path / "host.json").write_text(profile_text(REAL))
    assert read_profile(str(tmp_path / "host.json")) == REAL
    assert read_profiles(str(tmp_path / "host.json")) == Profiles(REAL, REAL)
    assert repr(REAL) == "<Profile: 4 processors, numpy>"
    (tmp_path / "slow.json").write_text(profile_text(REAL._replace(step=1.0)))
    two = read_profiles(f"trainers={tmp_path / 'host.json'},servers={tmp_path / 'slow.json'}")
    assert (two.trainers.step, two.servers.step) == (1e-4, 1.0)


def _changed(**fields: Any) -> str:
    return json.dumps({**json.loads(profile_text(REAL)), **fields})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "it holds no profile; `pstranspile calibrate` writes one"),
        ("{", "expected"),
        (_changed(version=2), "its version is 2; 1 is read"),
        (_changed(processors=0), "`processors` must be a whole number above 0"),
        (_changed(measured=3), "`measured` must be an object of texts"),
        (_changed(step=-1), "`step` must be a number of at least 0"),
        (_changed(step="fast"), "`step` must be a number of at least 0"),
        (_changed(wire={}), "`wire.message` must be a number of at least 0"),
        (
            _changed(wire={**REAL.wire._asdict(), "bytes_per_second": 0}),
            "`wire.bytes_per_second` must be a number above 0",
        ),
        (_changed(families=[]), "families are missing: products, convolutions, recurrent"),
        (_changed(families=[{"family": "messages"}]), '"messages" is no family of ops'),
        (_changed(families={}), "`families` must be a list"),
    ],
)
def test_files_that_are_no_profile(text: str, said: str, tmp_path: Path):
    (tmp_path / "host.json").write_text(text)
    with pytest.raises(ps.DiagnosticError) as raised:
        read_profile(str(tmp_path / "host.json"))
    (found,) = raised.value.diagnostics
    assert found.code == "cost-profile"
    assert said in found.message


def test_a_file_that_is_not_there():
    with pytest.raises(ps.DiagnosticError, match="input-unreadable"):
        read_profile("nowhere.json")


@pytest.mark.parametrize(
    ("text", "rate", "latency", "tls"),
    [
        ("1Gb", 125e6, 0.5, False),
        ("1Gb,200us", 125e6, 200e-6, False),
        ("2.5MB,3ms", 2.5e6, 3e-3, False),
        ("8kb,1s", 1e3, 1.0, False),
        ("1TB,0us", 1e12, 0.0, False),
        ("1Gb,tls", 125e6, 0.5, True),
        ("1Gb,200us,tls", 125e6, 200e-6, True),
    ],
)
def test_links(text: str, rate: float, latency: float, tls: bool):
    found = parse_link(text, 0.5)
    assert found[:2] == pytest.approx((rate, latency))
    assert found.tls is tls


def test_frames_and_bytes_cost_more_under_tls():
    """Two frames come and go at either end, with the gradients and the parameters."""
    profile_of = REAL._replace(wire=REAL.wire._replace(tls_frame=1e-5, tls_byte=1e-9))
    job = compiled()
    plain, guarded = (seconds(job, profile_of, link=link).machines[0] for link in ("1Gb,0us", "1Gb,0us,tls"))
    work = ps.cost(job).work
    assert work is not None
    (flow,) = work.flows
    assert guarded.processor - plain.processor == pytest.approx(flow.frames * 1e-5 + flow.bytes * 1e-9)


def test_a_profile_without_tls_knows_no_job_with_it():
    with pytest.raises(ps.DiagnosticError, match="a profile does not say what TLS costs") as raised:
        seconds(compiled(), REAL, link="1Gb,0us,tls")
    assert raised.value.diagnostics[0].code == "cost-profile"


@pytest.mark.parametrize(
    "text", ["", "1", "1G", "Gb", "-1Gb", "0Gb", "1Gb,", "1Gb,2", "1gb", "1Gb,2us,3", "1e9B", "tls", "1Gb,tls,2us"]
)
def test_texts_that_are_no_link(text: str):
    with pytest.raises(ValueError, match="is no link, such as 1Gb,200us"):
        parse_link(text)


@pytest.mark.parametrize("text", ["trainers=a", "servers=a,servers=b", "trainers=a,pservers=b", "trainers=,servers=b"])
def test_texts_that_are_no_profiles(text: str):
    with pytest.raises(ValueError, match="name a file, or trainers=FILE,servers=FILE"):
        read_profiles(text)


def test_seconds_have_three_digits():
    assert [format_seconds(each) for each in (0.0, 1.2345e-5, 0.0123456, 0.5, 12.34, 1234.5)] == [
        *("0 us", "12.3 us", "12.3 ms", "500 ms", "12.3 s", "1,234 s"),
    ]


def test_a_link_needs_a_profile():
    for more in ({"link": "1Gb"}, {"processors": 2}):
        with pytest.raises(ValueError, match="needs a profile"):
            ps.cost(compiled(), **more)
    with pytest.raises(ValueError, match="a number of processors"):
        ps.cost(compiled(), profile=REAL, processors=0)


# Commands.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.ir").write_text(ps.dumps(dense()))
    (tmp_path / "host.json").write_text(profile_text(REAL))
    return tmp_path


PLAN = ["plan", "net.ir", "--pservers", "1", "--trainers", "2", "--profile", "host.json"]


def test_the_command_tells_the_bottleneck_first(folder: Path, capfd: pytest.CaptureFixture[str]):
    assert main([*PLAN, "--cost", "--link", "1Gb,200us"]) == 0
    first, *_, last = capfd.readouterr().out.splitlines()
    assert first.startswith("a step takes ")
    assert last.startswith("pserver_0 ")
    assert main([*PLAN, "--cost", "--json", "--on-one-host", "1"]) == 0
    told = json.loads(capfd.readouterr().out)["seconds"]
    assert (told["part"], len(told["machines"])) == ("processors", 2)
    assert main([*PLAN[:2], "--sweep", "pservers=1..2", "--profile", "host.json", "--link", "1Mb"]) == 0
    table = capfd.readouterr().out
    assert "machine-seconds for 1,000,000 rows" in table
    assert "link" in table
    assert main([*PLAN[:2], "--sweep", "trainers=1,2", "pservers=1", "--profile", "host.json", "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)["rows"]
    assert all(row["seconds"]["step"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--profile", "host.json"], "--profile needs --cost or --sweep"),
        (["--cost", "--link", "1Gb"], "--link needs --profile"),
        (["--cost", "--on-one-host", "2"], "--on-one-host needs --profile"),
        (["--cost", "--profile", "host.json", "--link", "fast"], "'fast' is no link"),
        (["--cost", "--profile", "trainers=host.json"], "name a file, or trainers=FILE,servers=FILE"),
        (["--cost", "--profile", "host.json", "--on-one-host", "0"], "0"),
    ],
)
def test_wrong_usage(words: list[str], said: str, folder: Path, capfd: pytest.CaptureFixture[str]):
    assert main(["plan", "net.ir", "--pservers", "1", *words]) == 2
    assert said in capfd.readouterr().err


def test_a_profile_that_is_none_is_a_finding(folder: Path, capfd: pytest.CaptureFixture[str]):
    assert main(["plan", "net.ir", "--pservers", "1", "--cost", "--profile", "net.ir"]) == 1
    assert "error[cost-profile]" in capfd.readouterr().err


def test_a_machine_is_scheduled_some_time_after_a_frame_has_come():
    """Once on either side, for each exchange that is waited for."""
    late = REAL._replace(delay=1e-3)
    assert seconds(compiled(), late).step - seconds(compiled(), REAL).step == pytest.approx(2e-3)
    servers = Profiles(REAL, REAL._replace(delay=4e-3))
    assert seconds(compiled(), servers).step - seconds(compiled(), REAL).step == pytest.approx(4e-3)


def test_turns_that_share_processors_are_longer():
    """With a processor for each machine, none is."""
    shared = REAL._replace(sharing=1.5)
    for processors, is_longer in ((1, True), (3, False), (None, False)):
        steps = [seconds(compiled(), of, processors=processors).step for of in (REAL, shared)]
        assert (steps[1] > steps[0]) is is_longer
        assert steps[1] <= 1.5 * steps[0] + 1e-9
