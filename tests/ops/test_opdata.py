"""Every recorded op and small program of the real Fluid, reproduced within its tolerance."""

from pathlib import Path

import pytest

from tests import opdata


@pytest.mark.parametrize("name", opdata.names())
def test_recorded(name: str, tmp_path: Path):
    found = opdata.faults(name, tmp_path)
    if "quirk" in opdata.Recording(name).meta:
        assert found, "this recording shows a defect of Fluid, which docs/reference/kernels.md says is not followed"
    else:
        assert found == []


def test_shape_rules_agree_with_recorded_values():
    recordings = {name: opdata.Recording(name) for name in opdata.names()}
    checked = {name: opdata.type_faults(held) for name, held in recordings.items() if held.meta["kind"] != "program"}
    assert {name: faults for name, faults in checked.items() if faults} == {}
    assert len(checked) == len(recordings) - 60


def test_all_recordings_are_there():
    assert len(opdata.names()) == sum(opdata.ARCHIVES.values())
    assert sum("quirk" in opdata.Recording(name).meta for name in opdata.names()) == 7
