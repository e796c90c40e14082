"""`paddle.distributed.fleet.metrics`: metrics over all trainers, computed from counters in programs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pstranspile.fluid.executor import global_scope
from pstranspile.fluid.missing import hold_parts
from pstranspile.fluid.paddle.distributed.fleet.one_fleet import fleet


def _over_all(given: Any, scope: Any, util: Any, mode: str) -> np.ndarray:
    """The reduction over all trainers of an array, which is given as a variable, by a variable's name, or itself."""
    if not isinstance(given, str):
        given = getattr(given, "name", given)
    if isinstance(given, str):
        found = (scope or global_scope()).find_var(given)
        if found is None:
            raise ValueError(f"the scope has no variable {given}")
        given = np.array(found.get_tensor())
    return np.asarray((util or fleet.util).all_reduce(np.asarray(given), mode))


def sum(input: Any, scope: Any = None, util: Any = None) -> Any:
    """The sum over all trainers, element by element."""
    return _over_all(input, scope, util, "sum")


def max(input: Any, scope: Any = None, util: Any = None) -> Any:
    """The maximum over all trainers, element by element."""
    return _over_all(input, scope, util, "max")


def min(input: Any, scope: Any = None, util: Any = None) -> Any:
    """The minimum over all trainers, element by element."""
    return _over_all(input, scope, util, "min")


def _share(part: Any, whole: Any, scope: Any, util: Any) -> float:
    return float(_over_all(part, scope, util, "sum").sum() / _over_all(whole, scope, util, "sum").sum())


def acc(correct: Any, total: Any, scope: Any = None, util: Any = None) -> float:
    """The share of correct predictions over all trainers."""
    return _share(correct, total, scope, util)


def mae(abserr: Any, total_ins_num: Any, scope: Any = None, util: Any = None) -> float:
    """The mean absolute error over all trainers."""
    return _share(abserr, total_ins_num, scope, util)


def mse(sqrerr: Any, total_ins_num: Any, scope: Any = None, util: Any = None) -> float:
    """The mean squared error over all trainers."""
    return _share(sqrerr, total_ins_num, scope, util)


def rmse(sqrerr: Any, total_ins_num: Any, scope: Any = None, util: Any = None) -> float:
    """The root of the mean squared error over all trainers."""
    return math.sqrt(mse(sqrerr, total_ins_num, scope, util))


def auc(stat_pos: Any, stat_neg: Any, scope: Any = None, util: Any = None) -> float:
    """The area under the curve over all trainers, from the counts of predictions in ranges; 0.5 where one of the labels
    is missing.
    """
    right, wrong = (_over_all(stat, scope, util, "sum").ravel()[::-1] for stat in (stat_pos, stat_neg))
    rising, along = np.cumsum(right, dtype="float64"), wrong.astype("float64")
    area = (along * (rising - right / 2.0)).sum()
    all_pairs = rising[-1] * along.sum()
    return 0.5 if all_pairs == 0 else float(area / all_pairs)


hold_parts(__name__, globals())
