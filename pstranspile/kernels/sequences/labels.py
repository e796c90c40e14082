"""Kernels. Sequences of labels compared: chunks found in them, the changes between two, the labels behind frames."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.kernels.kernel import Run, kernel
from pstranspile.kernels.numeric import as_matrix, check_ids
from pstranspile.kernels.ragged import plain, row_counts, sequences
from pstranspile.ops.attributes import flag, int_attr, ints_attr, text
from pstranspile.values import Array, LoDTensor


class _Scheme(NamedTuple):
    """How many tags a chunk type has, and which of them begins, continues, ends or is a whole chunk (-1: none)."""

    tags: int
    begin: int = -1
    inside: int = -1
    end: int = -1
    single: int = -1


_SCHEMES = {
    "IOB": _Scheme(2, begin=0, inside=1),
    "IOE": _Scheme(2, inside=0, end=1),
    "IOBES": _Scheme(4, begin=0, inside=1, end=2, single=3),
    "plain": _Scheme(1),
}


def _pieces(x: Any, length: Any, slot: str) -> list[Array]:
    """The sequences of a ragged value, or of a padded one whose lengths are given, as flat arrays."""
    if length is None:
        data, lod = sequences(x, slot)
        return [data[start:stop].reshape(-1) for start, stop in pairwise(lod[-1])]
    data, lengths = plain(x), plain(length).reshape(-1)
    if len(data) != len(lengths):
        raise ValueError(f"{slot} has {len(data)} sequences, there are {len(lengths)} lengths")
    padded = as_matrix(data)
    check_ids(lengths, padded.shape[1] + 1, f"the length of {slot}")
    return [row[:count] for row, count in zip(padded, lengths.tolist(), strict=True)]


def _chunks(labels: Array, scheme: _Scheme, types: int) -> tuple[Array, Array]:
    """Where chunks begin and where they end (both are positions in them), for the labels of one sequence."""
    kinds = np.minimum(labels // scheme.tags, types)
    tags = labels % scheme.tags
    outside = kinds == types
    other, same = np.r_[True, outside[:-1]], np.r_[False, kinds[1:] == kinds[:-1]]
    before = np.r_[-2, tags[:-1]]
    closed = (before == scheme.end) | (before == scheme.single)
    opens = (tags == scheme.begin) | (tags == scheme.single)
    parted = closed | opens  # between two labels of the same type
    begins = ~outside & (other | ~same | parted)
    follows = np.r_[begins[1:] | outside[1:], True]
    return np.nonzero(begins)[0], np.nonzero(~outside & follows)[0]


def _found(labels: Array, scheme: _Scheme, types: int, excluded: tuple[int, ...]) -> set[tuple[int, int, int]]:
    """The chunks of one sequence: first and last position, and type."""
    check_ids(labels, types * scheme.tags + 1, "the label")
    if not labels.size:
        return set()
    begins, ends = _chunks(labels, scheme, types)
    kinds = labels[begins] // scheme.tags
    chunks = zip(begins.tolist(), ends.tolist(), kinds.tolist(), strict=True)
    return {chunk for chunk in chunks if chunk[2] not in excluded}


@kernel("chunk_eval", "Precision Recall F1-Score NumInferChunks NumLabelChunks NumCorrectChunks", lod="own")
def _chunk_eval(op: Op) -> Run:
    types, excluded = int_attr(op, "num_chunk_types"), ints_attr(op, "excluded_chunk_types")
    name = text(op, "chunk_scheme")
    if name not in _SCHEMES:
        raise ValueError(f"chunk_scheme is {name!r}, it must be one of {', '.join(_SCHEMES)}")
    scheme = _SCHEMES[name]

    def run(Inference: Any, Label: Any, SeqLength: Any = None) -> tuple[Array, ...]:
        guesses, labels = _pieces(Inference, SeqLength, "Inference"), _pieces(Label, SeqLength, "Label")
        if [len(piece) for piece in guesses] != [len(piece) for piece in labels]:
            raise ValueError("Inference and Label are not equally many sequences of the same lengths")
        guessed = right = correct = 0
        for guess, label in zip(guesses, labels, strict=True):
            a, b = (_found(piece, scheme, types, excluded) for piece in (guess, label))
            guessed, right, correct = guessed + len(a), right + len(b), correct + len(a & b)
        precision, recall = correct / guessed if guessed else 0.0, correct / right if right else 0.0
        f1 = 2 * precision * recall / (precision + recall) if correct else 0.0
        rates = (np.array([rate], np.float32) for rate in (precision, recall, f1))
        counts = (np.array([count], np.int64) for count in (guessed, right, correct))
        return (*rates, *counts)

    return run


def _distance(a: Array, b: Array) -> int:
    """How many elements must be replaced, inserted or deleted to turn a into b."""
    places = np.arange(len(b) + 1)
    row = places
    for element in a:
        least = np.r_[row[0] + 1, np.minimum(row[1:] + 1, row[:-1] + (b != element))]
        row = np.minimum.accumulate(least - places) + places  # insertions
    return int(row[-1])


@kernel("edit_distance", "SequenceNum Out", lod="own")
def _edit_distance(op: Op) -> Run:
    normalized = flag(op, "normalized")

    def run(Hyps: Any, Refs: Any, HypsLength: Any = None, RefsLength: Any = None) -> tuple[Array, Array]:
        hyps, refs = _pieces(Hyps, HypsLength, "Hyps"), _pieces(Refs, RefsLength, "Refs")
        if len(hyps) != len(refs):
            raise ValueError(f"Hyps has {len(hyps)} sequences, Refs {len(refs)}")
        if normalized and not all(len(ref) for ref in refs):
            raise ValueError("a sequence of Refs is empty, so that no distance can be divided by its length")
        result = np.array([_distance(hyp, ref) for hyp, ref in zip(hyps, refs, strict=True)], np.float32)
        if normalized:
            result /= np.array([len(ref) for ref in refs], np.float32)
        return np.array([len(refs)], np.int64), result.reshape(-1, 1)

    return run


def _kept(labels: Array, firsts: Array, blank: int, merge: bool) -> Array:
    """Which of the labels stay: those that are no blanks and, if repeats are merged, differ from the one before."""
    kept = labels != blank
    if merge:
        kept &= firsts | np.r_[True, labels[1:] != labels[:-1]][: len(labels)]
    return kept


def _starts(counts: Array, size: int) -> Array:
    """A mask of `size` positions: where sequences of these lengths begin."""
    mask = np.zeros(size + 1, bool)
    mask[np.r_[0, np.cumsum(counts)]] = True
    return mask[:size]


@kernel("ctc_align", "Output OutputLength", lod="own")
def _ctc_align(op: Op) -> Run:
    blank, merge, padding = int_attr(op, "blank"), flag(op, "merge_repeated"), int_attr(op, "padding_value")

    def run(Input: Any, InputLength: Any = None) -> tuple[Any, Any]:
        if InputLength is None:
            x, lod = sequences(Input, "Input")
            labels = x.reshape(-1)
            kept = _kept(labels, _starts(row_counts(lod[-1]), len(labels)), blank, merge)
            ends = np.r_[0, np.cumsum(kept)][lod[-1]].tolist()
            rows = labels[kept].reshape(-1, 1)
            # Fluid has no tensor without rows: one of -1 stands for nothing at all
            return LoDTensor(rows if len(rows) else np.full((1, 1), -1, labels.dtype), [*lod[:-1], ends]), None
        pieces = _pieces(Input, InputLength, "Input")
        x = plain(Input)
        out = np.full(x.shape, padding, x.dtype)
        lengths = np.zeros((len(pieces), 1), plain(InputLength).dtype)
        for number, piece in enumerate(pieces):
            result = piece[_kept(piece, _starts(np.zeros(0, np.int64), len(piece)), blank, merge)]
            out[number, : len(result)] = result
            lengths[number] = len(result)
        return out, lengths

    return run
