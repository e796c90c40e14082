"""`python -m pstranspile.fluid --compat SCRIPT`: reports which names of Fluid and Paddle a script uses, and which of
them exist here.

The script is read, not run: imports and aliases are followed, also into modules in the script's own folder. Names that
exist but behave differently are listed first, each with the difference. `docs/guides/fluid_scripts.md` says more about
them. A function that always raises NotHere is recognised by its source; `REFUSED` has the names whose modules hide
this.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

from pstranspile.fluid.aliases import AbsentModule, install
from pstranspile.fluid.missing import Missing, NotHere, fluid_names, why_not
from pstranspile.ir.diagnostics import did_you_mean

_CPU = "all is computed on the CPU"
_ONE = "the rows of all devices are computed at once, by one process"
_CELLS = "its gradient goes through the cells too, which Fluid leaves out in single precision for widths of 8, 16, ..."
_GUARD = "no gradients are made without minimize, so it changes nothing"
_FLEET = "a learning rate that decays does so in synchronous jobs too; in Fluid it stays"
_SAVES = "trainer 0 also writes what servers hold"

DIFFERENT: Mapping[str, str] = {
    "paddle.fluid.CUDAPlace": _CPU,
    "paddle.fluid.CUDAPinnedPlace": _CPU,
    "paddle.fluid.cuda_places": _CPU,
    "paddle.CUDAPlace": _CPU,
    "paddle.set_device": _CPU,
    "paddle.fluid.ParallelExecutor": _ONE,
    "paddle.fluid.CompiledProgram": _ONE,
    "paddle.fluid.compiler.CompiledProgram": _ONE,
    "paddle.fluid.layers.DynamicRNN": "the initial memory gets its gradient; in Fluid it gets none",
    "paddle.fluid.layers.dynamic_lstm": _CELLS,
    "paddle.fluid.layers.dynamic_lstmp": _CELLS,
    "paddle.fluid.layers.While": "the gradient of a variable that the loop overwrites is that of its first value",
    "paddle.fluid.layers.swish": "it takes its beta; in Fluid beta is 1",
    "paddle.fluid.layers.batch_norm": "a momentum that is a variable is taken; in Fluid it is 0.9",
    "paddle.fluid.layers.Uniform": "samples lie between low and high where these are numbers",
    "paddle.fluid.layers.distributions.Uniform": "samples lie between low and high where these are numbers",
    "paddle.fluid.layers.BeamSearchDecoder": "a search goes on until every beam has ended",
    "paddle.fluid.initializer.BilinearInitializer": "its weights interpolate; those of Fluid differ from row to row",
    "paddle.fluid.initializer.Bilinear": "its weights interpolate; those of Fluid differ from row to row",
    "paddle.fluid.optimizer.Momentum": "all rows of a sparse gradient are updated; Fluid misses some",
    "paddle.fluid.optimizer.MomentumOptimizer": "all rows of a sparse gradient are updated; Fluid misses some",
    "paddle.fluid.io.save_persistables": f"on a cluster {_SAVES}",
    "paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler.fleet": f"{_FLEET}; {_SAVES}",
    "paddle.fluid.communicator.Communicator": "stop waits until all that was sent has come",
    "paddle.fluid.install_check.run_check": _CPU,
    "paddle.fluid.contrib.mixed_precision.decorate": "float16 is computed on the CPU",
    "paddle.fluid.core.EnforceNotMet": "it is the class of all findings in a script, which have codes",
    "paddle.fluid.dygraph.Layer": "objects add to the program in use when they are called; there are no eager tensors",
    "paddle.fluid.dygraph.Linear": "objects add to the program in use when they are called; there are no eager tensors",
    "paddle.fluid.dygraph.Embedding": "objects add to the program in use when they are called; no eager tensors",
    "paddle.no_grad": _GUARD,
    "paddle.static.nn.sparse_embedding": "a row exists once it is trained",
}
"""Differences from Fluid and Paddle: for each name, what it does differently here."""

REFUSED: Mapping[str, str] = {
    "paddle.Model": "training without a static graph is not run",
    "paddle.jit": "dynamic graphs are not run",
    "paddle.grad": "dynamic graphs are not run",
    "paddle.amp": "mixed precision of dynamic graphs is not run",
    "paddle.DataParallel": "dynamic graphs are not run",
    "paddle.summary": "dynamic graphs are not run",
    "paddle.flops": "dynamic graphs are not run",
    "paddle.callbacks": "they belong to paddle.Model",
    "paddle.disable_static": "dynamic graphs are not run",
}
"""Names that can only be imported, and the reasons why they can't be used."""


