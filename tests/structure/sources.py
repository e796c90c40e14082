"""The valid modules that are edited: small ones of every kind, so that thousands of edits take minutes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

import pstranspile as ps
from pstranspile.ir.model import Module
from tests import recorded_fluid

ROOT = Path(__file__).parents[2]
FILES = ("ctr_dnn", "gan", "regression", "simnet_bow", "word2vec", "mlp_adam", "rmsprop_noslice", "piecewise_decay")
RECORDED = ("clip_global_norm", "dist_table_adam", "ema_sgd", "geo_sparse_small", "hsigmoid_sparse", "lookahead_sgd")
RECORDED += ("lookup_chain", "lr_polynomial_cycle", "lr_warmup", "model_average_momentum", "nce_sparse", "opt_adamax")
RECORDED += ("opt_adadelta_dropped", "opt_decayed_adagrad", "opt_dpsgd", "opt_ftrl", "opt_lars", "partial_params")
RECORDED += ("py_reader", "reg_l1", "setclip_global_norm", "sparse_l2", "static_rnn", "tied_weights", "two_losses")
RECORDED += ("two_optimizers", "v1_and_v2", "while_loop")


@cache
def _file(name: str) -> Module:
    paths = [path for path in (ROOT / "golden" / f"{name}.ir", ROOT / "examples" / f"{name}.ir") if path.exists()]
    return ps.load(paths[0])


SOURCES: Mapping[str, Callable[[], Module]] = {
    **{name: partial(_file, name) for name in FILES},
    **{name: partial(recorded_fluid.source, name) for name in RECORDED},
}
"""Name -> the module, read at its first use."""
