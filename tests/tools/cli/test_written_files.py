"""Commands say what they have written, where, and what comes next; and of an interrupted one, what is missing."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.checkpoint.api import CheckpointedRun
from pstranspile.cluster.net import calibrate
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize
from pstranspile.tools.cli import VERBS, main, written_files
from pstranspile.tools.cli.common import Parser
from tests.compiler.cost.test_seconds import REAL
from tests.runtime.large import test_jobs as tables

JOB = ["--pservers", "1", "--trainers", "2"]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draft = L.Draft(seed=7)
    x, y = L.data(draft, "x", [-1, 3]), L.data(draft, "y", [-1, 1])
    loss = L.mean(L.square_error_cost(L.fc(x, 1), y))
    Path("forward.ir").write_text(ps.dumps(draft.module()))
    minimize(loss, SGD(0.1))
    Path("net.ir").write_text(ps.dumps(draft.module()))
    module = draft.module()
    Path("one.ir").write_text(ps.dumps(ps.Module({"main": module.main})))


GRAD = ["grad", "forward.ir", "--loss", "mean_0.tmp_0", "--optimizer", "adam"]
MODEL = ["export", "net.ir", "--fetch", "fc_0.tmp_1"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([*GRAD, "-o", "a.ir"], "a.ir: a training program, which trains 2 parameters with adam\n... check a.ir "),
        (["report", "net.ir", *JOB, "-o", "a.html"], "a.html: a page of the job net.ir (sync), to be opened in a "),
        (["export", "net.ir", "--to", "pb", "-o", "a"], "a: ProgramDescs: main.pb, startup.pb, meta.json\n... import "),
        (["export", "net.ir", "--to", "dot", "-o", "a"], "a: a graph for Graphviz: main.dot, startup.dot\n... dot "),
        (["export", "net.ir", "--to", "mermaid", "-o", "a"], "a: a graph for Mermaid: main.mmd, startup.mmd\n...mmdc "),
        (["export", "net.ir", "--to", "mlir", "-o", "a"], "a: MLIR: module.mlir\n... a/module.mlir"),
        ([*MODEL, "--to", "inference", "-o", "a"], "a: an inference model: __model__, and a file for each of 2 para"),
        (["run", "net.ir", "--feed", "d.npz", "--save", "a.npz"], "a.npz: the fetched values and the final parameters"),
        (["diff", "net.ir", "net.ir", "--html", "a.html"], "a.html: a page of the differences"),
    ],
    ids=lambda value: " ".join(value[:4]) if isinstance(value, list) else "",
)
def test_what_is_written_is_told(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    np.savez("d.npz", x=np.ones((1, 2, 3), "float32"), y=np.ones((1, 2, 1), "float32"))
    assert main(arguments) == 0
    first, _, then = told.partition("\n...")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(first)
    assert then.strip() in "\n".join(lines[1:])


def test_what_is_imported_is_told(capsys: pytest.CaptureFixture[str]):
    assert main(["export", "net.ir", "--to", "pb", "-o", "pb"]) == 0
    command = capsys.readouterr().err.partition("pstranspile ")[2].split()
    assert command[0] == "import"
    assert main(command) == 0  # the next step that is named works
    assert main([*command, "-o", "again.ir"]) == 0
    told = "again.ir: the text of @main and @startup\nis it well formed?  pstranspile verify again.ir\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("option", [["-o", "-"], []])
def test_of_stdout_nothing_is_told(option: list[str], capsys: pytest.CaptureFixture[str]):
    assert main([*GRAD, *option]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert ps.loads(told.out)
    assert main(["report", "net.ir", *JOB, "-o", "-"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("form", "name"), [("mlir", "net.mlir"), ("dot", "net.dot"), ("dot", "net.GV"), ("mermaid", "net.mmd")]
)
def test_a_single_file_has_the_name_that_is_given(form: str, name: str, capsys: pytest.CaptureFixture[str]):
    assert main(["export", "one.ir", "--to", form, "-o", "folder"]) == 0
    assert main(["export", "one.ir", "--to", form, "-o", name]) == 0
    (made,) = Path("folder").iterdir()
    assert Path(name).read_bytes() == made.read_bytes()
    assert f"{name}: " in capsys.readouterr().err
    assert main(["export", "one.ir", "--to", form, "-o", f"{name}2/"]) == 0
    Path("x.dot").write_text("my own words")
    if form == "dot":
        assert main(["export", "one.ir", "--to", form, "-o", "x.dot"]) == 1
        assert Path("x.dot").read_text() == "my own words"


def test_an_onnx_model_is_a_file(capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("onnx")
    assert main([*MODEL, "--to", "onnx", "-o", "made/net.onnx"]) == 0
    assert Path("made/net.onnx").read_bytes()[:1] == b"\x08"
    assert "made/net.onnx: an ONNX model (made the folder made)\n" in capsys.readouterr().err
    assert main(["import", "made/net.onnx", "--params", "p.npz", "-o", "again.ir"]) == 0
    assert "p.npz: the model's 2 parameters, for --init of run and check\n" in capsys.readouterr().err
    Path("old.onnx").mkdir()
    assert main([*MODEL, "--to", "onnx", "-o", "old.onnx"]) == 0  # a folder that is there stays one
    assert Path("old.onnx/main.onnx").is_file()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["export", "net.ir", "--to", "dot", "-o", "a.dot"], "there are 2 to write: main.dot, startup.dot; name a fol"),
        (["export", "net.ir", "--to", "pb", "-o", "a.pb"], "--to pb writes several; name a folder (a.pb/ is one)"),
        ([*MODEL, "--to", "inference", "-o", "a.pdmodel"], "--to inference writes several; name a folder"),
        (
            ["export", "net.ir", "--to", "mlir", "-o", "a.onnx"],
            "the file of --to mlir ends in .mlir; any other name is",
        ),
        (["compile", "net.ir", *JOB, "-o", "a.ir"], "a.ir is the name of a file, and more than one is written; name a"),
        (["rows", "kept", "words", "-o", "a.npz"], "a.npz is the name of a file, and more than one is written"),
    ],
)
def test_no_folder_has_the_name_of_a_file_by_mistake(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
):
    before = sorted(Path().iterdir())
    assert main(arguments) == 2
    assert told in capsys.readouterr().err
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["compile", "net.ir", *JOB, "-o"], "out"),
        (["export", "net.ir", "--to", "mlir", "-o"], "out"),
        ([*GRAD, "-o"], "a.ir"),
        (["report", "net.ir", *JOB, "-o"], "a.html"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_folders_that_are_missing_are_made_and_told(
    arguments: list[str], name: str, capsys: pytest.CaptureFixture[str]
):
    assert main([*arguments, f"no/such/{name}"]) == 0
    assert " (made the folder no)\n" in capsys.readouterr().err
    assert main([*arguments, f"no/such/{name}"]) == 0
    assert "made the folder" not in capsys.readouterr().err


@pytest.mark.parametrize("in_place", [False, True])
def test_files_of_others_in_an_output_folder_are_told(
    in_place: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    command = ["compile", str(Path("net.ir").absolute()), *JOB]
    assert main([*command, "-o", "out"]) == 0
    assert "left as" not in capsys.readouterr().err
    for name in ("thesis.txt", "trainer_7.ir", "c", "d", "e", "f"):
        Path("out", name).write_text("mine")
    folder = "out"
    if in_place:
        monkeypatch.chdir("out")
        folder = "."
    smaller = [*command[:-1], "1", "-o", folder]
    assert main(smaller) == 0
    told = capsys.readouterr().err.splitlines()
    assert told[0] == f"pstranspile compile: {folder}: removed, of the earlier compile: trainer_1.ir"
    assert told[1] == f"{folder}: left as it was, being none of this command's: c, d, e, f and 2 more"
    assert main(["export", command[1], "--to", "mlir", "-o", folder]) == 0
    assert "left as it was, being none of this command's: c, d, e, f and 5 more" in capsys.readouterr().err
    assert Path(folder, "trainer_7.ir").read_text() == "mine"


STOPPED = """
import sys, time
import {module} as where
real = where.{name}
def stopping(*given, **named):
    result = real(*given, **named)
    print("at work", flush=True)
    for _ in range(1000):
        time.sleep(0.1)
    return result
