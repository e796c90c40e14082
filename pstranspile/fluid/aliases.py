"""Makes `paddle` and its submodules names of this package's modules, in processes that ask for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import FunctionType, ModuleType
from typing import Any

from pstranspile.fluid.missing import Missing, fluid_names, has_parts, is_part, module_here, parts_in
from pstranspile.fluid.running.compatibility import (
    change_libraries,
    give_bytes,
    give_names,
    give_numbers,
    give_unequal_rows,
)
from pstranspile.fluid.running.flags import begin_script
from pstranspile.ir.diagnostics import nearest

HERE = __name__.rpartition(".")[0]
SCRIPT_PATH = str(Path(__file__).parent / "script_path")
"""A folder for `PYTHONPATH`: the `paddle` in it installs these aliases in Python processes that import it."""
_MOVED = {
    "paddle.base": "paddle.fluid",
    "paddle.distributed.io": "paddle.fluid.io",
    "paddle.distributed.transpiler": "paddle.fluid.transpiler",
}
"""Modules of 2.x, and the modules of Fluid that have their contents."""
_PARTS = {
    "paddle.metric": ("paddle.metric", "metrics"),
    "paddle.nn.functional": (
        "paddle.nn.functional",
        "activation common conv extension input loss norm pooling vision",
    ),
    "paddle.nn.layer": ("paddle.nn", "activation common container conv distance loss norm pooling rnn transformer"),
    "paddle.vision.transforms": ("paddle.vision.transforms", "functional transforms"),
}
"""Packages of Paddle 2.x: the module that has all names of their submodules, and the submodules' names."""


def ours(name: str) -> str:
    """The name of this package's module for a module of Fluid: `pstranspile.fluid.io` for `paddle.fluid.io`."""
    if name == "paddle":
        return f"{HERE}.paddle"
    for later, fluid in _MOVED.items():
        if name == later or name.startswith(f"{later}."):
            name = fluid + name.removeprefix(later)
    rest = name.removeprefix("paddle.")
    return HERE + rest.removeprefix("fluid") if rest.split(".")[0] == "fluid" else f"{HERE}.paddle.{rest}"


class AbsentModule(ModuleType):
    """A module of Fluid that this package lacks: a name imported from it raises an error where it is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.__name__.removeprefix('paddle.')}.{name}", fluid_names().get("fluid", ()))


class _Loader(Loader):
    """Loads a module of this package under the name of a module of Paddle."""

    def __init__(self, target: str | None):
        self._target = target
        self._own_spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module of this package, or an empty module if there is none."""
        if self._target is None:
            made = AbsentModule(spec.name)
            made.__path__ = []
            return made
        module = import_module(self._target)
        self._own_spec = module.__spec__
        self._keep_names(spec.name, module)
        whole, parts = _PARTS.get(spec.name, ("", ""))
        for part in parts.split():
            sys.modules[f"{spec.name}.{part}"] = held = sys.modules.get(whole, module)
            vars(module).setdefault(part, held)
        return module

    def _keep_names(self, alias: str, package: ModuleType) -> None:
        """Registers submodules whose names the package uses for something else, such as `layers.rnn`. Otherwise a later
        import of the submodule would overwrite the name in the package.
        """
        for name, held in list(sys.modules.items()):
            above, _, last = name.rpartition(".")
            if above == self._target and vars(package).get(last) is not held:
                sys.modules[f"{alias}.{last}"] = held

    def exec_module(self, module: ModuleType) -> None:
        """Restores the module's own specification. The module's code has already been run."""
        if self._own_spec is not None:
            module.__spec__ = self._own_spec

    def get_code(self, fullname: str) -> Any:
        """The code of the module, for `python -m`."""
        spec = find_spec(self._target) if self._target is not None else None
        return None if spec is None or spec.loader is None else spec.loader.get_code(spec.name)  # type: ignore[attr-defined]


class _FunctionLoader(Loader):
    """Loads a function as a module of the same name, so that `from paddle.fluid.data import data` works."""

    def __init__(self, function: FunctionType):
        self._function: Any = function

    def create_module(self, spec: ModuleSpec) -> Any:
        """The function, which gets itself as an attribute."""
        setattr(self._function, spec.name.rpartition(".")[2], self._function)
        return self._function

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing, because a function has no code to run on import."""


_MISSPELT = 0.85
"""The least similarity of a name to that of a module that it may be a misspelling of. No module of Fluid 1.8.5 or
Paddle 2.6 that this package lacks is so similar to one that it has.
"""


def _modules_in(parent: str) -> list[str]:
    """The names, without the parent's, of the modules directly below a module of Paddle."""
    held = module_here(ours(parent))
    paths = getattr(import_module(held), "__path__", ()) if held is not None else ()
    names = {found.name for found in iter_modules(paths)} | parts_in(ours(parent))
    if parent == "paddle":
        names.add("fluid")
    return sorted(name for name in names if not name.startswith("_"))


class _Finder(MetaPathFinder):
    """Finds `paddle` and everything below it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification of a module of Paddle; None for all other modules."""
        if fullname.partition(".")[0] != "paddle":
            return None
        name = module_here(ours(fullname))
        spec = None if name is None else find_spec(name)
        if name is None:
            parent, _, last = fullname.rpartition(".")
            known = vars(sys.modules.get(parent, sys))
            if parent == "paddle.fluid":
                known = {**known, **vars(import_module(f"{HERE}.interface"))}
            if isinstance(known.get(last), FunctionType):
                return ModuleSpec(fullname, _FunctionLoader(known[last]))
            if last in known or is_part(ours(parent)):  # a name in a module is not a module
                return None
            near = nearest(last, _modules_in(parent), _MISSPELT) if parent else None
            if near is not None:
                message = f"No module named {fullname!r}; did you mean {parent}.{near}?"
                raise ModuleNotFoundError(message, name=fullname)
        of_files = spec is not None and spec.submodule_search_locations is not None
        package = name is None or of_files or has_parts(ours(fullname))
        return ModuleSpec(fullname, _Loader(name), is_package=package)


def install() -> None:
    """Makes the names of Fluid's modules known in this process, and restores names that Python and
    numpy have dropped.
    """
    give_names()
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def install_for_scripts() -> None:
    """Prepares this process for scripts: names, arrays and comparisons work as in the Python and numpy
    of Fluid's time.
    """
    install()
    begin_script()
    give_numbers()
    give_bytes()
    give_unequal_rows()
    change_libraries()


def install_for_children() -> None:
    """Prepares this process, and the Python processes that it starts, for scripts."""
    install_for_scripts()
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != SCRIPT_PATH]
    package = str(Path(__file__).parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join([SCRIPT_PATH, *paths, *([] if package in paths else [package])])
