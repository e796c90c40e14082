"""A page parses, holds all it should, and nothing in it is taken for code."""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile import Job, compile, cost, loads, sweep
from pstranspile.cluster.net.metrics import Pace
from pstranspile.compiler.explain import explain_op, of_compiled
from pstranspile.compiler.explain.job import line_of
from pstranspile.ops.textual import parse
from pstranspile.tools.cli import main
from pstranspile.tools.report import REPORT, page
from pstranspile.tools.report.data import MOST_CHARTS, CostPrediction, predicted_data, report_data
from tests.compiler.cost.test_seconds import REAL
from tests.golden import Goldens
from tests.tools.report.jobs import JOBS, ROOT, Page, addresses, data_of, deep, op_texts, page_of

REGRESSION = (ROOT / "examples" / "regression.ir").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.mark.parametrize("name", JOBS)
def test_a_page_parses_and_loads_nothing(name: str, folder: Path):
    text = page_of(name, folder).read_text()
    parsed = Page(text)
    assert addresses(text) == []
    assert not [tag for tag, attributes in parsed.elements if {"src", "href"} & attributes.keys() or tag == "link"]
    (policy,) = [a["content"] for tag, a in parsed.elements if a.get("http-equiv") == "Content-Security-Policy"]
    digest = base64.b64encode(hashlib.sha256(parsed.texts["script"].encode()).digest()).decode()
    assert policy is not None
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    json.loads(parsed.texts["data"])
    json.loads(parsed.texts["later"])


@pytest.mark.parametrize("name", ["ctr", "convnet", "collective"])
def test_every_machine_and_op_is_in_it(name: str, folder: Path, tmp_path: Path):
    data = data_of(page_of(name, folder).read_text())
    program, *options = JOBS[name]
    given = options[: options.index("--steps")]
    given = [option for option in given if option not in ("--run", "--check")]
    assert main(["compile", program, *given, "-o", str(tmp_path / "out")]) == 0
    machines = [machine["name"] for machine in data["programs"]["machines"]]
    written = {file.stem for file in (tmp_path / "out").glob("*.ir")}
    assert {*machines} == {"source", *written}
    assert [machine["name"] for machine in data["cluster"]] == machines[1:]
    from pstranspile.compiler.explain import read_folder

    job = read_folder(tmp_path / "out")
    for number, machine in enumerate(machines[1:], 1):
        assert op_texts(data, number) == [line_of(job.op(place)) for place in job.places(machine)]
    assert main(["report", str(tmp_path / "out"), "-o", str(tmp_path / "folder.html")]) == 0
    again = data_of((tmp_path / "folder.html").read_text())
    assert [machine["name"] for machine in again["programs"]["machines"]] == machines
    for number in range(1, len(machines)):
        assert op_texts(again, number) == op_texts(data, number)
    assert (again["parameters"], again["cluster"], again["pairs"]) == tuple(
        data[key] for key in ("parameters", "cluster", "pairs")
    )


def test_explanations_are_those_of_explain():
    module = loads(REGRESSION)
    job = of_compiled(compile(module, Job(pservers=2, trainers=2)))
    programs = report_data(job, "net.ir", module)["programs"]
    texts, machines = programs["texts"], programs["machines"]
    names = [machine["name"] for machine in machines]
    compared = 0
    for machine in machines[1:]:
        for number, place in enumerate(job.places(machine["name"])):
            answer = explain_op(job, place.machine, f"@{place.program}^{place.block}#{place.number}")
            rule = machine["rule"][number]
            assert (programs["rules"][rule] if rule >= 0 else ["", machine["kept"][place.program]]) == [
                answer.rule,
                answer.reason,
            ]
            flat = machine["peers"].get(str(number), [])
            assert [texts[relation] for relation in flat[::3]] == [link.relation for link in answer.links]
            assert [names[there] for there in flat[1::3]] == [link.place.machine for link in answer.links]
            source = machine["source"][number]
            if answer.source is not None and "#" in answer.source.op:
                assert machines[0]["lines"][source] == answer.source.line
                compared += 1
    assert compared > 40


