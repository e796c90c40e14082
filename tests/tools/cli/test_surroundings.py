"""Streams that are closed or in another encoding, odd names of files, permissions of what is replaced."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pstranspile.__main__ import main as start
from pstranspile.tools.cli import main
from tests.devices import FULL
from tests.tools.cli.test_verbs import as_nobody

ROOT = Path(__file__).parents[3]
PROGRAM = str(ROOT / "golden" / "linear_regression.ir")
NAMES = """\
ir 1

program @main {
  block ^0 {
    temp  %"naïve ☃" : f32[1]
    relu(X=%"naïve ☃") -> Out=%"naïve ☃"
  }
}
"""


def run(*arguments: str | bytes, script: str = "pass", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own; `script` is Python that runs before it."""
    code = f"import os, sys; {script}; from pstranspile.tools.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_programs_are_printed_in_utf_8_whatever_the_locale(tmp_path):
    path = tmp_path / "names.ir"
    path.write_text(NAMES, encoding="utf-8")
    for encoding in ("ascii", "latin-1", "utf-16"):
        done = run("import", str(path), PYTHONIOENCODING=encoding)
        assert (done.returncode, done.stdout) == (0, NAMES.encode()), done.stderr


def test_names_of_files_that_are_not_text(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff.ir"
    with open(path, "w", encoding="utf-8") as file:
        file.write(NAMES.replace("    ", " "))
    done = run("fmt", "--check", path)
    assert (done.returncode, done.stdout.count(rb"/\xff.ir")) == (1, 1), done.stderr


@pytest.mark.parametrize("stream", ["stderr", "stdout"])
def test_a_closed_stream(stream):
    done = run("verify", "no/such.ir", script=f"sys.{stream} = None")
    assert done.returncode == 1
    assert b"internal" not in done.stdout + done.stderr


@pytest.mark.parametrize("verb", [["verify", "-"], ["fmt", "-"], ["diff", "-", PROGRAM]])
@pytest.mark.parametrize("script", ["pass", "sys.stdin = None"])
def test_nothing_on_stdin(verb, script):
    done = run(*verb, script=script)
    assert done.returncode == (2 if verb[0] == "diff" else 1)
    counted = ["<stdin>: 1 error"] if verb[0] == "verify" else []
    assert done.stderr.decode().splitlines() == ["<stdin>: error[input-empty]: there is nothing on stdin", *counted]


def test_stdin_is_meant_by_a_hyphen_although_a_folder_has_its_name(tmp_path):
    (tmp_path / "-").mkdir()
    done = run("diff", "-", PROGRAM, script=f"os.chdir({str(tmp_path)!r})")
    assert b"there is nothing on stdin" in done.stderr


@pytest.mark.parametrize("folder", ["", "-"])
@pytest.mark.parametrize("verb", [["compile", PROGRAM, "--pservers", "2"], ["export", PROGRAM, "--to", "pb"]])
def test_no_folder_to_write_to(verb, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*verb, "-o", folder]) == 2
    assert f"{folder!r} is no folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_empty_name(capsys):
    assert main(["verify", ""]) == 1
    assert "the name of a file is empty" in capsys.readouterr().err


def test_a_name_of_two_lines(capsys):
    assert main(["verify", "no such\nfile.ir"]) == 1
    assert capsys.readouterr().err.startswith("no such\\nfile.ir: error[input-unreadable]")