where.{name} = stopping
from pstranspile.__main__ import main
sys.exit(main())
"""
"""A command that waits in short sleeps: one that begins after a signal has come hides it until its end."""
LOADED = STOPPED.format(module="pstranspile.frontends.loading", name="load")
WRITING = STOPPED.format(module="pstranspile.runtime.files.outputs", name="_write")


def interrupted(script: str, number: int, arguments: list[str]) -> tuple[int, str]:
    """The exit status, and what is told, of a command that gets a signal at the place where a script stops it."""
    command = [sys.executable, "-c", script, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        process.send_signal(number)
        _, told = process.communicate(timeout=60)
    return process.returncode, told


@pytest.mark.parametrize("script", [LOADED, WRITING], ids=["loaded", "writing"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "net.ir", *JOB, "-o", "new/a.html"],
        ["compile", "net.ir", *JOB, "-o", "new/out"],
        ["export", "net.ir", "--to", "mlir", "-o", "new/out"],
        ["import", "net.ir", "-o", "new/a.ir"],
        [*GRAD, "-o", "new/a.ir"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_an_interrupted_command_says_what_is_missing(arguments: list[str], number: int, script: str):
    before = {path: path.read_bytes() for path in Path().rglob("*.ir")}
    told = f"interrupted: {arguments[-1]} was not written\n"
    assert interrupted(script, number, arguments) == (128 + number, told)
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before
    assert not Path("new").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_check_has_no_verdict(number: int):
    told = "interrupted: the check has come to no verdict\n"
    assert interrupted(LOADED, number, ["check", "net.ir", *JOB]) == (128 + number, told)


def test_a_page_tells_the_verdict_of_its_check(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that trainers can't share evenly train another model, unless shares are weighted."""
    report = ["report", "net.ir", *JOB, "--check", "-o", "page.html"]
    assert main(report) == 0
    assert "the cluster trains as the single machine does\n" in capsys.readouterr().err
    assert main([*report, "--batch", "3"]) == 1
    assert "DIFFERENT" in capsys.readouterr().err
    assert Path("page.html").stat().st_size


