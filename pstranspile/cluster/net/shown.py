"""Fetched values for display: a few numbers as they are, of more the smallest, the mean and the largest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pstranspile.ir.visible import visible

FEW = 4
"""Numbers that are shown one by one."""


class Shown(NamedTuple):
    """What is shown of a value, or of the values of several trainers together.

    `form` is "" for a number, else element type and dims: `f32[20, 3]`. `few` are the numbers of a value that has only
    few; `low`, `mean` and `high` are of all numbers, or None where there are none.
    """

    form: str
    few: tuple[float, ...] = ()
    low: float | None = None
    mean: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        """`0.25`, `f32[2, 1]: 0.25 0.5`, `f32[20, 3] min 0.1 mean 0.25 max 0.4`, or `min 0.1 mean 0.25 max 0.4`."""
        if self.few:
            return (f"{self.form}: " if self.form else "") + " ".join(f"{number:.6g}" for number in self.few)
        if self.mean is None:
            return self.form
        return f"{self.form} min {self.low:.6g} mean {self.mean:.6g} max {self.high:.6g}".lstrip()


NOTHING = Shown("no rows")
"""What is shown of a trainer that was fed no rows."""


def shown(value: Any) -> Shown:
    """What is shown of one fetched value: an array, a LoDTensor, SelectedRows or anything else; None had no rows."""
    if value is None:
        return NOTHING
    from pstranspile.runtime.run.describe import describe, is_number, numbers_of

    numbers = numbers_of(value)
    if numbers is None or numbers.dtype.kind not in "biuf" or not numbers.size:
        return Shown(describe(value))
    few = tuple(map(float, numbers.ravel())) if numbers.size <= FEW else ()
    extent = float(numbers.min()), float(numbers.mean(dtype="float64")), float(numbers.max())
    return Shown("" if is_number(value) else describe(value), few, *extent)


def together(values: Iterable[Shown]) -> Shown:
    """What is shown of the values of one name on several trainers."""
    known = [value for value in values if value is not NOTHING] or [NOTHING]
    forms = list(dict.fromkeys(value.form for value in known if value.form))
    form = forms[0] + (" ..." if len(forms) > 1 else "") if forms else ""
    means = [value.mean for value in known if value.mean is not None]
    if not means:
        return Shown(form)
    low = min(value.low for value in known if value.low is not None)
    high = max(value.high for value in known if value.high is not None)
    return Shown(form, (), low, sum(means) / len(means), high)


def values_text(values: Mapping[str, Shown], prefix: str = "") -> str:
    """`loss 0.25  accuracy 0.9`, each name after the prefix."""
    return "  ".join(f"{prefix}{visible(name)} {value}" for name, value in values.items())


def numbers_first(values: Mapping[str, Shown]) -> dict[str, Shown]:
    """The same with single numbers in front, for lines whose end may be cut off."""
    return dict(sorted(values.items(), key=lambda item: item[1].form != ""))
