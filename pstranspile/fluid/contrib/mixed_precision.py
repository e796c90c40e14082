"""Fluid's `contrib.mixed_precision`: optimizers whose programs compute in float16 where this is precise enough."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pstranspile.fluid import core, layers, unique_name
from pstranspile.fluid.framework import default_main_program
from pstranspile.fluid.graph.values import VarType
from pstranspile.fluid.missing import names_of_fluid

white_list = {"conv2d", "matmul", "mul"}
"""Op types that always compute in float16."""

black_list = {
    *("exp", "square", "log", "mean", "sum", "cos_sim", "softmax", "softmax_with_cross_entropy"),
    *("sigmoid_cross_entropy_with_logits", "cross_entropy", "cross_entropy2"),
}
"""Op types that always compute in float32."""

gray_list = {
    *(f"elementwise_{kind}" for kind in ("add", "sub", "mul", "div", "max", "min", "pow", "mod", "floordiv")),
    *("batch_norm", "tanh", "sigmoid", "lookup_table", "top_k", "pool2d", "pool3d", "dropout", "relu", "relu6"),
    *("leaky_relu", "soft_relu", "flatten2", "stack", "unstack", "uniform_random_batch_size_like", "gaussian_random"),
    *("gaussian_random_batch_size_like", "slice", "rank", "scale", "transpose2", "reshape2", "gather"),
    *("fill_constant", "get_tensor_from_selected_rows", "sign", "cast"),
}
"""Op types that compute in the element type of the ops that they read from."""


class AutoMixedPrecisionLists:
    """The three lists of op types, with a script's changes, and the variables whose ops compute in float32."""

    def __init__(
        self,
        custom_white_list: Iterable[str] | None = None,
        custom_black_list: Iterable[str] | None = None,
        custom_black_varnames: Iterable[str] | None = None,
    ):
        white, black = set(custom_white_list or ()), set(custom_black_list or ())
        if both := sorted(white & black):
            raise ValueError(f"the white list and the black list both have {', '.join(both)}")
        self.white_list = (white_list | white) - black
        self.black_list = (black_list | black) - white
        self.gray_list = gray_list - white - black
        self.black_varnames = custom_black_varnames if custom_black_varnames is None else set(custom_black_varnames)


_HELD = (VarType.LOD_TENSOR, VarType.SELECTED_ROWS, VarType.LOD_TENSOR_ARRAY)
_ENDINGS = {VarType.FP16: ".cast_fp16", VarType.FP32: ".cast_fp32"}


def find_true_prev_op(ops: Iterable[Any], cur_op: Any, var_name: str) -> Any:
    """The op before `cur_op` that writes a variable, None if there is none. Raises ValueError for several."""
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
    """The ops after `cur_op` that read a variable, None if there are none."""
    after = ops[next((index for index, op in enumerate(ops) if op is cur_op), len(ops)) + 1 :]
    return [op for op in after if var_name in op.input_arg_names] or None


def find_op_index(block_desc: Any, cur_op_desc: Any) -> int:
    """The index of an op in a block, -1 if it is not there."""
    return next((at for at in range(block_desc.op_size()) if block_desc.op(at) == cur_op_desc), -1)


def _lists(ops: Sequence[Any], amp_lists: AutoMixedPrecisionLists) -> dict[int, bool]:
    """For each op, by index, whether it computes in float16; an op of the gray list that reads from no such op is left
    out.
    """
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
    """Makes ops of the white list compute in float16, those of the black list in float32, and those of the gray list in
    the type of the ops that they read from. Casts are inserted between ops of different types.
    """
    block = main_prog.global_block()
    ops, added = list(block.ops), 0
    for index, half in _lists(ops, amp_lists).items():
        kinds = (VarType.FP32, VarType.FP16) if half else (VarType.FP16, VarType.FP32)
        added += _cast(block, ops[index], index + added, *kinds)


def _cast(block: Any, op: Any, index: int, source: Any, target: Any) -> int:
    """Inserts casts in front of an op for its inputs of one element type, to another type; returns the
    number of casts.
    """
    added, to_half = 0, target == VarType.FP16
    for slot in op.input_names:
        if to_half and op.type == "batch_norm" and slot != "X":
            continue
        for name in op.input(slot):
            variable = block.var(name)
            if variable.type not in _HELD:
                continue
            if variable.dtype == source:
                cast_var = block.vars.get(name + _ENDINGS[target])
                if cast_var is None or cast_var.dtype != target:
                    cast_var = block.create_var(
                        name=name + _ENDINGS[target], dtype=target, persistable=False, stop_gradient=False
                    )
                    attrs = {"in_dtype": source, "out_dtype": target}
                    block._insert_op(index, "cast", {"X": variable}, {"Out": cast_var}, attrs)
                    added += 1
                op.desc._rename_input(name, cast_var.name)
                op.desc._rename_output(name, cast_var.name)
            elif op.has_attr("in_dtype"):
                op._set_attr("in_dtype", target)
    if to_half:
        _halve(block, op)
    return added


