"""Layers are found in the modules in which Fluid has them."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.fluid.missing import _HOLDER, Missing, fluid_names
from tests.fluid.running import fresh


def test_every_layer_is_in_its_module_of_fluid() -> None:
    missing: list[str] = []
    for module, names in fluid_names().items():
        if not module.startswith("layers.") or find_spec(f"pstranspile.fluid.{module}") is None:
            continue
        ours = import_module(f"pstranspile.fluid.{module}")
        found = {name: getattr(fluid.layers, name, None) for name in names}
        there = [name for name, value in found.items() if value is not None and not isinstance(value, Missing)]
        missing += [f"{module}.{name}" for name in there if isinstance(getattr(ours, name), Missing)]
    assert missing == []


def test_an_activation_of_another_module_makes_its_op() -> None:
    with fresh():
        x = fluid.data("x", [2, 2])
        logarithm = fluid.layers.nn.log(fluid.layers.nn.relu(x))
        (made,) = fluid.Executor().run(feed={"x": np.full((2, 2), np.e, "float32")}, fetch_list=[logarithm])
        np.testing.assert_allclose(made, np.ones((2, 2)), rtol=1e-6)


def run_with_aliases(statement: str) -> subprocess.CompletedProcess[str]:
    code = f"from pstranspile.fluid.aliases import install; install(); {statement}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "statement",
    [
        "from paddle.fluid.contrib.mixed_precision.decorator import decorate",
        "import paddle.fluid.contrib.mixed_precision.fp16_lists as lists; lists.white_list",
        "from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy import "
        "StrategyFactory",
        "from paddle.fluid.incubate.fleet.base import role_maker; role_maker.PaddleCloudRoleMaker",
        "import paddle.fluid as fluid; fluid.layers.device.get_places, fluid.layers.metric_op.accuracy",
        "import paddle.fluid as fluid; fluid.contrib.op_frequence.op_freq_statistic, fluid.dygraph.nn.Linear",
        "from paddle.fluid.trainer_factory import TrainerFactory; TrainerFactory()._create_trainer()",
        "from paddle.fluid.dataloader.batch_sampler import BatchSampler",
        "import paddle.fluid.device_worker as worker; worker.version.is_transpiler()",
        "from pstranspile.fluid.contrib.mixed_precision.decorator import decorate",
        "import pstranspile.fluid.incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy as s; "
        "s.StrategyFactory",
        "from pstranspile.fluid.average import WeightedAverage",
        "import pstranspile.fluid.default_scope_funcs as scopes; scopes.get_cur_scope",
        "from pstranspile.fluid.proto.profiler.profiler_pb2 import Event",
        "import pstranspile.fluid as fluid; fluid.annotations.deprecated, fluid.transpiler.ps_dispatcher.HashName",
        "from paddle.fluid.transpiler.details.ufind import UnionFind",
        "from paddle.fluid.transpiler.memory_optimization_transpiler import memory_optimize",
        "from paddle.fluid.entry_attr import CountFilterEntry",
        "import paddle.distributed.fleet as fleet; import paddle.distributed.fleet.base.role_maker as r; r.Role.ALL",
        "import paddle.distributed.fleet.metrics.metric as m; m.auc",
        "from paddle.distributed.fleet.utils.ps_util import DistributedInfer",
        "import paddle; paddle.regularizer.L2Decay(0.1), paddle.distribution.Normal, paddle.device.get_device()",
        "from paddle.reader.decorator import shuffle; import paddle.sysconfig as s; s.get_include()",
        "from paddle.incubate.hapi.distributed import DistributedBatchSampler",
        "import pstranspile.fluid.paddle as paddle; paddle.regularizer.L1Decay, paddle.sysconfig.get_lib()",
    ],
)
def test_modules_that_have_no_file_of_their_own_are_imported(statement: str) -> None:
    done = run_with_aliases(statement)
    assert (done.returncode, done.stderr) == (0, "")


def test_parts_of_a_module_are_imported_before_anything_else_is() -> None:
    parts = sorted(part for part in _HOLDER if "." not in part)
    code = "; ".join(
        f"import pstranspile.fluid.{part} as part; assert not part.__spec__.loader_state" for part in parts
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_a_module_of_one_file_with_others_has_not_is_no_module() -> None:
    done = run_with_aliases("import paddle.fluid.debugger.pprint")
    assert "No module named 'paddle.fluid.debugger.pprint'" in done.stderr
