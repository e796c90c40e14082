"""Training with recurrent units, chains of labels, CTC, less common losses and images: three steps against Fluid's."""

from __future__ import annotations

import io
import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile import Scope
from pstranspile.frontends.program_desc import program_from_bytes
from pstranspile.runtime.run.prepared import run
from pstranspile.runtime.values import LoDTensor

FOLDER = Path(__file__).parents[2] / "data" / "fluid"
ARCHIVES = ("recurrent_nets", "loss_nets", "image_nets")
LENGTHS = "@LENS"


@cache
def files() -> dict[str, bytes]:
    held: dict[str, bytes] = {}
    for name in ARCHIVES:
        with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
            held |= {m.name: f.read() for m in archive.getmembers() if (f := archive.extractfile(m)) is not None}
    return held


def feeds(arrays: dict[str, np.ndarray], steps: int) -> list[dict[str, Any]]:
    """The inputs of each step."""
    held = {key[5:]: value for key, value in arrays.items() if key.startswith("feed/")}
    found: list[dict[str, Any]] = [{} for _ in range(steps)]
    for name, value in held.items():
        if name.endswith(LENGTHS):
            continue
        at = 0
        for step, feed in enumerate(found):
            lengths = held.get(name + LENGTHS)
            if lengths is None:
                feed[name] = value[step]
                continue
            ends = [0, *map(int, np.cumsum(lengths[step]))]
            feed[name] = LoDTensor(value[at : at + ends[-1]], [ends])
            at += ends[-1]
    return found


@pytest.mark.filterwarnings("ignore:.*desc-not-kept")  # Fluid gives the labels' dims of sampled logits no element type
@pytest.mark.parametrize("name", sorted(name[:-3] for name in files() if name.endswith(".pb")))
def test_recorded_training(name: str):
    program = program_from_bytes(files()[f"{name}.pb"], name, "main")
    with np.load(io.BytesIO(files()[f"{name}.npz"])) as data:
        arrays = dict(data)
    loss = json.loads(str(arrays["meta"]))["loss"]
    scope = Scope()
    scope.update({key[5:]: value for key, value in arrays.items() if key.startswith("init/")})
    for step, feed in enumerate(feeds(arrays, len(arrays["loss"]))):
        wanted = {key.partition("/")[2]: key for key in arrays if key.startswith(f"step{step}/")}
        found = run(program, feed, [loss, *wanted], scope)
        np.testing.assert_allclose(found[loss], arrays["loss"][step : step + 1], rtol=1e-5, err_msg=f"step {step}")
        for variable, key in wanted.items():
            got = found[variable]
            values = got.data if isinstance(got, LoDTensor) else got
            assert values.dtype == arrays[key].dtype, key
            np.testing.assert_allclose(values, arrays[key], rtol=1e-5, atol=1e-6, err_msg=key)
    for key, want in arrays.items():
        if key.startswith("final/"):
            np.testing.assert_allclose(scope.get(key[6:]), want, rtol=1e-4, atol=1e-5, err_msg=key)
