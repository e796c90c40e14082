"""`DistributedStrategy.sparse_table_configs`: what scripts ask of the tables on servers, by the names of Paddle 2.x."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from pstranspile.fluid.missing import refused
from pstranspile.fluid.running.communicating import warn_unused

_PREFIX = "table_parameters"
_RULES = ("naive", "adagrad", "adam")
_OF_RULES = {
    "naive": ("learning_rate", "initial_range", "weight_bounds"),
    "adagrad": ("learning_rate", "initial_g2sum", "initial_range", "weight_bounds"),
    "adam": (
        "learning_rate",
        "initial_range",
        "beta1_decay_rate",
        "beta2_decay_rate",
        "ada_epsilon",
        "weight_bounds",
    ),
}
_ALONE = "a server keeps the rows of a table in one place"
_SCORES = "rows leave with fleet.shrink, by when they had a gradient last"
_WITHOUT_EFFECT = {
    "table_name": "tables have the names of their parameters",
    "table_id": "tables have the names of their parameters",
    "type": "a table that is looked up is sparse",
    "table_class": "rows lie in memory",
    "shard_num": _ALONE,
    "enable_sparse_table_cache": _ALONE,
    "sparse_table_cache_rate": _ALONE,
    "sparse_table_cache_file_num": _ALONE,
    "compress_in_save": "files are written as they are",
    "enable_revert": "tables are kept by checkpoints",
    "shard_merge_rate": _ALONE,
    "accessor.fea_dim": "rows have the width of the parameter",
    "accessor.embedx_dim": "rows have the width of the parameter",
    **{
        f"accessor.ctr_accessor_param.{name}": _SCORES
        for name in (
            *("nonclk_coeff", "click_coeff", "base_threshold", "delta_threshold", "delta_keep_days", "show_scale"),
            *("show_click_decay_rate", "delete_threshold", "delete_after_unseen_days", "ssd_unseenday_threshold"),
        )
    },
    **{f"accessor.graph_sgd_param.{name}": "no table is a graph" for name in ("nodeid_slot", "feature_learning_rate")},
}
"""Settings that change no value of a row."""
_BY_SCRIPT = "rows are updated by the script's optimizer, and begin as its initializer says"
_FIXED = {
    "accessor.accessor_class": "rows have values alone; take SparseAccessor",
    "accessor.embedx_threshold": "a row has all its values from the first; leave it at 0, or take CountFilterEntry",
    "accessor.ctr_accessor_param.zero_init": _BY_SCRIPT,
    **{f"accessor.ctr_accessor_param.{name}_filter_slots": "rows have no slots" for name in ("load", "save")},
    **{
        f"accessor.table_accessor_save_param.{name}": "files are written as they are"
        for name in ("num", "param", "converter", "deconverter")
    },
    **{
        f"accessor.{part}_sgd_param.{name}": _BY_SCRIPT
        for part in ("embed", "embedx")
        for name in ("name", *(f"{rule}.{key}" for rule in _RULES for key in _OF_RULES[rule]))
    },
}
"""Settings that would change values."""
_ALLOWED = {"accessor.accessor_class": "SparseAccessor", "accessor.embedx_threshold": 0}
"""What these may be set to: how tables are here."""


def checked_tables(given: Any) -> dict[str, dict[str, Any]]:
    """The settings of each table. Those that change nothing are named on stderr.

    Raises TypeError for what is not a dict of dicts, ValueError for unknown settings, and NotHere for those that would
    change what tables hold.
    """
    kind: str = type(given).__name__
    if not isinstance(given, Mapping):
        raise TypeError(f"sparse_table_configs is a dict with a dict for each table, not a {kind}")
    tables: dict[Any, Any] = {**given}  # pyright: ignore[reportUnknownArgumentType]
    made: dict[str, dict[str, Any]] = {}
    for table, settings in tables.items():
        kind = type(settings).__name__
        if not isinstance(settings, Mapping):
            raise TypeError(f"sparse_table_configs[{table!r}] is a dict, not a {kind}")
        made[table] = {**settings}  # pyright: ignore[reportUnknownArgumentType]
        for name, value in made[table].items():
            _check(str(table), str(name), value)
    return made


def _check(table: str, name: str, value: Any) -> None:
    short = name.removeprefix(f"{_PREFIX}.{table}.")
    if short not in _WITHOUT_EFFECT and short not in _FIXED:
        near = get_close_matches(short, [*_WITHOUT_EFFECT, *_FIXED], 1)
        raise ValueError(f"sparse_table_configs has no {short!r}{f'; did you mean {near[0]}?' if near else ''}")
    full = f"sparse_table_configs[{table!r}][{short!r}]"
    if short in _WITHOUT_EFFECT:
        warn_unused(full, value, _WITHOUT_EFFECT[short])
    elif short not in _ALLOWED or value != _ALLOWED[short]:
        raise refused(f"{full} = {value!r}", _FIXED[short])
