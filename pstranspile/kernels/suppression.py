"""What kernels share that choose among boxes: the likeliest ones, and those that overlap no likelier one too much."""

from __future__ import annotations

import numpy as np

from pstranspile.kernels.boxes import overlaps
from pstranspile.values import Array


def likeliest(scores: Array, threshold: float, most: int) -> Array:
    """The places of at most so many scores above a threshold, largest first; of equal ones the first. -1: all."""
    places = np.nonzero(scores > threshold)[0]
    order = places[np.argsort(-scores[places], kind="stable")]
    return order[:most] if most > -1 else order


def kept(boxes: Array, order: Array, threshold: float, eta: float, edge: int) -> Array:
    """Of places of boxes, taken in order, those that overlap none that is kept by more than the threshold.

    While the threshold is above one half, each that is kept lowers it to `eta` times itself.
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


def best_of(found: list[tuple[int, Array]], scores: list[Array], most: int) -> list[tuple[int, Array]]:
    """Places per label, reduced to those of the largest scores of all labels, if they are more. -1: all.

    Those of a label that are left are in the order of their scores.
    """
    if most < 0 or sum(len(places) for _, places in found) <= most:
        return found
    labels = np.concatenate([np.full(len(places), number) for number, (_, places) in enumerate(found)])
    whole = np.concatenate([places for _, places in found])
    order = np.argsort(-np.concatenate(scores), kind="stable")[:most]
    return [(label, whole[order][labels[order] == number]) for number, (label, _) in enumerate(found)]
