"""Imports point one way, and nothing heavy is imported before it is needed."""

import ast
import dataclasses
import importlib
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pstranspile"

WINGS = ("ir", "ops", "runtime", "frontends", "compiler", "cluster", "proof", "fluid", "tools")
"""The folders of the package. A module imports from its own folder and from those before it in this order."""

FOR_ANY_PROGRAMS = (
    *("runtime", "frontends", "cluster.machines"),
    *("compiler.verify", "compiler.link", "compiler.diff"),
)
"""Packages that take any programs, and know nothing of the transpiler that makes them."""

APART = ("compiler.verify", "compiler.link", "compiler.diff")
"""Packages that do not import each other."""

TRANSPILER = tuple(f"compiler.{part}" for part in ("analysis", "plan", "modes", "emit", "pipeline", "compile"))
"""The modules that make the programs of a cluster."""

PUBLIC = ("layers", "autodiff", "ray", "torch", "__main__")
"""Modules of the package that are in no wing: public names of packages that are, and the command."""

HEAVY = ("numpy", "torch", "networkx", "lark", "google.protobuf", "pygls", "lsprotocol")


def wing(module: str) -> str:
    return module.split(".")[1]


def within(module: str, packages: tuple[str, ...]) -> str | None:
    """The package among these that a module lies in."""
    return next((p for p in packages if f"{module}.".startswith(f"pstranspile.{p}.")), None)


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path) for path in FILES}


@cache
def telling(path: Path) -> list[ast.AST]:
    """The parts of a file that tell what it takes from others: imports, texts, and names with an underscore in front of
    something that has a name itself.
    """
    return [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        or (isinstance(node, ast.Attribute) and node.attr[0] == "_" and isinstance(node.value, ast.Name))
    ]