def _halve(block: Any, op: Any) -> None:
    """Declares the outputs of an op as float16."""
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

    Raises ValueError for casts that are not part of the backward pass, or whose results another op reads.
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
    """Increases the scale of losses after `incr_every_n_steps` steps with finite gradients, and decreases it, at least
    to 1, after `decr_every_n_nan_or_inf` steps with others.
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


def _state(name: str, value: float, dtype: str) -> Any:
    return layers.create_global_var(
        name=unique_name.generate(name), shape=[1], value=value, dtype=dtype, persistable=True
    )


def _learning_rate(value: float) -> Any:
    return _state("learning_rate", value, "float32")


class OptimizerWithMixedPrecision:
    """An optimizer whose program computes in float16 where the lists say so.

    Gradients are computed from a scaled loss, so that small ones are not lost, and divided by the scale before the
    update. A dynamic scale grows after `incr_every_n_steps` with finite gradients, and shrinks after
    `decr_every_n_nan_or_inf` with others; gradients that are not finite are then set to 0.
    """

    def __init__(
        self,
        optimizer: Any,
        amp_lists: AutoMixedPrecisionLists,
        init_loss_scaling: float,
        use_dynamic_loss_scaling: bool,
        incr_every_n_steps: int,
        decr_every_n_nan_or_inf: int,
        incr_ratio: float,
        decr_ratio: float,
    ):
        self._optimizer, self._lists, self._changes = optimizer, amp_lists, use_dynamic_loss_scaling
        self._program = default_main_program()
        self._scaled: Any = None
        self._scaling = _state("loss_scaling", init_loss_scaling, "float32")
        if use_dynamic_loss_scaling:
            counts = (incr_every_n_steps, decr_every_n_nan_or_inf)
            self._every = [layers.fill_constant(shape=[1], dtype="int32", value=count) for count in counts]
            self._ratios = incr_ratio, decr_ratio
            self._steps = _state("num_good_steps", 0, "int32"), _state("num_bad_steps", 0, "int32")
        optimizer.hold_learning_rate(_learning_rate)

    def get_loss_scaling(self) -> Any:
        """The variable with the scale of losses."""
        return self._scaling

    def get_scaled_loss(self) -> Any:
        """The loss times the scale, None before `backward`."""
        return self._scaled

    def backward(
        self,
        loss: Any,
        startup_program: Any = None,
        parameter_list: Any = None,
        no_grad_set: Any = None,
        callbacks: Any = None,
    ) -> list[list[Any]]:
        """Rewrites the program and appends the gradients of the scaled loss; returns pairs of a parameter and its
        gradient.
        """
        rewrite_program(self._program, self._lists)
        self._scaled = loss * self._scaling
        pairs = self._optimizer.backward(self._scaled, startup_program, parameter_list, no_grad_set, callbacks)
        update_role_var_grad(self._program, pairs)
        result: list[list[Any]] = []
        for parameter, gradient in pairs:
            with self._program._optimized_guard([parameter, gradient]):  # pyright: ignore[reportPrivateUsage]
                result.append([parameter, gradient / self._scaling])
        return result

    def apply_gradients(self, scaled_params_grads: list[list[Any]]) -> list[Any]:
        """Appends the ops that adapt the scale, then the updates; returns the ops that update."""
        if self._changes:
            sums = layers.concat([layers.reduce_sum(gradient) for _, gradient in scaled_params_grads])
            finite = layers.isfinite(layers.reduce_sum(sums))
            (good, bad), (more, less) = self._steps, self._ratios
            update_loss_scaling(finite, self._scaling, good, bad, self._every[0], self._every[1], more, less)
            with layers.Switch() as switch:
                with switch.case(finite):
                    pass
                with switch.default():
                    for _, gradient in scaled_params_grads:
                        layers.assign(layers.zeros_like(gradient), gradient)
        return self._optimizer.apply_gradients([(parameter, gradient) for parameter, gradient in scaled_params_grads])

    def minimize(
        self, loss: Any, startup_program: Any = None, parameter_list: Any = None, no_grad_set: Any = None
    ) -> tuple[list[Any], list[list[Any]]]:
        """Appends the ops that train the parameters on a loss; returns the ops that update, and pairs of a parameter
        and its gradient.
        """
        pairs = self.backward(loss, startup_program, parameter_list, no_grad_set)
        return self.apply_gradients(pairs), pairs


def decorate(
    optimizer: Any,
    amp_lists: AutoMixedPrecisionLists | None = None,
    init_loss_scaling: float = 2**15,
    incr_every_n_steps: int = 1000,
    decr_every_n_nan_or_inf: int = 2,
    incr_ratio: float = 2.0,
    decr_ratio: float = 0.8,
    use_dynamic_loss_scaling: bool = True,
) -> OptimizerWithMixedPrecision:
    """An optimizer that trains with mixed precision, and updates with the given one."""
    return OptimizerWithMixedPrecision(
        optimizer,
        amp_lists or AutoMixedPrecisionLists(),
        init_loss_scaling,
        use_dynamic_loss_scaling,
        incr_every_n_steps,
        decr_every_n_nan_or_inf,
        incr_ratio,
        decr_ratio,
    )


__getattr__ = names_of_fluid(__name__, globals())
