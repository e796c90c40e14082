"""Fluid's `fp16_utils`: programs rewritten so that some ops compute in float16, and losses scaled by what fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pstranspile.fluid import core, layers
from pstranspile.fluid.contrib.mixed_precision.fp16_lists import AutoMixedPrecisionLists
from pstranspile.fluid.graph.vartype import VarType
from pstranspile.fluid.missing import names_of_fluid

_HELD = (VarType.LOD_TENSOR, VarType.SELECTED_ROWS, VarType.LOD_TENSOR_ARRAY)
_ENDINGS = {VarType.FP16: ".cast_fp16", VarType.FP32: ".cast_fp32"}


def find_true_prev_op(ops: Iterable[Any], cur_op: Any, var_name: str) -> Any:
    """The op before another one that writes a variable, None without one. Raises ValueError for several."""
    found: list[Any] = []
    for op in ops:
        if op is cur_op:
            break
        if var_name in op.output_arg_names:
            found.append(op)
    if len(found) > 1:
        raise ValueError(f"{len(found)} ops before this one write %{var_name}")
    return found[0] if found else None


def find_true_post_op(ops: Sequence[Any], cur_op: Any, var_name: str) -> list[Any] | None:
    """The ops after another one that read a variable, None without any."""
    after = ops[next((index for index, op in enumerate(ops) if op is cur_op), len(ops)) + 1 :]
    return [op for op in after if var_name in op.input_arg_names] or None


def find_op_index(block_desc: Any, cur_op_desc: Any) -> int:
    """The place of an op in a block, -1 if it is not there."""
    return next((at for at in range(block_desc.op_size()) if block_desc.op(at) == cur_op_desc), -1)


def _lists(ops: Sequence[Any], amp_lists: AutoMixedPrecisionLists) -> dict[int, bool]:
    """Whether each op computes in float16, by index; gray-list ops that read from none of these are left out."""
    half: dict[int, bool] = {}
    writers: dict[str, int] = {}
    for index, op in enumerate(ops):
        names = {*op.input_arg_names, *op.output_arg_names}
        if amp_lists.black_varnames is not None and not names.isdisjoint(amp_lists.black_varnames):
            half[index] = False
        elif op.type in amp_lists.white_list and op.type not in amp_lists.black_list:
            half[index] = True
        elif op.type not in amp_lists.gray_list:
            half[index] = False
        else:
            before = [writers[name] for name in op.input_arg_names if name in writers]
            followed = [half[at] for at in before if at in half]
            if followed:
                half[index] = all(followed)
        writers |= dict.fromkeys(op.output_arg_names, index)
    return half


def rewrite_program(main_prog: Any, amp_lists: AutoMixedPrecisionLists) -> None:
    """Makes ops of the white list compute in float16, those of the black list in float32, and those of the gray list
    as the ops before them. Casts are put between.
    """
    block = main_prog.global_block()
    ops, added = list(block.ops), 0
    for index, half in _lists(ops, amp_lists).items():
        kinds = (VarType.FP32, VarType.FP16) if half else (VarType.FP16, VarType.FP32)
        added += _cast(block, ops[index], index + added, *kinds)


def _cast(block: Any, op: Any, index: int, source: Any, target: Any) -> int:
    """Casts what an op reads of one element type to another; gives how many casts are put in front of it."""
    added, to_half = 0, target == VarType.FP16
    for slot in op.input_names:
        if to_half and op.type == "batch_norm" and slot != "X":
            continue
        for name in op.input(slot):
            variable = block.var(name)
            if variable.type not in _HELD:
                continue
            if variable.dtype == source:
                made = block.vars.get(name + _ENDINGS[target])
                if made is None or made.dtype != target:
                    made = block.create_var(
                        name=name + _ENDINGS[target], dtype=target, persistable=False, stop_gradient=False
                    )
                    attrs = {"in_dtype": source, "out_dtype": target}
                    block._insert_op(index, "cast", {"X": variable}, {"Out": made}, attrs)
                    added += 1
                op.desc._rename_input(name, made.name)
                op.desc._rename_output(name, made.name)
            elif op.has_attr("in_dtype"):
                op._set_attr("in_dtype", target)
    if to_half:
        _halve(block, op)
    return added


def _halve(block: Any, op: Any) -> None:
    """Declares what an op writes as float16."""
    for slot in op.output_names:
        if op.type == "batch_norm" and slot != "Y":
            continue
        for variable in map(block.var, op.output(slot)):
            if variable.type in _HELD and variable.dtype == VarType.FP32:
                variable.desc.set_dtype(VarType.FP16)
                if op.has_attr("out_dtype"):
                    op._set_attr("out_dtype", VarType.FP16)


def update_role_var_grad(main_prog: Any, params_grads: Iterable[tuple[Any, Any]]) -> None:
    """Moves the casts of gradients to float32 behind the backward pass, so that machines exchange float16.

    Raises ValueError for casts that are no part of the backward pass, or that another op reads.
    """
    block = main_prog.global_block()
    roles = core.op_proto_and_checker_maker.OpRole
    for parameter, gradient in params_grads:
        op = gradient.op
        if gradient.dtype != VarType.FP32 or op.type != "cast":
            continue
        if not (int(op.attr("op_role")) & int(roles.Backward) and op.has_attr("op_role_var")):
            raise ValueError(f"the cast to %{gradient.name} is no part of the backward pass")
        half = op.input("X")[0]
        writer = find_true_prev_op(block.ops, op, half)
        pairs = list(writer.attr("op_role_var")) if writer.has_attr("op_role_var") else []
        op.desc.remove_attr("op_role_var")
        writer._set_attr("op_role_var", [parameter.name, half, *pairs])
        op._set_attr("op_role", roles.Optimize)
        if op is block.ops[-1]:
            continue
        readers = find_true_post_op(block.ops, op, gradient.name)
        if readers is not None:
            raise ValueError(f"the cast to %{gradient.name} must come last, but an op {readers[0].type} reads it")
        block.desc.append_op().copy_from(op.desc)
        place = next(at for at, other in enumerate(block.ops) if other is op)
        block._remove_op(place)


def update_loss_scaling(
    is_overall_finite: Any,
    prev_loss_scaling: Any,
    num_good_steps: Any,
    num_bad_steps: Any,
    incr_every_n_steps: Any,
    decr_every_n_nan_or_inf: Any,
    incr_ratio: float,
    decr_ratio: float,
) -> None:
    """Scales losses by more after as many steps with finite gradients, by less after as many with others, at least by
    1.
    """
    zero = layers.fill_constant(shape=[1], dtype="int32", value=0)

    def count(counted: Any, other: Any) -> None:
        layers.increment(counted)
        layers.assign(zero, other)

    def start() -> None:
        layers.assign(zero, num_good_steps)
        layers.assign(zero, num_bad_steps)

    with layers.Switch() as switch:
        with switch.case(is_overall_finite):
            enough = layers.less_than(incr_every_n_steps, num_good_steps + 1)
            with layers.Switch() as steps:
                with steps.case(enough):
                    scaling = prev_loss_scaling * incr_ratio
                    with layers.Switch() as limit:
                        with limit.case(layers.isfinite(scaling)):
                            layers.assign(scaling, prev_loss_scaling)
                        with limit.default():
                            pass
                    start()
                with steps.default():
                    count(num_good_steps, num_bad_steps)
        with switch.default():
            enough = layers.less_than(decr_every_n_nan_or_inf, num_bad_steps + 1)
            with layers.Switch() as steps:
                with steps.case(enough):
                    scaling = prev_loss_scaling * decr_ratio
                    one = layers.fill_constant(shape=[1], dtype="float32", value=1.0)
                    with layers.Switch() as limit:
                        with limit.case(layers.less_than(scaling, one)):
                            layers.assign(one, prev_loss_scaling)
                        with limit.default():
                            layers.assign(scaling, prev_loss_scaling)
                    start()
                with steps.default():
                    count(num_bad_steps, num_good_steps)


__getattr__ = names_of_fluid(__name__, globals())
