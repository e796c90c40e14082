"""The documentation is true: every command and snippet in it runs, and prints what it says it prints.

In the documents of the root and of docs/, `sh` blocks are run by bash and the `python` blocks of a document by one
Python, document by document, in order, in a copy of the examples. A `text` block right after one of them is what it
prints; `...` in it stands for any characters, and for any lines if it is alone on its line. A `sh` block ends with
status 0, or with what its fence says (`sh status=1`). A block that needs a package which is not installed is left out
(`python needs=torch`). `toml` blocks of docs/reference/job.md are job files.

The two commands of the README's first screen are left out: they make virtual environments, and one of them
runs these tests. `.ci/run` runs both.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path
from threading import Timer

import pytest

from pstranspile.compiler.job.file import load_job
from tests.readme import ROOT, Block, blocks

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = [*(path for folder in ("pstranspile", "tests") for path in (ROOT / folder).rglob("*.py"))]
SUMMARY = re.compile(
    r"^\S+: (?:the programs of .*\n(?:  .*\n)*|(?:an? (?:page|graph|training program|ONNX model|inference model)"
    r"|the text of|the model's|the fetched|ProgramDescs:|MLIR|every message|a chart|left as it was).*\n)"
    r"(?:(?:does it train|is it well formed|back to text|to see it|to read it|its parameters are|--run and).*\n)?",
    re.MULTILINE,
)
"""What commands say on stderr of what they have written; documents show it where it is sent to stdout."""

FIRST_SCREEN = ("Set up and run", "Run the tests")


def runnable(path: Path) -> list[Block]:
    return [b for b in blocks(path) if b.language in ("sh", "python", "text") and b.heading not in FIRST_SCREEN]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of what documents refer to, and a `pstranspile` that is the one under test."""
    shutil.copytree(ROOT / "examples", tmp_path / "work" / "examples")
    commands = tmp_path / "bin"
    commands.mkdir()
    script = commands / "pstranspile"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pstranspile "$@"\n')
    script.chmod(0o755)
    (commands / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (commands / "python").chmod(0o755)
    return tmp_path


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Ray knows of no cluster on this host, whatever other tests start at the same time."""
    with tempfile.TemporaryDirectory() as short:  # paths of sockets are at most 107 characters long
        monkeypatch.setenv("RAY_TMPDIR", short)
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        yield


SESSION = """
import json, os, sys, traceback
def execute(text, out):
    kept, status = (os.dup(1), os.dup(2)), 0
    for number, name in (1, out), (2, out + ".errors"):
        with open(name, "w") as file:
            os.dup2(file.fileno(), number)
    try:
        exec(compile(text, "<string>", "exec"), vars(sys.modules["__main__"]))
    except SystemExit as stop:
        status = stop.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    for number, stream in enumerate(kept, 1):
        os.dup2(stream, number)
        os.close(stream)
    return status
for line in sys.stdin:
    print(json.dumps(execute(*json.loads(line))), flush=True)
"""
"""A process that runs the blocks it is sent, one after the other, with the names of the earlier ones. Each line of its
input has a block and the file for what it prints; what it prints on stderr goes to a file beside it.
"""


class Reader:
    """Somebody who types in the blocks of one document: one shell for each of its commands, and one Python for all its
    snippets, which see the names of earlier ones.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._environment = {
            **os.environ,
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "100",
        }
        self._python: subprocess.Popen[str] | None = None

    def run(self, block: Block) -> str:
        """What the block prints."""
        status, out, errors = self._shell(block) if block.language == "sh" else self._session(block)
        assert status == block.status, f"line {block.line}:\n{block.text}\n{out}{errors}"
        return out + SUMMARY.sub("", errors)

    def close(self) -> None:
        """Ends Python, if there was a snippet."""
        if self._python is not None:
            try:
                self._python.communicate(timeout=60)
            finally:
                self._python.kill()

    def _shell(self, block: Block) -> tuple[object, str, str]:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=self._folder / "work",
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        return done.returncode, done.stdout, done.stderr

    def _session(self, block: Block) -> tuple[object, str, str]:
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-c", SESSION],
                cwd=self._folder / "work",
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        printed = self._folder / f"{block.line}.txt"
        self._python.stdin.write(json.dumps([block.text, str(printed)]) + "\n")
        self._python.stdin.flush()
        clock = Timer(300, self._python.kill)
        clock.start()
        status = self._python.stdout.readline()
        clock.cancel()
        out, errors = (Path(f"{printed}{ending}").read_text() for ending in ("", ".errors"))
        return json.loads(status) if status else f"the process has ended in line {block.line}", out, errors


def matches(printed: str, documented: str) -> bool:
    def pattern(line: str) -> str:
        return "(?:.*\n)*" if line == "...\n" else ".*".join(map(re.escape, line.split("...")))

    return re.fullmatch("".join(map(pattern, documented.splitlines(True))), printed) is not None


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
@pytest.mark.usefixtures("no_cluster")
def test_commands_and_snippets(path: Path, folder: Path):
    needed = {"ray.md": "ray", "onnx.md": "onnx", "ddp.md": "torch", "pytorch.md": "torch"}.get(path.name)
    if needed is not None:
        pytest.importorskip(needed, reason=f"{needed} is not installed")
    reader = Reader(folder)
    try:
        follow(reader, path)
    finally:
        reader.close()


def follow(reader: Reader, path: Path) -> None:
    """Runs what is in a document, and compares what is printed with it."""
    printed = None
    for block in runnable(path):
        if block.language == "text":
            if printed is not None:
                assert matches(printed, block.text), f"line {block.line}: what is printed is\n{printed}"
            printed = None
        elif block.needs and find_spec(block.needs) is None:
            printed = None
        else:
            printed = reader.run(block)


def test_the_first_screen_has_two_commands():
    text = (ROOT / "README.md").read_text()
    first = blocks(ROOT / "README.md")[:2]
    assert [b.heading for b in first] == [*FIRST_SCREEN]
    assert [b.language for b in first] == ["sh", "sh"]
    assert all(len(b.text.strip().splitlines()) <= 3 for b in first)
    assert len(text[: text.index(first[1].text)].splitlines()) <= 25


def test_matching_of_output():
    assert matches("a\nb\nc\n", "a\n...\nc\n")
    assert matches("a\nc\n", "a\n...\nc\n")
    assert matches("a bc d\n", "a ... d\n")
    assert not matches("a\nd\n", "a...d\n")
    assert not matches("a\nb\n", "a\n")
    assert not matches("ab\n", "a.\n")


def anchors(path: Path) -> set[str]:
    """What a link may name behind `#`: the headings of a document, as they are shown on the web."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.*?)\s*$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_documents_that_the_code_names_exist():
    named = {(path.name, name) for path in SOURCES for name in re.findall(r"\bdocs/[\w/]+\.md\b", path.read_text())}
    assert named
    assert sorted(entry for entry in named if not (ROOT / entry[1]).exists()) == []


def test_job_files_in_the_documentation_load(tmp_path: Path):
    tables = [b for b in blocks(ROOT / "docs" / "reference" / "job.md") if b.language == "toml"]
    assert tables
    for number, block in enumerate(tables):
        file = tmp_path / f"{number}.toml"
        file.write_text(block.text)
        load_job(file)


def test_the_index_leads_to_every_document():
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [path.relative_to(ROOT / "docs") for path in sorted((ROOT / "docs").rglob("*.md"))]
    assert [str(page) for page in pages if str(page) != "README.md" and f"]({page})" not in index] == []


def test_make_lists_its_commands():
    help_of_make = ["make", "--no-print-directory", "help"]
    done = subprocess.run(help_of_make, cwd=ROOT, capture_output=True, text=True, check=True)
    rules = (ROOT / "Makefile").read_text()
    phony = re.findall(r"^\.PHONY: (.*)$", rules, re.MULTILINE)[0].split()
    listed = [line.split()[1] for line in done.stdout.splitlines()]
    assert listed == phony
    named = set(re.findall(r"`make ([a-z]+)`|^    make ([a-z]+)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    assert {name for pair in named for name in pair if name} <= set(listed)


def test_files_that_make_names_exist():
    named = re.findall(r"\b(?:tests|benchmarks)/[\w/.]+", (ROOT / "Makefile").read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []
