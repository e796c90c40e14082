"""Layers are found in the modules in which Fluid has them."""

from __future__ import annotations

from importlib import import_module

import numpy as np

import pstranspile.fluid as fluid
from pstranspile.fluid.missing import HOLDERS, Missing, fluid_names, module_here
from tests.fluid.running import fresh, known_as_paddle


def test_every_layer_is_in_its_module_of_fluid() -> None:
    missing: list[str] = []
    for module, names in fluid_names().items():
        here = module_here(f"pstranspile.fluid.{module}")
        if not module.startswith("layers.") or here is None:
            continue
        ours = import_module(here)
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


def test_modules_without_a_file_of_their_own_are_found_in_their_holders() -> None:
    with known_as_paddle():
        modules = {module: import_module(f"paddle.fluid.{module}") for module in sorted(HOLDERS)}
    found = {module: held.__name__ for module, held in modules.items()}
    assert found == {module: f"pstranspile.fluid.{holder}" for module, holder in HOLDERS.items()}
    named = [(module, name) for module in modules for name in fluid_names().get(module, ())]
    assert [(module, name) for module, name in named if not hasattr(modules[module], name)] == []
