"""Codes of findings about gradients and optimizers."""

from __future__ import annotations

from pstranspile.ir.codes import declare

LOSS_UNKNOWN = declare("loss-unknown", "The loss is not a variable that an op of block 0 writes.")
LOSS_SHAPE = declare("loss-shape", "The loss must be a tensor with one element.")
NOT_DIFFERENTIABLE = declare(
    "not-differentiable",
    "A trainable parameter reaches the loss only through an op that has no gradient, so it can't be trained.",
)
NO_PARAMETERS = declare(
    "no-trainable-parameters", "No trainable parameter has a gradient, so there is nothing to train."
)
UNKNOWN_NAME = declare(
    "training-name-unknown", "A name given as a parameter to train, or as letting no gradient through, is not declared."
)
TRAINED_TWICE = declare(
    "trained-twice",
    "The program updates a parameter to train already, so each step would update it twice.",
)
