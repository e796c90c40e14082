"""Names of Fluid and Paddle that are here and do something else than there, each with what differs.

`docs/guides/fluid_scripts.md` says more about them. What a name refuses always is seen in its source; `REFUSED` has
those that a module hides.
"""

from __future__ import annotations

from collections.abc import Mapping

_CPU = "all is computed on the CPU"
_ONE = "the rows of all devices are computed at once, by one process"
_CELLS = "its gradient goes through the cells too, which Fluid leaves out in single precision for widths of 8, 16, ..."
_GUARD = "no gradients are made without minimize, so it changes nothing"
_FLEET = "a learning rate that decays does so in synchronous jobs too; in Fluid it stays"
_SAVES = "trainer 0 also writes what servers hold"

DIFFERENT: Mapping[str, str] = {
    "paddle.fluid.CUDAPlace": _CPU,
    "paddle.fluid.CUDAPinnedPlace": _CPU,
    "paddle.fluid.cuda_places": _CPU,
    "paddle.CUDAPlace": _CPU,
    "paddle.set_device": _CPU,
    "paddle.fluid.ParallelExecutor": _ONE,
    "paddle.fluid.CompiledProgram": _ONE,
    "paddle.fluid.compiler.CompiledProgram": _ONE,
    "paddle.fluid.layers.DynamicRNN": "the initial memory gets its gradient; in Fluid it gets none",
    "paddle.fluid.layers.dynamic_lstm": _CELLS,
    "paddle.fluid.layers.dynamic_lstmp": _CELLS,
    "paddle.fluid.layers.While": "the gradient of a variable that the loop overwrites is that of its first value",
    "paddle.fluid.layers.swish": "it takes its beta; in Fluid beta is 1",
    "paddle.fluid.layers.batch_norm": "a momentum that is a variable is taken; in Fluid it is 0.9",
    "paddle.fluid.layers.Uniform": "samples lie between low and high where these are numbers",
    "paddle.fluid.layers.distributions.Uniform": "samples lie between low and high where these are numbers",
    "paddle.fluid.layers.BeamSearchDecoder": "a search goes on until every beam has ended",
    "paddle.fluid.initializer.BilinearInitializer": "its weights interpolate; those of Fluid differ from row to row",
    "paddle.fluid.initializer.Bilinear": "its weights interpolate; those of Fluid differ from row to row",
    "paddle.fluid.optimizer.Momentum": "all rows of a sparse gradient are updated; Fluid misses some",
    "paddle.fluid.optimizer.MomentumOptimizer": "all rows of a sparse gradient are updated; Fluid misses some",
    "paddle.fluid.io.save_persistables": f"on a cluster {_SAVES}",
    "paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler.fleet": f"{_FLEET}; {_SAVES}",
    "paddle.fluid.communicator.Communicator": "stop waits until all that was sent has come",
    "paddle.fluid.install_check.run_check": _CPU,
    "paddle.fluid.contrib.mixed_precision.decorate": "float16 is computed on the CPU",
    "paddle.fluid.core.EnforceNotMet": "it is the class of all findings in a script, which have codes",
    "paddle.fluid.dygraph.Layer": "objects add to the program in use when they are called; there are no eager tensors",
    "paddle.fluid.dygraph.Linear": "objects add to the program in use when they are called; there are no eager tensors",
    "paddle.fluid.dygraph.Embedding": "objects add to the program in use when they are called; no eager tensors",
    "paddle.no_grad": _GUARD,
    "paddle.static.nn.sparse_embedding": "a row exists once it is trained",
}
"""Differences from Fluid and Paddle: for each name, what it does in another way here."""

REFUSED: Mapping[str, str] = {
    "paddle.Model": "training without a static graph is not run",
    "paddle.jit": "dynamic graphs are not run",
    "paddle.grad": "dynamic graphs are not run",
    "paddle.amp": "mixed precision of dynamic graphs is not run",
    "paddle.DataParallel": "dynamic graphs are not run",
    "paddle.summary": "dynamic graphs are not run",
    "paddle.flops": "dynamic graphs are not run",
    "paddle.callbacks": "they belong to paddle.Model",
    "paddle.disable_static": "dynamic graphs are not run",
}
"""Names that are there to be imported alone, and why they do nothing."""
