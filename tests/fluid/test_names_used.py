"""`--compat`: the names of Fluid and Paddle that a script uses, found without running it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pstranspile.fluid.__main__ import main
from pstranspile.fluid.names_used import DIFFERENT, REFUSED, find_used_names
from tests.fluid.running import SCRIPTS


def names(folder: Path, script: str, **modules: str) -> dict[str, tuple[str, list[tuple[str, int]]]]:
    """By name used, its status, and the files and lines of its uses."""
    for name, text in {"train": script, **modules}.items():
        path = folder.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    found, unread, _ = find_used_names(str(folder / "train.py"))
    assert unread == []
    return {
        one.name.removeprefix("paddle."): (
            one.status,
            [(str(Path(use.file).relative_to(folder)), use.line) for use in one.uses],
        )
        for one in found
    }


ALIASES = """
import paddle.fluid as fluid
from paddle.fluid import layers as L, optimizer
from paddle.fluid.layers import *
import paddle
try:
    import paddle.fluid.io as io
except ImportError:
    io = None
layers, N = fluid.layers, fluid.nets
relu = layers.relu
x = L.data("x", [4])
fc(x, 1)
relu(x)
N.simple_img_conv_pool
getattr(fluid, "Executor")()
for name in ("a", "b"):
    io.save_vars
def build(L):
    return L.not_of_fluid
class Net:
    layers = None
    def forward(self):
        return layers.softmax(x)
with fluid.program_guard(fluid.Program()) as L2:
    L2.nope
paddle.batch
unknown(3)
"""


def test_aliases_are_followed(tmp_path: Path) -> None:
    found = names(tmp_path, ALIASES)
    lines = {name: [line for _, line in uses] for name, (_, uses) in found.items()}
    assert lines["fluid.layers.data"] == [12]
    assert lines["fluid.layers.fc"] == [13]
    assert lines["fluid.layers.relu"] == [11, 14]
    assert lines["fluid.nets.simple_img_conv_pool"] == [15]
    assert lines["fluid.Executor"] == [16]
    assert lines["fluid.io.save_vars"] == [18]
    assert lines["fluid.layers.softmax"] == [24]
    assert lines["batch"] == [27]
    assert not any("not_of_fluid" in name or "nope" in name or "unknown" in name for name in found)
    assert {status for status, _ in found.values()} == {"supported"}


def test_a_name_may_get_its_meaning_below_its_use(tmp_path: Path) -> None:
    script = "def build():\n    L = fluid.layers\n    return L.fc, L.nothing_like_it\nimport paddle.fluid as fluid\n"
    found = names(tmp_path, script)
    assert found["fluid.layers.fc"] == ("supported", [("train.py", 3)])
    assert found["fluid.layers.nothing_like_it"] == ("missing", [("train.py", 3)])


def test_modules_of_the_own_folder_are_read(tmp_path: Path) -> None:
    script = "import net\nfrom tools.parts import build, fluid as F\nfrom other import *\n"
    script += "net.fluid.layers.relu\nF.ons\nG.layers.fc\n"
    found = names(
        tmp_path,
        script,
        net="import paddle.fluid as fluid\nimport train\nfluid.layers.nothing_like_it()\n",
        other="import paddle.fluid as G\n",
        tools____init__="",
        tools__parts="from paddle import fluid\nfrom . import more\nfrom .more import L\ndef build():\n    L.fc\n",
        tools__more="from paddle.fluid import layers as L\n",
    )
    assert found["fluid.layers.nothing_like_it"] == ("missing", [("net.py", 3)])
    assert found["fluid.ons"] == ("missing", [("train.py", 5)])
    assert found["fluid.layers.relu"] == ("supported", [("train.py", 4)])
    assert found["fluid.layers.fc"] == ("supported", [("tools/parts.py", 5), ("train.py", 6)])


@pytest.mark.parametrize(
    ("script", "missing", "note"),
    [
        ("import paddle.fluid as f\nf.layers.fcc", "fluid.layers.fcc", "did you mean fc?"),
        ("import paddle.fluid as f\nf.dygraph.guard()", "fluid.dygraph.guard", ""),
        ("from paddle.fluid.dygraph import Conv2D", "fluid.dygraph.Conv2D", ""),
        ("import paddle.fluid.nowhere", "fluid.nowhere", ""),
        ("import paddle\npaddle.enable_static()\npaddle.Model(None)", "Model", "without a static graph"),
        ("import paddle\npaddle.enable_static()\npaddle.jit.save", "jit.save", "dynamic graphs are not run"),
        ("import paddle\npaddle.disable_static()", "disable_static", "dynamic graphs are not run"),
        ("import paddle\npaddle.nn.Linear(2, 3)", "", "dynamic graphs are not run; a script that builds static ones"),
        (
            "import paddle.fluid as f\nf.optimizer.PipelineOptimizer(1)",
            "fluid.optimizer.PipelineOptimizer",
            "one device",
        ),
        ("import paddle.fluid as f\ne = f.Executor()\ne.runn()", "fluid.Executor().runn", "objects of Executor"),
        (
            "from paddle.distributed import fleet\ns = fleet.DistributedStrategy()\ns.dgc = True",
            "distributed.fleet.DistributedStrategy().dgc = True",
            "",
        ),
        (
            "from paddle.distributed import fleet\ns = fleet.DistributedStrategy()\ns.a_sink = True",
            "distributed.fleet.DistributedStrategy().a_sink = True",
            "did you mean a_sync?",
        ),
        (
            "from importlib import import_module as i\nimport importlib\nimportlib.import_module('paddle.fluid').nope",
            "fluid.nope",
            "",
        ),
        ("import pstranspile.fluid as f\nf.layers.nope", "fluid.layers.nope", ""),
    ],
)
def test_what_is_missing(script: str, missing: str, note: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script)
    found, _, _ = find_used_names(str(tmp_path / "train.py"))
    told = [one for one in found if one.status == "missing"]
    assert [one.name for one in told] == [f"paddle.{missing}" if missing else "paddle"]
    assert note in told[0].note


def test_what_is_there_is_not_said_to_be_missing(tmp_path: Path) -> None:
    script = """
