"""Imports point one way, and nothing heavy is imported before it is needed."""

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pstranspile"

LAYERS = (
    ("ir",),
    ("job",),
    ("ops",),
    ("values",),
    ("large",),
    ("arithmetic",),
    ("kernels",),
    ("gradients",),
    ("layers",),
    ("autodiff",),
    ("analysis",),
    ("plan",),
    ("emit",),
    ("modes",),
    ("interop",),
    ("verify", "link", "diff", "run"),
    ("data",),
    ("pipeline",),
    ("compile",),
    ("checkpoint", "explain", "net"),
    ("ray",),
    ("proof",),
    ("fluid",),
    ("lsp", "report"),
    ("cli",),
    ("__main__",),
)
"""From the lowest layer up. A module imports from its own layer or from lower ones."""

SEPARATE = ("interop", "verify", "link", "diff", "run")
"""Parts that know nothing of the transpiler."""

TOGETHER = ("verify", "link", "diff", "run")
"""Parts of one layer that do not import each other."""

TRANSPILER = ("analysis", "plan", "modes", "emit", "pipeline", "compile")

HEAVY = ("numpy", "networkx", "lark", "google.protobuf", "pygls", "lsprotocol")


def level(part: str) -> int:
    return next(number for number, parts in enumerate(LAYERS) if part in parts)


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path) for path in FILES}


@cache
def imported(path: Path) -> set[str]:
    """Modules of the package that a file imports anywhere.

    That is also inside functions, for types alone, and lazily: by a string that names a module. (Op families and modes
    are loaded by their names alone, as those of other packages are.)
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports name the whole package"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES or node.module == "pstranspile" else node.module or "" for name in names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value.partition(":")[0]} & MODULES
    return {name for name in found - {module_name(path)} if name.startswith("pstranspile.")}


def test_every_part_has_a_layer():
    assert [str(path) for path in FILES if not any(part_of(path) in parts for parts in LAYERS)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path):
    here = part_of(path)
    for name in sorted(imported(path)):
        there = name.split(".")[1]
        assert level(there) <= level(here), f"{here} imports {name}"
        assert not (here in SEPARATE and there in TRANSPILER), f"{here} imports {name}"
        assert not (here in TOGETHER and there in TOGETHER and here != there), f"{here} imports {name}"


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """Names that lead from one to the next and back to the first; empty if there is no such circle."""
    done: set[str] = set()
    for start in sorted(graph):
        way = [(start, iter(sorted(graph[start])))]
        while way and start not in done:
            name, rest = way[-1]
            following = next((n for n in rest if n not in done), None)
            on_way = [other for other, _ in way]
            if following in on_way:
                return [*on_way[on_way.index(following) :], following]
            if following is None:
                done.add(name)
                way.pop()
            else:
                way.append((following, iter(sorted(graph[following]))))
    return []


def test_circles_are_found():
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert circle_in({"a": {"b"}, "b": {"c", "d"}, "c": set(), "d": {"b"}}) == ["b", "d", "b"]


def test_no_module_imports_itself_through_others():
    assert circle_in({module_name(path): imported(path) & MODULES for path in FILES}) == []


def heavy_modules_after(code: str) -> str:
    report = f"\nimport sys; print(*[name for name in {HEAVY!r} if name in sys.modules], file=sys.__stderr__)"
    done = subprocess.run(
        [sys.executable, "-c", code + report],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr.strip()


@pytest.mark.parametrize(
    "code",
    [
        "import pstranspile, pstranspile.tools.cli",
        "from pstranspile.tools.cli import main; assert main(['--help']) == 0",
        "from pstranspile.tools.cli import main; assert main(['compile', '--help']) == 0",
        "from pstranspile.tools.cli import main; assert main(['passes']) == 0",
        "import pstranspile; pstranspile.Job(pservers=2)",
        "import pstranspile; pstranspile.load; pstranspile.compiler.compile; pstranspile.compiler.verify; pstranspile.compiler.diff",
    ],
)
def test_starting_imports_nothing_heavy(code: str):
    assert heavy_modules_after(code) == ""


def test_compiling_text_imports_no_protobuf():
    code = "from pstranspile.tools.cli import main; assert main(['compile', 'examples/regression.ir', '--pservers', '2']) == 0"
    assert "protobuf" not in heavy_modules_after(code)


def test_outputs_do_not_depend_on_the_hash_seed(tmp_path: Path):
    written: set[bytes] = set()
    command = ["compile", "golden/piecewise_decay.ir", "--pservers", "3", "--trainers", "2", "--emit", "pb"]
    for seed in ("0", "1", "2", "random"):
        out = tmp_path / seed
        subprocess.run(
            [sys.executable, "-m", "pstranspile", *command, "-o", str(out)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            check=True,
        )
        files = sorted(out.iterdir())
        written.add(b"".join(file.name.encode() + file.read_bytes() for file in files))
        assert len(files) == 16
    assert len(written) == 1


@pytest.mark.parametrize("folder", sorted({part_of(path) for path in FILES}))
def test_the_architecture_names_every_part(folder: str):
    name = folder if (PACKAGE / folder).is_dir() else f"{folder}.py"
    assert f"`{name}`" in (ROOT / "ARCHITECTURE.md").read_text(), f"ARCHITECTURE.md does not say what {name} is for"
