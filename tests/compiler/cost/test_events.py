"""A step in virtual time: hand-made sums, what has to hold for every job, and what slow machines cost."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pstranspile as ps
from pstranspile import layers as L
from pstranspile.autodiff import SGD, Adam, minimize
from pstranspile.compiler.compile import prepare
from pstranspile.compiler.cost.events import (
    GRADIENTS,
    ROWS,
    SUMS,
    TICKS,
    Cycle,
    Group,
    MessageLoad,
    Stage,
    simulate,
    waits_of,
    waking_of,
)
from pstranspile.compiler.cost.profile import LONG_SLEEP, SHORT_SLEEP, Profiles, parse_link, parse_slow, profile_text
from pstranspile.compiler.cost.seconds import JobSeconds, job_seconds
from pstranspile.tools.cli import main
from tests.compiler.cost.test_seconds import REAL, compiled, dense, profile, seconds, sparse

TRAINER, SERVER = Group("trainer_0"), Group("pserver_0")


def trace(stages: Sequence[Stage], trainers: Sequence[Group], servers: Sequence[Group], **more: Any) -> Any:
    given = {"bytes_per_second": 100.0, "latency": 0.0, **more}
    barrier = given.pop("barrier", True)
    return simulate(Cycle(stages, barrier, given.pop("background", False)), trainers, servers, **given)


def period(*arguments: Any, **more: Any) -> float:
    return trace(*arguments, **more).period / TICKS


def step_of(update: float = 4.0, size: float = 0.0, servers: int = 1) -> list[Stage]:
    """Ops of 10 s, then a frame that takes 2 s to write and 3 s to take, an update, and an answer of 1 s and 5 s."""
    sent, answer = MessageLoad(2.0, 3.0, size), MessageLoad(1.0, 5.0, size)
    return [Stage([("mul", 10.0)], GRADIENTS, [sent] * servers, [update] * servers, [answer] * servers)]


def test_one_trainer_and_one_server_take_turns():
    assert period(step_of(), [TRAINER], [SERVER]) == 10 + 2 + 3 + 4 + 1 + 5
    assert period(step_of(), [TRAINER], [SERVER], latency=0.5) == 25 + 2 * 0.5
    assert period(step_of(size=200.0), [TRAINER], [SERVER]) == 25 + 2 * 2.0
    assert period(step_of(), [TRAINER._replace(slow=2.0)], [SERVER]) == 25 + 10 + 2 + 5
    assert period(step_of(), [TRAINER], [SERVER._replace(slow=3.0)]) == 25 + 2 * (3 + 4 + 1)
    slow_link = TRAINER._replace(slow_link=2.0)
    assert period(step_of(size=200.0), [slow_link], [SERVER]) == 25 + 2 * 4.0
    assert period(step_of(size=200.0), [TRAINER], [SERVER._replace(slow_link=4.0)]) == 25 + 2 * 8.0


def test_a_server_takes_frames_of_two_trainers_and_answers_one_after_the_other():
    """The first trainer has its answer 1 s after the update, and its gradients are taken before those of the other."""
    two = [TRAINER, Group("trainer_1")]
    assert period(step_of(), two, [SERVER]) == 1 + 5 + 10 + 2 + (3 + 3) + 4
    assert period(step_of(), [TRAINER, two[1]._replace(slow=2.0)], [SERVER]) == 20 + 4 + 3 + 4 + 2 * 1 + 10
    without = trace(step_of(), two, [SERVER])
    causes = [(each.machine, each.cause) for each in waits_of(without)]
    assert ("trainer_0", "parameters of pserver_0") in causes
    assert ("pserver_0", "gradients of trainer_0") in causes


def test_a_machine_that_slept_wakes_first():
    """The trainer sleeps while the server works, and the server while the trainer does."""
    assert period(step_of(), [TRAINER], [SERVER], wakes=(0.25, 0.5)) == 25 + 0.25 + 0.5
    assert period(step_of(), [TRAINER._replace(slow=2.0)], [SERVER], wakes=(1.0, 0.0)) == 25 + 10 + 2 + 5 + 2 * 1.0


def test_a_machine_that_slept_for_long_needs_more():
    """All of it after seconds; half of it after half of a long sleep."""
    assert period(step_of(), [TRAINER], [SERVER], wakes=(0.25, 0.5), long_wakes=(1.25, 2.5)) == 25 + 1.25 + 2.5
    assert period(step_of(), [TRAINER], [SERVER], wakes=(0.25, 0.5), long_wakes=(0.0, 2.5)) == 25 + 0.25 + 2.5
    half = (SHORT_SLEEP + LONG_SLEEP) / 2
    work = [Stage([("mul", half)], GRADIENTS, [MessageLoad(0.0, 0.0, 0.0)], [0.0], [MessageLoad(0.0, 0.0, 0.0)])]
    found = trace(work, [TRAINER], [SERVER], long_wakes=(0.0, 1e-3))
    assert waking_of(found)["pserver_0"] == pytest.approx(5e-4, rel=1e-3)


def test_a_machine_that_is_busy_when_a_message_comes_is_awake():
    """The frame of the second trainer comes while the server takes that of the first."""
    two = [TRAINER, Group("trainer_1")]
    found = trace(step_of(), two, [SERVER], wakes=(0.0, 0.5))
    begin = found.marks[-2][0]
    woken = [part.ticks for turn in found.turns if turn.end > begin for part in turn.parts if part.what == "waking"]
    assert woken == [0.5 * TICKS]


def step_of_large(writing: float, reading: float, size: float = 1e9) -> list[Stage]:
    """A frame of 2 s to write and 3 s to take, of which its bytes have some, and an answer without bytes."""
    sent, answer = MessageLoad(2.0, 3.0, size, writing, reading), MessageLoad(1.0, 5.0, 0.0)
    return [Stage([("mul", 10.0)], GRADIENTS, [sent], [4.0], [answer])]


def test_large_frames_are_read_while_they_are_written():
    fast = {"bytes_per_second": 1e12}
    link = 1e9 / 1e12
    whole = period(step_of_large(0.0, 0.0), [TRAINER], [SERVER], **fast)
    assert whole == 25 + link
    assert period(step_of_large(1.0, 1.0), [TRAINER], [SERVER], **fast) == 25 - 1.0
    assert period(step_of_large(1.0, 0.25), [TRAINER], [SERVER], **fast) == 25 - 0.25
    assert period(step_of_large(0.25, 1.0), [TRAINER], [SERVER], **fast) == 25 - 0.25
    assert period(step_of_large(1.0, 1.0), [TRAINER], [SERVER], bytes_per_second=1e8) == 25 - 1.0 + (10.0 - 1.0)
    small = step_of_large(1.0, 1.0, size=1000.0)
    assert period(small, [TRAINER], [SERVER], **fast) == 25 + 1000.0 / 1e12


def test_without_a_barrier_an_answer_comes_after_the_update_of_one_trainer():
    assert period(step_of(), [TRAINER], [SERVER], barrier=False) == 25


def test_in_the_background_the_exchange_takes_no_time_while_it_is_shorter_than_the_ops():
    alone = {"barrier": False, "background": True}
    assert period(step_of(), [TRAINER], [SERVER], **alone) == 10 + 2 + 5
    assert period(step_of(update=40.0), [TRAINER], [SERVER], **alone) == 2 + 3 + 40 + 1 + 5


def test_sums_go_to_all_others_twice():
    parts = [MessageLoad(1.0, 2.0, 0.0)]
    stages = [Stage([("mul", 10.0)], SUMS, parts), Stage((), SUMS, parts)]
    three = [Group("trainer_0 to 2", 3)]
    assert period(stages, three, []) == 10 + 2 * (2 * 1.0 + 2 * 2.0)


def test_machines_of_a_host_share_its_processors():
    stages = [Stage([("mul", 10.0)], SUMS, [MessageLoad(0.0, 0.0, 0.0)])]
    four = [Group("trainer_0 to 3", 4)]
    assert period(stages, four, [], processors=4) == 10
    assert period(stages, four, [], processors=2) == 20
    shared = trace(stages, four, [], processors=1)
    assert shared.period == 40 * TICKS
    assert [(each.cause, each.seconds) for each in waits_of(shared)] == [("a processor of the host", 30.0)]


times = st.floats(0.0, 5.0)
frames = st.builds(MessageLoad, times, times, st.floats(0.0, 300.0))
sizes = st.integers(1, 4)


@given(frames, frames, frames, frames, times, times, sizes, sizes, st.floats(0.0, 2.0))
@settings(max_examples=60, deadline=None)
def test_equal_servers_as_a_group_are_what_they_are_one_by_one(
    ids: MessageLoad,
    rows: MessageLoad,
    sent: MessageLoad,
    answer: MessageLoad,
    looked_up: float,
    update: float,
    many: int,
    trainers: int,
    lag: float,
):
    def stages(groups: int) -> list[Stage]:
        asked = Stage([("a", 1.0)], ROWS, [ids] * groups, [looked_up] * groups, [rows] * groups)
        return [asked, Stage([("b", 2.0)], GRADIENTS, [sent] * groups, [update] * groups, [answer] * groups)]

    all_of = [Group(f"trainer_{number}") for number in range(trainers)]
    together = trace(stages(1), all_of, [Group("pserver", many)], latency=lag)
    apart = trace(stages(many), all_of, [Group(f"pserver_{number}") for number in range(many)], latency=lag)
    assert together.period == apart.period


@given(frames, times, st.integers(1, 6), st.integers(0, 3), st.floats(1.0, 4.0))
@settings(max_examples=60, deadline=None)
def test_equal_trainers_without_servers_as_a_group_are_what_they_are_one_by_one(
    part: MessageLoad, ops: float, many: int, slow: int, factor: float
):
    stages = [
        [Stage([("a", ops)], SUMS, [part] * groups), Stage((), SUMS, [part] * groups)]
        for groups in range(many + slow + 1)
    ]
    slowed = [Group("slow", slow, factor)] if slow else []
    together = trace(stages[1 + bool(slow)], [Group("trainer", many), *slowed], [])
    singles = [Group(f"trainer_{number}", 1, factor if number >= many else 1.0) for number in range(many + slow)]
    assert together.period == trace(stages[many + slow], singles, []).period


def test_the_critical_path_is_without_gaps_and_as_long_as_the_step():
    job = compiled(sparse(), trainers=3, pservers=2, min_block_size=1)
    for more in ({}, {"slow": {"trainer_1": 3.0}}, {"processors": 2}):
        found = seconds(job, REAL, link="1Gb,200us", **more)
        ends = 0.0
        for span in found.path:
            assert span.start == pytest.approx(ends, abs=1e-12)
            ends = span.start + span.seconds
        assert ends == pytest.approx(found.step)
        assert {span.what for span in found.path} >= {"ops", "sending", "receiving", "link", "latency"}


JOBS = {
    mode: compiled(
        sparse() if mode in ("sync", "async") else dense(),
        mode=mode,
        trainers=3,
        **({} if servers else {"pservers": ()}),
    )
    for mode, servers in {
        "sync": 1,
        "async": 1,
        "half-async": 1,
        "fleet-sync": 1,
        "geo": 1,
        "ddp": 0,
        "local-sgd": 0,
    }.items()
}


def found_of(mode: str, slow: dict[str, float] | None = None, rate: float = 1e8, lag: float = 1e-4) -> JobSeconds:
    cost = ps.cost(JOBS[mode])
    assert cost.work is not None
    link = parse_link("1GB")._replace(bytes_per_second=rate, latency=lag)
    return job_seconds(cost.plan, cost.work, cost.batch_rows, Profiles(REAL, REAL), link, None, slow or {})


@pytest.mark.parametrize("mode", [*JOBS])
def test_a_step_is_as_long_as_each_machine_is_busy_at_least(mode: str):
    for slow in ({}, {"trainer_0": 5.0}, {"trainer_2:link": 30.0}):
        found = found_of(mode, slow)
        assert all(max(each.processor, each.link) <= each.step * (1 + 1e-9) for each in found.machines)
        assert all(-1e-9 <= each.waits <= each.step for each in found.machines)
        assert found.share <= 1 + 1e-9


@pytest.mark.parametrize("mode", ["sync", "fleet-sync"])
def test_machines_are_busy_in_virtual_time_for_as_long_as_the_sums_say(mode: str):
    found = found_of(mode)
    for each in found.machines:
        name = "trainer_0" if each.alike > 1 else each.machine
        spans = [span for span in found.spans if span.machine == name]
        for what, told in (("sending", each.sending), ("receiving", each.receiving), ("waking", each.waking)):
            assert sum(span.seconds for span in spans if span.what == what) == pytest.approx(told, rel=1e-6)
        others = sum(span.seconds for span in spans if span.what not in ("sending", "receiving", "waking"))
        assert others == pytest.approx(each.computing, rel=1e-6)


@pytest.mark.parametrize("mode", [*JOBS])
def test_the_same_job_takes_the_same_time_in_the_same_way(mode: str):
    assert found_of(mode, {"trainer_1": 2.0}) == found_of(mode, {"trainer_1": 2.0})


@pytest.mark.parametrize("mode", ["sync", "fleet-sync", "ddp", "local-sgd"])
@given(
    st.sampled_from(["trainer_0", "trainer_1", "trainer_2", "pserver_0", "trainer_1:link", "pserver_0:link"]),
    st.floats(1.0, 20.0),
    st.floats(1e5, 1e10),
    st.floats(0.0, 1e-2),
)
@settings(max_examples=40, deadline=None)
def test_a_slower_machine_never_makes_a_step_faster(mode: str, machine: str, factor: float, rate: float, lag: float):
    if machine.startswith("pserver") and not JOBS[mode].plan.pservers:
        machine = "trainer_0"
    assert found_of(mode, {machine: factor}, rate, lag).step >= found_of(mode, None, rate, lag).step * (1 - 1e-9)


# Scenarios.


def test_a_slow_trainer_costs_all_of_them_where_servers_wait_and_only_itself_where_they_do_not():
    given = profile(step=1.0)
    slow = {"trainer_1": 3.0}
    assert seconds(compiled(), given, slow=slow).step == 3.0
    alone = seconds(compiled(mode="async"), given, slow=slow)
    assert [(each.machine, each.step) for each in alone.machines[:2]] == [("trainer_0", 1.0), ("trainer_1", 3.0)]
    assert alone.rows_per_second == pytest.approx(16 * (1 + 1 / 3))
    assert alone.step == pytest.approx(2 / (1 + 1 / 3))
    said = "trainer_1 3 times as slow: a step takes 1.50 times as long, 1.5 s in place of 1 s"
    assert alone.cost_of_slow == said
    assert seconds(compiled(), given).cost_of_slow == ""


def test_a_slow_server_costs_in_every_mode_with_a_barrier():
    given = profile(step=1.0, update=1.0)
    assert seconds(compiled(), given, slow={"pserver_0": 4.0}).step == 5.0
    assert seconds(compiled(mode="async"), given, slow={"pserver_0": 4.0}).step == 8.0  # an update for each trainer


def test_trainers_that_do_not_wait_share_a_busy_server():
    """Of two trainers one comes once in 30 s; the server, busy for 4 s with each, has the rest for the other one."""
    given = profile(step=1.0, update=4.0)
    found = seconds(compiled(mode="async", trainers=3), given, slow={"trainer_2": 26.0})
    fast, slow = found.machines[:2]
    assert (fast.machine, slow.machine, slow.step) == ("trainer_0 to 1", "trainer_2", 30.0)
    assert fast.step == pytest.approx(2 * 4.0 / (1 - 4.0 / 30.0))
    assert fast.cause == "machines and links that others use"


def test_slow_machines_have_rows_of_their_own():
    found = seconds(compiled(trainers=6), REAL, slow={"trainer_2": 2.0, "trainer_4": 2.0, "trainer_5:link": 3.0})
    assert [(each.machine, each.alike) for each in found.machines] == [
        ("trainer_0 to 1, 3", 3),
        ("trainer_2, 4", 2),
        ("trainer_5", 1),
        ("pserver_0", 1),
    ]


@pytest.mark.parametrize("text", ["", "trainer_0", "trainer_0=2", "trainer=2x", "host_0=2x", "trainer_0=-1x"])
def test_texts_that_name_no_slow_machine(text: str):
    with pytest.raises(ValueError, match="is no slow machine, such as trainer_3=2x"):
        parse_slow([text])


def test_slow_machines_as_texts():
    assert parse_slow(["trainer_3=2x", "pserver_0:link=1.5x"]) == {"trainer_3": 2.0, "pserver_0:link": 1.5}
    with pytest.raises(ValueError, match="trainer_3 is given twice"):
        parse_slow(["trainer_3=2x", "trainer_3=3x"])
    with pytest.raises(ValueError, match="can't be 0 times as slow"):
        parse_slow(["trainer_3=0x"])


@pytest.mark.parametrize("name", ["trainer_2", "pserver_1", "trainer_0:wire", "trainer_²", "x", "trainer_"])
def test_a_slow_machine_that_the_job_does_not_have(name: str):
    with pytest.raises(ValueError, match="the job has trainer_0 to 1 and pserver_0"):
        ps.cost(compiled(), profile=REAL, slow={name: 2.0})


def test_slow_machines_are_named():
    slow: Any = {3: 2.0}
    with pytest.raises(TypeError, match="the name of a slow machine"):
        ps.cost(compiled(), profile=REAL, slow=slow)


def test_slow_needs_a_profile():
    with pytest.raises(ValueError, match="slow needs a profile"):
        ps.cost(compiled(), slow={"trainer_0": 2.0})


# Machines that crash.


def test_what_the_crash_of_a_server_costs():
    """Half of the updates between two states are done again: each takes the server 3 s."""
    given = profile(update=3.0)
    found = ps.cost(compiled(), profile=given, crash="pserver_0,restart=7s,state_every=4").seconds
    assert found is not None
    assert found.crash is not None
    crash = found.crash
    assert (crash.known, crash.runs, crash.steps, crash.repeated) == (0.0, 7.0, 2.0, 6.0)
    assert crash.seconds == pytest.approx(13.0)
    assert (
        "if pserver_0 crashes, trainers wait until it is back: 7 s until it runs again, 6 s for 2 steps again"
        in str(ps.cost(compiled(), profile=given, crash="pserver_0,restart=7s,state_every=4"))
    )
    alone = ps.cost(compiled(mode="async"), profile=given, crash="pserver_0,state_every=4").seconds
    assert alone is not None
    assert alone.crash is not None
    assert alone.crash.repeated == 6.0  # an update of each trainer


def test_what_the_crash_of_a_trainer_costs():
    for mode, known in (("sync", 12.0), ("async", 0.0)):
        found = ps.cost(compiled(mode=mode), profile=REAL, crash="trainer_1,lease=12s").seconds
        assert found is not None
        assert found.crash is not None
        assert (found.crash.known, found.crash.seconds) == (known, known)


def test_what_a_crash_costs_without_servers():
    made = ps.compile(compiled().source, ps.Job(mode="ddp", trainers=2))
    found = ps.cost(made, profile=profile(step=2.0), crash="trainer_1,restart=1s,checkpoint_every=10").seconds
    assert found is not None
    assert found.crash is not None
    assert (found.crash.runs, found.crash.steps, found.crash.repeated) == (1.0, 5.0, 5 * found.step)
    found = ps.cost(made, profile=profile(step=2.0), crash="trainer_1").seconds
    assert found is not None
    assert found.crash is not None
    assert found.crash.steps is None
    assert "all steps from the first one again" in str(found.crash)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no crash, such as pserver_0"),
        ("host_1", "is no crash"),
        ("pserver_0,", "is no crash"),
        ("pserver_0,lease=x", "is no crash"),
        ("pserver_0,patience=3", "patience is unknown; a crash has restart, lease, state_every, checkpoint_every"),
        ("pserver_0,lease=3,lease=4", "lease is given twice"),
        ("pserver_0,state_every=0", "state_every is a whole number above 0"),
        ("pserver_0,checkpoint_every=1.5", "checkpoint_every is a whole number"),
        ("trainer_2", "the job has trainer_0 to 1 and pserver_0"),
    ],
)
def test_texts_that_are_no_crash(text: str, said: str):
    with pytest.raises(ValueError, match=said):
        ps.cost(compiled(), profile=REAL, crash=text)
    with pytest.raises(ValueError, match="crash needs a profile"):
        ps.cost(compiled(), crash=text)


# Many machines.


def test_of_equal_servers_one_is_counted():
    model = L.Draft(seed=1)
    rows = L.embedding(L.data(model, "id", [-1, 1], "int64"), [4000, 8], is_sparse=True)
    minimize(L.mean(rows), SGD(0.1))
    job = prepare(model.module(), ps.Job(pservers=40, trainers=300, batch_rows=16, min_block_size=1))
    found = ps.cost(job, profile=REAL, link="1Gb,200us")
    assert found.seconds is not None
    assert len([each for each in found.machines if each.machine.startswith("pserver")]) == 40
    assert sum(name.startswith("pserver") for name in job._role_cache) == 1
    assert found.seconds.step >= found.seconds.machines[-1].processor


def layered() -> ps.Module:
    """A table, and layers of several sizes."""
    model = L.Draft(seed=1)
    rows = L.embedding(L.data(model, "id", [-1, 1], "int64"), (30, 8), is_sparse=True)
    hidden = rows
    for width in (7, 30, 8, 60, 20):
        hidden = L.fc(hidden, width, act="relu")
    minimize(L.mean(hidden), Adam(0.1))
    return model.module()


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"min_block_size": 8},
        {"mode": "async", "enable_dc_asgd": True},
        {"mode": "geo", "min_block_size": 8},
        {"large_tables": ["embedding_0.w_0"], "min_block_size": 8},
        {"split_method": "cost", "min_block_size": 8},
    ],
)
def test_servers_counted_together_are_as_each_alone(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    made = prepare(layered(), ps.Job(**{"pservers": 7, "trainers": 2, "batch_rows": 8, **more}))
    together = ps.cost(made)
    monkeypatch.setattr("pstranspile.compiler.cost.jobs._Holds.like", lambda self, endpoint: endpoint)
    assert ps.cost(made) == together


# Commands.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.ir").write_text(ps.dumps(dense()))
    (tmp_path / "host.json").write_text(profile_text(REAL))
    return tmp_path


COST = ["plan", "net.ir", "--pservers", "1", "--trainers", "2", "--cost", "--profile", "host.json"]


def test_the_command_says_what_a_slow_machine_costs(folder: Path, capfd: pytest.CaptureFixture[str]):
    assert main([*COST, "--slow", "trainer_1=3x", "--slow", "pserver_0:link=2x"]) == 0
    verdict, slow, path, *_ = capfd.readouterr().out.splitlines()
    assert verdict.startswith("a step takes ")
    assert slow.startswith("trainer_1 3 times as slow, pserver_0:link 2 times as slow: a step takes ")
    assert path.startswith("one after the other: ")
    assert main([*COST, "--slow", "trainer_1=3x", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)["seconds"]
    assert told["slow"] == {"trainer_1": 3.0}
    assert told["unslowed"] < told["step"] == pytest.approx(sum(each["seconds"] for each in told["path"]))
    assert {each["machine"] for each in told["waits"]} == {"trainer_0", "trainer_1", "pserver_0"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            [*COST, "--slow", "trainer_2=2x"],
            "--slow: there is no machine 'trainer_2'; the job has trainer_0 to 1 and pserver_0",
        ),
        ([*COST, "--slow", "trainer_1"], "'trainer_1' is no slow machine, such as trainer_3=2x"),
        ([*COST[:-2], "--slow", "trainer_1=2x"], "--slow needs --profile"),
        ([*COST[:6], "--profile", "host.json", "--slow", "trainer_1=2x"], "--slow needs --cost"),
        ([*COST, "--against", "out"], "--against compares what plans move and store"),
        (["run", "net.ir", "--pservers", "1", "--link", "1Gb"], "--link needs --time"),
        (["run", "net.ir", "--pservers", "1", "--time", ""], "--time"),
        (["run", "net.ir", "--pservers", "1", "--time", "host.json", "--link", "fast"], "'fast' is no link"),
        (["run", "net.ir", "--pservers", "1", "--time", "host.json", "--slow", "trainer_9=2x"], "there is no machine"),
        (["report", "net.ir", "--pservers", "1", "--slow", "trainer_0=2x", "-o", "x.html"], "--slow needs --profile"),
    ],
)
def test_wrong_usage(words: list[str], said: str, folder: Path, capfd: pytest.CaptureFixture[str]):
    assert main(words) == 2
    assert said in capfd.readouterr().err


def test_a_run_tells_how_long_it_takes_on_other_machines(folder: Path, capfd: pytest.CaptureFixture[str]):
    import numpy as np

    np.savez("feed.npz", x=np.ones((3, 4, 10), "float32"))
    run = ["run", "net.ir", "--pservers", "1", "--trainers", "2", "--set", "batch_rows=2", "--feed", "feed.npz"]
    assert main([*run, "--time", "host.json", "--link", "1Gb,200us", "--slow", "trainer_1=2x"]) == 0
    told = [line for line in capfd.readouterr().err.splitlines() if line]
    assert told[0].startswith("3 steps with 2 rows a batch of a trainer: ")
    assert told[0].endswith(" on machines with this profile")
    assert told[1].startswith("a step takes ")
    assert told[2].startswith("trainer_1 2 times as slow: ")
    assert main(["run", "net.ir", "--time", "host.json"]) == 1
    assert "--time is for a cluster" in capfd.readouterr().err


def test_a_page_has_the_step_as_a_time_line(folder: Path, capfd: pytest.CaptureFixture[str]):
    page = ["report", "net.ir", "--pservers", "1", "--trainers", "2", "-o"]
    time = ["--profile", "host.json", "--link", "1Gb,200us"]
    for name in ("a.html", "b.html"):
        assert main([*page, name, *time]) == 0
    text = Path("a.html").read_bytes()
    assert text == Path("b.html").read_bytes()
    assert main([*page, "c.html"]) == 0
    capfd.readouterr()
    (first, with_time), (_, without) = (
        (each.partition(b'id="data">')[0], json.loads(each.partition(b'id="data">')[2].partition(b"</script>")[0]))
        for each in (text, Path("c.html").read_bytes())
    )
    assert first
    assert without["step"] is None
    step = with_time["step"]
    assert step["machines"] == ["trainer_0", "trainer_1", "pserver_0"]
    assert {each[2] for each in step["arrows"]} == {"gradients", "parameters"}
    assert all(0 <= each[3] <= each[3] + each[4] <= step["seconds"] * 1.001 for each in step["spans"])
    assert step["verdict"][0].startswith("a step takes ")
