"""Files of the variables that a program keeps: pickled by `fluid.save`, and those of `save_vars` and its kind."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pstranspile.cluster.checkpoint.inference import MODEL
from pstranspile.fluid.framework import program_guard
from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.graph.program import Program
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.graph.vartype import VarType
from pstranspile.fluid.layers.nn import scale
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.values.encoding import read_combined, read_tensor

# What a saved model is fed and fetches.


def scaled_targets(program: Any, given: Any) -> list[str]:
    """Makes a variable of the program for each target, the target times 1, as Fluid does; gives their names.

    Targets are variables or their names. A target that the program does not have, or that is given twice, stays as it
    is, for the one who cuts the program to refuse.
    """
    names = [item.name if isinstance(item, Variable) else str(item) for item in (given if several(given) else [given])]
    block = program.global_block()
    if len(set(names)) < len(names) or not all(block.has_var(name) for name in names):
        return names
    with program_guard(program):
        return [scale(block.var(name), name=f"save_infer_model/scale_{at}").name for at, name in enumerate(names)]


def prepend_feed_ops(
    inference_program: Program, feed_target_names: Sequence[str], feed_holder_name: str = "feed"
) -> None:
    """Puts ops in front that feed these variables, the first one last."""
    if not feed_target_names:
        return
    block = inference_program.global_block()
    holder = block.create_var(name=feed_holder_name, type=VarType.FEED_MINIBATCH, persistable=True)
    for column, name in enumerate(feed_target_names):
        block.prepend_op("feed", {"X": [holder]}, {"Out": [block.var(name)]}, {"col": column})


def append_fetch_ops(
    inference_program: Program, fetch_target_names: Sequence[str], fetch_holder_name: str = "fetch"
) -> None:
    """Puts ops behind that fetch these variables."""
    block = inference_program.global_block()
    holder = block.create_var(name=fetch_holder_name, type=VarType.FETCH_LIST, persistable=True)
    for column, name in enumerate(fetch_target_names):
        block.append_op("fetch", {"X": [name]}, {"Out": [holder]}, {"col": column})


class _Pickler(pickle._Pickler):  # pyright: ignore[reportPrivateUsage]
    """Writes pickles that numpy of Fluid's days reads: numpy 2 has another name for the module that makes arrays.

    The one of the standard library that is written in Python: in it the name of a function can be chosen, and the data
    of an array go to the file as they are.
    """

    def save_global(self, obj: Any, name: str | None = None) -> None:
        """Writes the name of a function or class."""
        module: str = getattr(obj, "__module__", None) or ""
        if not module.startswith("numpy._core."):
            super().save_global(obj, name)  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
            return
        older: str = module.replace("numpy._core.", "numpy.core.", 1)
        own: Any = self
        if own.proto < STACKED:
            own.write(pickle.GLOBAL + f"{older}\n{name or obj.__qualname__}\n".encode())
        else:
            own.save(older)
            own.save(name or obj.__qualname__)
            own.write(pickle.STACK_GLOBAL)
        own.memoize(obj)


STACKED = 4
"""The first protocol of pickles in which names of functions are texts, and the first whose arrays are plain bytes."""

OLD_PROTOCOL = 2
"""The protocol of pickles that Fluid writes; its arrays are written as texts, half as long again."""


def write_pickled(path: str, arrays: dict[str, Any], protocol: int) -> None:
    """Writes arrays to a file as a pickle that numpy of Fluid's days reads."""
    with open(path, "wb") as file:
        _Pickler(file, protocol).dump(arrays)


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
