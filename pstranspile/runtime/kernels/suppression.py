"""What kernels share that select boxes by score and drop boxes that overlap a better one."""

from __future__ import annotations

import numpy as np

from pstranspile.runtime.kernels.boxes import overlaps
from pstranspile.runtime.values import Array


def likeliest(scores: Array, threshold: float, most: int) -> Array:
    """The indices of at most `most` (-1: all) scores above a threshold, largest first. Ties keep their order."""
    places = np.nonzero(scores > threshold)[0]
    order = places[np.argsort(-scores[places], kind="stable")]
    return order[:most] if most > -1 else order


def kept(boxes: Array, order: Array, threshold: float, eta: float, edge: int) -> Array:
    """Non-maximum suppression: the indices of `order`, in order, whose boxes overlap no box kept before by more than
    the threshold.

    While the threshold is above one half, each kept box multiplies it by `eta`.
    """
    result: list[int] = []
    shares = overlaps(boxes[order], boxes[order], edge)
    threshold = float(boxes.dtype.type(threshold))
    for place in range(len(order)):
        if (shares[place, result] <= threshold).all():
            result.append(place)
            if eta < 1 and threshold > 0.5:
                threshold = float(boxes.dtype.type(threshold * eta))
    return order[result]


def best_of(chosen: list[tuple[int, Array]], scores: list[Array], most: int) -> list[tuple[int, Array]]:
    """Indices per label, reduced to the `most` (-1: all) largest scores over all labels.

    The remaining indices of a label are sorted by score.
    """
    if most < 0 or sum(len(places) for _, places in chosen) <= most:
        return chosen
    labels = np.concatenate([np.full(len(places), number) for number, (_, places) in enumerate(chosen)])
    whole = np.concatenate([places for _, places in chosen])
    order = np.argsort(-np.concatenate(scores), kind="stable")[:most]
    return [(label, whole[order][labels[order] == number]) for number, (label, _) in enumerate(chosen)]
