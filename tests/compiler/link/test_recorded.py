"""What Fluid emitted links in every mode where Fluid is right; where it is known to be faulty, the fault is named."""

from __future__ import annotations

import pytest

from pstranspile.compiler.link import LinkError, link
from tests.compiler.link.recorded import names, recorded

SERVER, OTHER = "127.0.0.1:6174", "127.0.0.1:6175"

FAULTS = {
    # with one trainer Fluid's server sums gradients of trainers that nobody sends
    "fit_a_line_sgd/sync_1x1": ("link-unsent", "in pserver_0: %fc_0.w_0@GRAD.trainer_0 is sent by 0 trainers"),
    "dist_table_sgd/repaired_table_sync_1x1": ("link-unsent", "in pserver_0: %fc_w@GRAD.trainer_0 is sent by 0"),
    # trainers that do not wait, servers that do: deadlock
    "fit_a_line_sgd/asyncarg_2x2": ("link-barrier", "in trainer_0: 0 send_barrier ops per step"),
    "fit_a_line_sgd/cna_nort_2x2": ("link-barrier", "in trainer_1: 0 send_barrier ops per step"),
    "fit_a_line_sgd/synccfg_false_arg_true_2x2": ("link-barrier", "in trainer_0: no server waits for it"),
    # a dispatcher by name sends gradients elsewhere than their parameters
    "fit_a_line_sgd/crc32name_noslice_2x3": ("link-send", f"%fc_0.b_0@GRAD.trainer_0 goes to {OTHER!r}"),
    "word2vec_sparse_sgd/crc32name_2x2": ("link-owner", f"%shared_w.block1 is looked up on {OTHER}, updated by none"),
    # the clipping ops are taken out of the trainer, which sends what they would have made
    "clip_norm/noslice_async_3x3": ("link-unmade", "in trainer_0: no op before it makes %clip_by_norm_0.tmp_0"),
    "clip_norm/minblk1m_2x2": ("link-unserved", "in pserver_0: %fc_0.b_0@GRAD is neither received, made"),
    # the merged lookup stands behind the first use of its result
    "lookup_chain/sync_2x2": ("link-order", "%embedding_0.tmp_0 is used by mul before it is looked up"),
    # the table is looked up here, but its rows are on the servers
    "tied_softmax_sparse/sync_2x2": ("link-unfetched", "lookup_table: in trainer_0: %tied_emb has no value"),
    "tied_softmax_sparse/rt_async_2x2": ("link-unfetched", "matmul: in trainer_1: %tied_emb has no value"),
    # what the trainer computes is overwritten by what it fetches
    "lookahead_sgd/sync_2x2": ("link-unfetched", "what the step computed for %fc_0.b_0 is overwritten"),
    # the optimizer is lost
    "opt_adadelta_dropped/sync_2x2": ("link-owner", "%fc_0.b_0 is fetched from 127.0.0.1:6174, updated by none"),
    # without a sparse table the communicator is told nothing, and never pushes
    "fit_a_line_sgd/geo_2x2": ("link-geo", "send: in trainer_0: a communicator takes no notice of a send that names"),
    "lr_exponential/geo_2x2": ("link-geo", "send: in trainer_1: a communicator takes no notice of a send that names"),
    "wide_bias/geo_2x2": ("link-geo", "send: in trainer_0: a communicator takes no notice of a send that names"),
    # an accumulator keeps the rows of the whole parameter
    "opt_rmsprop/sync_2x2": ("link-state", "%fc_0.w_0_mean_grad_0 is [100, 170], but %fc_0.w_0.block1 is [50, 170]"),
}


def findings(name: str) -> list[tuple[str, str]]:
    with pytest.raises(LinkError) as found:
        link(recorded(name).values())
    return [(finding.code, finding.message) for finding in found.value.diagnostics]


@pytest.mark.parametrize("name", [name for name in names() if name not in FAULTS])
def test_what_fluid_emits_links(name: str) -> None:
    link(recorded(name).values())


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_fluid_is_named(name: str) -> None:
    code, text = FAULTS[name]
    assert [message for found, message in findings(name) if found == code and text in message]
