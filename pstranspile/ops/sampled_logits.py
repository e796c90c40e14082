"""Logits of the true classes and of a few sampled ones, in place of those of all classes."""

from __future__ import annotations

from collections.abc import Callable

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.lazy import lazy_import
from pstranspile.ops.context import Surroundings
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.mersenne import mersenne_words
from pstranspile.ops.numeric import check_ids, flag
from pstranspile.ops.random_numbers import words
from pstranspile.ops.schema import INT, declare, declare_gradient
from pstranspile.ops.shapes import ShapeError, Types, describe, disagree, fits, int_attr, one, shape_rule
from pstranspile.ops.values import Array

np = lazy_import("numpy")

declare(
    "sample_logits",
    "Logits Labels CustomizedSamples? CustomizedProbabilities? -> "
    "Samples Probabilities LogitsDim LabelsDim SampledLogits SampledLabels",
    {
        "use_customized_samples": False,
        "uniq": True,
        "remove_accidental_hits": True,
        "num_samples": INT,
        "seed": 0,
    },
    doc="SampledLogits = Logits at the labels and at sampled classes, less the logarithm of how likely those are",
)
declare_gradient("sample_logits", "LogitsDim LabelsDim Samples SampledLogits@GRAD -> Logits@GRAD")


@shape_rule("sample_logits")
def _sample_logits(op: Op, types: Types) -> Types:
    logits, labels = one(types, "Logits"), one(types, "Labels")
    if len(logits.shape) != 2 or len(labels.shape) != 2:
        raise ShapeError(f"Logits is {describe(logits)}, Labels {describe(labels)}; both must have 2 dims", "Labels")
    if not fits(labels.shape[:1], logits.shape[:1]):
        disagree("Labels", labels, "Logits", logits)
    count = int_attr(op, "num_samples") + labels.shape[1] if labels.shape[1] >= 0 else -1
    dims = (labels.shape[0], count)
    # Fluid's layer declares Probabilities as f32 whatever the logits are, and LabelsDim without an element type
    likely = TensorType(logits.dtype, dims) if logits.dtype is DType.FP32 else None
    return {
        "Samples": (TensorType(labels.dtype, dims),),
        "Probabilities": (likely,),
        "LogitsDim": (TensorType(logits.dtype, (*logits.shape, 0)),),
        "SampledLogits": (TensorType(logits.dtype, dims),),
        "SampledLabels": (TensorType(labels.dtype, labels.shape),),
    }


@shape_rule("sample_logits_grad")
def _sample_logits_grad(_op: Op, types: Types) -> Types:
    dims = one(types, "LogitsDim")
    return {"Logits@GRAD": (dims._replace(shape=dims.shape[:-1]),)}


# Kernels


def _source(op: Op, surroundings: Surroundings) -> Callable[[int], Array]:
    """From a count to the first so many random words: those of the op's seed, as Fluid draws them, or fresh ones."""
    seed = int_attr(op, "seed")
    if seed:
        return lambda count: mersenne_words(seed, count)
    key, offset = surroundings.stream(op.output("Samples") or op.type, 0)
    return lambda count: words(key, offset, count)


def _draw(source: Callable[[int], Array], wanted: int, classes: int) -> tuple[Array, int]:
    """Distinct classes from the log-uniform distribution, in the order they come up, and how many were drawn."""
    count = 4 * wanted
    while True:
        drawn = (np.exp(source(count) * 2.0**-64 * np.log(classes + 1)).astype("int64") - 1) % classes
        places = np.sort(np.unique(drawn, return_index=True)[1])
        if len(places) >= wanted:
            places = places[:wanted]
            return drawn[places], int(places[-1]) + 1
        count *= 2


def _expected(classes: Array, count: int, tries: int, samples: int) -> Array:
    """How often each class is among `samples` distinct ones that took so many tries.

    How likely one try is to give a class is as precise as a float32, since so it is in Fluid.
    """
    likely = np.log((classes + 2.0) / (classes + 1.0)) / float(np.float32(np.log(count + 1)))
    likely = likely.astype("float32").astype("float64")
    return likely * samples if tries == samples else -np.expm1(tries * np.log1p(-likely))


def _sampler(op: Op) -> Callable[[Array, int, Surroundings], tuple[Array, Array]]:
    """From labels and the number of classes to the classes of each row, and how likely each is."""
    samples = int_attr(op, "num_samples")

    def sampled(labels: Array, classes: int, surroundings: Surroundings) -> tuple[Array, Array]:
        if not 0 < samples <= classes:
            raise ValueError(f"{samples} distinct classes can't be sampled from {classes}")
        drawn, tries = _draw(_source(op, surroundings), samples, classes)
        chosen = np.concatenate([labels, np.broadcast_to(drawn, (len(labels), samples))], axis=1)
        return chosen, _expected(chosen, classes, tries, samples)

    return sampled


@kernel("sample_logits", "Samples Probabilities LogitsDim LabelsDim SampledLogits SampledLabels", lod="none")
def _sample_logits_values(op: Op) -> Run:
    sampler, custom, no_hits = _sampler(op), flag(op, "use_customized_samples"), flag(op, "remove_accidental_hits")
    if not flag(op, "uniq") and not custom:
        raise ValueError("uniq is false; samples are always distinct")

    def run(
        Logits: Array,
        Labels: Array,
        CustomizedSamples: Array | None,
        CustomizedProbabilities: Array | None,
        surroundings: Surroundings,
    ) -> tuple[Array, Array, Array, Array, Array, Array]:
        true, classes = Labels.shape[1], Logits.shape[1]
        check_ids(Labels, classes, "the label")
        if not custom:
            chosen, likely = sampler(Labels, classes, surroundings)
        elif CustomizedSamples is None or CustomizedProbabilities is None:
            raise ValueError("use_customized_samples needs CustomizedSamples and CustomizedProbabilities")
        else:
            chosen, likely = CustomizedSamples, CustomizedProbabilities
            check_ids(chosen, classes, "the sample")
        likely = likely.astype(Logits.dtype)
        logits = np.take_along_axis(Logits, chosen, axis=1)
        if no_hits:
            hits = (chosen[:, true:, None] == chosen[:, None, :true]).any(axis=2)
            logits[:, true:] -= hits * Logits.dtype.type(1e20)
        logits = np.clip(logits - np.log(likely), -1e20, 1e20)
        places = np.broadcast_to(np.arange(true, dtype=Labels.dtype), Labels.shape).copy()
        sizes = (np.empty((*given.shape, 0), given.dtype) for given in (Logits, Labels))
        return (chosen, likely, *sizes, logits, places)

    return run


@kernel("sample_logits_grad", "Logits@GRAD", lod="none")
def _sample_logits_grad_values(_op: Op) -> Run:
    def run(LogitsDim: Array, Samples: Array, SampledLogits_GRAD: Array) -> Array:
        rows, classes, _ = LogitsDim.shape
        places = Samples + classes * np.arange(rows)[:, None]
        total = np.bincount(places.reshape(-1), SampledLogits_GRAD.reshape(-1), rows * classes)
        return total.astype(SampledLogits_GRAD.dtype).reshape(rows, classes)

    return run
