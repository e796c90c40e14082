"""PyTorch models: traced into programs, checked against what a cluster would train, and trained.

    import pstranspile.torch as pt
    report = pt.check(model, batch, loss=loss, optimizer=optimizer, trainers=2)
    print(report)

Needs torch (`pip install '.[torch]'` in the folder of pstranspile), which is imported when a model is traced.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from pstranspile.cluster.checkpoint.inference import is_checkpoint, starting_values
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.pytorch import launch
from pstranspile.frontends.torch.capture import torch_library
from pstranspile.frontends.torch.optimizers import clip_grad_norm, clip_grad_value
from pstranspile.frontends.torch.training import Training, operators, trace
from pstranspile.ir.argument_checks import expect
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location
from pstranspile.ir.reading import misspelt, open_regular
from pstranspile.proof.pytorch import ModelCause, ModelReport, assert_equal, check, check_training
from pstranspile.runtime.values import Array

_Source = Training | Cluster | Mapping[str, Any] | str | os.PathLike[str]

_WANTED = "a training, a cluster that has run, or a file or the arrays of results"
"""What `state_dict` takes, in messages."""

_PARAMETER = "param/"
"""How parameters are named in a file of results."""


def state_dict(source: _Source, training: Training | None = None) -> dict[str, Any]:
    """Parameters and buffers as tensors under torch's names, for `model.load_state_dict(..., strict=False)`.

    `source` is a training; a cluster that has run; what `run` saved (`.npz`), as a file or as the arrays in it; or a
    checkpoint, or a folder of some, of which it is the newest. `training`, which the program is of, says which
    variables are the model's; a checkpoint needs it. Raises DiagnosticError for what can't be read or does not fit.
    """
    if training is not None:
        expect(training, Training, "training", "what trace gives")
    expect(source, Training | Cluster | Mapping | str | os.PathLike, "state_dict", _WANTED)
    arrays = _arrays(source, training)
    own = source if isinstance(source, Training) else training
    kept = arrays if own is None else {name: arrays[name] for name in own.names if name in arrays}
    shapes: Mapping[str, tuple[int, ...]] = {} if own is None else own.shapes
    made = {name: np.ascontiguousarray(array).reshape(shapes.get(name, array.shape)) for name, array in kept.items()}
    torch = torch_library()  # what is wrong with the source is told without it
    return {name: torch.from_numpy(array.copy()) for name, array in made.items()}


def _arrays(source: _Source, training: Training | None) -> dict[str, Array]:
    if isinstance(source, Training):
        return source.state
    if isinstance(source, Cluster):
        return source.parameters()
    if isinstance(source, Mapping):
        return _of_results(source)
    path = os.fspath(source)
    if training is not None:
        return dict(starting_values(path, training.module["main"], training.module["startup"]).values)
    if not os.path.exists(path) or "\0" in path:
        raise DiagnosticError([error("input-unreadable", f"there is no such file{misspelt(path)}", Location(path))])
    if os.path.isdir(path) or is_checkpoint(path):
        raise ValueError(f"{path} is a folder: state_dict needs the training whose variables it holds")
    try:
        stream = open_regular(path)
    except OSError as problem:
        message = f"the file can't be read: {problem.strerror}"
        raise DiagnosticError([error("input-unreadable", message, Location(path))]) from None
    with stream, np.load(stream) as held:
        return _of_results(cast("Mapping[str, Any]", held))


def _of_results(held: Mapping[str, Any]) -> dict[str, Array]:
    """The parameters among what a run saved; all arrays, where none is marked as a parameter."""
    for name, value in held.items():
        if not isinstance(name, str) or np.asarray(value).dtype.kind not in "bifu":  # pyright: ignore
            raise TypeError(f"state_dict takes arrays of numbers by name, not {name!r}: {type(value).__name__}")
    marked = {name.removeprefix(_PARAMETER): held[name] for name in held if name.startswith(_PARAMETER)}
    return marked or {name: np.asarray(held[name]) for name in held}


__all__ = [
    "ModelCause",
    "ModelReport",
    "Training",
    "assert_equal",
    "check",
    "check_training",
    "clip_grad_norm",
    "clip_grad_value",
    "launch",
    "operators",
    "state_dict",
    "trace",
]