@pytest.mark.parametrize("option", ["--save", "--trace", "--checkpoint", "--init"])
def test_no_file_is_called_as_stdin_and_stdout_are(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "net.ir", *JOB, "--steps", "1", option, "-"]) == 2
    assert f"{option} takes the name of a file or folder, not - (./- is" in capsys.readouterr().err
    assert not Path("-").exists()


def test_a_model_for_inference_is_read_back() -> None:
    np.savez("data.npz", x=np.ones((1, 2, 3), "float32"), y=np.ones((1, 2, 1), "float32"))
    np.savez("rows.npz", x=np.ones((1, 2, 3), "float32"))
    assert main(["run", "net.ir", "--feed", "data.npz", "--save", "trained.npz"]) == 0
    assert main([*MODEL, "--to", "inference", "--from", "trained.npz", "-o", "model"]) == 0
    asked = ["--feed", "rows.npz", "--fetch", "fc_0.tmp_1", "--save"]
    assert main(["run", "model/__model__", "--init", "model", *asked, "served.npz"]) == 0
    assert (
        main(["export", "net.ir", "--fetch", "fc_0.tmp_1", "--to", "inference", "--from", "model", "-o", "again"]) == 0
    )
    names = sorted(path.name for path in Path("model").iterdir())
    assert names == sorted(path.name for path in Path("again").iterdir())
    assert all(Path("model", name).read_bytes() == Path("again", name).read_bytes() for name in names)


