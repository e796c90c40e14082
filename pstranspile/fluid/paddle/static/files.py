"""Models in files, as `paddle.static` names them: `PREFIX.pdmodel` and `PREFIX.pdiparams`; and models as bytes."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pstranspile.fluid import io
from pstranspile.fluid.executor import plain_program
from pstranspile.fluid.framework import default_main_program
from pstranspile.fluid.graph.program import Program
from pstranspile.fluid.graph.values import several
from pstranspile.fluid.io import STACKED
from pstranspile.ir.user_warnings import warn


def save_inference_model(
    path_prefix: str, feed_vars: Any, fetch_vars: Any, executor: Any, program: Any = None, **_: Any
) -> None:
    """Writes the program that computes `fetch_vars` from `feed_vars`, and all its parameters to one file.

    In a cluster these include the parameters of servers. Raises ValueError for a path that names a folder, and for
    tables whose rows are on servers.
    """
    folder, name = os.path.split(path_prefix)
    if not name or os.path.isdir(path_prefix):
        raise ValueError(f"{path_prefix!r} names a folder: it takes folder/name, without an ending")
    feeds: list[Any] = [*feed_vars] if several(feed_vars) else [feed_vars]
    names: list[str] = [getattr(var, "name", var) for var in feeds]
    files = f"{name}.pdmodel", f"{name}.pdiparams"
    chosen = plain_program(program or default_main_program())
    io.save_model(folder or ".", names, fetch_vars, chosen, files, together=True)


def save(program: Any, model_path: str, protocol: int = 4, **configs: Any) -> None:
    """Writes parameters to `.pdparams`, the optimizers' state to `.pdopt`, and the program to `.pdmodel`.

    `protocol` is the pickle protocol, 2 to 4; `pickle_protocol` is its older name. Raises ValueError for other
    protocols, and for a path that ends in a slash.
    """
    if "pickle_protocol" in configs:
        warn("pickle_protocol is an older name of protocol")
        protocol = configs["pickle_protocol"]
    if not isinstance(protocol, int) or not 2 <= protocol <= STACKED:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"protocol is that of a pickle, a whole number from 2 to {STACKED}, not {protocol!r}")
    io.save_state(program, model_path, protocol)


def load_inference_model(
    path_prefix: str | None,
    executor: Any,
    model_filename: Any = None,
    params_filename: Any = None,
    **_: Any,
) -> list[Any]:
    """Reads the files of `save_inference_model`: the program, the names of the fed variables, and the variables to
    fetch.

    With `model_filename` and `params_filename` it reads these files in the folder; without a folder these are the
    files' bytes.
    """
    if path_prefix is None or model_filename is not None:
        return io.load_inference_model(path_prefix, executor, model_filename, params_filename)
    folder, name = os.path.split(path_prefix)
    return io.load_inference_model(folder or ".", executor, f"{name}.pdmodel", f"{name}.pdiparams")


def _model_file_bytes(feed_vars: Any, fetch_vars: Any, program: Any, program_only: bool) -> bytes:
    """The bytes of the file with a model's program, or of the file with its parameters."""
    feeds: list[Any] = [*feed_vars] if several(feed_vars) else [feed_vars]
    names: list[str] = [getattr(var, "name", var) for var in feeds]
    with TemporaryDirectory() as folder:
        io.save_inference_model(
            folder, names, fetch_vars, None, program or default_main_program(), "m", "p", program_only=program_only
        )
        path = Path(folder, "m" if program_only else "p")
        return path.read_bytes() if path.exists() else b""


def normalize_program(program: Program, feed_vars: Any, fetch_vars: Any) -> Program:
    """The model for `fetch_vars` and `feed_vars`, as a program: the ops that compute the former from the latter, with
    the ops that feed and fetch them.
    """
    return deserialize_program(serialize_program(feed_vars, fetch_vars, program=program))


def serialize_program(feed_vars: Any, fetch_vars: Any, program: Any = None, **_: Any) -> bytes:
    """The program that computes `fetch_vars` from `feed_vars`, as bytes."""
    return _model_file_bytes(feed_vars, fetch_vars, program, True)


def serialize_persistables(feed_vars: Any, fetch_vars: Any, executor: Any, program: Any = None, **_: Any) -> bytes:
    """The parameters of the program that computes `fetch_vars` from `feed_vars`, as bytes."""
    return _model_file_bytes(feed_vars, fetch_vars, program, False)


def deserialize_program(data: bytes) -> Program:
    """The program in the bytes of `serialize_program`."""
    return Program.parse_from_string(data)


def deserialize_persistables(program: Program, data: bytes, executor: Any) -> None:
    """Sets the parameters of a program in the scope in use from the bytes of `serialize_persistables`."""
    with TemporaryDirectory() as folder:
        Path(folder, "params").write_bytes(data)
        names = [var for var in program.list_vars() if io.is_persistable(var)]
        io.load_vars(executor, folder, program, vars=names, filename="params")


def save_to_file(path: str, content: bytes) -> None:
    """Writes bytes to a file. Raises ValueError if `content` is not bytes."""
    if not isinstance(content, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"save_to_file writes bytes, not a {type(content).__name__}")
    Path(path).write_bytes(content)


def load_from_file(path: str) -> bytes:
    """The bytes of a file."""
    return Path(path).read_bytes()