def test_the_data_of_a_small_job_are_as_recorded(goldens: Goldens):
    module = parse(REGRESSION, "regression.ir")
    data = report_data(of_compiled(compile(module, Job(pservers=2, trainers=1))), "regression.ir", module)
    data["made_by"] = "pstranspile"
    text = json.dumps(data, indent=1, sort_keys=True)
    goldens.check(Path(__file__).parent / "regression.json", f"{text}\n", __name__)


def test_what_machines_hold_and_say_is_what_the_plan_says():
    module = loads(REGRESSION)
    data = report_data(of_compiled(compile(module, Job(pservers=2, trainers=2))), "net.ir", module)
    held = {machine["name"]: machine for machine in data["cluster"]}
    assert [held[f"pserver_{n}"]["parameters"] for n in (0, 1)] == [40080, 40000]
    assert [held[f"pserver_{n}"]["rows"] for n in (0, 1)] == [520, 500]
    assert held["trainer_0"]["parameters"] == 80080
    pairs = {(source, target): rest for source, target, *rest in data["pairs"]}
    # two gradients, two requests, two barriers; and the same values back
    assert pairs["trainer_0", "pserver_0"] == [6, 40080, 0]
    assert pairs["pserver_0", "trainer_0"] == [2, 40080, 0]
    assert pairs["trainer_1", "pserver_1"] == [4, 40000, 0]


HOSTILE = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>&quot;\u2028"


def test_hostile_names_are_text(tmp_path: Path):
    text = REGRESSION.replace("%xw", f'%"{HOSTILE}"'.replace("\u2028", "\\u2028")).replace(
        f'"{HOSTILE}"@GRAD', "xw@GRAD"
    )
    text = text.replace('\\u2028"@GRAD', '\\u2028@GRAD"')
    file = tmp_path / "net.ir"
    file.write_text(text)
    assert main(["report", str(file), "--pservers", "1", "-o", str(tmp_path / "page.html")]) == 0
    made = (tmp_path / "page.html").read_text()
    assert "alert(1)</script>" not in made
    assert "<img" not in made
    assert "\u2028" not in made
    assert made.count("<script") == 3
    assert any("</script><script>alert(1)" in name for name in data_of(made)["programs"]["texts"])
    assert b"<title>a&lt;b&gt;</title>" in page("a<b>", {}, REPORT)


def test_the_same_job_gives_the_same_bytes(tmp_path: Path):
    written: set[bytes] = set()
    for seed in ("0", "1"):
        file = tmp_path / f"{seed}.html"
        command = ["report", "examples/ctr_dnn.ir", "--pservers", "2", "--trainers", "2", "--run", "--steps", "2"]
        subprocess.run(
            [sys.executable, "-m", "pstranspile", *command, "-o", str(file)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            check=True,
        )
        written.add(file.read_bytes())
    assert len(written) == 1


def size(layers: int, servers: int) -> int:
    module = loads(deep(layers))
    data = report_data(of_compiled(compile(module, Job(pservers=servers, trainers=2))), "net", module)
    return len(page("net", data, ())) - len(page("net", {}, ()))


def test_sizes_grow_as_programs_and_clusters_do():
    assert size(80, 4) < 2.2 * size(40, 4)
    assert size(40, 16) < 4.2 * size(40, 4)


def test_options_of_a_run_need_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["compile", str(ROOT / "examples/regression.ir"), "--pservers", "2", "-o", str(tmp_path / "out")]) == 0
    assert main(["report", str(tmp_path / "out"), "--check", "-o", str(tmp_path / "page.html")]) == 2
    assert "--check goes with a program" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_the_check_of_a_page_tries_other_orders_and_what_goes_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page = tmp_path / "page.html"
    arguments = ["report", str(ROOT / "examples/regression.ir"), "--pservers", "2", "--trainers", "2", "-o", str(page)]
    assert main([*arguments, "--schedules", "2"]) == 2
    assert "--schedules is about --check" in capsys.readouterr().err
    assert main([*arguments, "--check", "--steps", "2", "--schedules", "2", "--faults", "1"]) == 0
    check = data_of(page.read_text())["check"]
    assert (check["orders"], check["faults"]) == ([2, []], True)
    assert "2 schedules end bitwise equal" in check["text"]