def test_fmt_takes_a_byte_order_mark_out(tmp_path, capsys):
    path = tmp_path / "net.ir"
    canonical = Path(PROGRAM).read_bytes()
    path.write_bytes(b"\xef\xbb\xbf" + canonical)
    assert main(["fmt", "--check", str(path)]) == 1
    assert main(["fmt", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}\n" * 2
    assert path.read_bytes() == canonical


def test_a_replaced_file_keeps_its_permissions(tmp_path):
    path = tmp_path / "net.ir"
    path.write_text(Path(PROGRAM).read_text(encoding="utf-8").replace("  ", "   "), encoding="utf-8")
    path.chmod(0o640)
    assert main(["fmt", str(path)]) == 0
    assert path.read_bytes() == Path(PROGRAM).read_bytes()
    assert path.stat().st_mode & 0o777 == 0o640


def open_to_all(path: Path) -> None:
    """Lets every user into a test's folder."""
    for folder in (path, *path.parents):
        if "pytest-of-" in str(folder):
            folder.chmod(0o755)


def test_a_read_only_file_is_left_alone(tmp_path, capsys):
    open_to_all(tmp_path)
    tmp_path.chmod(0o777)
    path = tmp_path / "net.ir"
    path.write_text(NAMES.replace("    ", "   "), encoding="utf-8")
    path.chmod(0o444)
    with as_nobody():
        assert main(["fmt", str(path)]) == 1
    assert "net.ir: error[output-unwritable]: can't be written: Permission denied" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["net.ir"]


@pytest.mark.parametrize("option", ["--save", "--chart", "--trace"])
def test_results_that_can_not_be_written_are_not_computed(option, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("feed.npz", x=np.ones((2, 4, 13), "float32"), y=np.ones((2, 4, 1), "float32"))
    open_to_all(tmp_path)
    command = ["run", PROGRAM, "--pservers", "1", "--trainers", "2", "--feed", "feed.npz", "--fetch", "loss"]
    assert main(command) == 0  # what is imported while nobody runs may not be readable
    capsys.readouterr()
    for name, reason in (
        ("feed.npz/x.svg", "there is a file where a folder is needed"),
        ("new/x.svg", "Permission denied"),
    ):
        with as_nobody():
            assert main([*command, option, name]) == 1
        out, err = capsys.readouterr()
        assert (out, reason in err) == ("", True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["feed.npz"]


def test_an_interrupt_while_the_command_starts(monkeypatch):
    class Interrupted:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "pstranspile.tools.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "pstranspile.tools.cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupted, *sys.meta_path])
    assert start() == 130


@pytest.mark.parametrize("module", ["pstranspile.tools.cli", "pstranspile.tools.cli.passes"])
def test_an_interrupt_in_an_import_ends_the_process_at_once(module: str):
    """Python drops what is raised where it lets go of a lock of imports: there, a signal must do without raising."""
    code = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Finder:
    @staticmethod
    def find_spec(name, *_):
        if name == {module!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(1000): pass
            except KeyboardInterrupt:
                pass  # lost, as in a callback
sys.meta_path.insert(0, Finder)
sys.argv[1:] = ["passes"]
from pstranspile.__main__ import main
sys.exit(main())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"interrupted before anything was done\n")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("lost", [False, True])
def test_an_interrupt_in_an_import_of_a_command_that_has_begun(name: str, lost: bool, tmp_path: Path):
    """Modules in C raise errors of their own for what is raised in what they import, and none is imported twice."""
    code = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
seen = []
class Finder:
    @staticmethod
    def find_spec(name, *_):
        if name == "pstranspile.runtime":
            seen.append(name)
            try:
                if len(seen) == 1:
                    os.kill(os.getpid(), signal.{name})
                    for _ in range(1000): pass
            except BaseException:
                if not {lost}:
                    raise
            raise ImportError("it can't be loaded twice")
sys.meta_path.insert(0, Finder)
sys.argv[1:] = ["run", "examples/linear_regression.ir", "--checkpoint", {str(tmp_path / "kept")!r}]
from pstranspile.__main__ import main
sys.exit(main())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, check=False, text=True)
    told = f"interrupted: no checkpoint was saved in {tmp_path / 'kept'}"
    assert (ended.returncode, ended.stdout) == (128 + getattr(signal, name), "")
    assert ended.stderr.startswith(told)
    assert ended.stderr.count("\n") == 1


@FULL
@pytest.mark.parametrize("arguments", ["--help", "compile --help", "run -h", "--version", "passes"])
def test_a_text_that_cannot_be_written_is_an_error(arguments: str):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "pstranspile", *arguments.split()]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    message = "pstranspile: error: standard input or output: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (1, message)


