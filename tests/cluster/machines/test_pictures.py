"""Traces, charts and traffic of runs."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

import pstranspile as ps
from pstranspile.cluster.machines.chart import Arrow, arrows_of, chart_svg, chart_text, rows_of
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.message import END
from pstranspile.cluster.machines.recorder import DELIVER, POST, Event, Recorder, trace_json, traffic_of, traffic_table
from pstranspile.cluster.machines.scenario import parse_scenario
from pstranspile.cluster.machines.simulate import cluster_of
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize
from pstranspile.proof import make_feeds
from pstranspile.tools.cli import main

GOLDEN = str(Path(__file__).parent.parent.parent.parent / "golden" / "linear_regression.ir")


def recorded(
    mode: str = "sync", steps: int = 2, schedule: int | None = None, faults: str = ""
) -> tuple[Cluster, Recorder]:
    draft = L.Draft(seed=3)
    loss = L.mean(L.square_error_cost(L.fc(L.data(draft, "x", [-1, 20]), 1), L.data(draft, "y", [-1, 1])))
    minimize(loss, SGD(0.1))
    module = draft.module()
    collective = mode == "grad-allreduce"
    job = ps.Job(trainers=["a:1", "b:1"], mode=mode) if collective else ps.Job(pservers=2, trainers=2, mode=mode)
    scenario = parse_scenario(faults) if faults else None
    cluster = cluster_of(ps.compile(module, job), schedule=schedule, faults=scenario)
    cluster.feed(make_feeds(module.main, steps, 4))
    recorder = Recorder(cluster)
    cluster.run_to(steps)
    cluster.finish()
    return cluster, recorder


def of(events: Sequence[Event], what: str, kind: str) -> list[Event]:
    return [event for event in events if event.occurrence == what and event.kind == kind]


def test_every_message_is_posted_and_taken():
    _, recorder = recorded()
    posted = [event.message for event in recorder.events if event.occurrence == POST]
    taken = [event.message for event in recorder.events if event.occurrence == DELIVER]
    assert len(set(posted)) == len(posted)
    assert sorted(posted) == sorted(taken)
    sends = of(recorder.events, POST, "send")
    assert len(sends) == 2 * 2 * 2  # trainers, steps, parameters
    assert {event.bytes for event in sends if event.variable.startswith("fc_0.w_0")} == {20 * 4}


def test_recording_changes_nothing():
    cluster, _ = recorded(schedule=5)
    again, _ = recorded(schedule=5)
    assert [r.events for r in (recorded(schedule=5)[1],)] == [recorded(schedule=5)[1].events]
    names = cluster.parameters()
    assert all((again.parameters()[name] == value).all() for name, value in names.items())


def test_a_trace_has_a_slice_and_an_arrow_for_every_message():
    _, recorder = recorded()
    found = json.loads(trace_json(recorder))["traceEvents"]
    count = sum(event.occurrence == POST for event in recorder.events)
    by_phase = {phase: [item for item in found if item["ph"] == phase] for phase in "XsfM"}
    assert len(by_phase["s"]) == len(by_phase["f"]) == count
    assert {item["id"] for item in by_phase["s"]} == {item["id"] for item in by_phase["f"]}
    assert len([item for item in by_phase["X"] if item["cat"] != "step"]) == 2 * count
    names = {item["args"]["name"] for item in by_phase["M"] if item["name"] == "thread_name"}
    assert {"trainer_0", "trainer_1", "pserver_0", "pserver_1"} <= names
    steps = [item for item in by_phase["X"] if item["cat"] == "step"]
    assert {item["name"] for item in steps} >= {"start-up", "step 1", "step 2"}
    arrows = {item["id"]: item["ts"] for item in by_phase["s"]}
    assert all(item["ts"] >= arrows[item["id"]] for item in by_phase["f"])


def test_a_chart_in_text_shows_the_chosen_steps():
    _, recorder = recorded()
    chart = chart_text(recorder, 0, 0)
    lines = chart.splitlines()
    assert lines[0].split() == ["trainer_0", "trainer_1", "pserver_0", "pserver_1"]
    assert "step 1" in lines[1]
    assert "step 2" not in chart
    send = next(line for line in lines if "send fc_0.w_0@GRAD.trainer_1, 80 B" in line)
    place = lines[0].index("trainer_1")
    assert send[place] == "|"
    assert ">|" in send
    assert sum("send_barrier" in line for line in lines) == 4
    assert "start-up" in chart_text(recorder, -1, 0)


SVG = "{http://www.w3.org/2000/svg}"


def test_a_chart_as_a_picture_has_an_arrow_for_alike_messages():
    _, recorder = recorded()
    root = ElementTree.fromstring(chart_svg(recorder, 0, 1))
    arrows = [item for item in root.iter(f"{SVG}line") if item.get("marker-end")]
    rows = [row for row in rows_of(recorder, 0, 1) if isinstance(row, Arrow)]
    assert len(arrows) == len(rows)
    assert sum(len(row.names) for row in rows) == sum(
        event.occurrence == DELIVER for event in recorder.events if 0 <= event.step <= 1
    )
    assert len({item.get("y1") for item in arrows}) == len(arrows)  # a row each
    assert all(item.get("y1") == item.get("y2") for item in arrows)
    texts = [item.text for item in root.iter(f"{SVG}text")]
    assert texts[0] == "Messages: step 1 to step 2"
    assert {"gradients and other values sent", "requests for variables", "answers", "barriers"} <= set(texts)
    assert "lookups of rows" not in texts
    assert len({item.get("stroke") for item in arrows}) == 4
    assert texts.count("trainer_0") == 2  # where each step begins


def test_names_lie_between_two_machines_and_above_their_arrows():
    _, recorder = recorded("async", schedule=2)
    root = ElementTree.fromstring(chart_svg(recorder, -1, 1))
    lines = [
        float(str(item.get("d"))[1:].partition(",")[0])
        for item in root.iter(f"{SVG}path")
        if " V" in str(item.get("d"))
    ]
    for group in root.iter(f"{SVG}g"):
        _tick, label = group.iter(f"{SVG}text")
        (arrow,) = group.iter(f"{SVG}line")
        x, wide = float(label.get("x", "")), len(label.text or "") * 6.2
        start, end = (x, x + wide) if label.get("text-anchor") == "start" else (x - wide, x)
        assert not any(start <= line <= end for line in lines)
        assert float(arrow.get("y1", "")) - 5 < float(label.get("y", "")) < float(arrow.get("y1", ""))


def ctr_recorded() -> Recorder:
    module = ps.load(Path(GOLDEN).parents[1] / "examples" / "ctr_dnn.ir")
    cluster = cluster_of(ps.compile(module, ps.Job(pservers=4, trainers=3)))
    cluster.feed(make_feeds(module.main, 1, 12))
    recorder = Recorder(cluster)
    cluster.run_to(1)
    cluster.finish()
    return recorder


def test_alike_messages_of_a_large_model_are_one_arrow():
    recorder = ctr_recorded()
    chart = chart_text(recorder, 0, 0)
    lines = chart.splitlines()
    messages = sum(event.occurrence == DELIVER for event in recorder.events if event.step == 0)
    assert len(lines) * 1.3 < messages
    sends = [line for line in lines if " gradients, " in line]
    assert len(sends) >= 6
    assert sum("send_barrier" in line for line in lines) == 12


def test_messages_that_were_taken_apart_are_apart():
    """What the target did in between would else seem to come later."""

    def event(tick: int, what: str, source: str, target: str, sequence: int, step: int = 0) -> Event:
        return Event(tick, what, "send", source, target, 0, step, sequence, f"v{sequence}@GRAD", 8)

    posts = [event(1, POST, "a", "s", number) for number in (1, 2, 3)] + [event(2, POST, "b", "s", 1)]
    taken = [event(3, DELIVER, "a", "s", 1), event(3, DELIVER, "a", "s", 2), event(3, DELIVER, "b", "s", 1)]
    arrows = arrows_of([*posts, *taken, event(3, DELIVER, "a", "s", 3)])
    assert [(arrow.source, len(arrow.names)) for arrow in arrows] == [("a", 2), ("b", 1), ("a", 1)]
    assert arrows[0].label() == "send 2 gradients, 16 B"
    assert arrows[2].label() == "send v3@GRAD, 8 B"


def test_the_end_has_a_name_of_its_own():
    _, recorder = recorded()
    chart = chart_text(recorder, 2, END)
    assert chart.splitlines()[1].endswith("end")
    assert sum("complete" in line for line in chart.splitlines()) == 4
    assert "complete" not in chart_text(recorder, -1, 1)


TROUBLE = "drop 0.2\ndelay 0.3 1..30\nduplicate 0.2\ncrash trainer_1 step 2 after 1\nrejoin trainer_1 step 3"
MODES = ("sync", "async", "half-async", "geo", "fleet-sync", "grad-allreduce")


@pytest.mark.parametrize("schedule", [None, 3])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("faults", ["", TROUBLE])
def test_slices_of_a_thread_lie_side_by_side_or_one_within_the_other(mode: str, schedule: int | None, faults: str):
    recorder = recorded(mode, 4, schedule, faults)[1]
    threads: dict[int, list[tuple[int, int, str]]] = {}
    for item in json.loads(trace_json(recorder))["traceEvents"]:
        if item["ph"] == "X":
            assert item["dur"] > 0
            threads.setdefault(item["tid"], []).append((item["ts"], item["ts"] + item["dur"], item["cat"]))
    for slices in threads.values():
        messages = sorted(span for span in slices if span[2] != "step")
        steps = sorted(span for span in slices if span[2] == "step")
        for spans in (messages, steps):
            assert all(one[1] <= other[0] for one, other in pairwise(spans))
        for start, end, _ in messages:
            assert not steps or any(first <= start and end <= last for first, last, _ in steps)


def test_traffic_by_server_and_variable():
    cluster, recorder = recorded()
    rows = traffic_of(recorder, tuple(server.name for server in cluster.servers))
    weight = next(row for row in rows if row.variable == "fc_0.w_0")
    assert (weight.from_server, weight.bytes_from_server) == (2 * 3, 2 * 3 * 80)  # start-up and two steps
    gradient = next(row for row in rows if row.variable == "fc_0.w_0@GRAD.trainer_0")
    assert (gradient.to_server, gradient.bytes_to_server, gradient.lost) == (2, 160, 0)
    table = traffic_table(rows)
    assert "pserver_0" in table
    assert "fc_0.w_0@GRAD.trainer_0" in table


def test_staleness_is_seen_where_trainers_do_not_wait():
    cluster, recorder = recorded("async", steps=5, schedule=3)
    rows = traffic_of(recorder, tuple(server.name for server in cluster.servers))
    stale = [row.stalest for row in rows if row.variable == "fc_0.w_0@GRAD"]
    assert stale
    assert max(stale) >= 1


@pytest.fixture
def feed(tmp_path: Path) -> str:
    import numpy as np

    path = tmp_path / "feed.npz"
    np.savez(path, **make_feeds(ps.load(GOLDEN).main, 2, 4))
    return str(path)


def test_the_command_writes_them(tmp_path: Path, feed: str, capsys: pytest.CaptureFixture[str]):
    job = ["run", GOLDEN, "--pservers", "2", "--trainers", "2", "--feed", feed]
    names = {name: str(tmp_path / name) for name in ("trace.json", "chart.svg", "chart.txt")}
    assert main([*job, "--trace", names["trace.json"], "--chart", names["chart.svg"], "--traffic"]) == 0
    assert "pserver_1" in capsys.readouterr().err
    assert json.loads(Path(names["trace.json"]).read_text())["traceEvents"]
    ElementTree.parse(names["chart.svg"])
    assert main([*job, "--chart", names["chart.txt"], "--chart-steps", "2"]) == 0
    assert "step 2" in Path(names["chart.txt"]).read_text()


@pytest.mark.parametrize(
    ("wrong", "status", "words"),
    [
        (["--chart", "a.png"], 2, "must end in .svg or .txt"),
        (["--chart", "a.svg", "--chart-steps", "3-2"], 2, "a step, or two"),
        (["--trace"], 1, "--trace needs the name of a FILE"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    wrong: list[str], status: int, words: str, feed: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["run", GOLDEN, "--pservers", "1", "--trainers", "2", "--feed", feed, *wrong]) == status
    assert words in capsys.readouterr().err


def test_one_machine_has_no_messages(feed: str, capsys: pytest.CaptureFixture[str]):
    assert main(["run", GOLDEN, "--feed", feed, "--traffic"]) == 1
    assert "shows the messages of a cluster" in capsys.readouterr().err


def test_a_trainer_that_waited_for_an_update_has_what_was_in_it():
    """However early it has asked: what it is answered with was made after that."""
    _, recorder = recorded(schedule=3)
    rows = traffic_of(recorder, ("pserver_0", "pserver_1"))
    assert {row.stalest for row in rows if "@GRAD" in row.variable} == {0}


@pytest.mark.parametrize("mode", ["sync", "fleet-sync"])
def test_nothing_is_stale_where_servers_wait_for_all_trainers(mode: str):
    for schedule in (None, 1, 2):
        cluster, recorder = recorded(mode, steps=4, schedule=schedule)
        rows = traffic_of(recorder, tuple(server.name for server in cluster.servers))
        assert {row.stalest for row in rows if "@GRAD" in row.variable} == {0}
