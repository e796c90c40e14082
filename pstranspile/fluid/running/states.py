"""Files of the variables that a program keeps: pickled by `fluid.save`, and those of `save_vars` and its kind."""

from __future__ import annotations

import os
import pickle
import pickletools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from pstranspile.cluster.checkpoint.inference import MODEL
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.files.tensor_files import read_combined, read_tensor


def pickled(arrays: dict[str, Any]) -> bytes:
    """Arrays as a pickle that numpy of Fluid's days reads: numpy 2 has another name for the module that makes them."""
    data = pickle.dumps(arrays, protocol=2)
    parts, at = list[bytes](), 0
    for opcode, argument, place in pickletools.genops(data):
        if opcode.name == "GLOBAL" and place is not None and str(argument).startswith("numpy._core."):
            end = data.index(b"\n", place)
            parts += [data[at:place], data[place:end].replace(b"numpy._core.", b"numpy.core.")]
            at = end
    return b"".join([*parts, data[at:]])


class _Arrays(pickle.Unpickler):
    """Reads pickles of arrays; nothing else is loaded from a file."""

    def find_class(self, module: str, name: str) -> Any:
        if module in (
            "numpy",
            "numpy.core.multiarray",
            "numpy._core.multiarray",
            "collections",
            "_codecs",
            "numpy.core.numeric",
        ) and name in ("ndarray", "dtype", "_reconstruct", "scalar", "OrderedDict", "encode", "_frombuffer"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"the file wants {module}.{name}; files of parameters hold arrays only")


def _unpickled(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        return _Arrays(file, encoding="latin1").load()


def without_ending(model_path: str) -> str:
    """A path without the endings that `fluid.save` adds."""
    return model_path.removesuffix(".pdparams").removesuffix(".pdopt").removesuffix(".pdmodel")


def saved_state(model_path: str) -> dict[str, Any] | None:
    """The arrays that `fluid.save` wrote, by name; None where it wrote none."""
    if not os.path.isfile(model_path + ".pdparams"):
        return None
    state = _unpickled(model_path + ".pdparams")
    if os.path.isfile(model_path + ".pdopt"):
        state |= _unpickled(model_path + ".pdopt")
    return state


def older_state(model_path: str, names: Iterable[str] | None) -> dict[str, Any]:
    """The arrays of a folder with a file for each variable, or of one file with all of them.

    `names` are those to read; None for all of a folder. Raises ValueError where there is neither, and for one file
    without names, which it does not hold; RuntimeError where the files are not of these variables.
    """
    path = Path(model_path)
    try:
        if path.is_file():
            if names is None:
                raise ValueError(f"{model_path} is one file, which holds no names: give its variables as var_list")
            values: dict[str, Any] = dict(read_combined(path, sorted(names)))
        elif path.is_dir():
            there = {str(file.relative_to(path)): file for file in sorted(path.rglob("*")) if file.is_file()}
            there.pop(MODEL, None)
            wanted = there if names is None else [name for name in sorted(names) if name in there]
            values = {name: read_tensor(there[name]) for name in wanted}
        else:
            raise ValueError(f"there are neither {model_path}.pdparams nor a file or folder {model_path}")
    except DiagnosticError as problem:
        raise RuntimeError(f"{model_path} is not of these variables: {problem}") from None
    return {name: value if isinstance(value, np.ndarray) else value.data for name, value in values.items()}
