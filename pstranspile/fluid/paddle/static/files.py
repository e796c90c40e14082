"""Models in files, as `paddle.static` names them: `PREFIX.pdmodel` and `PREFIX.pdiparams`."""

from __future__ import annotations

import os
from typing import Any

from pstranspile.fluid import io
from pstranspile.fluid.framework import default_main_program
from pstranspile.fluid.graph.plain import several


def save_inference_model(
    path_prefix: str, feed_vars: Any, fetch_vars: Any, executor: Any, program: Any = None, **_: Any
) -> None:
    """Writes the program that computes `fetch_vars` from what is fed, and all its parameters to one file."""
    folder, name = os.path.split(path_prefix)
    feeds: list[Any] = [*feed_vars] if several(feed_vars) else [feed_vars]
    names: list[str] = [getattr(var, "name", var) for var in feeds]
    files = f"{name}.pdmodel", f"{name}.pdiparams"
    io.save_inference_model(folder or ".", names, fetch_vars, executor, program or default_main_program(), *files)


def load_inference_model(path_prefix: str, executor: Any, **_: Any) -> list[Any]:
    """What `save_inference_model` wrote: the program, the names of what is fed, and the variables to fetch."""
    folder, name = os.path.split(path_prefix)
    return io.load_inference_model(folder or ".", executor, f"{name}.pdmodel", f"{name}.pdiparams")
