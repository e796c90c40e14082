"""What programs are fed, given to another process of this host: as bytes, with the file of what a script defines."""

from __future__ import annotations

import importlib
import io
import os
import pickle
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

from pstranspile.ir.diagnostics import DiagnosticError, Note, error
from pstranspile.ir.model import Location
from pstranspile.runtime.files.python_file import imported_file

_SCRIPT = "__main__"
"""The module of what a script defines. In another process this is another module."""


def serialize_value(value: Any) -> bytes:
    """Serializes a value for another process, where `read_value` restores it.

    Functions and classes go by the name of their module, whose folder is on this process's path; those of the script
    that runs by its file, which the other process imports. Those of a notebook, and functions within functions, go as
    they are where the package cloudpickle, or Ray, is installed. Raises DiagnosticError (`data-carried`) for what
    another process can't be given.
    """
    script = _script()
    pickler = _Pickler()
    try:
        data = pickler.bytes_of(value)
        problem = ""
    except DiagnosticError:
        raise
    except Exception as failed:  # whatever a user's objects raise when they are taken apart
        data, problem = b"", str(failed) or type(failed).__name__
    if problem or (pickler.of_script and not script):
        data = _by_value(value, problem or f"{pickler.of_script} is defined in no file")
        script = ""
    return pickle.dumps(([os.path.abspath(place) for place in sys.path], script, data))


def read_value(path: str) -> Any:
    """The value in a file with the bytes of `serialize_value`. Raises DiagnosticError for what its script raises."""
    places, script, data = pickle.loads(Path(path).read_bytes())
    known = {os.path.abspath(place) for place in sys.path}
    sys.path.extend(place for place in places if place not in known)
    return _Unpickler(io.BytesIO(data), script).load()


class _Pickler:
    """Takes objects apart, and notes the first that the script defines."""

    def __init__(self) -> None:
        self._of_script: list[str] = []

    @property
    def of_script(self) -> str:
        """The name of the first class or function that the script defines; "" for none."""
        return self._of_script[0] if self._of_script else ""

    def bytes_of(self, value: Any) -> bytes:
        """The bytes of a value."""
        noted, buffer = self._of_script, io.BytesIO()

        class ScriptAwarePickler(pickle.Pickler):
            def reducer_override(self, obj: Any) -> Any:
                if isinstance(obj, type | FunctionType) and obj.__module__ == _SCRIPT:
                    noted.append(obj.__qualname__)
                return NotImplemented

        ScriptAwarePickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
        return buffer.getvalue()


class _Unpickler(pickle.Unpickler):
    """Puts objects together; what a script defines is looked up in its file."""

    def __init__(self, stream: io.BytesIO, script: str):
        super().__init__(stream)
        self._script = script

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """What a module calls so."""
        if module_name != _SCRIPT or not self._script:
            return super().find_class(module_name, global_name)
        found: Any = imported_file(self._script)
        for part in global_name.split("."):
            found = getattr(found, part)
        return found


def _script() -> str:
    """The file of the script that runs; "" where there is none, as in a notebook."""
    path = getattr(sys.modules.get(_SCRIPT), "__file__", None) or ""
    return os.path.abspath(path) if path.endswith(".py") and os.path.isfile(path) else ""


def _by_value(value: Any, problem: str) -> bytes:
    """The bytes of a value with the code of functions in it, by a package that can do so. Raises DiagnosticError."""
    for name in ("cloudpickle", "ray.cloudpickle"):
        try:
            package: Any = importlib.import_module(name)
        except ImportError:
            continue
        try:
            return package.dumps(value)
        except Exception as failed:  # whatever the user's objects raise
            raise _serialization_error(value, str(failed)) from None
    raise _serialization_error(value, problem)


def _serialization_error(value: Any, problem: str) -> DiagnosticError:
    line = (problem.splitlines() or [""])[0]
    message = f"what is fed can't be given to other processes: {line}"
    note = Note(
        'a function that stands in a file by itself can: `loader`, or "FILE.py:NAME"; those of notebooks and within '
        "functions can with `pip install cloudpickle`"
    )
    place = getattr(value, "location", None)
    here = place if isinstance(place, Location) else None
    return DiagnosticError([error("data-carried", message, here, notes=[note])])
