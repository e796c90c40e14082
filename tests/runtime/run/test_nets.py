"""Nets of ragged sequences, recurrences and branches, forwards and backwards, against what Fluid made of them."""

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

ARCHIVE = Path(__file__).parents[2] / "data" / "fluid" / "nets.tar.xz"


@cache
def files() -> dict[str, bytes]:
    with tarfile.open(ARCHIVE) as archive:
        return {m.name: f.read() for m in archive.getmembers() if (f := archive.extractfile(m)) is not None}


@pytest.mark.parametrize("name", sorted(name[:-3] for name in files() if name.endswith(".pb")))
def test_recorded_net(name: str):
    program = program_from_bytes(files()[f"{name}.pb"], name, "main")
    with np.load(io.BytesIO(files()[f"{name}.npz"])) as data:
        arrays = dict(data)
    meta: dict[str, Any] = json.loads(str(arrays["meta"]))
    scope = Scope()
    scope.update({key[5:]: value for key, value in arrays.items() if key.startswith("init/")})
    feed = {key: arrays[f"feed/{key}"] for key in meta["feeds"]}
    for key, lengths in meta["feeds"].items():
        if lengths:
            feed[key] = LoDTensor(feed[key], [[0, *np.cumsum(lengths).tolist()]])
    for _ in range(2):  # op by op, and prepared
        found = run(program, feed, meta["names"], scope)
        for key, lod in zip(meta["names"], meta["lods"], strict=True):
            got, want = found[key], arrays[f"out/{key}"]
            assert (got.lod if isinstance(got, LoDTensor) else []) == lod, key
            values = got.data if isinstance(got, LoDTensor) else got
            assert values.dtype == want.dtype, key
            np.testing.assert_allclose(values, want, rtol=1e-5, atol=1e-6, err_msg=key)
