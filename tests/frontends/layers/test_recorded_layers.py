"""Every layer that users of Fluid know, in models written in Fluid and here: the programs are equal.

`tests/data/fluid/layers.tar.xz` holds Fluid's. A ProgramDesc does not say which variables are parameters, so that
is not compared.
"""

import tarfile
import warnings
from functools import cache
from pathlib import Path

import pytest

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.program_desc import program_from_bytes
from tests.frontends.layers import sequence_models as sequence_models
from tests.frontends.layers.layer_models import MODELS
from tests.frontends.layers.test_more_recorded import plain
from tests.training import differences

ARCHIVE = Path(__file__).parents[2] / "data" / "fluid" / "layers.tar.xz"


@cache
def files() -> dict[str, bytes]:
    with tarfile.open(ARCHIVE) as archive:
        return {m.name: f.read() for m in archive.getmembers() if (f := archive.extractfile(m)) is not None}


def recorded(path: str) -> ps.Program:
    which = path.rpartition("/")[2].removesuffix(".pb")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a tensor description that Fluid leaves on variables of sparse rows
        return program_from_bytes(files()[path], which, which)


@pytest.mark.parametrize("name", MODELS)
def test_programs_are_fluids(name: str):
    draft = L.Draft(seed=5)
    MODELS[name](draft)
    module = draft.module()
    assert module.startup is not None
    for which, program in {"main": module.main, "startup": module.startup}.items():
        assert differences(plain(program), plain(recorded(f"{name}/{which}.pb"))) == []


@pytest.mark.parametrize("name", MODELS)
def test_programs_are_fluids_where_x_is_ragged(name: str, monkeypatch: pytest.MonkeyPatch):
    plain_data = L.data

    def data(draft: L.Draft, name: str, shape: list[int], dtype: str, *, lod_level: int) -> L.Value:
        return plain_data(draft, name, shape, dtype, lod_level=1 if name == "x" else lod_level)

    monkeypatch.setattr(L, "data", data)
    draft = L.Draft(seed=5)
    MODELS[name](draft)
    assert differences(plain(draft.main()), plain(recorded(f"{name}/ragged.pb"))) == []


def test_every_recording_has_its_model():
    assert {name.partition("/")[0] for name in files()} == set(MODELS)
