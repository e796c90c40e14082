"""Fluid's `average`."""

from __future__ import annotations

from typing import Any

import numpy as np

from pstranspile.fluid.missing import names_of_fluid


class WeightedAverage:
    """The mean of numbers or arrays, each with a weight."""

    def __init__(self) -> None:
        self.numerator: Any = None
        self.denominator: Any = None

    def reset(self) -> None:
        """Forgets what was added."""
        self.numerator = self.denominator = None

    def add(self, value: Any, weight: Any) -> None:
        """Adds a value that counts `weight` times."""
        part = np.asarray(value, "float64") * weight
        self.numerator = part if self.numerator is None else self.numerator + part
        self.denominator = weight if self.denominator is None else self.denominator + weight

    def eval(self) -> Any:
        """The mean. Raises ValueError before anything was added."""
        if not self.denominator:
            raise ValueError("nothing was added to the average yet")
        return self.numerator / self.denominator


__getattr__ = names_of_fluid(__name__, globals())
