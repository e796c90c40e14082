"""A segment of what trainers sum, at the trainer that sums it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping

from pstranspile.cluster.machines.collectives.parts import NEVER, Piece, Statement, Total


class Segment:
    """The state of a segment. `number` is the trainer that sums it as long as that one runs.

    A trainer that sums it in place of another first waits for the reports of all running trainers: some may have sums
    that others lack, and nobody else knows which operation is next.
    """

    def __init__(self, number: int, trainers: Iterable[int], *, taking: bool):
        self.number = number
        self.queues: dict[int, deque[Piece]] = {trainer: deque() for trainer in trainers}
        self.taking = taking
        """Whether statements are waited for."""
        self.wanted: set[int] | None = None
        """Whose statements are waited for; None: this trainer does not know yet that it is the one to sum."""
        self.statements: dict[int, Statement] = {}
        self._done = NEVER
        """The last operation that was summed, here or by the trainer before."""

    def add(self, trainer: int, piece: Piece) -> None:
        """A piece has come; one that has been summed already may have been sent again."""
        if piece.key > self._done:
            self.queues[trainer].append(piece)

    def next_step(self) -> int:
        """The step of the operation that is next."""
        return min((queue[0].key[0] for queue in self.queues.values() if queue), default=0)

    def needed(self, live: Collection[int], since: Mapping[int, int]) -> set[int]:
        """The trainers that take part in the operation that is next. `since`: from which step on some do."""
        if not since:
            return set(live)
        step = self.next_step()
        return {index for index in live if since.get(index, step) <= step}

    def missing(self, live: Collection[int], since: Mapping[int, int]) -> list[int]:
        """The trainers that are waited for."""
        if self.taking:
            return sorted((self.wanted or set()) - set(self.statements))
        return sorted(index for index in self.needed(live, since) if not self.queues[index])

    def ready(self, live: Collection[int], since: Mapping[int, int]) -> bool:
        """Whether all parts of the operation that is next have come."""
        return not self.taking and bool(needed := self.needed(live, since)) and all(map(self.queues.get, needed))

    def take_parts(self, since: Mapping[int, int]) -> dict[int, Piece]:
        """The parts of the operation that is next, in the order of the trainers."""
        step = self.next_step() if since else 0
        pieces = {
            index: queue.popleft()
            for index, queue in self.queues.items()
            if queue and (not since or queue[0].key[0] <= step)
        }
        self._done = max(piece.key for piece in pieces.values())
        return pieces

    def agreed(self) -> dict[int, list[Total]] | None:
        """The sums that each trainer lacks, once all have reported; then the operation after these is next.
        None: a report is missing.
        """
        if not self.taking or self.wanted is None or self.wanted - set(self.statements):
            return None
        statements, self.taking = self.statements, False
        self.statements = {}
        known = {total.key: total for statement in statements.values() for total in statement.kept}
        last = self._done = max((statement.had for statement in statements.values()), default=NEVER)
        for queue in self.queues.values():
            while queue and queue[0].key <= last:
                queue.popleft()
        return {
            trainer: [known[key] for key in sorted(known) if statement.had < key <= last]
            for trainer, statement in statements.items()
        }