import paddle
from paddle.distributed import fleet
paddle.enable_static()
s = fleet.DistributedStrategy()
s.a_sync, s.auto = True, False
s.a_sync = True
s.a_sync_configs = {"k_steps": 4}
print(s.a_sync, s.nccl_comm_num)
exe = paddle.static.Executor(paddle.CPUPlace())
exe.run, exe.place, exe.close
fleet.worker_num
fleet.util.barrier
class Mine(paddle.nn.Layer):
    pass
m = Mine()
m.whatever
"""
    (tmp_path / "train.py").write_text(script)
    found, _, _ = find_used_names(str(tmp_path / "train.py"))
    assert [one for one in found if one.status == "missing"] == []


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.stem)
def test_scripts_that_run_here_miss_nothing(path: Path) -> None:
    found, unread, _ = find_used_names(str(path))
    assert found
    assert unread == []
    assert [one for one in found if one.status == "missing"] == []


@pytest.mark.parametrize("name", [*DIFFERENT, *REFUSED])
def test_names_that_are_told_about_are_those_of_modules(name: str, tmp_path: Path) -> None:
    module, _, last = name.rpartition(".")
    (tmp_path / "train.py").write_text(f"from paddle import enable_static\nfrom {module} import {last}\n")
    found, _, _ = find_used_names(str(tmp_path / "train.py"))
    (one,) = (one for one in found if one.name == name)
    assert (one.status, one.note) == (
        ("different", DIFFERENT[name]) if name in DIFFERENT else ("missing", REFUSED[name])
    )


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "import net\nimport paddle.fluid as fluid\nfluid.layers.fc\nfluid.layers.fc\nfluid.CUDAPlace(0)\nexit(7)\n"
    )
    Path("net.py").write_text("import paddle.fluid as fluid\nfluid.nope\nfluid.layers.fc; fluid.nope\n")
    assert main(["--compat", "train.py"]) == 1
    told = capsys.readouterr().out.splitlines(True)
    assert told.pop(1).startswith("net.py:2:1: missing: paddle.fluid.nope")
    expected = """\
