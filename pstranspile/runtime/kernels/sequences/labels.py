"""Kernels. Sequences of labels: evaluation of chunks, edit distance, and decoding of frames."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr, ints_attr, text
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import as_matrix, check_ids
from pstranspile.runtime.kernels.ragged import plain, row_counts, sequences
from pstranspile.runtime.values import Array, LoDTensor


class _Scheme(NamedTuple):
    """The number of tags of a chunk type, and the tags that begin, continue, end or form a whole chunk (-1: none)."""

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


def _flat(x: Any, length: Any, slot: str) -> tuple[Array, list[int]]:
    """The labels of a ragged value, or of a padded one with lengths, concatenated, and the offsets of the sequences."""
    if length is None:
        data, lod = sequences(x, slot)
        of_row = data[:1].size or 1
        return data.reshape(-1), lod[-1] if of_row == 1 else [offset * of_row for offset in lod[-1]]
    data, lengths = plain(x), plain(length).reshape(-1)
    if len(data) != len(lengths):
        raise ValueError(f"{slot} has {len(data)} sequences, there are {len(lengths)} lengths")
    padded = as_matrix(data)
    check_ids(lengths, padded.shape[1] + 1, f"the length of {slot}")
    return padded[np.arange(padded.shape[1]) < lengths[:, None]], [0, *lengths.cumsum().tolist()]


def _pieces(x: Any, length: Any, slot: str) -> list[Array]:
    """The sequences of a ragged value, or of a padded one with lengths, as flat arrays."""
    labels, offsets = _flat(x, length, slot)
    return [labels[start:stop] for start, stop in pairwise(offsets)]


class _Chunks(NamedTuple):
    """The positions where chunks begin and end, and their types."""

    begins: Array
    ends: Array
    kinds: Array


def _chunks(labels: Array, starts: Array, scheme: _Scheme, types: int, excluded: tuple[int, ...]) -> _Chunks:
    """The chunks in concatenated sequences of labels that start at the given positions."""
    kinds, tags = np.divmod(labels, scheme.tags)
    inside = kinds < types
    opens = (tags == scheme.begin) | (tags == scheme.single)
    closes = (tags == scheme.end) | (tags == scheme.single)
    parted = np.ones(len(labels) + 1, bool)  # from the label before; a chunk of its own type goes on otherwise
    np.not_equal(kinds[1:], kinds[:-1], out=parted[1:-1])
    parted[1:-1] |= opens[1:]
    parted[1:-1] |= closes[:-1]
    parted[starts] = True
    begins, ends = (inside & parted[:-1]).nonzero()[0], (inside & parted[1:]).nonzero()[0]
    kinds = kinds.take(begins)
    if excluded:
        kept = ~np.isin(kinds, excluded)
        begins, ends, kinds = begins[kept], ends[kept], kinds[kept]
    return _Chunks(begins, ends, kinds)


def _in_both(a: _Chunks, b: _Chunks, size: int) -> int:
    """The number of chunks that two labellings of the same positions have in common."""
    ends, kinds = np.full((2, size), -1)
    ends[a.begins], kinds[a.begins] = a.ends, a.kinds
    return int(np.count_nonzero((ends.take(b.begins) == b.ends) & (kinds.take(b.begins) == b.kinds)))


@kernel("chunk_eval", "Precision Recall F1-Score NumInferChunks NumLabelChunks NumCorrectChunks", lod="own")
def _chunk_eval(op: Op) -> Run:
    types, excluded = int_attr(op, "num_chunk_types"), ints_attr(op, "excluded_chunk_types")
    name = text(op, "chunk_scheme")
    if name not in _SCHEMES:
        raise ValueError(f"chunk_scheme is {name!r}, it must be one of {', '.join(_SCHEMES)}")
    scheme = _SCHEMES[name]

    def run(Inference: Any, Label: Any, SeqLength: Any = None) -> tuple[Array, ...]:
        (guesses, offsets), (labels, others) = (
            _flat(Inference, SeqLength, "Inference"),
            _flat(Label, SeqLength, "Label"),
        )
        if offsets != others:
            raise ValueError("Inference and Label are not equally many sequences of the same lengths")
        for given in (guesses, labels):
            check_ids(given, types * scheme.tags + 1, "the label")
        starts = np.asarray(offsets)
        a, b = (_chunks(given, starts, scheme, types, excluded) for given in (guesses, labels))
        guessed, right, correct = len(a.begins), len(b.begins), _in_both(a, b, len(labels))
        precision, recall = correct / guessed if guessed else 0.0, correct / right if right else 0.0
        f1 = 2 * precision * recall / (precision + recall) if correct else 0.0
        rates = (np.array([rate], np.float32) for rate in (precision, recall, f1))
        counts = (np.array([count], np.int64) for count in (guessed, right, correct))
        return (*rates, *counts)

    return run


def _distance(a: Array, b: Array) -> int:
    """The number of replacements, insertions and deletions that turn a into b."""
    places = np.arange(len(b) + 1)
    row = places
    for element in a:
        least = np.r_[row[0] + 1, np.minimum(row[1:] + 1, row[:-1] + (b != element))]
        row = np.minimum.accumulate(least - places) + places  # insertions
    return int(row[-1])


@plain_kernel("edit_distance", "SequenceNum Out", lod="own")
def _edit_distance(
    Hyps: Any, Refs: Any, HypsLength: Any = None, RefsLength: Any = None, *, normalized: bool
) -> tuple[Array, Array]:
    hyps, refs = _pieces(Hyps, HypsLength, "Hyps"), _pieces(Refs, RefsLength, "Refs")
    if len(hyps) != len(refs):
        raise ValueError(f"Hyps has {len(hyps)} sequences, Refs {len(refs)}")
    if normalized and not all(len(ref) for ref in refs):
        raise ValueError("a sequence of Refs is empty, so that no distance can be divided by its length")
    result = np.array([_distance(hyp, ref) for hyp, ref in zip(hyps, refs, strict=True)], np.float32)
    if normalized:
        result /= np.array([len(ref) for ref in refs], np.float32)
    return np.array([len(refs)], np.int64), result.reshape(-1, 1)


def _kept(labels: Array, firsts: Array, blank: int, merge: bool) -> Array:
    """Which labels stay: no blanks and, if repeats are merged, no repeats of the label before."""
    kept = labels != blank
    if merge:
        kept &= firsts | np.r_[True, labels[1:] != labels[:-1]][: len(labels)]
    return kept


def _starts(counts: Array, size: int) -> Array:
    """A mask of `size` positions: the starts of sequences of these lengths."""
    mask = np.zeros(size + 1, bool)
    mask[np.r_[0, np.cumsum(counts)]] = True
    return mask[:size]


@plain_kernel("ctc_align", "Output OutputLength", lod="own")
def _ctc_align(
    Input: Any, InputLength: Any = None, *, blank: int, merge_repeated: bool, padding_value: int
) -> tuple[Any, Any]:
    if InputLength is None:
        x, lod = sequences(Input, "Input")
        labels = x.reshape(-1)
        kept = _kept(labels, _starts(row_counts(lod[-1]), len(labels)), blank, merge_repeated)
        ends = np.r_[0, np.cumsum(kept)][lod[-1]].tolist()
        rows = labels[kept].reshape(-1, 1)
        # Fluid has no tensors without rows: a row of -1 stands for an empty result
        return LoDTensor(rows if len(rows) else np.full((1, 1), -1, labels.dtype), [*lod[:-1], ends]), None
    pieces = _pieces(Input, InputLength, "Input")
    x = plain(Input)
    out = np.full(x.shape, padding_value, x.dtype)
    lengths = np.zeros((len(pieces), 1), plain(InputLength).dtype)
    for number, piece in enumerate(pieces):
        result = piece[_kept(piece, _starts(np.zeros(0, np.int64), len(piece)), blank, merge_repeated)]
        out[number, : len(result)] = result
        lengths[number] = len(result)
    return out, lengths
