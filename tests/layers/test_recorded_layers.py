"""Every layer that users of Fluid know, in models written in Fluid and here: the programs are equal.

`tests/data/fluid/layers.tar.xz` holds Fluid's. A ProgramDesc does not say which variables are parameters, so that
is not compared.
"""

import tarfile
import warnings
from functools import cache
from pathlib import Path

import pytest

from pstranspile import layers as L
from pstranspile.interop.program_desc import program_from_bytes
from tests.layers import sequence_models as sequence_models
from tests.layers.layer_models import MODELS
from tests.layers.test_more_recorded import plain
from tests.training import differences

ARCHIVE = Path(__file__).parents[1] / "data" / "fluid" / "layers.tar.xz"


@cache
def files() -> dict[str, bytes]:
    with tarfile.open(ARCHIVE) as archive:
        return {m.name: f.read() for m in archive.getmembers() if (f := archive.extractfile(m)) is not None}


@pytest.mark.parametrize("name", MODELS)
def test_programs_are_fluids(name: str):
    draft = L.Draft(seed=5)
    MODELS[name](draft)
    module = draft.module()
    assert module.startup is not None
    for which, program in {"main": module.main, "startup": module.startup}.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a tensor description that Fluid leaves on variables of sparse rows
            expected = program_from_bytes(files()[f"{name}/{which}.pb"], which, which)
        assert differences(plain(program), plain(expected)) == []


def test_every_recording_has_its_model():
    assert {name.partition("/")[0] for name in files()} == set(MODELS)