def test_a_page_says_of_how_many_fed_steps_it_is(tmp_path: Path):
    (tmp_path / "net.ir").write_text(REGRESSION)
    x = np.random.default_rng(0).random((9, 4, 1000), "float32")
    np.savez(tmp_path / "nine.npz", x=x, y=x[:, :, :20])
    small = [str(ROOT / "examples" / "linear_regression.ir"), "--pservers", "1", "--trainers", "2"]
    (tmp_path / "rows.csv").write_text(",".join([*(f"x{i}" for i in range(13)), "y"]) + f"\n{'1,' * 13}1" * 20 + "\n")
    rows = [str(tmp_path / "rows.csv"), "--columns", "x=x*", "--batch", "4", "--epochs", "2"]
    arrays = [str(tmp_path / "net.ir"), "--pservers", "1", "--trainers", "2", "--feed", str(tmp_path / "nine.npz")]
    for given, told in (([*small, "--feed", *rows], (5, 10)), (arrays, (5, 9)), ([*arrays, "--steps", "9"], (9, 0))):
        page = tmp_path / "page.html"
        assert main(["report", *given, "--check", "-o", str(page)]) == 0
        data = data_of(page.read_text())
        assert (data["run"]["steps"], data["run"]["fed"]) == told
        assert (f"{told[0]} of {told[1]} fed steps" in data["check"]["text"]) == bool(told[1])


def test_other_orders_of_a_mode_that_waits_for_nobody(tmp_path: Path):
    (tmp_path / "net.ir").write_text(REGRESSION)
    given = [str(tmp_path / "net.ir"), "--pservers", "1", "--trainers", "2", "--mode", "async"]
    assert main(["report", *given, "--check", "--schedules", "2", "-o", str(tmp_path / "page.html")]) == 0
    check = data_of((tmp_path / "page.html").read_text())["check"]
    assert (check["orders"], check["replayed"]) == ([2, []], True)
    assert "the same holds in 2 other schedules" in check["text"]


def test_every_table_of_a_run_has_the_same_order(folder: Path):
    page = folder / "many.html"
    job = ["--pservers", "11", "--trainers", "12", "--steps", "1", "--set", "min_block_size=1", "--batch", "12"]
    assert main(["report", "examples/ctr_dnn.ir", *job, "-o", str(page)]) == 0
    data = data_of(page.read_text())
    place = {machine["name"]: number for number, machine in enumerate(data["cluster"])}
    assert list(place)[9:13] == ["trainer_9", "trainer_10", "trainer_11", "pserver_0"]
    for rows in (data["pairs"], data["run"]["pairs"], data["run"]["waits"]):
        assert len(rows) > 100
        assert [row[:2] for row in rows] == sorted((row[:2] for row in rows), key=lambda row: [place[n] for n in row])
    traffic = [row[:2] for row in data["run"]["traffic"]]
    assert [place[server] for server, _ in traffic] == sorted(place[server] for server, _ in traffic)
    gradients = [name for server, name in traffic if server == "pserver_0" and name.startswith("deep_embedding@GRAD")]
    assert [int(name.rpartition("_")[2]) for name in gradients] == list(range(12))
    assert not [name for server, name in traffic if server == "pserver_0"][-1]  # barriers stand behind variables


def test_a_run_tells_losses_messages_and_verdicts(folder: Path):
    data = data_of(page_of("regression", folder).read_text())
    run, check = data["run"], data["check"]
    assert [curve["name"] for curve in run["losses"]] == ["trainer_0 loss", "trainer_1 loss"]
    assert all(curve["steps"] == [1, 2] for curve in run["losses"])
    steps = [row[0] for row in run["rows"] if len(row) == 1]
    assert steps == ["start-up", "step 1", "step 2", "end"]
    sent = [row for row in run["rows"] if len(row) > 1 and row[0].startswith("send ") and row[2] == "trainer_0"]
    assert sum(row[6] for row in sent) == 2 * 80080
    pairs = {(who, whom): rest for who, whom, *rest in run["pairs"]}
    assert pairs["trainer_0", "pserver_0"] == [2 * 6, 2 * 40080]
    waits = {(who, whom): rest for who, whom, *rest in run["waits"]}
    assert waits["trainer_0", "pserver_0"][0] == 2 * 3  # two variables, at start-up and in two steps
    assert check["holds"]
    assert {v[0] for v in check["verdicts"]} >= {"w", "b", "loss"}


