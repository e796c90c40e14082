"""Models written for this test in Fluid and here, to cover what the recorded ones don't: the programs are equal.

`tests/data/fluid/more_training.tar.xz` holds Fluid's. A ProgramDesc does not say which variables are parameters, so
that is not compared.
"""

import tarfile
import warnings
from functools import cache
from pathlib import Path

import pytest

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.program_desc import program_from_bytes
from pstranspile.ir.model import FrozenMap
from tests.frontends.layers.more_models import MODELS
from tests.training import differences

ARCHIVE = Path(__file__).parents[2] / "data" / "fluid" / "more_training.tar.xz"


@cache
def files() -> dict[str, bytes]:
    with tarfile.open(ARCHIVE) as archive:
        return {m.name: f.read() for m in archive.getmembers() if (f := archive.extractfile(m)) is not None}


def plain(program: ps.Program) -> ps.Program:
    """Without what a ProgramDesc does not carry."""
    blocks = (
        block._replace(vars=FrozenMap({name: var._replace(parameter=None) for name, var in block.vars.items()}))
        for block in program.blocks
    )
    return program._replace(random_seed=0, blocks=tuple(blocks))


@pytest.mark.parametrize("name", MODELS)
def test_programs_are_fluids(name: str):
    draft = L.Draft(seed=5)
    more = MODELS[name](draft) or {}
    module = draft.module()
    assert module.startup is not None
    for which, program in {"main": module.main, "startup": module.startup, **more}.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a tensor description that Fluid leaves on variables of sparse rows
            expected = program_from_bytes(files()[f"{name}/{which}.pb"], which, which)
        assert differences(plain(program), plain(expected)) == []


def test_every_recording_has_its_model():
    assert {name.partition("/")[0] for name in files()} == set(MODELS)