LAUNCH = ["launch", "net.ir", *JOB, "--feed", "d.npz"]
RUN = ["run", "net.ir", "--feed", "d.npz"]
START = ["start", "out", "--role", "trainer_0", "--feed", "half.npz", "--steps", "1"]
"""A trainer beside a server of the same folder."""
WRITTEN: dict[tuple[str, str], tuple[list[str], str]] = {
    ("calibrate", "--output"): (["calibrate"], ": the profile of a host of "),
    ("compile", "--output"): (["compile", "net.ir", *JOB], ": the programs of 2 trainers, 1 server (sync)"),
    ("diff", "--html"): (["diff", "net.ir", "net.ir"], ": a page of the differences"),
    ("export", "--output"): (["export", "net.ir", "--to", "mlir"], ": MLIR: module.mlir"),
    ("grad", "--output"): (GRAD, ": a training program, which trains 2 parameters with adam"),
    ("import", "--output"): (["import", "net.ir"], ": the text of @main and @startup"),
    ("import", "--params"): (["import", "net.onnx"], ": the model's 2 parameters, for --init of run and check"),
    ("report", "--output"): (["report", "net.ir", *JOB], ": a page of the job net.ir (sync)"),
    ("rows", "--output"): (["rows", "kept", "words"], ": ids.npy, numbers.npy and seen.npy, of all rows"),
    ("run", "--save"): (RUN, ": the fetched values and the final parameters"),
    ("plan", "--output"): (["plan", "net.ir", *JOB], ": the plan of 2 trainers, 1 server (sync), which places 2 para"),
    ("run", "--plot"): (RUN, ": the fetched numbers as curves"),
    ("run", "--trace"): ([*RUN, *JOB], ": every message, for Perfetto"),
    ("run", "--chart"): ([*RUN, *JOB], ": a chart of the messages"),
    ("run", "--checkpoint"): (RUN, ": the checkpoint step_00000001, to go on from with --resume "),
    ("launch", "--save"): (LAUNCH, ": the fetched values and the final parameters"),
    ("launch", "--trace"): (LAUNCH, ": every message, for Perfetto"),
    ("launch", "--chart"): (LAUNCH, ": a chart of the messages"),
    ("launch", "--pace"): (LAUNCH, ": how long a step took"),
    ("launch", "--record"): (LAUNCH, ": every message and the order of events, for run --replay"),
    ("launch", "--logs"): (LAUNCH, "all 3 machines have ended well; logs in "),
    ("launch", "--checkpoint"): (LAUNCH, ": the checkpoint step_00000001, to go on from with --resume "),
    ("start", "--save"): (START, ": the fetched values and the final parameters"),
    ("start", "--record"): (START, ": what the machine did, for `launch`"),
    ("start", "--trace"): (START, ": what the machine did when, for `launch`"),
    ("start", "--result"): (START, ": what the machine holds at the end, for `launch`"),
}
"""Every option that names a file or folder to write to, with a command that writes there, and what is told."""
ELSEWHERE = {
    ("launch", "--state"),  # tests/tools/cli/test_interrupted.py
    ("launch", "--saves"),  # tests/cluster/net/test_fluid_checkpoints.py
    ("start", "--saves"),  # likewise
    ("start", "--checkpoint"),  # likewise
}
"""Options whose files are told in tests of their own."""

AS_IT_GOES = {
    *((verb, "--table-folder") for verb in ("run", "launch", "start")),
    ("start", "--state"),
    ("start", "--parts"),
}
"""Options of files that are gone at the end of a run, or that `launch` takes up."""

READ = {
    *("--startup", "--meta", "--config", "--faults", "--feed", "--columns", "--init", "--check", "--plan", "--from"),
    *("--tls", "--resume", "--against", "--replay", "--begin", "--program", "--since", "--histogram", "--carried"),
    *("--profile", "--time", "--measured"),
}
"""Options that name what is read."""


