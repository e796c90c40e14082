"""The command line as a whole: help, exit codes, where things are printed."""

import errno
import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pstranspile import __version__
from pstranspile.tools.cli import VERBS, main

ROOT = Path(__file__).parents[3]
PROGRAM = str(ROOT / "golden" / "linear_regression.ir")
JOB = ["--pservers", "a:6174,b:6174", "--trainers", "2"]


def run(*arguments, **options):
    """The command in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    command = [sys.executable, "-m", "pstranspile", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, **options)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(arguments, capsys):
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert all(f"  {verb}" in out and spec.summary in out for verb, spec in VERBS.items())


def test_every_file_that_runs_a_command_says_which():
    files = {path.stem: path.read_text() for path in (ROOT / "pstranspile" / "tools" / "cli").glob("*.py")}
    running = {name for name, text in files.items() if "\ndef run(arguments: Sequence[str]) -> int:" in text}
    assert running == {verb.module for verb in VERBS.values()}


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_has_help_with_examples(verb, capsys):
    assert main([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"usage: pstranspile {verb}" in out
    assert f"examples:\n  pstranspile {verb}" in out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pstranspile {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["complie"], "did you mean compile?"),
        (["--bogus"], "--bogus"),
        (["compile"], "INPUT"),
        (
            ["compile", PROGRAM, "--bogus"],
            "error: there is no option --bogus\n`pstranspile compile --help` explains the options\n",
        ),
        (["compile", "--pservrs=2"], "there is no option --pservrs; did you mean --pservers?"),
        (["plan", PROGRAM, "-pserver", "2"], "there is no option -pserver; did you mean --pservers?"),
        (["check", PROGRAM, *JOB, "--out", "x", "--set", "-1"], "there is no option --out\n"),
        (["compile", PROGRAM, *JOB, "--o", "x"], "did you mean --output?"),
        (["explain", PROGRAM, *JOB, "--op", "9" * 5000], "is not the number of an op"),
        (["explain", PROGRAM, *JOB, "--op", "\u00b2"], "is not the number of an op"),
        (["check", PROGRAM, *JOB, "--batch", "0"], "--batch: '0' is no whole number of at least 1"),
        (["check", PROGRAM, *JOB, "--batch", "-1"], "--batch: '-1' is no whole number of at least 1"),
        (["check", PROGRAM, *JOB, "--steps", "0"], "--steps: '0' is no whole number of at least 1"),
        (["check", PROGRAM, *JOB, "--seed", "9" * 5000], "is no whole number (of 18 digits at most)"),
        (["check", PROGRAM, *JOB, "--schedules", "1e3"], "'1e3' is no whole number of at least 0"),
        (["check", PROGRAM, *JOB, "--schedules", "9" * 18], "is more than 1,000,000, the most that is taken"),
        (["check", PROGRAM, *JOB, "--steps", "1" + "0" * 26], "is more than 1,000,000, the most that is taken"),
        (["check", PROGRAM, *JOB, "--batch", "1000001"], "1000001 is more than 1,000,000, the most that is taken"),
        (["run", PROGRAM, *JOB, "--steps", "9" * 5000], "is more than 1,000,000,000, the most that is taken"),
        (["run", PROGRAM, "--max-turns", "x"], "'x' is no whole number"),
        (["--versoin"], "did you mean --version?"),
        (["--pservers", "2", "compile", PROGRAM], "the command comes first: pstranspile compile ..."),
        (["compile", PROGRAM], "pservers: mode sync needs at least one parameter server"),
        (["compile", PROGRAM, "--pservers", "2", "--trainers", "0"], "trainers is 0; it must be at least 1"),
        (["compile", PROGRAM, "--pservers", "a:1,a:1"], "a:1 stands there twice"),
        (["compile", PROGRAM, "--pservers", "a:b"], "the port 'b' is not a number"),
        (["compile", PROGRAM, "--pservers", "http://ps0:80"], "is a URL; write host:port; did you mean ps0:80?"),
        (["compile", PROGRAM, "--pservers", "tcp://[::1]:80/x"], "is a URL; write host:port; did you mean [::1]:80?"),
        (["compile", PROGRAM, "--pservers", "://"], "'://' is a URL; write host:port\n"),
        (["compile", PROGRAM, "--pservers", "2", "--set", "slice_var=1"], "did you mean slice_var_up?"),
        (["compile", PROGRAM, "--pservers", "2", "--set", "pservers=3"], "pservers is given twice"),
        (["compile", PROGRAM, "--pservers", "2", "--mode", "snyc"], "did you mean sync?"),
        (["compile", PROGRAM, "--config", "no/such.toml"], "no/such.toml: error[job-file]: can't read"),
        (["compile", PROGRAM, *JOB, "--emit", "pb"], "-o DIR"),
        (["compile", PROGRAM, *JOB, "--emit", "xml"], "xml"),
        (["compile", PROGRAM, *JOB, "--print-after", "find-rules"], "did you mean find-roles?"),
        (["export", PROGRAM, "--to", "pb"], "-o"),
        (["verify"], "INPUT"),
        (["verify", PROGRAM, PROGRAM, "--meta", "m.json"], "single INPUT"),
    ],
)
def test_wrong_usage_is_status_2(arguments, says, capsys):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert "Traceback" not in err


def test_a_seed_may_be_any_number(capsys):
    for seed in ("-1", "9" * 18):
        assert main(["check", PROGRAM, *JOB, "--steps", "1", "--seed", seed]) == 0
    assert main(["check", PROGRAM, *JOB, "--steps", "1", "--faults", "9" * 5000]) == 1
    assert "error[cluster-scenario]" in capsys.readouterr().err


def test_a_job_file_with_an_unknown_key_is_quoted(tmp_path, capsys):
    job = tmp_path / "job.toml"
    job.write_text('pservers = "a:6174"\nmin_blok_size = 100\n')
    assert main(["compile", PROGRAM, "--config", str(job)]) == 2
    err = capsys.readouterr().err
    assert f"{job}:2:1: error[job-unknown-key]" in err
    assert "did you mean min_block_size?" in err
    assert "    2 | min_blok_size = 100\n" in err
    assert "^^^^^^^^^^^^^" in err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"\x00\x01\x02\xff\xfe junk", "byte 0x00"),
        (b"ir 1\n\nprogram @main {\n  block ^0 {\n    mul(X=%x -> Out=%y\n  }\n}\n", ":5:"),
        (b"\xff" * 64, ""),
    ],
)
def test_bad_input_is_status_1(content, says, tmp_path, capsys):
    path = tmp_path / "net.ir"
    path.write_bytes(content)
    for verb in (["compile", str(path), *JOB], ["verify", str(path)], ["import", str(path)]):
        assert main(verb) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert says in err
        assert str(path) in err
        assert "error[" in err
        assert "Traceback" not in err


def test_missing_input(capsys):
    assert main(["verify", "no/such.ir"]) == 1
    assert capsys.readouterr().err.startswith("no/such.ir: error[")


def test_findings_quote_the_source(tmp_path, capsys):
    path = tmp_path / "net.ir"
    path.write_text(Path(PROGRAM).read_text().replace("mul(X=%x, Y=%w)", "mul(X=%x, Y=%weight)"))
    assert main(["compile", str(path), *JOB]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "%weight" in text)
    assert f"{path}:{line}:" in err
    assert f"{line:>5} |     mul(X=%x, Y=%weight) -> Out=%xw" in err


def test_internal_errors_are_status_3(monkeypatch, capsys):
    def broken(*_args, **_options):
        raise RuntimeError("the moon is in the wrong phase")

    monkeypatch.setattr("pstranspile.frontends.loading.load", broken)
    assert main(["verify", PROGRAM]) == 3
    err = capsys.readouterr().err
    assert "internal error: RuntimeError: the moon is in the wrong phase" in err
    assert "Please report it" in err
    assert "Traceback" not in err
    assert main(["verify", PROGRAM, "--traceback"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_programs_that_do_not_link_are_told_at_the_op(monkeypatch, capsys):
    import pstranspile.compiler.link as link_module
    from pstranspile.ir.diagnostics import error

    def unlinkable(*_args, **_options):
        raise link_module.LinkError([error("link-blocks", "block 7 does not exist")])

    monkeypatch.setattr(importlib.import_module("pstranspile.compiler.pipeline"), "link", unlinkable)
    assert main(["compile", PROGRAM, *JOB]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "error[link-blocks]: block 7 does not exist" in err
    assert "if Fluid distributes the program, this is a fault of pstranspile: please report it" in err


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (MemoryError("Unable to allocate 3 GiB"), "there is not enough memory: Unable to allocate 3 GiB"),
        (MemoryError(), "there is not enough memory"),
        (FileNotFoundError(2, "No usable temporary directory found"), "No usable temporary directory found"),
        (
            OSError(errno.EMFILE, "Too many open files"),
            "Too many open files; `ulimit -n` says how many a process may have, and raises it",
        ),
        (OSError(errno.ENFILE, "Too many open files in system"), "Too many open files in system"),
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), "Resource temporarily unavailable"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "Cannot allocate memory"),
        (OSError(errno.ENOSPC, "No space left on device"), "standard input or output: No space left on device"),
    ],
)
def test_what_the_machine_lacks_is_no_fault_of_the_program(problem, told, monkeypatch, capsys):
    def lacking(*_args, **_options):
        raise problem

    monkeypatch.setattr("pstranspile.frontends.loading.load", lacking)
    assert main(["verify", PROGRAM]) == 1
    assert capsys.readouterr().err == f"pstranspile: error: {told}\n"


def test_too_few_descriptors_for_processes(tmp_path):
    """It is told in one line what is short, whichever of the many files was the one too many."""
    np.savez(tmp_path / "fed.npz", x=np.ones((1, 12, 13), "float32"), y=np.ones((1, 12, 1), "float32"))
    command = ["launch", PROGRAM, "--pservers", "6", "--trainers", "6", "--feed", "fed.npz", "--steps", "1"]
    done = subprocess.run(
        ["bash", "-c", 'ulimit -n 24 && exec "$@"', "-", sys.executable, "-m", "pstranspile", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Too many open files; `ulimit -n`" in done.stderr
    assert "standard" not in done.stderr


def test_interrupt(monkeypatch, capsys):
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("pstranspile.frontends.loading.load", interrupted)
    assert main(["verify", PROGRAM]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_closed_pipe_is_no_accident():
    command = f'"{sys.executable}" -m pstranspile compile "{PROGRAM}" --pservers 40 --trainers 40 | head -n 1'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("# trainer_0\n", "", 141)


@pytest.mark.parametrize(
    ("redirection", "status", "says"),
    [("> /dev/full", 1, "standard input or output: No space left on device"), (">&-", 0, ""), ("<&-", 0, "")],
)
def test_a_full_or_closed_stream(redirection, status, says):
    done = subprocess.run(
        ["bash", "-c", f'"{sys.executable}" -m pstranspile compile "{PROGRAM}" --pservers 2 {redirection}'],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status
    assert says in done.stderr
    assert done.stderr.count("\n") <= 1


def test_a_closed_stdin_is_empty():
    command = f'"{sys.executable}" -m pstranspile verify - <&-'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "<stdin>: error[input-empty]" in done.stderr


def test_stdin_is_an_input():
    text = Path(PROGRAM).read_text()
    by_file, by_pipe = run("compile", PROGRAM, *JOB), run("compile", "-", *JOB, input=text)
    assert by_file.returncode == by_pipe.returncode == 0
    assert by_file.stdout == by_pipe.stdout
    broken = run("verify", "-", input=text.replace("Y=%w)", "Y=%weight)"))
    assert broken.returncode == 1
    assert "<stdin>:" in broken.stderr
    assert "| " in broken.stderr


def test_no_colours_unless_stderr_is_a_terminal(monkeypatch):
    from pstranspile.tools.cli.report import use_colour

    assert "\x1b" not in run("verify", "no/such.ir").stderr
    monkeypatch.setattr("sys.stderr", type("Terminal", (), {"isatty": lambda self: True})())
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert use_colour()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not use_colour()
