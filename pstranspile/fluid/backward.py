"""Fluid's `backward`."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.graph.pruning import RecomputationPath
from pstranspile.fluid.graph.values import several
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.layers.adapt import check_kind
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends import autodiff
from pstranspile.frontends.autodiff import backward
from pstranspile.frontends.autodiff.backward import trained_block
from pstranspile.ops.gradient import SUFFIX, gradient_name, variable_of_gradient


def _names(what: str, given: Any, kinds: tuple[type, ...] = (list, tuple)) -> list[str] | None:
    """The names of variables, each passed as a variable or a name. Raises TypeError for anything else."""
    if given is None:
        return None
    if not isinstance(given, kinds):
        raise TypeError(f"{what} is a {' or a '.join(kind.__name__ for kind in kinds)}, not a {type(given).__name__}")
    for item in given:
        if not isinstance(item, str | Variable):
            raise TypeError(f"{what} holds variables and names, not a {type(item).__name__}")
    return [item if isinstance(item, str) else item.name for item in given]


def _no_grad_names(given: Any) -> list[str]:
    return sorted(_names("no_grad_set", given, (set, list, tuple, frozenset)) or ())


def append_backward(
    loss: Variable,
    parameter_list: Any = None,
    no_grad_set: Any = None,
    callbacks: Any = None,
    checkpoints: Any = None,
) -> list[tuple[Any, Any]]:
    """Appends the gradients of `loss`; returns pairs of a parameter and its gradient.

    With `checkpoints`, a list of variables, the values between the checkpoints are computed again for the gradients.
    """
    if not isinstance(loss, Variable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"append_backward takes the variable of a loss, not a {type(loss).__name__}")
    if callbacks is not None and not (several(callbacks) and all(map(callable, callbacks))):
        raise TypeError("callbacks are a list of functions of a block and the variables of its gradients")
    program = loss.block.program
    cut = _recomputing(loss, checkpoints, no_grad_set)
    before: list[int] = [len(block.ops) for block in program.blocks]
    wanted = _names("parameter_list", parameter_list, (list, tuple, set))
    asked = (
        sorted(wanted) if isinstance(parameter_list, set) and wanted else wanted
    )  # sorted, so that every process builds the same program
    without = _no_grad_names(no_grad_set)
    pairs = autodiff.append_backward(program.live(), loss.name, asked, without, placed=cut is None)
    if cut is not None:
        cut.insert()
    if asked is not wanted:
        pairs = sorted(pairs, key=lambda pair: (wanted or []).index(pair.param))
    if callbacks:
        _call_back(program, before, callbacks)
    find = program.block(trained_block(program.live()) or 0)._var_recursive
    return [(find(pair.param), find(pair.grad)) for pair in pairs if pair.grad is not None]


def _recomputing(loss: Variable, checkpoints: Any, no_grad_set: Any) -> RecomputationPath | None:
    """The path to a loss, cut at checkpoints; None without checkpoints. Raises TypeError if these are not a list."""
    names = _names("checkpoints", checkpoints, (list,))
    return (
        RecomputationPath(loss.block.program.live(), loss.name, names, _no_grad_names(no_grad_set)) if names else None
    )


def _call_back(program: Any, before: list[int], callbacks: Any) -> None:
    """Calls `callbacks` after each op of the backward part, as it is put into its block."""
    current = program.current_block_idx
    for block in program.blocks:
        number: int = block.idx
        start = before[number] if number < len(before) else 0
        draft = program.drafts[number]
        made = draft.ops[start:]
        del draft.ops[start:]
        program.current_block_idx = number
        for op in made:
            draft.ops.append(op)
            whole = {name: variable_of_gradient(name) for name in op.output_names if SUFFIX in name}
            context = {name: var for name, var in whole.items() if name == gradient_name(var)}  # not terms of sums
            for callback in callbacks:
                callback(block, context)
    program.current_block_idx = current


def gradients(targets: Any, inputs: Any, target_gradients: Any = None, no_grad_set: Any = None) -> list[Any]:
    """Appends the gradients of the sum of the targets with respect to the inputs; returns None for an input that the
    targets do not depend on.

    `target_gradients` are the gradients of the targets themselves (default: ones). Raises NoSecondGradient where an op
    on the path has no second gradient; Fluid 1.8.5 takes zero for it.
    """
    wanted, sources = _variables("targets", targets), _variables("inputs", inputs)
    given = _variables("target_gradients", target_gradients, ("Variable", "NoneType")) or [None] * len(wanted)
    if len(given) != len(wanted):
        raise ValueError(f"there are {len(wanted)} targets and {len(given)} target_gradients")
    for target, gradient in zip(wanted, given, strict=True):
        if gradient is not None and gradient.shape != target.shape:
            raise ValueError(f"{target.name} has the dims {list(target.shape)}, its gradient {list(gradient.shape)}")
    block = wanted[0].block
    names = [None if gradient is None else gradient.name for gradient in given]
    made = autodiff.append_gradients(
        block.program.live(),
        [var.name for var in wanted],
        [var.name for var in sources],
        names,
        _no_grad_names(no_grad_set),
    )
    return [None if name is None else block.var(name) for name in made]


def calc_gradient(targets: Any, inputs: Any, target_gradients: Any = None, no_grad_set: Any = None) -> Any:
    """The result of `gradients`; for a single input, its gradient instead of a list."""
    made = gradients(targets, inputs, target_gradients, no_grad_set)
    return made[0] if len(made) == 1 else made


def _variables(what: str, given: Any, kinds: tuple[str, ...] = ("Variable",)) -> list[Any]:
    listed = _to_list(given)
    for item in listed:
        check_kind("gradients", what, item, kinds)
    return listed


def _to_list(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if several(given) else [given]


_as_list, _append_grad_suffix_, _strip_grad_suffix_ = _to_list, gradient_name, variable_of_gradient


def _get_stop_gradients_(program: Any) -> dict[int, set[str]]:  # pyright: ignore[reportUnusedFunction]
    """For each block, the names of the gradients that its variables do not get."""
    return {
        block.idx: {gradient_name(name) for name, var in block.vars.items() if var.stop_gradient}
        for block in program.blocks
    }


def _find_op_path_(block: Any, outputs: Any, inputs: Any, no_grad_set: Any) -> list[Any]:  # pyright: ignore[reportUnusedFunction]
    """The ops of a block that lead from the inputs (from any variable if there are none) to the outputs."""
    views = {id(view.frozen): view for view in block.ops}
    path = backward.ops_to([view.frozen for view in block.ops], {var.name for var in outputs}, set(no_grad_set or ()))
    return [views[id(op)] for op in (backward.ops_from(path, [var.name for var in inputs]) if inputs else path)]


def _find_no_grad_vars(block: Any, op_path: Any, targets: Any, no_grad_set: Any) -> set[str]:  # pyright: ignore[reportUnusedFunction]
    """The names of the variables that ops of a path write and none of them reads, so that they have no gradients."""
    stopped = {name for name, var in block.vars.items() if var.stop_gradient}
    path = [view.frozen for view in op_path]
    return backward.unread_outputs(path, {var.name for var in targets}, set(no_grad_set or ()), stopped)


__getattr__ = names_of_fluid(__name__, globals())
