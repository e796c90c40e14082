"""Rules by which rows enter and leave the large tables of a job: `words enter_after=3 shrink_every=1000 ...`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Rules(NamedTuple):
    """When rows enter a large table and leave it.

    A row enters with the `enter_after`-th update that has a gradient of it, with the probability `enter_chance`; if it
    does not enter, each later such update gives it another chance. Until then its values are 0 and its gradients are
    dropped. After every `shrink_every` updates (0: never), rows leave that had no gradient in the last `drop_unseen`
    updates (0: any number), and rows whose score is below `drop_below`. The score of a row is the number of updates
    that had a gradient of it; whenever rows leave, it is multiplied by `score_decay`.
    """

    enter_after: int = 1
    enter_chance: float = 1.0
    shrink_every: int = 0
    drop_unseen: int = 0
    drop_below: float = 0.0
    score_decay: float = 0.98

    def mistake(self) -> str:
        """Why the rules can't be used; empty if they can."""
        if not 1 <= self.enter_after < 2**31:
            return f"enter_after is {self.enter_after}; a row enters with its first gradient (1) or a later one"
        if not 0 < self.enter_chance <= 1:
            return f"enter_chance is {self.enter_chance}; it must be above 0 and at most 1"
        if not (0 <= self.shrink_every < 2**31 and 0 <= self.drop_unseen < 2**31 and self.drop_below >= 0):
            return "shrink_every, drop_unseen and drop_below must not be below 0"
        if not 0 < self.score_decay <= 1:
            return f"score_decay is {self.score_decay}; it must be above 0 and at most 1"
        if (self.drop_unseen or self.drop_below) and not self.shrink_every:
            return "drop_unseen and drop_below need shrink_every"
        if self.shrink_every and not (self.drop_unseen or self.drop_below):
            return "shrink_every needs drop_unseen or drop_below"
        return ""

    @property
    def at_once(self) -> bool:
        """Whether every row enters with its first gradient."""
        return self.enter_after == 1 and self.enter_chance == 1


def most_rows(width: int) -> int:
    """The most rows of `width` elements that a table can have, since elements are counted in 63 bits.

    A large table declared with this many rows is a hash table that has a row for every 64-bit id, although there are
    more ids than rows.
    """
    return ((1 << 63) - 1) // max(width, 1)


def takes_any_id(shape: Sequence[int]) -> bool:
    """Whether a large table of these dims has a row for every id of 64 bits."""
    return len(shape) == 2 and shape[0] == most_rows(shape[1])


def parse_table(text: str) -> tuple[str, Rules]:
    """The name of a table and its rules. Raises ValueError for other text."""
    name, *settings = text.split()
    values: dict[str, int | float] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        default = Rules()._asdict().get(key)
        if not equals or default is None:
            raise ValueError(f"{name}: {setting} is none of its rules, which are {', '.join(Rules._fields)}")
        try:
            values[key] = type(default)(value)
        except ValueError:
            kind = "a whole number" if isinstance(default, int) else "a number"
            raise ValueError(f"{name}: {key} takes {kind}, not {value!r}") from None
    rules = Rules()._replace(**values)
    if rules.mistake():
        raise ValueError(f"{name}: {rules.mistake()}")
    return name, rules
