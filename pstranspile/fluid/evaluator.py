"""Fluid's `evaluator`: metrics whose counts are variables of the program, kept from batch to batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pstranspile.fluid import layers, metrics, unique_name
from pstranspile.fluid.framework import Program, program_guard
from pstranspile.fluid.graph.block import Block
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.layer_helper import LayerHelper
from pstranspile.fluid.missing import names_of_fluid

L: Any = layers


def _clone_var_(block: Block, var: Variable) -> Variable:
    """The variable, declared in a block of another program."""
    return block.create_var(
        name=var.name, shape=var.shape, dtype=var.dtype, type=var.type, lod_level=var.lod_level, persistable=True
    )


class Evaluator:
    """The base class of evaluators: `states` are the persistable variables, `metrics` those of a batch."""

    def __init__(self, name: str, **kwargs: Any):
        self.states: list[Variable] = []
        self.metrics: list[Variable] = []
        self.helper = LayerHelper(name, **kwargs)
        if self.helper.main_program.current_block().idx != 0:
            raise ValueError(f"{type(self).__name__} is made in block 0, not inside a loop or branch")

    def reset(self, executor: Any, reset_program: Program | None = None) -> None:
        """Sets the states to zero. The ops are added to `reset_program` (default: a new one)."""
        program = Program() if reset_program is None else reset_program
        with program_guard(main_program=program):
            for state in self.states:
                out = _clone_var_(program.current_block(), state)
                L.fill_constant(shape=out.shape, value=0.0, dtype=out.dtype, out=out)
        executor.run(program)

    def eval(self, executor: Any, eval_program: Program | None = None) -> Any:
        """The result computed from the states. Raises NotImplementedError here, because each evaluator
        defines its own.
        """
        raise NotImplementedError(f"{type(self).__name__} must define eval(executor, eval_program)")

    def _create_state(self, suffix: str, dtype: Any, shape: Sequence[int]) -> Variable:
        state = self.helper.create_variable(
            name="_".join([unique_name.generate(self.helper.name), suffix]), persistable=True, dtype=dtype, shape=shape
        )
        self.states.append(state)
        return state

    def _count(self, state: Variable, of_batch: Variable) -> None:
        """Adds an op that adds the batch's value to a state."""
        L.sums(input=[state, of_batch], out=state)


class ChunkEvaluator(Evaluator):
    """Precision, recall and F1 of chunks, marked by IOB or another scheme, over all batches since `reset`."""

    def __init__(
        self,
        input: Any,
        label: Any,
        chunk_scheme: str,
        num_chunk_types: int,
        excluded_chunk_types: Sequence[int] | None = None,
    ):
        super().__init__("chunk_eval")
        kinds = ("num_infer_chunks", "num_label_chunks", "num_correct_chunks")
        states = [self._create_state(kind, "int64", [1]) for kind in kinds]
        self.num_infer_chunks, self.num_label_chunks, self.num_correct_chunks = states
        made = L.chunk_eval(
            input=input,
            label=label,
            chunk_scheme=chunk_scheme,
            num_chunk_types=num_chunk_types,
            excluded_chunk_types=excluded_chunk_types,
        )
        for state, of_batch in zip(states, made[3:], strict=True):
            self._count(state, of_batch)
        self.metrics.extend(made[:3])

    def eval(self, executor: Any, eval_program: Program | None = None) -> Any:
        """Precision, recall and F1, each `float32 [1]`; 0 where nothing was found."""
        program = Program() if eval_program is None else eval_program
        block = program.current_block()
        fetched = executor.run(program, fetch_list=[_clone_var_(block, state) for state in self.states])
        inferred, labelled, correct = (int(np.asarray(count).ravel()[0]) for count in fetched)
        precision = correct / inferred if inferred else 0.0
        recall = correct / labelled if labelled else 0.0
        f1 = 2 * precision * recall / (precision + recall) if correct else 0.0
        return tuple(np.array([share], "float32") for share in (precision, recall, f1))


class EditDistance(Evaluator):
    """The mean edit distance of sequences, and the share of sequences with errors, since `reset`."""

    def __init__(self, input: Any, label: Any, ignored_tokens: Sequence[int] | None = None, **kwargs: Any):
        super().__init__("edit_distance", **kwargs)
        self.total_distance = self._create_state("total_distance", "float32", [1])
        self.seq_num = self._create_state("seq_num", "int64", [1])
        self.instance_error = self._create_state("instance_error", "int64", [1])
        distances, seq_num = L.edit_distance(input=input, label=label, ignored_tokens=ignored_tokens)
        zero = L.fill_constant(shape=[1], value=0.0, dtype="float32")
        right = L.reduce_sum(L.cast(x=L.equal(distances, zero), dtype="int64"))
        wrong = L.elementwise_sub(x=seq_num, y=right)
        total = L.reduce_sum(distances)
        self._count(self.total_distance, total)
        self._count(self.seq_num, seq_num)
        self._count(self.instance_error, wrong)
        self.metrics.extend([total, wrong])

    def eval(self, executor: Any, eval_program: Program | None = None) -> Any:
        """The mean distance and the share of sequences with errors, each `float32 [1]`."""
        program = Program() if eval_program is None else eval_program
        block = program.current_block()
        with program_guard(main_program=program):
            total, count, wrong = (_clone_var_(block, state) for state in self.states)
            count, wrong = L.cast(x=count, dtype="float32"), L.cast(x=wrong, dtype="float32")
            shares = [L.elementwise_div(x=part, y=count) for part in (total, wrong)]
            fetched = executor.run(program, fetch_list=shares)
        return tuple(np.array(share) for share in fetched)


DetectionMAP = metrics.DetectionMAP


__getattr__ = names_of_fluid(__name__, globals())
