"""What scripts of Fleet ask besides training: metrics, times of passes, files of a hadoop cluster."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.fluid.contrib import utils as hdfs_utils
from pstranspile.fluid.incubate.fleet import utils as fleet_barrier_util
from pstranspile.fluid.incubate.fleet.base import Role, UserDefinedRoleMaker
from pstranspile.fluid.incubate.fleet.parameter_server import fleet
from pstranspile.fluid.incubate.fleet.utils import FleetUtil
from pstranspile.fluid.incubate.fleet.utils.hdfs import HDFSClient
from pstranspile.fluid.missing import NotHere
from tests.fluid.running import fresh

HADOOP = """#!/bin/bash
# `hadoop fs` over a folder of this host
shift
while [[ $1 == -D* ]]; do shift; done
case $1 in
    -test) test $2 "$3" ;;
    -mkdir) mkdir -p "$3" ;;
    -put) shift; [[ $1 == -f ]] && shift; cp -r "$1" "$2" ;;
    -get) shift; [[ $1 == -f ]] && shift; cp -r "$1" "$2" ;;
    -cat) cat "$2" ;;
    -mv) mv "$2" "$3" ;;
    -rm) rm -r "$3" ;;
    -ls) echo Found some items; find "$2" -mindepth 1 -maxdepth 1 -printf '%M 1 me us %s %TY-%Tm-%Td %TH:%TM %p\\n' ;;
    -lsr) find "$2" -mindepth 1 -printf '%M 1 me us %s %TY-%Tm-%Td %TH:%TM %p\\n' ;;
    *) echo "unknown command $1" >&2; exit 255 ;;
esac
"""


@pytest.fixture
def hadoop(tmp_path: Path) -> str:
    """A folder that serves as HADOOP_HOME."""
    client = tmp_path / "home/bin/hadoop"
    client.parent.mkdir(parents=True)
    client.write_text(HADOOP)
    client.chmod(0o755)
    return str(tmp_path / "home")


def test_files_go_there_and_come_back(hadoop: str, tmp_path: Path) -> None:
    client = HDFSClient(hadoop, {"fs.default.name": "hdfs://there", "hadoop.job.ugi": None})
    there, mine = str(tmp_path / "there"), tmp_path / "mine"
    mine.write_text("rows\n")
    assert client.ls(there) == []
    client.makedirs(f"{there}/deep")
    client.upload(f"{there}/deep", str(mine))
    assert client.is_dir(f"{there}/deep")
    assert client.is_file(f"{there}/deep/mine")
    assert client.ls(there) == [f"{there}/deep"]
    assert client.lsr(there) == [f"{there}/deep/mine"]
    assert client.lsr(there, excludes=["mine"]) == []
    client.rename(f"{there}/deep/mine", f"{there}/moved")
    assert client.cat(f"{there}/moved") == "rows"
    client.download(f"{there}/moved", str(tmp_path / "back"))
    assert (tmp_path / "back").read_text() == "rows\n"
    client.delete(there)
    assert not client.is_exist(there)


def test_folders_go_there_and_come_back_to_several_trainers(hadoop: str, tmp_path: Path) -> None:
    client, there, mine = hdfs_utils.HDFSClient(hadoop, {}), str(tmp_path / "there"), tmp_path / "mine"
    for name in ("a", "deep/b", "deep/c"):
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).write_text(name)
    hdfs_utils.multi_upload(client, there, str(mine), multi_processes=2)
    assert client.lsr(there) == [f"{there}/{name}" for name in ("a", "deep/b", "deep/c")]
    assert f"{there}/deep" in client.lsr(there, only_file=False)
    back = [hdfs_utils.multi_download(client, there, str(tmp_path / "back"), trainer, 2) for trainer in (0, 1)]
    assert back == [[str(tmp_path / "back" / name) for name in names] for names in (("a", "deep/c"), ("deep/b",))]
    assert (tmp_path / "back/deep/b").read_text() == "deep/b"


def test_what_fails_is_told(hadoop: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="ends with status 1"):
        HDFSClient(hadoop, {}).upload(str(tmp_path), str(tmp_path / "nothing"), retry_times=0)


@pytest.mark.parametrize("count", [1, 2])
def test_trainers_wait_for_each_other(count: int, hadoop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HADOOP_HOME", hadoop)
    fleet.init(UserDefinedRoleMaker(0, Role.WORKER, count, ["127.0.0.1:6174"]))
    ready = tmp_path / "ready"
    waited: list[float] = []

    def other_comes(seconds: float) -> None:
        waited.append(seconds)
        (ready / "ready.3.1.done").touch()

    monkeypatch.setattr(fleet_barrier_util.time, "sleep", other_comes)
    fleet_barrier_util.check_all_trainers_ready(str(ready), 3)
    assert waited == [fleet_barrier_util.PAUSE] * (count - 1)


def test_the_area_under_the_curve_is_that_of_the_buckets(capsys: pytest.CaptureFixture[str]) -> None:
    fleet.init(UserDefinedRoleMaker(0, Role.WORKER, 1, ["127.0.0.1:6174"]))
    rng = np.random.RandomState(3)
    positive, negative = rng.randint(0, 9, (2, 8))
    scores = [
        (bucket, kind)
        for kind, counts in enumerate((negative, positive))
        for bucket in range(8)
        for _ in range(counts[bucket])
    ]
    won = sum((a > b) + (a == b) / 2 for a, one in scores if one for b, other in scores if not other)
    with fresh():
        util = FleetUtil(mode="transpiler")
        assert util.get_global_auc(stat_pos="p", stat_neg="n") is None
        for name, counts in (("p", positive), ("n", negative)):
            fluid.global_scope().var(name).get_tensor().set(counts.reshape(1, -1).astype("int64"), fluid.CPUPlace())
        found = util.get_global_auc(stat_pos="p", stat_neg="n")
        assert found == pytest.approx(won / (positive.sum() * negative.sum()))
        util.set_zero("p")
        util.print_global_auc(stat_pos="p", stat_neg="n", print_prefix="day 1")
    assert "day 1 global auc = 0.5" in capsys.readouterr().out


def test_passes_are_cut_out_of_a_day() -> None:
    util = FleetUtil()
    assert util.get_online_pass_interval("20190720", "{6..7}", 30, "2", False) == [["0600", "0630"], ["0700", "0730"]]
    assert util.get_online_pass_interval("20190720", "23", 60, 1, True) == [["23"]]


def test_what_is_of_pslib_is_refused() -> None:
    with pytest.raises(ValueError, match="not 'other'"):
        FleetUtil("other")
    with pytest.raises(NotHere, match="load_fleet_model"):
        FleetUtil().load_fleet_model("there")