SUPPORTED, DIFFERS, MISSING = "supported", "different", "missing"
_TOPS = ("paddle", "pstranspile.fluid")


class Use(NamedTuple):
    """A position in a script at which a name is used; lines and columns count from 1."""

    file: str
    line: int
    column: int


class UsedName(NamedTuple):
    """A name of Fluid or Paddle, whether it exists here, a note about it, and the positions at which it is used."""

    name: str
    status: str
    note: str
    uses: tuple[Use, ...]


class _Meaning(NamedTuple):
    """The meaning of a name in a script: a dotted name of Paddle, an object made by calling one (`instance`), or a
    module of the script itself (`own_file`).
    """

    dotted: str = ""
    instance: bool = False
    own_file: Path | None = None


_NOTHING = _Meaning()


class _Scope:
    """The names in a module, a function or a class, with their meanings."""

    def __init__(self, outer: _Scope | None, is_class: bool = False):
        self.outer = outer
        self.is_class = is_class
        self.names: dict[str, _Meaning] = {}
        self.stars: list[_Meaning] = []

    def bind(self, name: str, meant: _Meaning) -> None:
        """Sets the meaning of a name. A meaning in Paddle is not replaced by an unknown one, which a script may set as
        a fallback (`except ImportError`).
        """
        if meant != _NOTHING or name not in self.names:
            self.names[name] = meant


class _Module:
    """A file of the script: its syntax tree and its scopes."""

    def __init__(self, path: Path, shown_path: str, tree: ast.Module):
        self.path, self.shown_path, self.tree = path, shown_path, tree
        self.scope = _Scope(None)
        self.scopes: dict[ast.AST, _Scope] = {}
        """The scopes of functions, classes and comprehensions, by syntax node, once a visitor has reached them."""


class _ScriptReader:
    """Reads a script and the modules in its own folder."""

    def __init__(self, script: Path):
        self.folder = script.parent
        self.modules: dict[Path, _Module] = {}
        self.unread: list[tuple[Use, str]] = []
        """The script's own modules that are not valid Python, each with the error."""
        self.uses: dict[str, list[Use]] = {}
        self.of_objects: dict[tuple[str, str], list[Use]] = {}
        """The positions at which attributes of objects are used, by class and attribute."""
        self.assignments: list[tuple[str, str, ast.expr, Use]] = []
        """The values assigned to attributes of objects: class, attribute, value and position."""
        self.keywords: dict[tuple[str, str, str], list[Use]] = {}
        """The positions of arguments that calls give by name: by the name called or the class of the object, the
        method ("" for other calls), and the argument.
        """

    def module(self, path: Path) -> _Module | None:
        """A file of the script, which is read only once; None if it is not valid Python."""
        path = path.resolve()
        if path not in self.modules:
            shown = str(path.relative_to(self.folder.resolve())) if path.is_relative_to(self.folder.resolve()) else ""
            shown = str(self.folder / shown) if shown else str(path)
            try:
                tree = ast.parse(path.read_bytes(), shown)
            except (SyntaxError, ValueError) as problem:
                line, column = getattr(problem, "lineno", 1) or 1, getattr(problem, "offset", 1) or 1
                self.unread.append((Use(shown, line, column), getattr(problem, "msg", str(problem))))
                return None
            made = self.modules[path] = _Module(path, shown, tree)
            for _ in range(2):  # names may be used above the line that gives them a meaning
                _Binder(self, made).visit(tree)
            _NameCollector(self, made).visit(tree)
        return self.modules[path]

    def own_file(self, dotted: str, beside: Path, level: int = 0) -> Path | None:
        """The file of a module of the script itself; None for all other modules."""
        base = self.folder if not level else beside.parent
        for _ in range(level - 1):
            base = base.parent
        whole = base.joinpath(*dotted.split(".")) if dotted else base
        for path in (whole.with_suffix(".py") if dotted else whole, whole / "__init__.py"):
            if path.is_file():
                return path
        return None

    def attribute(self, meant: _Meaning, name: str) -> _Meaning:
        """The meaning of an attribute of something."""
        if meant.own_file is not None:
            module = self.module(meant.own_file)
            if module is not None and name in module.scope.names:
                return module.scope.names[name]
            below = meant.own_file.parent / f"{name}.py" if meant.own_file.name == "__init__.py" else None
            return _Meaning(own_file=below) if below is not None and below.is_file() else _NOTHING
        if meant.dotted and not meant.instance:
            return _Meaning(f"{meant.dotted}.{name}")
        return _NOTHING

    def look_up(self, scope: _Scope, name: str) -> _Meaning:
        """The meaning of a name within a scope."""
        at: _Scope | None = scope
        while at is not None:
            if name in at.names and (at is scope or not at.is_class):
                return at.names[name]
            for star in at.stars:
                if star.own_file is not None or _is_exported(star.dotted, name):
                    found = self.attribute(star, name)
                    if found != _NOTHING:
                        return found
            at = at.outer
        return _NOTHING

    def meaning(self, scope: _Scope, node: ast.expr | None) -> _Meaning:
        """The meaning of an expression."""
        if isinstance(node, ast.Name):
            return self.look_up(scope, node.id)
        if isinstance(node, ast.Attribute):
            return self.attribute(self.meaning(scope, node.value), node.attr)
        if isinstance(node, ast.Call):
            function, first = node.func, node.args[0] if node.args else None
            called = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
            if called in ("import_module", "__import__") and isinstance(first, ast.Constant):
                return _of_module(str(first.value))
            if called == "getattr" and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
                return self.attribute(self.meaning(scope, first), str(node.args[1].value))
            made = self.meaning(scope, function)
            return _Meaning(made.dotted, instance=True) if made.dotted and not made.instance else _NOTHING
        if isinstance(node, ast.IfExp):
            either = self.meaning(scope, node.body)
            return either if either != _NOTHING else self.meaning(scope, node.orelse)
        return _NOTHING


