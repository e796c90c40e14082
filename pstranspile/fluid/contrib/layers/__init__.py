"""Fluid's `contrib.layers`."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.contrib.layers import metric_op as metric_op
from pstranspile.fluid.contrib.layers import nn as nn
from pstranspile.fluid.contrib.layers import rnn_impl as rnn_impl
from pstranspile.fluid.contrib.layers.metric_op import ctr_metric_bundle as ctr_metric_bundle
from pstranspile.fluid.contrib.layers.nn import fused_elemwise_activation as fused_elemwise_activation
from pstranspile.fluid.contrib.layers.nn import fused_embedding_seq_pool as fused_embedding_seq_pool
from pstranspile.fluid.contrib.layers.nn import match_matrix_tensor as match_matrix_tensor
from pstranspile.fluid.contrib.layers.nn import multiclass_nms2 as multiclass_nms2
from pstranspile.fluid.contrib.layers.nn import partial_concat as partial_concat
from pstranspile.fluid.contrib.layers.nn import partial_sum as partial_sum
from pstranspile.fluid.contrib.layers.nn import rank_attention as rank_attention
from pstranspile.fluid.contrib.layers.nn import search_pyramid_hash as search_pyramid_hash
from pstranspile.fluid.contrib.layers.nn import sequence_topk_avg_pooling as sequence_topk_avg_pooling
from pstranspile.fluid.contrib.layers.nn import shuffle_batch as shuffle_batch
from pstranspile.fluid.contrib.layers.nn import tdm_child as tdm_child
from pstranspile.fluid.contrib.layers.nn import tdm_sampler as tdm_sampler
from pstranspile.fluid.contrib.layers.nn import tree_conv as tree_conv
from pstranspile.fluid.contrib.layers.nn import var_conv_2d as var_conv_2d
from pstranspile.fluid.contrib.layers.rnn_impl import BasicGRUUnit as BasicGRUUnit
from pstranspile.fluid.contrib.layers.rnn_impl import BasicLSTMUnit as BasicLSTMUnit
from pstranspile.fluid.contrib.layers.rnn_impl import basic_gru as basic_gru
from pstranspile.fluid.contrib.layers.rnn_impl import basic_lstm as basic_lstm
from pstranspile.fluid.contrib.layers.sparse import sparse_embedding as sparse_embedding
from pstranspile.fluid.missing import names_of_fluid

_get = names_of_fluid(__name__, globals())


def __getattr__(name: str) -> Any:
    return _get(name)
