"""Diagnostic codes of the modes without servers."""

from pstranspile.ir.codes import declare

UNDECLARED = declare(
    "collective-undeclared",
    "An op of the backward pass names a gradient in its role variables that block 0 does not declare, so it can't be "
    "summed over the trainers.",
)
UNSUMMED = declare(
    "collective-unsummed",
    "The program updates a parameter, but no op of the backward pass says in its role variables that it finishes the "
    "gradient, so it would not be summed and the trainers would drift apart.",
)
SPARSE = declare(
    "collective-sparse",
    "A gradient to sum over the trainers is sparse. The program is emitted as Fluid emits it, but Fluid's collective "
    "operators take dense tensors only.",
)
NOT_SCALED = declare(
    "collective-not-scaled",
    "Gradients are summed over the trainers, but the program does not show where the backward pass starts, so nothing "
    "is divided by the number of trainers.",
)
NOTHING = declare(
    "collective-nothing",
    "The program has nothing that a mode without servers could sum over the trainers: no gradients (a warning), or no "
    "updates of parameters in mode `local-sgd` (an error).",
)
LEFT_OUT = declare(
    "collective-left-out",
    "A parameter is marked as distributed. Modes without servers leave it out, as Fluid does, so that it differs from "
    "trainer to trainer.",
)
NAME = declare(
    "collective-name",
    "The program uses a name that a mode without servers needs for a variable of its own.",
)