def test_closed_streams_are_not_taken_for_others(tmp_path):
    """What is opened after them would get their numbers."""
    code = "import os, sys; os.closerange(0, 3); sys.argv[1:] = ['passes']; from pstranspile.__main__ import main; "
    code += "main(); found = [os.path.samestat(os.fstat(n), os.stat(os.devnull)) for n in range(3)]; "
    code += f"open({str(tmp_path / 'found')!r}, 'w').write(str(found))"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    assert (tmp_path / "found").read_text() == "[True, True, True]"


@pytest.mark.parametrize(("handler", "status"), [("SIG_DFL", 129), ("SIG_IGN", 143)])
def test_a_terminal_that_is_closed_ends_a_command_as_others_do(handler, status):
    """So that it takes away what it has begun; one that is to outlive the terminal does. These tests may be such."""
    code = f"import os, signal; signal.signal(signal.SIGHUP, signal.{handler}); "
    code += "import pstranspile.tools.cli as cli; from pstranspile.__main__ import main; "
    code += "cli.main = lambda **_: [os.kill(os.getpid(), n) for n in (signal.SIGHUP, signal.SIGTERM)]; main()"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == status


def test_a_read_only_mount_is_told_as_such(tmp_path: Path):
    """The reason is the system's own, whatever writes there: rights are not at fault."""
    mount = "mount -t tmpfs -o ro tmpfs held"
    (tmp_path / "held").mkdir()
    if not shutil.which("unshare") or subprocess.run(["unshare", "-m", "sh", "-c", mount], cwd=tmp_path).returncode:
        pytest.skip("this user can't mount")
    program, job = str(ROOT / "examples" / "linear_regression.ir"), ["--pservers", "1"]
    commands = [
        (["compile", program, *job, "-o", "held/out"], "held/out: error[output-unwritable]: can't be written"),
        (["run", program, "--save", "held/x.npz"], "held/x.npz: error[output-unwritable]: can't be written"),
        (["run", program, "--checkpoint", "held"], "held: error[checkpoint-target]: can't be written"),
        (["launch", program, *job, "--checkpoint", "held"], "held: error[checkpoint-target]: can't be written"),
        (["launch", program, *job, "--logs", "held/logs"], "held/logs: error[output-unwritable]: can't be written"),
        (["launch", program, *job, "--state", "held"], "held: error[output-unwritable]: can't be written"),
        (["run", program, "--table-folder", "held"], "held: error[table-folder]: can't hold rows of large tables"),
        (["report", program, *job, "-o", "held/x.html"], "held/x.html: error[output-unwritable]: can't be written"),
    ]
    lines = "\n".join(shlex.join([sys.executable, "-m", "pstranspile", *command]) for command, _ in commands)
    told = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{mount}\n{lines}"], cwd=tmp_path, capture_output=True, text=True
    ).stderr
    assert told.splitlines() == [f"{begins}: Read-only file system" for _, begins in commands]


def test_two_inputs_that_are_both_stdin_are_wrong_usage(capsys: pytest.CaptureFixture[str]):
    assert main(["diff", "-", "-"]) == 2
    assert "error: A and B can't both be read from stdin" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("run x.ir --fetch", "--fetch"),
        ("launch x.ir --fetch a --fetch", "--fetch"),
        ("export x.ir --to onnx -o o --fetch", "--fetch"),
        ("grad x.ir --optimizer sgd --loss", "--loss"),
        ("grad x.ir --loss a --optimizer", "--optimizer"),
        ("explain x.ir --var", "--var"),
        ("explain x.ir --role", "--role"),
        ("verify x.ir --allow", "--allow"),
        ("compile x.ir --mode", "--mode"),
        ("start out --role", "--role"),
        ("rows kept -o out", "TABLE"),
    ],
)
def test_names_that_are_empty(command: str, option: str, capsys: pytest.CaptureFixture[str]):
    assert main([*command.split(), ""]) == 2
    assert f"error: {option}: the name is empty\n" in capsys.readouterr().err


def test_a_folder_that_servers_could_not_save_in_is_told_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    shutil.copy(Path(__file__).parents[3] / "examples" / "linear_regression.ir", "net.ir")
    assert main(["launch", "net.ir", "--pservers", "1", "--trainers", "1", "--saves", "file"]) == 1
    assert capsys.readouterr().err.startswith("file: error[output-unwritable]: ")