def _of_module(dotted: str) -> _Meaning:
    """The meaning of a module's name: a module of Paddle, under Paddle's name, or nothing."""
    for top in _TOPS:
        if dotted == top or dotted.startswith(f"{top}."):
            return _Meaning(dotted.replace("pstranspile.fluid", "paddle.fluid", 1))
    return _NOTHING


def _is_exported(module: str, name: str) -> bool:
    """Whether `from MODULE import *` imports a name, here or in Fluid."""
    if name.startswith("_") or hasattr(builtins, name):
        return False
    short = module.removeprefix("paddle.").removeprefix("fluid.")
    return name in fluid_names().get(short, ()) or _status_of(f"{module}.{name}")[0] != MISSING


class _Visitor(ast.NodeVisitor):
    """Visits a module scope by scope; repeated visits use the same `_Scope` for each."""

    def __init__(self, reader: _ScriptReader, module: _Module):
        self.reader, self.module = reader, module
        self.scope = module.scope

    def _visit_scope(self, node: ast.AST, parts: Sequence[ast.AST], *, is_class: bool = False) -> None:
        outer = self.scope
        self.scope = self.module.scopes.setdefault(node, _Scope(outer, is_class))
        for part in parts:
            self.visit(part)
        self.scope = outer

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Visits a function. Its decorators and defaults belong to the scope around it."""
        around = [*node.decorator_list, *node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]
        for part in around:
            self.visit(part)
        self._note_definition(node.name)
        self._visit_scope(node, [node.args, *node.body])

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Visits a function without a name."""
        self._visit_scope(node, [node.args, node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Visits a class. Its decorators and bases belong to the scope around it."""
        for part in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(part)
        self._note_definition(node.name)
        self._visit_scope(node, node.body, is_class=True)

    def _note_definition(self, name: str) -> None:
        """Called with the name of a function or a class that the script defines."""


class _Binder(_Visitor):
    """Collects the meanings of the names in a module."""

    def _note_definition(self, name: str) -> None:
        self.scope.bind(name, _NOTHING)

    def visit_arg(self, node: ast.arg) -> None:
        """Binds the name of an argument, which hides the same name outside of the function."""
        self.scope.bind(node.arg, _NOTHING)

    def visit_Import(self, node: ast.Import) -> None:
        """Binds the names of `import a.b as c`."""
        for alias in node.names:
            whole = _of_module(alias.name)
            top = alias.name.split(".")[0]
            if whole == _NOTHING:
                whole = _Meaning(own_file=self.reader.own_file(alias.name, self.module.path))
                first = _Meaning(own_file=self.reader.own_file(top, self.module.path))
            else:
                first = _Meaning("paddle") if top == "paddle" else _NOTHING
            self.scope.bind(alias.asname or top, whole if alias.asname else first)
            if whole.own_file is not None:
                self.reader.module(whole.own_file)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Binds the names of `from a.b import c as d`."""
        base = _NOTHING if node.level else _of_module(node.module or "")
        if base == _NOTHING:
            base = _Meaning(own_file=self.reader.own_file(node.module or "", self.module.path, node.level))
        if base.own_file is not None:
            self.reader.module(base.own_file)
        for alias in node.names:
            if alias.name == "*":
                if base != _NOTHING:
                    self.scope.stars.append(base)
                continue
            meant = self.reader.attribute(base, alias.name)
            if base.dotted == "" and base.own_file is None:
                inside = f"{node.module}.{alias.name}" if node.module else alias.name
                meant = _of_module(inside) if not node.level else _NOTHING
                if meant == _NOTHING:
                    meant = _Meaning(own_file=self.reader.own_file(inside, self.module.path, node.level))
            if meant.own_file is not None:
                self.reader.module(meant.own_file)
            self.scope.bind(alias.asname or alias.name, meant)

    def _assign(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            self.scope.bind(target.id, self.reader.meaning(self.scope, value))
        elif isinstance(target, ast.Tuple | ast.List):
            values: list[ast.expr | None] = [None] * len(target.elts)
            if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
                values = [*value.elts]
            for one, its in zip(target.elts, values, strict=True):
                self._assign(one, its)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Binds the names of `a = b = value`."""
        self.generic_visit(node)
        for target in node.targets:
            self._assign(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Binds the name of `a: type = value`."""
        self.generic_visit(node)
        self._assign(node.target, node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        """Binds the name of `(a := value)`."""
        self.generic_visit(node)
        self._assign(node.target, node.value)

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        """Binds the names of `with value as a`."""
        for item in node.items:
            if item.optional_vars is not None:
                self._assign(item.optional_vars, None)
        self.generic_visit(node)

    visit_AsyncWith = visit_With

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        """Binds the names of `for a in values`."""
        self._assign(node.target, None)
        self.generic_visit(node)

    visit_AsyncFor = visit_For


class _NameCollector(_Visitor):
    """Collects the positions at which names of Paddle are used."""

    def _note(self, dotted: str, node: ast.AST) -> None:
        place = Use(self.module.shown_path, node.lineno, node.col_offset + 1)  # type: ignore[attr-defined]
        self.reader.uses.setdefault(dotted, []).append(place)

    def visit_Import(self, node: ast.Import) -> None:
        """Records modules of Paddle in `import a.b`."""
        for alias in node.names:
            meant = _of_module(alias.name)
            if meant.dotted:
                self._note(meant.dotted, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Records the names in `from a.b import c`, if `a.b` is a module of Paddle."""
        base = _NOTHING if node.level else _of_module(node.module or "")
        for alias in node.names:
            if base.dotted:
                self._note(base.dotted if alias.name == "*" else f"{base.dotted}.{alias.name}", node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Records a chain of attributes that means a name of Paddle, or an attribute of an object made by one."""
        meant = self.reader.meaning(self.scope, node)
        if meant.dotted and not meant.instance:
            self._note(meant.dotted, node)
            return
        made = self.reader.meaning(self.scope, node.value)
        if made.instance and isinstance(node.ctx, ast.Load):
            place = Use(self.module.shown_path, node.lineno, node.col_offset + 1)
            self.reader.of_objects.setdefault((made.dotted, node.attr), []).append(place)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Records values assigned to attributes of objects, such as those of a strategy."""
        for target in node.targets:
            made = self.reader.meaning(self.scope, target.value) if isinstance(target, ast.Attribute) else _NOTHING
            if made.instance and isinstance(target, ast.Attribute):
                place = Use(self.module.shown_path, target.lineno, target.col_offset + 1)
                self.reader.assignments.append((made.dotted, target.attr, node.value, place))
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        """Records the use of a name that means a name of Paddle."""
        meant = self.reader.look_up(self.scope, node.id)
        if meant.dotted and not meant.instance and isinstance(node.ctx, ast.Load):
            self._note(meant.dotted, node)

    def visit_Call(self, node: ast.Call) -> None:
        """Records `getattr(module, "name")`, and the arguments that a call gives by name."""
        meant = self.reader.meaning(self.scope, node)
        if meant.dotted and not meant.instance:
            self._note(meant.dotted, node)
        called, method = self._callee(node.func)
        for keyword in node.keywords:
            if called and keyword.arg is not None:
                place = Use(self.module.shown_path, keyword.lineno, keyword.col_offset + 1)
                self.reader.keywords.setdefault((called, method, keyword.arg), []).append(place)
        self.generic_visit(node)

    def _callee(self, function: ast.expr) -> tuple[str, str]:
        """What a call calls: a name of Paddle and "", or the class of an object and its method; two empty texts for
        other calls.
        """
        whole = self.reader.meaning(self.scope, function)
        if whole.dotted and not whole.instance:
            return whole.dotted, ""
        if isinstance(function, ast.Attribute):
            held = self.reader.meaning(self.scope, function.value)
            if held.instance:
                return held.dotted, function.attr
        return "", ""


@cache
def _status_of(dotted: str) -> tuple[str, str]:
    """Whether a name exists here, and a note about it."""
    install()
    first, *rest = dotted.split(".")
    member: Any = import_module(first)
    known = first
    for part in rest:
        parent, known = known, f"{known}.{part}"
        if known in REFUSED:
            return MISSING, REFUSED[known]
        if isinstance(member, ModuleType):
            try:
                member = _member(member, parent, part)
            except (AttributeError, ImportError) as problem:
                return MISSING, _why(problem)
        elif isinstance(member, type):
            return _of_class(member, part)
        else:
            return _of_object(member, part)
        if isinstance(member, Missing | AbsentModule):
            return MISSING, _why_missing(member, part)
    refusal = _refusal_of(member)
    if refusal:
        return MISSING, refusal
    return (DIFFERS, DIFFERENT[dotted]) if dotted in DIFFERENT else (SUPPORTED, "")


def _refusal_of(held: Any) -> str:
    """The reason why a function, or the constructor of a class, always raises NotHere; "" if it does not."""
    called = held.__init__ if isinstance(held, type) else held
    if not inspect.isfunction(called) or not called.__module__.startswith("pstranspile."):
        return ""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(called))).body
    except (OSError, SyntaxError, ValueError):
        return ""
    if not isinstance(tree, ast.FunctionDef):
        return ""
    body = [each for each in tree.body if not isinstance(each, ast.ImportFrom | ast.Expr)]
    raised = body[0].exc if body and isinstance(body[0], ast.Raise) else None
    if not isinstance(raised, ast.Call) or getattr(raised.func, "id", "") != "unsupported_error":
        return ""
    why = raised.args[-1]
    return str(why.value) if isinstance(why, ast.Constant) else "it is refused"


def _member(module: ModuleType, name: str, part: str) -> Any:
    try:
        return getattr(module, part)
    except AttributeError as problem:
        try:
            made = import_module(f"{name}.{part}")
        except ModuleNotFoundError:
            raise problem from None
        if isinstance(made, AbsentModule) and part not in fluid_names().get(name.removeprefix("paddle."), ()):
            raise problem
        return made


def _why(problem: Exception) -> str:
    text = str(problem)
    if " is not part of pstranspile.fluid: " in text:
        return text.partition(" is not part of pstranspile.fluid: ")[2]
    return text[text.index(";") + 2 :] if ";" in text else ""


def _why_missing(held: Any, part: str) -> str:
    if isinstance(held, ModuleType):
        return why_not(held.__name__) or "the module is not here"
    try:
        held()
    except NotHere as problem:
        return _why(problem)
    return part


def _of_class(held: type, part: str) -> tuple[str, str]:
    """Whether objects of a class have an attribute, and a note about it."""
    if part.startswith("__") or hasattr(held, part) or "__getattr__" in dir(held) or part in _set_in(held):
        return SUPPORTED, ""
    return MISSING, f"objects of {held.__name__} don't have it"


@cache
def _set_in(held: type) -> frozenset[str]:
    """The attributes that the methods of a class set on objects, or that the class declares."""
    found: set[str] = set()
    for base in held.__mro__[:-1]:
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                found.add(node.attr)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
    return frozenset(found)


def _of_object(held: Any, part: str) -> tuple[str, str]:
    """Whether an object, such as `fleet`, has an attribute, and a note about it. Functions have any, because scripts
    may set attributes on them.
    """
    if inspect.isroutine(held):
        return SUPPORTED, ""
    there = inspect.getattr_static(held, part, None) is not None
    if there:
        return SUPPORTED, ""
    try:
        getattr(held, part)
    except (AttributeError, NotHere) as problem:
        return MISSING, _why(problem)
    except Exception:  # the attribute exists, but needs an earlier call by the script
        return SUPPORTED, ""
    return SUPPORTED, ""


_HOST = ("batch", "reader", "dataset", "io", "metric", "seed", "version", "compat", "utils", "vision", "distributed")
_HOST_NAMES = ("enable_static", "disable_static", "in_dynamic_mode", "set_device", "get_device", "no_grad", "fluid")


def _is_graph(dotted: str) -> bool:
    """Whether calling a name of 2.x makes a part of a graph."""
    first, *rest = dotted.split(".")[1:] or [""]
    if not first or first in _HOST or first in _HOST_NAMES or first.startswith(("is_compiled", "get_", "set_")):
        return False
    if first in ("nn", "static", "optimizer"):
        return bool(rest) and rest[-1][:1] != "_" and dotted != "paddle.nn.Layer"
    return callable(getattr(import_module("paddle"), first, None)) and not rest


def _builds(dotted: str) -> bool:
    """Whether calling a name of 2.x adds to a graph at once, and is refused where graphs are dynamic."""
    last = dotted.split(".")[-1]
    if dotted.startswith("paddle.static."):
        return dotted == "paddle.static.data" or dotted.startswith("paddle.static.nn.")
    if dotted.startswith("paddle.nn."):
        return not dotted.startswith(("paddle.nn.initializer.", "paddle.nn.utils.", "paddle.nn.ClipGrad")) and (
            dotted != "paddle.nn.Layer"
        )
    return last[:1].islower() and dotted.count(".") == 1 and _is_graph(dotted)


_Branch: TypeAlias = tuple[tuple[int, int], ...]
"""The branches that a line is in, from the outermost in: each the number of its statement, and of its arm."""


class _Event(NamedTuple):
    """A call that a script makes as it runs: of `enable_static`, or of a name that adds to a graph."""

    dotted: str
    branch: _Branch
    use: Use


_MOST_CALLS = 1000
"""The most calls of a script's own functions that are followed."""


class _Order:
    """The order in which a script calls `enable_static` and what builds graphs, as far as its text says it: line by
    line, into the functions and modules of its own.
    """

    def __init__(self, reader: _ScriptReader):
        self.reader = reader
        self.events: list[_Event] = []
        self._within: list[ast.AST] = []
        self._calls = 0

    def wrong(self) -> tuple[str, tuple[Use, ...]] | None:
        """What is wrong with the call of `enable_static`, and where; None if nothing is known to be."""
        first = next(iter(self.reader.modules.values()), None)
        if first is not None:
            self._visit_all(first.tree.body, first, first.scope, ())
        static: list[_Event] = []
        sure: set[_Branch] = set()
        for event in self.events:
            if event.dotted == _STATIC:
                static.append(event)
                sure = _with_branch(sure, event.branch)
            elif not any(event.branch[: len(branch)] == branch for branch in sure):
                called = next((each for each in [*static, *self.events] if each.dotted == _STATIC), None)
                return None if called is None else _late_static_message(called, event, in_branch=bool(static))
        return None

    def _visit_all(self, nodes: Sequence[ast.AST], module: _Module, scope: _Scope, branch: _Branch) -> None:
        for node in nodes:
            self._visit(node, module, scope, branch)

    def _visit(self, node: ast.AST, module: _Module, scope: _Scope, branch: _Branch) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            return  # what is in it runs when it is called
        if isinstance(node, ast.If | ast.IfExp):
            self._visit(node.test, module, scope, branch)
            sure = self._is_sure(node.test, scope)
            for arm, part in enumerate((node.body, node.orelse)):
                inner = branch if sure else (*branch, (id(node), arm))
                self._visit_all(part if isinstance(part, list) else [part], module, scope, inner)
            return
        if isinstance(node, ast.ExceptHandler):
            branch = (*branch, (id(node), 0))
        self._visit_all([*ast.iter_child_nodes(node)], module, scope, branch)
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node, module, branch)
        elif isinstance(node, ast.Call):
            self._call(node, module, scope, branch)

    def _is_sure(self, test: ast.expr, scope: _Scope) -> bool:
        """Whether a test asks about Paddle itself or about the script's being run, and not about what is wanted."""
        names = [each for each in ast.walk(test) if isinstance(each, ast.Name)]
        return any(each.id == "__name__" or self.reader.meaning(scope, each).dotted for each in names)

    def _import(self, node: ast.Import | ast.ImportFrom, module: _Module, branch: _Branch) -> None:
        if isinstance(node, ast.Import):
            paths = [self.reader.own_file(alias.name, module.path) for alias in node.names]
        else:
            paths = [self.reader.own_file(node.module or "", module.path, node.level)]
        for path in paths:
            held = self.reader.modules.get(path.resolve()) if path is not None else None
            if held is not None:
                self._enter(held.tree, held, held.scope, branch)

    def _call(self, node: ast.Call, module: _Module, scope: _Scope, branch: _Branch) -> None:
        meant = self.reader.meaning(scope, node.func)
        if meant.dotted and not meant.instance:
            if meant.dotted == _STATIC or _builds(meant.dotted):
                use = Use(module.shown_path, node.lineno, node.col_offset + 1)
                self.events.append(_Event(meant.dotted, branch, use))
            return
        if not isinstance(node.func, ast.Name):
            return
        for held in (module, *self.reader.modules.values()):
            for made in held.tree.body:
                if isinstance(made, ast.FunctionDef) and made.name == node.func.id:
                    self._enter(made, held, held.scopes.get(made, held.scope), branch)
                    return

    def _enter(self, node: ast.Module | ast.FunctionDef, module: _Module, scope: _Scope, branch: _Branch) -> None:
        if node in self._within or self._calls == _MOST_CALLS:
            return
        self._calls += 1
        self._within.append(node)
        self._visit_all(node.body, module, scope, branch)
        self._within.pop()


def _with_branch(sure: set[_Branch], branch: _Branch) -> set[_Branch]:
    """The branches with one more; where both arms of a statement are among them, the branch around it is added too."""
    sure = {*sure, branch}
    while branch and (*branch[:-1], (branch[-1][0], 1 - branch[-1][1])) in sure:
        branch = branch[:-1]
        sure.add(branch)
    return sure


def _late_static_message(static: _Event, built: _Event, *, in_branch: bool) -> tuple[str, tuple[Use, ...]]:
    """The problem of a call of `enable_static` that may come after a call that builds, and where the former is."""
    line = f"{built.use.line}" if built.use.file == static.use.file else f"{built.use.file}:{built.use.line}"
    what = "it is called in a branch, which may not be taken" if in_branch else "it is called too late"
    return f"{what}: line {line} builds with {built.dotted}, which is refused before", (static.use,)


_STATIC = "paddle.enable_static"


def find_used_names(script: str) -> tuple[list[UsedName], list[tuple[Use, str]], list[str]]:
    """The names of Paddle that a script uses, sorted by name; its files that are not valid Python, each with the error;
    and all files that were read.
    """
    install()
    reader = _ScriptReader(Path(script))
    reader.module(Path(script))
    found: list[UsedName] = []
    for dotted, uses in reader.uses.items():
        status, note = _status_of(dotted)
        found.append(UsedName(dotted, status, note, _places(uses)))
    for (dotted, part), uses in reader.of_objects.items():
        status, note = _of_made(dotted, part)
        if status == MISSING:
            found.append(UsedName(f"{dotted}().{part}", status, note, _places(uses)))
    for dotted, part, value, use in reader.assignments:
        why = _refused_value(dotted, part, value)
        if why:
            found.append(UsedName(f"{dotted}().{part} = {ast.unparse(value)}", MISSING, why, (use,)))
    for (dotted, method, argument), uses in reader.keywords.items():
        why = _refused_argument(dotted, method, argument)
        if why:
            whole = f"{dotted}().{method}" if method else dotted
            found.append(UsedName(f"{whole}({argument}=)", MISSING, why, _places(uses)))
    graphs = [use for one in found if _is_graph(one.name) for use in one.uses]
    says = any(one.name.startswith("paddle.fluid") or one.name == "paddle.enable_static" for one in found)
    if graphs and not says:
        note = "dynamic graphs are not run; a script that builds static ones calls paddle.enable_static() first"
        found.append(UsedName("paddle", MISSING, note, (min(graphs),)))
    late = None if not says or any(one.name.startswith("paddle.fluid") for one in found) else _Order(reader).wrong()
    if late:
        found.append(UsedName("paddle.enable_static()", MISSING, *late))
    shown = [module.shown_path for module in reader.modules.values()]
    return sorted(found), reader.unread, sorted(shown)


def _object_of(dotted: str) -> Any:
    """The object behind a name that exists here; None if the name is missing."""
    if _status_of(dotted)[0] == MISSING:
        return None
    member: Any = import_module("paddle")
    name = "paddle"
    for each in dotted.split(".")[1:]:
        if isinstance(member, ModuleType):
            member = _member(member, name, each)
        else:
            member = getattr(member, each, None)
        name = f"{name}.{each}"
    return member


def _class_of(dotted: str) -> type | None:
    """The class behind a name that exists here; None if it is not a class."""
    held = _object_of(dotted)
    return held if isinstance(held, type) else None


def _refused_argument(dotted: str, method: str, argument: str) -> str:
    """The reason why a call takes no argument of a name; "" if it takes it, or what is called is not known."""
    called = getattr(_class_of(dotted), method, None) if method else _object_of(dotted)
    if not callable(called):
        return ""
    try:
        taken = inspect.signature(called).parameters
    except (TypeError, ValueError):
        return ""
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken.values()):
        return ""
    named = [name for name, each in taken.items() if each.kind is not inspect.Parameter.POSITIONAL_ONLY]
    if argument in named:
        return ""
    return f"there is no such argument{did_you_mean(argument, named)}"


def _validating_instance(held: type | None) -> Any:
    """An object of a class that checks the values of its attributes; None for other classes."""
    if held is None or held.__setattr__ is object.__setattr__ or inspect.signature(held).parameters:
        return None
    return held()


def _refused_value(dotted: str, part: str, value: ast.expr) -> str:
    """The reason why an attribute of an object refuses a value; "" if it accepts it, or the value is not known."""
    instance = _validating_instance(_class_of(dotted))
    if instance is None:
        return ""
    try:
        meant = ast.literal_eval(value)
    except (ValueError, TypeError):
        meant = getattr(instance, part, None)
    try:
        with redirect_stderr(StringIO()):
            setattr(instance, part, meant)
    except (AttributeError, NotHere, ValueError) as problem:
        return _why(problem) or str(problem)
    return ""


def _of_made(dotted: str, part: str) -> tuple[str, str]:
    """Whether the result of calling a name has an attribute, as far as can be known, and a note about it."""
    held = _class_of(dotted)
    if held is None or hasattr(_validating_instance(held), part):
        return SUPPORTED, ""
    return _of_class(held, part)


def _places(uses: Sequence[Use]) -> tuple[Use, ...]:
    return tuple(sorted(set(uses)))


def report(script: str, *, as_json: bool) -> tuple[str, int]:
    """The report on a script, and the exit status: 1 if a name is missing or a file can't be read, otherwise 0."""
    found, unread, files = find_used_names(script)
    status = 1 if unread or any(one.status == MISSING for one in found) else 0
    if as_json:
        names = [
            {"name": one.name, "status": one.status, "note": one.note, "uses": [use._asdict() for use in one.uses]}
            for one in found
        ]
        broken = [{**use._asdict(), "note": why} for use, why in unread]
        return json.dumps({"script": script, "files": files, "unread": broken, "names": names}, indent=2) + "\n", status
    return "".join(f"{line}\n" for line in _lines(script, found, unread)), status


def _lines(script: str, found: Sequence[UsedName], unread: Sequence[tuple[Use, str]]) -> Iterator[str]:
    by_status: Mapping[str, list[UsedName]] = {
        status: [one for one in found if one.status == status] for status in (MISSING, DIFFERS, SUPPORTED)
    }
    counts = ", ".join(f"{len(by_status[status])} {status}" for status in (SUPPORTED, DIFFERS, MISSING))
    yield f"{script}: {counts}"
    for use, why in unread:
        yield f"{use.file}:{use.line}:{use.column}: is no Python: {why}"
    for status in (MISSING, DIFFERS):
        for one in by_status[status]:
            first, *others = one.uses
            more = f" (also at {_positions_text(others, first.file)})" if others else ""
            note = f": {one.note}" if one.note else ""
            yield f"{first.file}:{first.line}:{first.column}: {status}: {one.name}{note}{more}"
    for one in by_status[SUPPORTED]:
        yield f"supported: {one.name} ({_positions_text(one.uses, '')})"


def _positions_text(uses: Sequence[Use], file: str) -> str:
    """Positions as text: `net.py:3, 5, train.py:7`."""
    texts: list[str] = []
    for use in uses:
        texts.append(str(use.line) if use.file == file else f"{use.file}:{use.line}")
        file = use.file
    return ", ".join(dict.fromkeys(texts))
