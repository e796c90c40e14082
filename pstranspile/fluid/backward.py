"""Fluid's `backward`."""

from __future__ import annotations

from typing import Any

from pstranspile import autodiff
from pstranspile.fluid.communicating import warn_unused
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.missing import names_of_fluid, refused


def _names(given: Any) -> list[str] | None:
    return None if given is None else [getattr(item, "name", item) for item in given]


def append_backward(
    loss: Variable,
    parameter_list: Any = None,
    no_grad_set: Any = None,
    callbacks: Any = None,
    checkpoints: Any = None,
) -> list[tuple[Any, Any]]:
    """Appends the gradients of `loss`; gives parameters and their gradients in pairs."""
    if not isinstance(loss, Variable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"append_backward takes the variable of a loss, not a {type(loss).__name__}")
    if callbacks:
        raise refused("append_backward(callbacks=...)", "change the ops of the program afterwards")
    if checkpoints:
        warn_unused("append_backward(checkpoints=...)", "given", "values are kept, not computed again")
    program = loss.block.program
    pairs = autodiff.append_backward(program.live(), loss.name, _names(parameter_list), _names(no_grad_set) or ())
    block = program.global_block()
    return [(block.var(pair.param), block.var(pair.grad)) for pair in pairs if pair.grad is not None]


__getattr__ = names_of_fluid(__name__, globals())
