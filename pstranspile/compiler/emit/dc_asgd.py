"""Delay-compensated ASGD: a gradient corrected for what its parameter has moved since the trainer fetched it.

g' = g + g * g * (w - w_backup), elementwise, with the backup of the trainer that sent g.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pstranspile.compiler.emit.rules import COMPENSATE, FILL_BACKUP, made
from pstranspile.compiler.emit.server_block import ServerProgram
from pstranspile.compiler.plan.names import NameMint
from pstranspile.compiler.plan.plan import PlannedParameter, Slice
from pstranspile.compiler.plan.reserved import TRAINER_ID, backup_name
from pstranspile.ir.model import Op, Origin, TensorType, Var
from pstranspile.ir.types import DType
from pstranspile.ops.build import make_op


class Compensation:
    """Compensates the gradients of one server; keeps the backups it declares, for the start-up program."""

    def __init__(self, server: ServerProgram, trainers: int):
        self.server = server
        self.trainers = trainers
        self.backups: list[tuple[str, str]] = []
        self._mint = NameMint(server.source.main_block.vars)
        self._temporaries = 0

    def append(self, block: int, parameter: PlannedParameter, s: Slice, gradient: str, origin: Origin | None) -> str:
        """Adds the ops that compensate the gradient of a slice to a block; returns the name of the result.

        `gradient` is what the optimizer takes, with weight decay or clipped; `origin` is that of the optimizer op.
        """
        tensor = TensorType(parameter.dtype, s.shape)
        copies = [backup_name(s, i) for i in range(self.trainers)]
        for name in copies:
            self.server.blocks[0].vars[name] = Var(name, tensor=tensor)
        self.backups += ((s.name, name) for name in copies)
        own = self._mint.mint(f"{s.name}.local_bak")
        names = [self._mint.mint(f"tmp_dc_output_{self._temporaries + number}") for number in range(4)]
        self._temporaries += len(names)
        local = self.server.blocks[block].vars
        local[TRAINER_ID] = Var(TRAINER_ID, tensor=TensorType(DType.INT64, (1,)))
        local.update((name, Var(name, tensor=tensor)) for name in (own, *names))
        moved, once, twice, result = names
        origin = made(origin, COMPENSATE)
        self.server.blocks[block].ops += [
            make_op("ref_by_trainer_id", {"X": copies, "TrainerId": [TRAINER_ID]}, {"Out": [own]}, origin=origin),
            make_op("elementwise_sub", {"X": [s.name], "Y": [own]}, {"Out": [moved]}, origin=origin),
            make_op("elementwise_mul", {"X": [moved], "Y": [gradient]}, {"Out": [once]}, origin=origin),
            make_op("elementwise_mul", {"X": [once], "Y": [gradient]}, {"Out": [twice]}, origin=origin),
            make_op("elementwise_add", {"X": [gradient], "Y": [twice]}, {"Out": [result]}, origin=origin),
        ]
        return result


def first_backups(backups: Iterable[tuple[str, str]], makers: Mapping[str, Origin | None]) -> list[Op]:
    """Start-up ops that fill every trainer's backup with the parameter as it is initialised.

    `makers` gives the source op that initialises each parameter.
    """
    return [
        make_op("assign", {"X": [parameter]}, {"Out": [copy]}, origin=made(makers.get(parameter), FILL_BACKUP))
        for parameter, copy in backups
    ]
