"""Fluid's `metrics` and `average`: metrics over the batches of an epoch, computed from fetched values."""

from __future__ import annotations

from typing import Any

import numpy as np

from pstranspile.fluid import layers, unique_name
from pstranspile.fluid.framework import Program, program_guard
from pstranspile.fluid.initializer import Constant
from pstranspile.fluid.layer_helper import LayerHelper
from pstranspile.fluid.missing import names_of_fluid

L: Any = layers


class MetricBase:
    """The base class of metrics: `update` adds a batch, `eval` returns the result, `reset` starts again."""

    def __init__(self, name: str | None = None):
        self._name = name or type(self).__name__

    def reset(self) -> None:
        """Starts again: sets numbers to zero and lists to empty ones."""
        for key, value in list(vars(self).items()):
            if not key.startswith("_"):
                setattr(self, key, type(value)())

    def get_config(self) -> dict[str, Any]:
        """The counts of the metric, by name."""
        return {key: value for key, value in vars(self).items() if not key.startswith("_")}

    def update(self, preds: Any, labels: Any) -> None:
        """Adds a batch."""
        raise NotImplementedError(f"{type(self).__name__} says nothing of update")

    def eval(self) -> Any:
        """The result over all batches."""
        raise NotImplementedError(f"{type(self).__name__} says nothing of eval")


class CompositeMetric(MetricBase):
    """Several metrics of the same predictions and labels."""

    def __init__(self, name: str | None = None):
        super().__init__(name)
        self._metrics: list[MetricBase] = []

    def add_metric(self, metric: MetricBase) -> None:
        """Adds a metric. Raises ValueError for anything else."""
        if not isinstance(metric, MetricBase):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError("add_metric takes a metric")
        self._metrics.append(metric)

    def update(self, preds: Any, labels: Any) -> None:
        """Adds a batch to every metric."""
        for metric in self._metrics:
            metric.update(preds, labels)

    def eval(self) -> list[Any]:
        """The results of all metrics."""
        return [metric.eval() for metric in self._metrics]


class Precision(MetricBase):
    """The precision: of the rows predicted as 1, the share that is 1."""

    def __init__(self, name: str | None = None):
        super().__init__(name)
        self.tp = self.fp = 0

    def update(self, preds: Any, labels: Any) -> None:
        """Adds a batch of probabilities and labels, which are 0 or 1."""
        chosen, right = np.rint(np.asarray(preds)).ravel() == 1, np.asarray(labels).ravel() == 1
        self.tp += int(np.sum(chosen & right))
        self.fp += int(np.sum(chosen & ~right))

    def eval(self) -> float:
        """The precision, 0 if no row was predicted as 1."""
        return self.tp / (self.tp + self.fp) if self.tp + self.fp else 0.0


class Recall(MetricBase):
    """The recall: of the rows that are 1, the share predicted as 1."""

    def __init__(self, name: str | None = None):
        super().__init__(name)
        self.tp = self.fn = 0

    def update(self, preds: Any, labels: Any) -> None:
        """Adds a batch of probabilities and labels, which are 0 or 1."""
        chosen, right = np.rint(np.asarray(preds)).ravel() == 1, np.asarray(labels).ravel() == 1
        self.tp += int(np.sum(chosen & right))
        self.fn += int(np.sum(~chosen & right))

    def eval(self) -> float:
        """The recall, 0 if no row is 1."""
        return self.tp / (self.tp + self.fn) if self.tp + self.fn else 0.0


