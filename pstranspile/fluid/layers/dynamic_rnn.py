"""Fluid's `DynamicRNN`: a network over the steps of ragged sequences, longest first."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from pstranspile.fluid.graph.vartype import dtype_of
from pstranspile.fluid.layers.accepted import check_kind
from pstranspile.fluid.layers.adapt import live, to_core, wrap
from pstranspile.fluid.layers.ranks import array_to_lod_tensor
from pstranspile.frontends.layers import basic, loops
from pstranspile.frontends.layers.draft import Value
from pstranspile.ir.model import TensorType, Var
from pstranspile.ir.types import DType, VarKind


class DynamicRNN:
    """A network over the steps of ragged sequences; its methods have Fluid's names.

    drnn = DynamicRNN()
    with drnn.block():
        word = drnn.step_input(sentence)
        before = drnn.memory(shape=[200])
        after = fc([word, before], 200, act="tanh")
        drnn.update_memory(before, after)
        drnn.output(after)
    last = sequence_last_step(drnn())
    """

    def __init__(self, name: str | None = None):
        draft = self._draft = live()
        self._layer = name or draft.names.mint("dynamic_rnn")
        self._condition = draft.temporary(self._layer, DType.BOOL)
        draft.names.mint("while")
        self._outside = draft.current
        self._table: Value | None = None
        self._length: Value | None = None
        self._step: Value | None = None
        self._zero: Value | None = None
        self._first_input: Value | None = None
        self._memories: dict[str, Value] = {}
        self._links: list[tuple[Value, Value]] = []
        self._arrays: list[Value] = []
        self._outputs: list[Value] = []
        self._open = False

    def _declared(
        self, key: str, kind: VarKind, dtype: DType | None, shape: tuple[int, ...] = (), level: int = 0
    ) -> Value:
        tensor = TensorType(dtype, shape, level) if dtype is not None else None
        return self._draft.declare(Var(self._draft.names.mint(key), kind, tensor))

    def _require(self, method: str, *, opened: bool = True) -> None:
        if self._open != opened:
            raise ValueError(f"{method} is called {'inside' if opened else 'outside'} the block of a DynamicRNN")

    @contextmanager
    def block(self) -> Generator[None]:
        """Ops made in the block are what the network does in each step. Raises ValueError when entered twice."""
        self._require("block", opened=False)
        draft = self._draft
        step = self._step = basic.fill_constant(draft, [1], DType.INT64, 0, force_cpu=True)
        draft.stop_gradient.discard(step.name)
        self._open = True
        with loops.while_(self._condition):
            yield
            if self._length is None:
                raise ValueError("a DynamicRNN needs a step_input, whose sequences tell how many steps there are")
            basic.increment(step)
            for value, array in self._links:
                loops.array_write(value, step, array)
            self._compare(step)
        self._open = False
        for array in self._arrays:
            tensor = array.tensor
            out = array_to_lod_tensor(wrap(array), wrap(self._known(self._table)))
            out.redeclare(shape=(-1, *tensor.shape[1:]))
            self._outputs.append(to_core(out))

    def _compare(self, step: Value) -> None:
        inputs = {"X": step, "Y": self._known(self._length)}
        basic.layer_outputs("less_than", inputs, {"Out": self._condition}, {"force_cpu": True})

    def _known(self, value: Value | None) -> Value:
        if value is None:
            raise ValueError("a DynamicRNN needs a step_input before memories and static inputs")
        return value

    @property
    def step_idx(self) -> Any:
        """The number of the step, int64 [1]."""
        return wrap(self._known(self._step))

    def step_input(self, x: Any, level: int = 0) -> Any:
        """The rows of x for this step, of all sequences that still have one."""
        self._require("step_input")
        check_kind("DynamicRNN.step_input", "x", x, ("Variable",))
        draft, value, step = self._draft, to_core(x), self._known(self._step)
        with draft.inside(self._outside):
            if self._table is None:
                self._table = self._declared("lod_rank_table", VarKind.LOD_RANK_TABLE, None)
                draft.op("lod_rank_table", {"X": value}, {"Out": self._table}, {"level": level})
                self._length = self._declared("dynamic_rnn_max_seq_len", VarKind.LOD_TENSOR, DType.INT64, (1,))
                draft.op("max_sequence_len", {"RankTable": self._table}, {"Out": self._length})
                self._compare(step)
            array = self._declared(
                "dynamic_rnn_input_array",
                VarKind.LOD_TENSOR_ARRAY,
                value.dtype,
                value.shape,
                max(value.lod_level - 1, 0),
            )
            draft.op("lod_tensor_to_array", {"X": value, "RankTable": self._table}, {"Out": array})
        self._first_input = self._first_input or array
        return wrap(loops.array_read(array, step))

    def static_input(self, x: Any) -> Any:
        """x as it is in every step, its sequences in the order of the steps'."""
        self._require("static_input")
        check_kind("DynamicRNN.static_input", "x", x, ("Variable",))
        table, value = self._known(self._table), to_core(x)
        with self._draft.inside(self._outside):
            ordered = self._declared(
                "dynamic_rnn_static_input_reordered", VarKind.LOD_TENSOR, value.dtype, value.shape, value.lod_level
            )
            self._draft.op("reorder_lod_tensor_by_rank", {"X": value, "RankTable": table}, {"Out": ordered})
        return wrap(self._shrunk(ordered))

    def _shrunk(self, value: Value) -> Value:
        inputs = {"X": value, "I": self._known(self._step), "RankTable": self._known(self._table)}
        made = basic.layer("shrink_rnn_memory", inputs, value.dtype, key="shrink_memory")
        draft, tensor = self._draft, made.tensor
        return draft.declare(made.var._replace(tensor=tensor._replace(shape=value.shape, lod_level=value.lod_level)))

    def memory(
        self,
        init: Any = None,
        shape: Any = None,
        value: float = 0.0,
        need_reorder: bool = False,
        dtype: Any = "float32",
    ) -> Any:
        """What the step before has handed on: in the first one `init`, or `value` in rows of dims `shape`."""
        self._require("memory")
        check_kind("DynamicRNN.memory", "init", init, ("Variable", "NoneType"))
        check_kind("DynamicRNN.memory", "shape", shape, ("list", "tuple", "NoneType"))
        step = self._known(self._step)
        with self._draft.inside(self._outside):
            zero = self._first_index()
            start = self._filled(shape, value, dtype_of(dtype)) if init is None else to_core(init)
            if init is not None and need_reorder:
                table = self._known(self._table)
                ordered = self._declared(
                    "dynamic_rnn_mem_init_reordered", VarKind.LOD_TENSOR, start.dtype, start.shape, start.lod_level
                )
                self._draft.op("reorder_lod_tensor_by_rank", {"X": start, "RankTable": table}, {"Out": ordered})
                start = ordered
            array = self._declared("dynamic_rnn_mem_array", VarKind.LOD_TENSOR_ARRAY, start.dtype, start.shape)
            self._draft.op("write_to_array", {"X": start, "I": zero}, {"Out": array})
        made = self._shrunk(loops.array_read(array, step).declared(start.shape))
        self._memories[made.name] = array
        return wrap(made)

    def _first_index(self) -> Value:
        if self._zero is None:
            self._zero = self._declared("zero_idx", VarKind.LOD_TENSOR, DType.INT64, (1,))
            attrs = {"shape": [1], "dtype": DType.INT64, "value": 0.0, "force_cpu": True}
            self._draft.op("fill_constant", {}, {"Out": self._zero}, attrs)
        return self._zero

    def _filled(self, shape: Any, value: float, dtype: DType) -> Value:
        """The rows that a memory without an initial variable starts with, as many as the first step has."""
        source = self._known(self._first_input)
        start = self._declared("mem_init", VarKind.LOD_TENSOR, dtype)
        first = self._declared("in0", VarKind.LOD_TENSOR, source.dtype)
        self._draft.op("read_from_array", {"X": source, "I": self._first_index()}, {"Out": first})
        attrs = {"shape": [-1, *(shape or ())], "value": value, "dtype": dtype}
        self._draft.op("fill_constant_batch_size_like", {"Input": first}, {"Out": start}, attrs)
        return start

    def update_memory(self, ex_mem: Any, new_mem: Any) -> None:
        """Hands `new_mem` on to the next step. Raises ValueError for what is no memory."""
        self._require("update_memory")
        check_kind("DynamicRNN.update_memory", "ex_mem", ex_mem, ("Variable",))
        check_kind("DynamicRNN.update_memory", "new_mem", new_mem, ("Variable",))
        array = self._memories.get(to_core(ex_mem).name)
        if array is None:
            raise ValueError(f"{ex_mem.name} is no memory of this DynamicRNN")
        self._links.append((to_core(new_mem), array))

    def output(self, *outputs: Any) -> None:
        """Makes values of this step part of what the network gives."""
        self._require("output")
        for output in outputs:
            check_kind("DynamicRNN.output", "each of outputs", output, ("Variable",))
            value = to_core(output)
            dtype, shape, level = value.dtype, value.shape, value.lod_level
            with self._draft.inside(self._outside):
                key = f"{self._layer}_output_array_{value.name}"
                array = self._declared(key, VarKind.LOD_TENSOR_ARRAY, dtype, shape, level)
            loops.array_write(value, self._known(self._step), array)
            self._arrays.append(array)

    def __call__(self) -> Any:
        """What the network gives, ragged as its inputs: one variable, or a list of several."""
        self._require("the network", opened=False)
        made = wrap(self._outputs)
        if not made:
            raise ValueError("a DynamicRNN without an output gives nothing")
        return made[0] if len(made) == 1 else made