@cache
def imported(path: Path) -> set[str]:
    """Modules of the package that a file imports anywhere.

    That is also inside functions, for types alone, and lazily: by a string that names a module. (Op families and modes
    are loaded by their names alone, as those of other packages are.)
    """
    found: set[str] = set()
    for node in telling(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports name the whole package"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES or node.module == "pstranspile" else node.module or "" for name in names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value.partition(":")[0]} & MODULES
    return {name for name in found - {module_name(path)} if name.startswith("pstranspile.")}


def test_every_module_is_in_a_wing():
    assert {wing(name) for name in MODULES} == {*WINGS, *PUBLIC}
    assert {folder.name for folder in PACKAGE.iterdir() if any(folder.glob("*.py"))} == {*WINGS}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_back(path: Path):
    here = module_name(path)
    for name in sorted(imported(path)):
        if wing(here) in WINGS and wing(name) in WINGS:
            assert WINGS.index(wing(name)) <= WINGS.index(wing(here)), f"{here} imports {name}"
        assert wing(here) not in WINGS or wing(name) in WINGS, f"{here} imports {name}"
        assert not (within(here, FOR_ANY_PROGRAMS) and within(name, TRANSPILER)), f"{here} imports {name}"
        apart = {within(here, APART), within(name, APART)}
        assert None in apart or len(apart) == 1, f"{here} imports {name}"


def surface(wing_name: str) -> tuple[set[str], set[str]]:
    """The modules that a wing promises to others, and those that are its own, as the docstring of the wing says it.

    The sentence "Other wings use ..." names modules in backticks, and packages, which stand for all in them; "Its own
    are ..." names exceptions.
    """
    text = ast.get_docstring(ast.parse((PACKAGE / wing_name / "__init__.py").read_text(encoding="utf-8"))) or ""
    promised = re.search(r"Other wings use .*?\.(?=\s|$)", text, re.DOTALL)
    assert promised, f"the docstring of {wing_name} does not say what other wings use"
    own = re.search(r"Its own (?:are|is) .*?\.(?=\s|$)", text, re.DOTALL)
    both = [promised[0], own[0] if own else ""]
    used, kept = ({f"pstranspile.{wing_name}.{name}" for name in re.findall(r"`([\w.]+)`", part)} for part in both)
    assert kept <= MODULES, f"{wing_name} has no {sorted(kept - MODULES)}"
    return used & MODULES, kept


def is_promised(name: str, used: set[str], kept: set[str]) -> bool:
    """Whether a module lies in a surface: what names it most precisely counts."""
    parts = name.split(".")
    above = [".".join(parts[:length]) for length in range(len(parts), 2, -1)]
    nearest = next((name for name in above if name in used or name in kept), None)
    return len(parts) == 2 or nearest in used


@cache
def crossing() -> list[tuple[str, str]]:
    """The imports of one wing, or of a public module beside them, from another: who imports, and what."""
    return [
        (module_name(path), name)
        for path in FILES
        for name in sorted(imported(path) & MODULES)
        if wing(name) != wing(module_name(path)) and wing(name) in WINGS
    ]


@pytest.mark.parametrize("wing_name", WINGS)
def test_other_wings_use_what_a_wing_promises(wing_name: str):
    used, kept = surface(wing_name)
    asked = {name: here for here, name in crossing() if wing(name) == wing_name}
    beyond = [f"{here} imports {name}" for name, here in asked.items() if not is_promised(name, used, kept)]
    assert not beyond, "not promised by the docstring of the wing: " + ", ".join(beyond)
    if wing_name != "tools":  # the command alone, of which the package's own names make use
        unused = {name for name in used if not any(f"{other}.".startswith(f"{name}.") for other in asked)}
        assert not unused, f"promised, and used by no other wing: {sorted(unused)}"


def hidden(path: Path) -> list[str]:
    """Names with an underscore in front that a file takes from a module of another wing."""
    here, found, modules = module_name(path), [], set[str]()
    for node in telling(path):
        module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        if isinstance(node, ast.ImportFrom) and module.startswith("pstranspile.") and wing(module) != wing(here):
            found += [f"{module}.{a.name}" for a in node.names if a.name[0] == "_" and a.name[:2] != "__"]
            modules |= {a.asname or a.name for a in node.names if f"{module}.{a.name}" in MODULES}
    for node in telling(path) if modules else ():
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            found += [f"{node.value.id}.{node.attr}"] if node.attr[0] == "_" and node.attr[:2] != "__" else []
    return found


def test_no_wing_uses_hidden_names_of_another():
    assert {module_name(path): names for path in FILES if (names := hidden(path))} == {}


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
        "import pstranspile; pstranspile.load; pstranspile.compile; pstranspile.verify; pstranspile.diff",
    ],
)
def test_starting_imports_nothing_heavy(code: str):
    assert heavy_modules_after(code) == ""


def test_compiling_text_imports_no_protobuf():
    command = ["compile", "examples/regression.ir", "--pservers", "2"]
    assert "protobuf" not in heavy_modules_after(f"from pstranspile.tools.cli import main; assert main({command}) == 0")


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


@pytest.mark.parametrize("folder", WINGS)
def test_the_architecture_names_every_wing(folder: str):
    assert f"`{folder}`" in (ROOT / "ARCHITECTURE.md").read_text(), f"ARCHITECTURE.md does not say what {folder} is for"


def test_python_3_10_takes_the_defaults_of_dataclasses():
    """It refuses every list, dict and set, also of a class that can be hashed; later ones take these."""
    with_dataclasses = [path for path in FILES if "@dataclass" in path.read_text(encoding="utf-8")]
    classes = {
        kind
        for path in with_dataclasses
        for kind in vars(importlib.import_module(module_name(path))).values()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__.startswith("pstranspile.")
    }
    defaults = {(kind, each.name): each.default for kind in classes for each in dataclasses.fields(kind)}
    assert len(classes) > 20
    assert not [place for place, value in defaults.items() if isinstance(value, list | dict | set)]
