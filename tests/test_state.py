"""Every object has one owner: nobody sets an attribute of another object, where a step, a cluster or a proof runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "pstranspile"

OWNED = ("runtime/run", "cluster", "proof", "fluid/net", "tools/cli")
"""The folders in which an object sets its own attributes alone."""

EXCEPTIONS = {
    ("cluster/machines/network.py", "link"): "the network counts on its links, once for each message",
    ("cluster/machines/network.py", "machine"): "the scheduler's mark on what is on its list, several times a step",
    ("cluster/machines/network.py", "chosen"): "the scheduler's mark on what is on its list, several times a step",
    ("cluster/net/http2.py", "stream"): "a stream is a record of its connection, which alone has it",
    ("cluster/net/tls.py", "context"): "an SSLContext has no constructor for it",
    ("cluster/net/tls.py", "listening"): "an SSLContext has no constructor for it",
    ("runtime/run/prepared.py", "weakref.finalize(self, linecache.cache.pop, name, None)"): "weakref has no other way",
    ("tools/cli/__init__.py", "sys"): "the streams of the process",
    ("tools/cli/streams.py", "sys"): "the streams of the process",
    ("tools/cli/cluster_pictures.py", "options"): "a Namespace of argparse is a record of what was given",
    ("tools/cli/launch.py", "options"): "a Namespace of argparse is a record of what was given",
    ("tools/cli/launch_ray.py", "options"): "a Namespace of argparse is a record of what was given",
    ("tools/cli/run_single.py", "options"): "a Namespace of argparse is a record of what was given",
    ("tools/cli/start.py", "options"): "a Namespace of argparse is a record of what was given",
}
"""Whose attributes another object may set, by file and expression, and why."""

HOOKS = ("on_", "before_", "after_")
"""How names of functions begin that somebody is to call: they are given to a constructor, or are a listener's."""


def targets(node: ast.AST) -> Iterator[ast.Attribute | ast.Call]:
    """The attributes that a statement, or a call of `setattr`, sets or deletes."""
    found: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        found = [*node.targets]
    elif isinstance(node, ast.AnnAssign):
        found = [] if node.value is None else [node.target]
    elif isinstance(node, ast.AugAssign | ast.For | ast.AsyncFor | ast.comprehension):
        found = [node.target]
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        found = [node.optional_vars]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
        yield node
    while found:
        target = found.pop()
        if isinstance(target, ast.Tuple | ast.List):
            found += target.elts
        elif isinstance(target, ast.Starred):
            found.append(target.value)
        elif isinstance(target, ast.Attribute):
            yield target


def made_in(function: ast.AST) -> set[str]:
    """The names that a function gives to objects that it makes."""
    made: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            called = node.value.func
            name = (
                called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
            )
            if name.lstrip("_")[:1].isupper():
                made.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return made


def assigned(tree: ast.AST, own: frozenset[str] = frozenset(("self", "cls"))) -> Iterator[tuple[int, str, str]]:
    """Where attributes of others are set: the line, whose, and the attribute's name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr_context | ast.operator | ast.Name | ast.Constant):
            continue  # most parts of a program, in which nothing is set
        inner = own | made_in(node) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else own
        for target in targets(node):
            owner, name = (
                (target.value, target.attr)
                if isinstance(target, ast.Attribute)
                else (target.args[0], ast.unparse(target.args[1]).strip("'\""))
            )
            if not (isinstance(owner, ast.Name) and owner.id in inner):
                yield target.lineno, ast.unparse(owner), name
        yield from assigned(node, inner)


@cache
def found_anywhere() -> list[tuple[str, int, str, str]]:
    """Where attributes of others are set in the package: the file, the line, whose, and the attribute's name."""
    return [
        (path.relative_to(PACKAGE).as_posix(), *found)
        for path in sorted(PACKAGE.rglob("*.py"))
        for found in assigned(ast.parse(path.read_text()))
    ]


def found_where_owned() -> list[tuple[str, int, str, str]]:
    return [found for found in found_anywhere() if found[0].startswith(tuple(f"{folder}/" for folder in OWNED))]


def test_every_owned_folder_exists() -> None:
    assert all((PACKAGE / folder).is_dir() for folder in OWNED)


def test_objects_set_their_own_attributes_alone() -> None:
    found = [one for one in found_where_owned() if (one[0], one[2]) not in EXCEPTIONS]
    assert not found, "\n".join(f"pstranspile/{file}:{line}: {owner}.{name}" for file, line, owner, name in found)


def test_every_exception_is_needed() -> None:
    assert {(file, owner) for file, _, owner, _ in found_where_owned()} >= EXCEPTIONS.keys()


def test_nobody_sets_what_another_object_is_to_call() -> None:
    """In no folder at all: hooks are listeners (`listen`), or are given to constructors."""
    found = [(file, line, name) for file, line, _, name in found_anywhere() if name.startswith(HOOKS) or name == "turn"]
    assert not found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f(server): server.known = 1", ["server.known"]),
        ("def f(a): a.b.c += 1", ["a.b.c"]),
        ("def f(a, b): a.x, (b.y, z) = 1, (2, 3)", ["a.x", "b.y"]),
        ("def f(a):\n    for a.x in (): pass", ["a.x"]),
        ("def f(a):\n    with open('x') as a.file: pass", ["a.file"]),
        ("def f(a): del a.x", ["a.x"]),
        ("def f(a): setattr(a, 'x', 1)", ["a.x"]),
        ("def f(a): a.x: int = 1", ["a.x"]),
        ("class A:\n    def f(self): self.other.x = 1", ["self.other.x"]),
        ("class A:\n    def f(self): self.x = self.y = 1", []),
        ("class A:\n    def f(self): setattr(self, 'x', 1)", []),
        ("def f():\n    a = Thing()\n    a.x = 1", []),
        ("def f():\n    a = found()\n    a.x = 1", ["a.x"]),
        ("def f():\n    a = Thing()\ndef g(a): a.x = 1", ["a.x"]),
        ("def f(a): a['x'] = 1", []),
    ],
)
def test_what_is_found(text: str, found: list[str]) -> None:
    assert sorted(f"{owner}.{name}" for _, owner, name in assigned(ast.parse(text))) == sorted(found)
