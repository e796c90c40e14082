"""Writes the reference of the Python interface: `python docs/interface.py` makes docs/reference/api.md anew.

The page is made of the signatures and docstrings of what `import pstranspile` offers, so that it can be read in the
repository as well as on the site. A test holds that the committed page is the one this script makes.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "api.md"

WIDTH = 100
"""Characters of a signature on one line; a longer one has a line for each parameter."""

INTRODUCTION = """# The Python interface

What `import pstranspile as ps` offers, by name. `make generated` writes this page from the docstrings.
"""

HEADING = re.compile(r"^([A-Z]\w+):$", re.MULTILINE)


def page() -> str:
    """The whole page: a table of contents, then a section for each public name."""
    sys.path.insert(0, str(ROOT))
    import pstranspile

    names = sorted(pstranspile.__all__, key=str.lower)
    values = {name: getattr(pstranspile, name) for name in names}
    functions = [name for name in names if not inspect.isclass(values[name])]
    classes = [name for name in names if inspect.isclass(values[name])]
    contents = [
        "Functions: " + ", ".join(f"[{name}](#{anchor(name)})" for name in functions) + ".",
        "Classes: " + ", ".join(f"[{name}](#{anchor(name)})" for name in classes) + ".",
    ]
    parts = [INTRODUCTION.rstrip(), *contents, "## Functions"]
    for name in functions:
        parts += [f"### ps.{name}", *described(f"ps.{name}", values[name])]
    parts.append("## Classes")
    for name in classes:
        parts += [f"### ps.{name}", *class_section(name, values[name])]
    return "\n\n".join(parts) + "\n"


def anchor(name: str) -> str:
    """The anchor that a heading `ps.NAME` gets on the site and where the repository is shown."""
    return f"ps{name.lower()}"


def described(title: str, function: Any) -> list[str]:
    """The signature of a function in a fence, and its docstring."""
    return [fenced(signature(title, function)), text_of(function)]


def class_section(name: str, cls: type) -> list[str]:
    """A class: its constructor, its docstring, and its public attributes and methods in the order of definition."""
    parts: list[str] = []
    if issubclass(cls, Enum):
        parts += [text_of(cls), "\n".join(f"- `{member.name}`" for member in cls)]
    else:
        made = cls.__new__ if issubclass(cls, tuple) else cls.__init__
        parts += [fenced(signature(f"ps.{name}", made)), text_of(cls)] if made_here(cls) else [text_of(cls)]
    members = [item for item in members_of(cls) if not item.startswith("_")]
    lines: list[str] = []
    for member in members:
        value = inspect.getattr_static(cls, member)
        if isinstance(value, property | cached_property):
            lines.append(entry(member, value))
        elif isinstance(value, staticmethod | classmethod):
            lines.append(entry(signature(member, getattr(cls, member), bare=True), value.__func__))
        elif inspect.isfunction(value) and not value.__name__.startswith("_"):
            lines.append(entry(signature(member, value, bare=True), value))
    return [*parts, "\n".join(lines)] if lines else parts


def made_here(cls: type) -> bool:
    """Whether callers make values of a class themselves, so that its constructor is of interest."""
    return not issubclass(cls, Exception) or "__init__" in vars(cls)


def members_of(cls: type) -> list[str]:
    """The names that a class and its bases within the package define, each once, bases last."""
    names: dict[str, None] = {}
    for base in cls.__mro__:
        if base.__module__.startswith("pstranspile"):
            fields = set(getattr(base, "_fields", ())) | {"_asdict", "_replace", "_make"}
            names.update(dict.fromkeys(name for name in vars(base) if name not in fields))
    return list(names)


def entry(title: str, value: Any) -> str:
    """A line of a list: an attribute or a method, and the first paragraph of its docstring."""
    return f"- `{title}`: {' '.join(text_of(value).split(chr(10) * 2)[0].split())}"


def fenced(code: str) -> str:
    """A signature as a block of code that is not run."""
    return f"```pycon\n{code}\n```"


def signature(title: str, function: Any, *, bare: bool = False) -> str:
    """A call with the parameters' types and defaults, and the type of the result unless it is `bare`."""
    found = inspect.signature(function)
    parameters = [item for key, item in found.parameters.items() if key not in ("self", "cls", "_cls")]
    shown: list[str] = []
    for number, item in enumerate(parameters):
        starred = item.kind is inspect.Parameter.KEYWORD_ONLY and (
            number == 0 or parameters[number - 1].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        )
        shown += ["*"] if starred else []
        shown.append(parameter(item))
    result = (
        "" if bare or found.return_annotation in (inspect.Signature.empty, "None", None) else found.return_annotation
    )
    arrow = f" -> {annotation(result)}" if result else ""
    line = f"{title}({', '.join(shown)}){arrow}"
    if bare or len(line) <= WIDTH:
        return line
    return "\n".join([f"{title}(", *(f"    {item}," for item in shown), f"){arrow}"])


def parameter(item: inspect.Parameter) -> str:
    """A parameter with its type and default."""
    star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(item.kind, "")
    typed = "" if item.annotation is inspect.Parameter.empty else f": {annotation(item.annotation)}"
    if item.default is inspect.Parameter.empty:
        return f"{star}{item.name}{typed}"
    shown = json.dumps(item.default) if isinstance(item.default, str) else repr(item.default)
    if isinstance(item.default, Enum):
        shown = f"{type(item.default).__name__}.{item.default.name}"
    return f"{star}{item.name}{typed} = {shown}" if typed else f"{star}{item.name}={shown}"


def annotation(value: Any) -> str:
    """A type as the source writes it."""
    value = getattr(value, "__forward_arg__", value)
    return value if isinstance(value, str) else inspect.formatannotation(value)


def text_of(value: Any) -> str:
    """The docstring of something, without a heading level of its own. Raises ValueError if there is none."""
    text = inspect.getdoc(value)
    if not text:
        raise ValueError(f"{value} has no docstring")
    return HEADING.sub(r"**\1**", text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