def test_ops_are_written_as_explanations_have_them():
    text = re.sub(r"%xw\b(@GRAD)?", r'%"x w\1"', REGRESSION).replace(" : loss", " : loss @a.py:3", 1)
    job = of_compiled(compile(loads(text), Job(pservers=2, trainers=2)))
    data = report_data(job, "net.ir", loads(text))
    for number, machine in enumerate(job.machines, 1):
        assert op_texts(data, number) == [line_of(job.op(place)) for place in job.places(machine)]


@pytest.mark.parametrize("verb", ["report", "diff"])
def test_a_page_does_not_take_the_place_of_what_it_is_about(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    program = tmp_path / "net.ir"
    program.write_text(REGRESSION)
    (tmp_path / "link.ir").symlink_to(program)
    other = str(ROOT / "examples" / "mnist_mlp.ir")
    given = [str(program), "--pservers", "2", "-o"] if verb == "report" else [other, str(program), "--html"]
    assert main([verb, *given, str(tmp_path / "link.ir")]) in (1, 2)
    assert "error[output-unwritable]: is read, so it can't be written" in capsys.readouterr().err
    assert program.read_text() == REGRESSION


def test_pages_go_to_stdout_and_bad_names_are_refused(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]):
    program = str(ROOT / "examples" / "regression.ir")
    page = tmp_path / "page.html"
    for given, wanted in ((["report", program, "--pservers", "2", "-o"], 0), (["diff", program, program, "--html"], 0)):
        assert main([*given, str(page)]) == wanted
        capfdbinary.readouterr()
        assert main([*given, "-"]) == wanted
        sys.stdout.flush()
        assert capfdbinary.readouterr().out == page.read_bytes()
        assert main([*given, f"{'n' * 300}.html"]) != 0
        assert b"error[output-unwritable]" in capfdbinary.readouterr().err


def predicted_page(**given: Any) -> dict[str, Any]:
    """What a page shows of the cost of a job of two trainers and two servers."""
    module = loads((ROOT / "examples" / "regression.ir").read_text())
    job = Job(pservers=2, trainers=2, batch_rows=64)
    compiled = compile(module, job)
    found = CostPrediction(cost(compiled, profile=REAL), **given)
    return report_data(of_compiled(compiled), "net.ir", module, predicted=found)["step"]


def test_memory_over_a_step_reaches_its_peak():
    module = loads((ROOT / "examples" / "regression.ir").read_text())
    compiled = compile(module, Job(pservers=2, trainers=2, batch_rows=64))
    found = predicted_page()["memory"]
    for drawn, machine in zip(found, cost(compiled).machines, strict=True):
        assert drawn["machine"] == machine.machine
        assert drawn["held"] == machine.held
        assert drawn["moving"] + max(drawn["levels"]) == machine.peak


def test_machines_whose_memory_is_not_drawn_are_counted():
    module = loads((ROOT / "examples" / "mnist_mlp.ir").read_text())
    compiled = compile(module, Job(pservers=30, trainers=2, batch_rows=64))
    found = predicted_data(CostPrediction(cost(compiled, profile=REAL)))
    assert found is not None
    assert len(found["memory"]) == MOST_CHARTS
    assert found["memory_left_out"] == 31 - MOST_CHARTS  # the trainers are alike, and drawn once


def test_a_sweep_is_drawn_by_numbers_of_machines():
    module = loads((ROOT / "examples" / "regression.ir").read_text())
    found = sweep(module, Job(pservers=2, trainers=2, batch_rows=64), pservers=[1, 2], trainers=[1, 4], profile=REAL)
    rows = predicted_page(sweep=found)["sweep"]
    assert [(row["trainers"], row["servers"]) for row in rows] == [(1, 1), (1, 2), (4, 1), (4, 2)]
    assert all(row["rows"] == pytest.approx(row["trainers"] * 64 / row["step"], rel=1e-4) for row in rows)


def test_a_run_stands_beside_what_is_predicted():
    """Trainers are alike: they have the mean of what was measured."""
    pace = Pace(0.5, {"trainer_0": 0.1, "trainer_1": 0.3, "pserver_0": 0.05}, {})
    found = predicted_page(pace=pace)["measured"]
    assert [(machine, what, measured) for machine, what, _, measured in found] == [
        ("", "step", 0.5),
        ("trainer_0 to 1", "processor", 0.2),
        ("pserver_0", "processor", 0.05),
    ]
