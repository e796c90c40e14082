"""Fluid's `backward`."""

from __future__ import annotations

from typing import Any

from pstranspile import autodiff
from pstranspile.fluid.communicating import warn_unused
from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.missing import names_of_fluid, refused
from pstranspile.ops.gradient import gradient_name, gradient_rule


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


def gradients(targets: Any, inputs: Any, target_gradients: Any = None, no_grad_set: Any = None) -> list[Any]:
    """Appends the gradients of the targets, added up, with respect to the inputs; None for what does not lead there.

    `target_gradients` are those of the targets themselves (default: ones). Raises NotHere for second gradients of ops
    that have none here.
    """
    wanted, sources = _listed(targets), _listed(inputs)
    given = _listed(target_gradients) or [None] * len(wanted)
    if len(given) != len(wanted):
        raise ValueError(f"there are {len(wanted)} targets and {len(given)} target_gradients")
    for target, gradient in zip(wanted, given, strict=True):
        if gradient is not None and gradient.shape != target.shape:
            raise ValueError(f"{target.name} has the dims {list(target.shape)}, its gradient {list(gradient.shape)}")
    block = wanted[0].block
    _check_second_gradients(block, {target.name for target in wanted})
    names = [None if gradient is None else gradient.name for gradient in given]
    made = autodiff.append_gradients(
        block.program.live(),
        [var.name for var in wanted],
        [var.name for var in sources],
        names,
        _names(no_grad_set) or (),
    )
    return [None if name is None else block.var(name) for name in made]


def calc_gradient(targets: Any, inputs: Any, target_gradients: Any = None, no_grad_set: Any = None) -> Any:
    """As `gradients`; of one input its gradient alone."""
    made = gradients(targets, inputs, target_gradients, no_grad_set)
    return made[0] if len(made) == 1 else made


def _check_second_gradients(block: Any, needed: set[str]) -> None:
    for op in reversed(block.ops):
        if needed.isdisjoint(op.output_arg_names):
            continue
        if op.type.endswith("_grad") and gradient_rule(op.type) is None:
            raise refused(f"the gradient of {op.type}", "second gradients are there for a few ops only")
        needed.update(op.input_arg_names)


def _listed(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if several(given) else [given]


_as_list, _append_grad_suffix_ = _listed, gradient_name


__getattr__ = names_of_fluid(__name__, globals())
