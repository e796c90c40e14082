"""What each command does."""

import io
import json
import os
import stat
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from pstranspile.tools.cli import main
from tests.frontends.recorded import FOLDER

ROOT = Path(__file__).parents[3]
PROGRAM = str(ROOT / "golden" / "linear_regression.ir")
JOB = ["--pservers", "a:6174,b:6174", "--trainers", "2"]
ROLES = ["trainer_0", "trainer_1", "pserver_0", "pserver_1"]


@contextmanager
def as_nobody():
    """Without root's right to write everywhere, also where the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def output(capsys, *arguments) -> str:
    status = main(list(arguments))
    out, err = capsys.readouterr()
    assert status == 0, err
    return out


def test_compile_prints_every_role(capsys):
    out = output(capsys, "compile", PROGRAM, *JOB)
    assert [line[2:] for line in out.splitlines() if line.startswith("# ")] == ROLES
    assert out.count("program @main") == out.count("program @startup") == 4


def test_compile_writes_text(tmp_path, capsys):
    out = output(capsys, "compile", PROGRAM, *JOB, "-o", str(tmp_path / "a" / "b"))
    assert out == ""
    names = sorted(p.name for p in (tmp_path / "a" / "b").iterdir())
    assert names == sorted([*(f"{role}.ir" for role in ROLES), "plan.json"])
    printed = output(capsys, "compile", PROGRAM, *JOB)
    text = (tmp_path / "a" / "b" / "pserver_1.ir").read_text()
    assert printed.endswith(f"# pserver_1\n{text}")


def test_compile_writes_protobuf_that_reads_back(tmp_path, capsys):
    output(capsys, "compile", PROGRAM, *JOB, "-o", str(tmp_path / "ir"))
    output(capsys, "compile", PROGRAM, *JOB, "--emit", "pb", "-o", str(tmp_path / "pb"))
    names = sorted(p.name for p in (tmp_path / "pb").iterdir())
    parts = ("main.pb", "startup.pb", "meta.json")
    assert names == sorted([*(f"{r}.{part}" for r in ROLES for part in parts), "plan.json"])
    assert main(["diff", str(tmp_path / "ir"), str(tmp_path / "pb")]) == 0
    for role in ROLES:
        (tmp_path / "pb" / f"{role}.meta.json").unlink()
    assert main(["diff", str(tmp_path / "ir"), str(tmp_path / "pb")]) == 1
    lines = capsys.readouterr().out.splitlines()
    changed = {line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")}
    seeds = {
        f"{sign}program @{name}{seed}" for name in ("main", "startup") for sign, seed in (("-", " seed=1"), ("+", ""))
    }
    assert changed == seeds  # a ProgramDesc carries no seed


def test_plan_json(tmp_path, capsys):
    output(capsys, "compile", PROGRAM, *JOB, "-o", str(tmp_path))
    written = json.loads((tmp_path / "plan.json").read_text())
    assert {"version", "mode", "pservers", "trainers", "distributed_lookup_table", "distributed_vars"} <= set(written)
    assert (written["version"], written["mode"], written["trainers"]) == (1, "sync", 2)
    assert written["pservers"] == ["a:6174", "b:6174"]
    keys = {"origin", "origin_shape", "slice", "slice_shape", "is_slice", "block_id", "offset", "endpoint", "vtype"}
    assert all(set(entry) == keys for entry in written["distributed_vars"])
    origins = {key: written.pop(key) for key in ("settings", "source_ops", "origins", "programs")}
    assert all(origins.values())
    assert json.loads(output(capsys, "plan", PROGRAM, *JOB, "--json")) == written


def test_plan_goes_back_in(tmp_path, capsys):
    plan = tmp_path / "net.plan"
    plan.write_text(output(capsys, "plan", PROGRAM, *JOB))
    by_job = output(capsys, "compile", PROGRAM, *JOB)
    assert output(capsys, "compile", PROGRAM, *JOB, "--plan", str(plan)) == by_job
    moved = plan.read_text().replace('%w @ "a:6174"', '%w @ "b:6174"').replace('%w @ "b:6174"', '%w @ "b:6174"')
    plan.write_text(moved.replace('@ "b:6174"', '@ "a:6174"'))
    on_one = output(capsys, "compile", PROGRAM, *JOB, "--plan", str(plan))
    assert on_one != by_job
    other = str(ROOT / "golden" / "mlp_adam.ir")
    assert main(["compile", other, *JOB, "--plan", str(plan)]) == 1
    assert f"{plan}:2:8: error[plan-mismatch]" in capsys.readouterr().err
    assert main(["compile", PROGRAM, *JOB, "--plan", str(tmp_path / "none")]) == 1
    assert "error[" in capsys.readouterr().err


def test_own_dispatcher_from_the_working_folder(tmp_path):
    (tmp_path / "placing.py").write_text(
        "import pstranspile\n"
        "class Last(pstranspile.Dispatcher):\n"
        "    def dispatch(self, variables):\n"
        "        return [self.endpoints[-1] for variable in variables]\n"
    )
    code = f"import sys; sys.path[:] = [p for p in sys.path if p]; sys.path.insert(0, {str(ROOT)!r})\n"
    code += "from pstranspile.tools.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "plan", PROGRAM, *JOB, "--set", "split_method=placing:Last"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '@ "b:6174"' in done.stdout
    assert '@ "a:6174"' not in done.stdout


def test_a_job_file_runs_code_only_if_it_is_trusted(tmp_path):
    (tmp_path / "placing.py").write_text(
        "open('ran', 'w').close()\n"
        "import pstranspile\n"
        "class Last(pstranspile.Dispatcher):\n"
        "    def dispatch(self, variables):\n"
        "        return [self.endpoints[-1] for variable in variables]\n"
    )
    for method, trusted, says in (
        ("placing:Last", False, "job.toml:2:17: error[job-code]: split_method names code to run, 'placing:Last'"),
        ("builtins:exit", False, "--trust-code"),
        ("builtins:exit", True, "is no subclass of pstranspile.Dispatcher"),
        ("placing:Last", True, ""),
    ):
        (tmp_path / "job.toml").write_text(f'pservers = "a:6174,b:6174"\nsplit_method = "{method}"\n')
        command = [sys.executable, "-m", "pstranspile", "plan", PROGRAM, "--config", "job.toml"]
        command += ["--trust-code"] if trusted else []
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode != 0) == bool(says), done.stderr
        assert says in done.stderr
        assert (tmp_path / "ran").exists() == (not says)


def test_warnings_do_not_stop_a_compile(capsys):
    program = str(ROOT / "golden" / "lars_norm_of_slice.ir")
    assert main(["compile", program, *JOB, "--set", "nccl_comm_num=2"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("# trainer_0\n")
    assert "warning[job-unused]: nccl_comm_num has no effect in mode sync" in err
    assert f"{program}:" in err


def test_timing_and_print_after(capsys):
    assert (
        main(["compile", PROGRAM, *JOB, "--timing", "--print-after", "emit-pservers", "--print-after", "mint-names"])
        == 0
    )
    out, err = capsys.readouterr()
    assert "# after" not in out
    assert err.count("# after emit-pservers\n") == 2
    assert "listen_and_serv(" in err
    assert err.count("# after mint-names\n") == 1
    table = err[err.index("pass  ") :].splitlines()
    names = [line.split()[0] for line in table[1:]]
    assert names[-1] == "total"
    listed = [line.split()[0] for line in output(capsys, "passes").splitlines()]
    assert set(names[:-1]) <= set(listed)  # some passes are those of other modes


def test_outputs_appear_whole_or_not_at_all(tmp_path, capsys):
    blocker = tmp_path / "file"
    blocker.write_text("")
    assert main(["compile", PROGRAM, *JOB, "-o", str(blocker / "out")]) == 1
    assert f"{blocker}" in capsys.readouterr().err
    folder = tmp_path / "out"
    (folder / "plan.json").mkdir(parents=True)
    assert main(["compile", PROGRAM, *JOB, "-o", str(folder)]) == 1
    assert [p.name for p in folder.iterdir()] == ["plan.json"]


def test_folder_without_permission(tmp_path, capsys, monkeypatch):
    def compiled(folder):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
        return main(["compile", "-", *JOB, "-o", str(folder)])

    text = Path(PROGRAM).read_bytes()
    assert compiled(tmp_path / "allowed") == 0  # and imports all that is needed
    closed = tmp_path / "closed"
    closed.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    with as_nobody():
        assert compiled(closed / "out") == 1
    assert "error[output-unwritable]" in capsys.readouterr().err
    assert list(closed.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["linear_regression", "frozen_parameter", "piecewise_decay", "adagrad_rate_per_parameter"]
)
def test_import_and_export_are_inverse(name, tmp_path, capsys):
    program = str(ROOT / "golden" / f"{name}.ir")
    output(capsys, "export", program, "--to", "pb", "-o", str(tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["main.pb", "meta.json", "startup.pb"]
    pair = [str(tmp_path / "main.pb"), "--startup", str(tmp_path / "startup.pb"), "--meta", str(tmp_path / "meta.json")]
    output(capsys, "import", *pair, "-o", str(tmp_path / "net.ir"))
    original = "".join(line for line in Path(program).read_text().splitlines(True) if not line.startswith("#"))
    assert (tmp_path / "net.ir").read_text() == original
    assert output(capsys, "import", *pair) == original
    assert output(capsys, "compile", *pair, *JOB) == output(capsys, "compile", program, *JOB)


def test_a_startup_program_imported_alone_is_told(capsys):
    assert main(["import", str(FOLDER / "fit_a_line.startup.pb")]) == 0
    told = capsys.readouterr().err
    assert "warning[input-startup]: all its ops initialise variables, as in a startup program" in told
    assert main(["import", str(FOLDER / "fit_a_line.main.pb")]) == 0
    assert "input-startup" not in capsys.readouterr().err


def test_fmt_rewrites_in_place(tmp_path, capsys):
    path = tmp_path / "net.ir"
    canonical = Path(PROGRAM).read_text()
    path.write_text(canonical.replace("    ", "\t"))
    assert main(["fmt", "--check", str(path)]) == 1
    assert capsys.readouterr().out == f"{path}\n"
    assert output(capsys, "fmt", str(path)) == f"{path}\n"
    assert path.read_text() == canonical
    assert output(capsys, "fmt", str(path)) == ""
    assert output(capsys, "fmt", "--check", str(path)) == ""


def test_fmt_leaves_broken_files_alone(tmp_path, capsys):
    good, broken, binary = tmp_path / "good.ir", tmp_path / "broken.ir", tmp_path / "binary.ir"
    good.write_text(Path(PROGRAM).read_text().replace("    ", "  "))
    broken.write_text("ir 1\nprogram @main {\n")
    binary.write_bytes(b"\xff\x00")
    assert main(["fmt", str(broken), str(binary), str(tmp_path / "none.ir"), str(good)]) == 1
    err = capsys.readouterr().err
    assert all(f"{path}" in err for path in (broken, binary, tmp_path / "none.ir"))
    assert broken.read_text() == "ir 1\nprogram @main {\n"
    assert good.read_text() == Path(PROGRAM).read_text()


def test_a_text_in_another_encoding_is_refused_alike_by_all(tmp_path, capsys):
    text = Path(PROGRAM).read_text()
    (tmp_path / "wide.ir").write_bytes(text.encode("utf-16"))
    (tmp_path / "latin.ir").write_bytes(f"# caf\xe9\n{text}".encode("latin-1"))
    for name, said in (("wide", "UTF-16, it must be UTF-8"), ("latin", "not UTF-8: byte 0xe9 at offset 5, line 1")):
        path = tmp_path / f"{name}.ir"
        for verb in ("fmt", "verify"):
            assert main([verb, str(path)]) == 1
            assert f"{path}: error[input-encoding]: the text is {said}\n" in capsys.readouterr().err


def test_fmt_of_stdin(monkeypatch, capsys):
    import io

    text = Path(PROGRAM).read_text()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.replace("    ", " ").encode())))
    assert output(capsys, "fmt", "-") == text


def test_verify_looks_at_every_input(tmp_path, capsys):
    broken = tmp_path / "broken.ir"
    broken.write_text("ir 1\nprogram @main {\n")
    wrong = tmp_path / "wrong.ir"
    wrong.write_text(Path(PROGRAM).read_text().replace("Y=%w)", "Y=%weight)"))
    assert main(["verify", str(broken), PROGRAM, str(wrong)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{broken}:" in err
    assert f"{wrong}:" in err
    assert PROGRAM not in err
    assert main(["verify", PROGRAM]) == 0
    assert capsys.readouterr() == ("", "")


def test_verify_accepts_what_compile_writes(tmp_path, capsys):
    output(capsys, "compile", PROGRAM, *JOB, "-o", str(tmp_path))
    assert main(["verify", *(str(tmp_path / f"{role}.ir") for role in ROLES)]) == 0, capsys.readouterr().err


def test_diff(tmp_path, capsys):
    other = tmp_path / "other.ir"
    other.write_text(Path(PROGRAM).read_text().replace("value=0.01", "value=0.1"))
    assert main(["diff", PROGRAM, PROGRAM]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["diff", PROGRAM, str(other)]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert "value=0.01" in out
    assert "value=0.1" in out
    assert main(["diff", PROGRAM, str(tmp_path / "none.ir")]) == 2
    assert "none.ir" in capsys.readouterr().err


def test_diff_of_output_folders(tmp_path, capsys):
    for name, trainers in (("a", "2"), ("b", "2"), ("c", "3")):
        output(capsys, "compile", PROGRAM, "--pservers", "2", "--trainers", trainers, "-o", str(tmp_path / name))
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert capsys.readouterr().out == ""
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "c")]) == 1
    assert "trainer_2" in capsys.readouterr().out
    assert main(["diff", str(tmp_path / "a"), PROGRAM]) == 2
    assert "is a folder" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["nccl2", "grad-allreduce", "ddp", "local-sgd", "single-process-multi-thread"])
def test_trainers_without_servers_may_be_a_number(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    net = str(Path(__file__).parents[3] / "examples" / "regression.ir")
    job = ("--mode", mode, "--trainers", "2")
    assert main(["plan", net, *job]) == 0
    plan = capsys.readouterr().out
    assert "# trainer 0: 127.0.0.1:6174\n# trainer 1: 127.0.0.1:6175\n" in plan
    assert main(["plan", net, "--mode", mode, "--trainers", "127.0.0.1:6174,127.0.0.1:6175"]) == 0
    assert capsys.readouterr().out == plan
    assert main(["compile", net, *job, "-o", "out"]) == 0
    assert main(["check", net, *job, "--steps", "2"]) == 0
    assert main(["report", net, *job, "--run", "--steps", "1", "-o", "page.html"]) == 0
    Path("job.toml").write_text(f'mode = "{mode}"\ntrainers = 2\n')
    capsys.readouterr()
    assert main(["plan", net, "--config", "job.toml"]) == 0
    assert capsys.readouterr().out == plan
    assert main(["plan", net, "--mode", mode]) == 2
    assert "needs the trainers, as a number or as endpoints; none are given" in capsys.readouterr().err