train.py: 2 supported, 1 different, 1 missing
train.py:5:1: different: paddle.fluid.CUDAPlace: all is computed on the CPU
supported: paddle.fluid (net.py:1, train.py:2)
supported: paddle.fluid.layers.fc (net.py:3, train.py:3, 4)
"""
    assert "".join(told) == expected
    assert main(["--compat", "--json", "train.py"]) == 1
    held = json.loads(capsys.readouterr().out)
    assert held["files"] == ["net.py", "train.py"]
    assert [(one["name"], one["status"]) for one in held["names"]][2:] == [
        ("paddle.fluid.layers.fc", "supported"),
        ("paddle.fluid.nope", "missing"),
    ]
    assert held["names"][3]["uses"][1] == {"file": "net.py", "line": 3, "column": 18}
    Path("net.py").write_text("")
    assert main(["--compat", "train.py"]) == 0


def test_files_that_are_no_python_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import net\n")
    Path("net.py").write_text("x = 1\nprint 'python 2'\n")
    assert main(["--compat", "train.py"]) == 1
    assert "net.py:2:1: is no Python: Missing parentheses" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--compat", "--check"], "--compat reads the script without running it"),
        (["--json"], "--json is for --compat"),
        (["--compat", "--ir", "x"], "--compat reads the script without running it"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*options, __file__]) == 2
    assert told in capsys.readouterr().err


ARGUMENTS = """
import paddle.fluid as fluid
from paddle.fluid.layers import fc as dense
x = fluid.data("x", [None, 4])
y = dense(x, 3, sise=2)
sgd = fluid.optimizer.SGD(0.1, foo=1)
sgd.minimize(y, startup=None)
fluid.layers.mean(x=y)
fluid.Executor(place=None).run(feed={}, fetches=[y], **{})
dense(**{"input": x, "size": 2})
"""


def test_arguments_that_a_call_does_not_take_are_missing(tmp_path):
    found, _, _ = find_used_names(str(_written(tmp_path, ARGUMENTS)))
    missing = [(one.name, one.note, [use.line for use in one.uses]) for one in found if one.status == "missing"]
    assert missing == [
        ("paddle.fluid.Executor().run(fetches=)", "there is no such argument; did you mean fetch_list?", [9]),
        ("paddle.fluid.layers.fc(sise=)", "there is no such argument; did you mean size?", [5]),
        (
            "paddle.fluid.optimizer.SGD().minimize(startup=)",
            "there is no such argument; did you mean startup_program?",
            [7],
        ),
        ("paddle.fluid.optimizer.SGD(foo=)", "there is no such argument", [6]),
    ]


def _written(folder: Path, script: str) -> Path:
    (folder / "train.py").write_text(script)
    return folder / "train.py"


def test_the_arguments_of_scripts_that_train_here_are_taken():
    refused = {
        one.name
        for path in sorted(SCRIPTS.rglob("*.py"))
        for one in find_used_names(str(path))[0]
        if one.name.endswith("=)")
    }
    assert refused == set()


_NET = 'def net():\n    return paddle.static.data("x", [None, 4])\n'


@pytest.mark.parametrize(
    ("script", "line", "note"),
    [
        (
            "x = paddle.static.data('x', [4])\npaddle.enable_static()",
            3,
            "too late: line 2 builds with paddle.static.data",
        ),
        ("paddle.nn.Linear(2, 3)\nif True:\n    paddle.enable_static()", 4, "too late: line 2 builds with"),
        (f"{_NET}net()\npaddle.enable_static()", 5, "too late: line 3 builds with"),
        (f"{_NET}if static:\n    paddle.enable_static()\nnet()", 5, "in a branch, which may not be taken: line 3"),
        ("static and 1\nif static:\n    paddle.enable_static()\nelse:\n    paddle.zeros([2])", 4, "in a branch"),
        ("def main():\n    paddle.zeros([2])\n    paddle.enable_static()\nmain()", 4, "too late: line 3"),
        ("import other\npaddle.enable_static()", 3, "other.py:2 builds with paddle.zeros"),
    ],
)
def test_static_graphs_that_begin_too_late(script: str, line: int, note: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"import paddle\n{script}\n")
    (tmp_path / "other.py").write_text("import paddle\npaddle.zeros([2])\n")
    found, _, _ = find_used_names(str(tmp_path / "train.py"))
    (told,) = [one for one in found if one.status == "missing"]
    assert (told.name, [use.line for use in told.uses]) == ("paddle.enable_static()", [line])
    assert note in told.note


@pytest.mark.parametrize(
    "script",
    [
        f"{_NET}paddle.enable_static()\nnet()",
        f"{_NET}if hasattr(paddle, 'enable_static'):\n    paddle.enable_static()\nnet()",
        f"{_NET}def main():\n    paddle.enable_static()\n    net()\nif __name__ == '__main__':\n    main()",
        f"{_NET}if static:\n    paddle.enable_static()\n    net()",
        f"{_NET}if static:\n    paddle.enable_static()\nelse:\n    paddle.enable_static()\nnet()",
        f"{_NET}def begin():\n    paddle.enable_static()\nbegin() if a else 0\nbegin()\nnet()",
        "p = paddle.static.Program()\npaddle.ParamAttr(name='w')\nclass Net(paddle.nn.Layer):\n    pass\n"
        "paddle.enable_static()\npaddle.zeros([2])",
        "import other\npaddle.zeros([2])",
    ],
)
def test_static_graphs_that_begin_in_time(script: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"import paddle\n{script}\n")
    (tmp_path / "other.py").write_text("import paddle\npaddle.enable_static()\n")
    found, _, _ = find_used_names(str(tmp_path / "train.py"))
    assert [one for one in found if one.status == "missing"] == []