def path_options(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """The options of all verbs that take the name of a file or folder."""
    found: set[tuple[str, str]] = set()

    def parse_args(parser: Parser, *_: object) -> None:
        for action in parser._actions:
            if action.option_strings and re.search("FILE|DIR|INPUT|JOB|CHECKPOINT", str(action.metavar)):
                found.add((parser.prog.split()[-1], action.option_strings[-1]))
        raise SystemExit(0)

    with monkeypatch.context() as patch:
        patch.setattr(Parser, "parse_args", parse_args)
        for verb in sorted({*VERBS} - {"fluid"}):  # it has options of its own, and `--ir`
            main([verb])
    return found


def test_every_option_that_writes_is_known(monkeypatch: pytest.MonkeyPatch):
    found = {(verb, option) for verb, option in path_options(monkeypatch) if option not in READ}
    assert found == {*WRITTEN, *ELSEWHERE, *AS_IT_GOES}


def test_every_option_that_writes_is_named_by_an_interrupted_command():
    """Those that write at the end; a run says of checkpoints what it can go on from, and of logs where they are."""
    writes = {option.lstrip("-") for _, option in WRITTEN}
    assert writes == {*written_files.WRITES, "checkpoint", "logs"}


STOPPED_RUN = """
import sys, time
from pstranspile.tools.cli import common
real = common.Parser.parse_args
def stopping(*given, **named):
    result = real(*given, **named)
    print("at work", flush=True)
    for _ in range(1000):
        time.sleep(0.1)
    return result
common.Parser.parse_args = stopping
from pstranspile.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("verb", "option"), [key for key in WRITTEN if key[1] not in ("--checkpoint", "--logs")], ids=" ".join
)
def test_every_verb_names_its_file_before_it_has_begun(verb: str, option: str):
    command = [*WRITTEN[verb, option][0], option, "b/a"]
    assert interrupted(STOPPED_RUN, signal.SIGINT, command) == (130, "interrupted: b/a was not written\n")


def test_an_interrupt_while_feeds_are_loaded_names_all():
    script = STOPPED.format(module="pstranspile.tools.cli.feed", name="read_feed")
    np.savez("d.npz", x=np.ones((1, 2, 3), "float32"), y=np.ones((1, 2, 1), "float32"))
    kept = "no checkpoint was saved in kept; the first one is saved at the end, or after as many steps as"
    kept += " --checkpoint-every says, once every machine has written its part"
    for number, verb in ((signal.SIGINT, "run"), (signal.SIGTERM, "launch")):
        command = [verb, "net.ir", *JOB, "--feed", "d.npz", "--save", "a.npz", "--checkpoint", "kept"]
        told = f"interrupted: {kept}; a.npz was not written\n"
        assert interrupted(script, number, command) == (128 + number, told)
        assert not Path("kept").exists()


def _prepare(verb: str, option: str) -> None:
    """Makes what a command reads."""
    steps = 20 if option == "--pace" else 1
    ones = {"x": np.ones((steps, 2, 3), "float32"), "y": np.ones((steps, 2, 1), "float32")}
    np.savez("d.npz", **ones)
    if verb == "start":
        np.savez("half.npz", **{name: value[:, :1] for name, value in ones.items()})
        assert main(["compile", "net.ir", *JOB[:3], "1", "-o", "out"]) == 0
    if (verb, option) == ("import", "--params"):
        pytest.importorskip("onnx")
        assert main([*MODEL, "--to", "onnx", "-o", "net.onnx"]) == 0
    if verb == "rows":
        result = ps.compile(tables.module(), tables.job())
        ps.simulate(result, tables.feeds(), 1, run=CheckpointedRun(result, None, "kept").run)


@pytest.mark.parametrize(("verb", "option"), WRITTEN, ids=" ".join)
def test_every_option_that_writes_says_what_and_where(
    verb: str, option: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    _prepare(verb, option)
    monkeypatch.setattr(calibrate, "measure", lambda *_: REAL)
    command, told = WRITTEN[verb, option]
    endings = {"--save": "a.npz", "--params": "a.npz", "--plot": "a.svg", "--chart": "a.svg", "--html": "a.html"}
    name = "a.html" if verb == "report" else endings.get(option, "a")
    capfd.readouterr()
    server = None
    if verb == "start":
        monkeypatch.setenv("PSTRANSPILE_TOKEN", "a token")
        server = subprocess.Popen([sys.executable, "-m", "pstranspile", "start", "out", "--role", "pserver_0"])
    try:
        assert main([*command, option, name]) == 0
    finally:
        if server is not None:
            server.wait(timeout=60)
    lines = [line for line in capfd.readouterr().err.splitlines() if told in line]
    assert len(lines) == 1
    assert name in lines[0]
    assert Path(name).exists()


def test_a_script_s_programs_are_told(capfd: pytest.CaptureFixture[str]):
    Path("train.py").write_text(
        "import paddle.fluid as fluid\n"
        "fluid.layers.fc(fluid.data('x', [None, 3]), 1)\n"
        "fluid.DistributeTranspiler().transpile(0, pservers='127.0.0.1:6174', trainers=1)\n"
    )
    command = [sys.executable, "-m", "pstranspile", "fluid", "--ir", "a", "train.py"]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0
    told = capfd.readouterr().err
    assert "a/script.ir: what the script has built\n" in told
    assert "a/job_0: the programs of the machines that the script has transpiled a job for\n" in told
    assert Path("a/job_0/plan.json").is_file()
