"""Every model that Fluid built, written with layers: the same ops, names, attributes and declarations."""

import numpy as np
import pytest

from pstranspile.frontends import layers as L
from tests.frontends.layers.models import MODELS
from tests.training import CASES, add_training, case, module_differences, recorded

NOT_WRITTEN = {"py_reader"}
"""Fed by a reader of Fluid's own, which layers don't offer."""


def built(name: str):
    made = case(name)
    draft = L.Draft(seed=made["random_seed"])
    arguments = dict(made["model_args"])
    if made["model"] == "numpy_init_mlp":
        startup = recorded(name).startup
        assert startup is not None
        held = next(op for op in startup.main_block.ops if op.type == "assign_value").attrs["fp32_values"]
        arguments["values"] = np.array(held, dtype=np.float32).reshape(64, 260)
    loss = MODELS[made["model"]](draft, **arguments)
    for key in ("beta1", "beta2"):
        given = made["optimizer"].get(key)
        if isinstance(given, str):
            variable, _, value = given.partition("=")
            L.create_global_var(draft, variable, [1], float(value))
    add_training(loss, made["optimizer"])
    return loss, draft.module()


@pytest.mark.parametrize("name", [name for name in CASES if name not in NOT_WRITTEN])
def test_layers_build_fluids_program(name: str):
    loss, module = built(name)
    assert loss.name == case(name)["loss"]
    assert module_differences(module, recorded(name)) == []


def test_building_twice_gives_the_same():
    assert built("transformer_noam")[1] == built("transformer_noam")[1]