class Accuracy(MetricBase):
    """The weighted mean of accuracies."""

    def __init__(self, name: str | None = None):
        super().__init__(name)
        self.value = self.weight = 0.0

    def update(self, value: Any, weight: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Adds the accuracy of a batch, with a weight. Raises ValueError for a negative weight."""
        if weight < 0:
            raise ValueError("a weight is not negative")
        self.value += float(np.asarray(value).ravel()[0]) * weight
        self.weight += weight

    def eval(self) -> float:
        """The weighted mean. Raises ValueError before any batch."""
        if not self.weight:
            raise ValueError("there was no batch yet: call update first")
        return self.value / self.weight


class ChunkEvaluator(MetricBase):
    """Precision, recall and F1 of chunks, from the counts of `layers.chunk_eval`."""

    def __init__(self, name: str | None = None):
        super().__init__(name)
        self.num_infer_chunks = self.num_label_chunks = self.num_correct_chunks = 0

    def update(self, num_infer_chunks: Any, num_label_chunks: Any, num_correct_chunks: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Adds the counts of a batch."""
        for key, value in (
            ("num_infer_chunks", num_infer_chunks),
            ("num_label_chunks", num_label_chunks),
            ("num_correct_chunks", num_correct_chunks),
        ):
            setattr(self, key, getattr(self, key) + int(np.asarray(value).ravel()[0]))

    def eval(self) -> tuple[float, float, float]:
        """Precision, recall and F1."""
        right = self.num_correct_chunks
        precision = right / self.num_infer_chunks if self.num_infer_chunks else 0.0
        recall = right / self.num_label_chunks if self.num_label_chunks else 0.0
        return precision, recall, 2 * precision * recall / (precision + recall) if right else 0.0


class EditDistance(MetricBase):
    """The mean edit distance of sequences, and the share of sequences with errors."""

    def __init__(self, name: str | None = None):
        super().__init__(name)
        self.total_distance, self.seq_num, self.instance_error = 0.0, 0, 0

    def update(self, distances: Any, seq_num: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Adds the distances of a batch, and its number of sequences."""
        count = int(np.asarray(seq_num).ravel()[0])
        self.instance_error += count - int(np.sum(np.asarray(distances) == 0))
        self.total_distance += float(np.sum(distances))
        self.seq_num += count

    def eval(self) -> tuple[float, float]:
        """The mean distance, and the share of sequences with errors. Raises ValueError before any batch."""
        if not self.seq_num:
            raise ValueError("there was no batch yet: call update first")
        return self.total_distance / self.seq_num, self.instance_error / self.seq_num


class Auc(MetricBase):
    """The area under the ROC curve, from counts of probabilities in `num_thresholds` buckets."""

    def __init__(self, name: str | None = None, curve: str = "ROC", num_thresholds: int = 4095):
        super().__init__(name)
        self._curve, self._num_thresholds = curve, num_thresholds
        self.reset()

    def reset(self) -> None:
        """Starts again, with empty counts."""
        self._stat_pos, self._stat_neg = [0.0] * (self._num_thresholds + 1), [0.0] * (self._num_thresholds + 1)

    def update(self, preds: Any, labels: Any) -> None:
        """Adds a batch of probabilities [n, 2], in whose second column are those of class 1, and labels."""
        places = (np.asarray(preds)[:, -1] * self._num_thresholds).astype(int)
        right = np.asarray(labels).ravel().astype(bool)
        for counts, found in ((self._stat_pos, places[right]), (self._stat_neg, places[~right])):
            counts[:] = (np.asarray(counts) + np.bincount(found, minlength=len(counts))).tolist()

    def eval(self) -> float:
        """The area, 0 if all rows are of one class."""
        positive, negative = (np.cumsum(counts[::-1]) for counts in (self._stat_pos, self._stat_neg))
        if not (positive[-1] and negative[-1]):
            return 0.0
        above, right = np.concatenate([[0.0], positive]), np.concatenate([[0.0], negative])
        return float(np.sum((right[1:] - right[:-1]) * (above[1:] + above[:-1]) / 2.0) / positive[-1] / negative[-1])


class DetectionMAP:
    """The mean average precision of the boxes found in images, of a batch and of all batches since `reset`.

    Both are variables of the program (`get_map_var`), to be fetched.
    """

    def __init__(
        self,
        input: Any,
        gt_label: Any,
        gt_box: Any,
        gt_difficult: Any = None,
        class_num: Any = None,
        background_label: int = 0,
        overlap_threshold: float = 0.5,
        evaluate_difficult: bool = True,
        ap_version: str = "integral",
    ):
        self.helper = LayerHelper("map_eval")
        marks = [gt_label] if gt_difficult is None else [gt_label, gt_difficult]
        label = L.concat([*(L.cast(x=mark, dtype=gt_box.dtype) for mark in marks), gt_box], axis=1)
        taken = (input, label, class_num, background_label)
        settings = {
            "overlap_threshold": overlap_threshold,
            "evaluate_difficult": evaluate_difficult,
            "ap_version": ap_version,
        }
        self.cur_map = L.detection_map(*taken, **settings)
        kinds = {"accum_pos_count": "int32", "accum_true_pos": "float32", "accum_false_pos": "float32"}
        states = [self._state(kind, dtype) for kind, dtype in kinds.items()]
        self.has_state = self._state("has_state", "int32", [1])
        self.helper.set_variable_initializer(self.has_state, Constant(0))
        held = {"has_state": self.has_state, "input_states": states, "out_states": states}
        self.accum_map = L.detection_map(*taken, **held, **settings)
        _fill(self.has_state, 1)

    def _state(self, suffix: str, dtype: str, shape: Any = None) -> Any:
        name = f"{unique_name.generate(self.helper.name)}_{suffix}"
        return self.helper.create_variable(name=name, persistable=True, dtype=dtype, shape=shape)

    def get_map_var(self) -> tuple[Any, Any]:
        """The variables with the mean average precision of the batch, and of all batches."""
        return self.cur_map, self.accum_map

    def reset(self, executor: Any, reset_program: Any = None) -> None:
        """Starts again. The op is added to `reset_program` (default: a new one)."""
        program = Program() if reset_program is None else reset_program
        state = self.has_state
        with program_guard(main_program=program):
            block = program.current_block()
            _fill(block.create_var(name=state.name, shape=state.shape, dtype=state.dtype, persistable=True), 0)
        executor.run(program)


def _fill(state: Any, value: int) -> None:
    L.fill_constant(shape=state.shape, value=value, dtype=state.dtype, out=state)


class WeightedAverage:
    """The weighted mean of numbers or arrays."""

    def __init__(self) -> None:
        self.numerator: Any = None
        self.denominator: Any = None

    def reset(self) -> None:
        """Drops everything that was added."""
        self.numerator = self.denominator = None

    def add(self, value: Any, weight: Any) -> None:
        """Adds a value with a weight."""
        part = np.asarray(value, "float64") * weight
        self.numerator = part if self.numerator is None else self.numerator + part
        self.denominator = weight if self.denominator is None else self.denominator + weight

    def eval(self) -> Any:
        """The weighted mean. Raises ValueError before anything was added."""
        if not self.denominator:
            raise ValueError("nothing was added to the average yet")
        return self.numerator / self.denominator


__getattr__ = names_of_fluid(__name__, globals())
