"""Predictors: models that are loaded and run as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pstranspile.fluid.executor import Executor, scope_guard
from pstranspile.fluid.inference.config import AnalysisConfig, NativeConfig
from pstranspile.fluid.inference.tensors import PaddleTensor, ZeroCopyTensor
from pstranspile.fluid.io import load_inference_model
from pstranspile.fluid.places import CPUPlace
from pstranspile.fluid.scope import Scope


class PaddlePredictor:
    """A model that `io.save_inference_model` wrote, with variables of its own.

    Raises ValueError or OSError where there is none.
    """

    def __init__(self, config: AnalysisConfig | NativeConfig):
        self.config = config
        self._executor, self._scope = Executor(CPUPlace()), Scope()
        folder, program, parameters = config.files()
        with scope_guard(self._scope):
            self._program, self._inputs, self._targets = load_inference_model(
                folder, self._executor, program, parameters
            )
        self._fed = {name: ZeroCopyTensor() for name in self._inputs}
        self._given = {var.name: ZeroCopyTensor() for var in self._targets}

    def get_input_names(self) -> list[str]:
        """The names of what is fed, in order."""
        return list(self._inputs)

    def get_output_names(self) -> list[str]:
        """The names of what is given, in order."""
        return list(self._given)

    def get_input_tensor_shape(self) -> dict[str, list[int]]:
        """The dims of what is fed, -1 for those that a run says."""
        block = self._program.global_block()
        return {name: list(block.var(name).shape) for name in self._inputs}

    def run(self, inputs: Sequence[PaddleTensor]) -> list[PaddleTensor]:
        """What the model makes of tensors, in the order of its inputs, or by their names if the configuration says so.

        Raises ValueError for another number of tensors, or other names.
        """
        if len(inputs) != len(self._inputs):
            raise ValueError(
                f"the model takes {len(self._inputs)} tensors, not {len(inputs)}: {', '.join(self._inputs)}"
            )
        config = self.config
        by_name = config.specify_input_name() if isinstance(config, AnalysisConfig) else config.specify_input_name
        names = [tensor.name for tensor in inputs] if by_name else self._inputs
        for name in names:
            self._require(name, self._fed)
        feed = {name: tensor.as_lod_tensor() for name, tensor in zip(names, inputs, strict=True)}
        made = zip(self._targets, self._values(feed), strict=True)
        return [PaddleTensor(np.array(value), var.name, value.lod()) for var, value in made]

    def get_input_tensor(self, name: str) -> ZeroCopyTensor:
        """The place for an input of `zero_copy_run`. Raises ValueError for another name."""
        return self._require(name, self._fed)

    def get_output_tensor(self, name: str) -> ZeroCopyTensor:
        """The place for an output of `zero_copy_run`. Raises ValueError for another name."""
        return self._require(name, self._given)

    def zero_copy_run(self) -> None:
        """Computes what stands in the outputs' places of what stands in those of the inputs."""
        made = self._values({name: tensor.held for name, tensor in self._fed.items()})
        for var, value in zip(self._targets, made, strict=True):
            self._given[var.name].held = value

    def clone(self) -> PaddlePredictor:
        """Another predictor of the model."""
        return type(self)(self.config)

    def program(self) -> Any:
        """The program."""
        return self._program

    def get_serialized_program(self) -> bytes:
        """The program, as its file has it."""
        return self._program.desc.serialize_to_string()

    def _values(self, feed: Mapping[str, Any]) -> list[Any]:
        return self._executor.run(self._program, feed, self._targets, scope=self._scope, return_numpy=False)

    @staticmethod
    def _require(name: str, known: Mapping[str, ZeroCopyTensor]) -> ZeroCopyTensor:
        if name not in known:
            raise ValueError(f"the model has no tensor {name!r}; it has {', '.join(known)}")
        return known[name]


class AnalysisPredictor(PaddlePredictor):
    """The predictor of an AnalysisConfig."""


class NativePaddlePredictor(PaddlePredictor):
    """The predictor of a NativeConfig."""


def create_paddle_predictor(config: AnalysisConfig | NativeConfig) -> PaddlePredictor:
    """The predictor of the model that a configuration names. Raises ValueError or OSError without one."""
    return AnalysisPredictor(config) if isinstance(config, AnalysisConfig) else NativePaddlePredictor(config)
