"""The names of Fluid's `contrib`."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.contrib import decoder as decoder
from pstranspile.fluid.contrib import extend_optimizer as extend_optimizer
from pstranspile.fluid.contrib import layers as layers
from pstranspile.fluid.contrib import mixed_precision as mixed_precision
from pstranspile.fluid.contrib import model_stat as model_stat
from pstranspile.fluid.contrib import quantize as quantize
from pstranspile.fluid.contrib import reader as reader
from pstranspile.fluid.contrib import utils as utils
from pstranspile.fluid.contrib.decoder import BeamSearchDecoder as BeamSearchDecoder
from pstranspile.fluid.contrib.decoder import InitState as InitState
from pstranspile.fluid.contrib.decoder import StateCell as StateCell
from pstranspile.fluid.contrib.decoder import TrainingDecoder as TrainingDecoder
from pstranspile.fluid.contrib.extend_optimizer import (
    extend_with_decoupled_weight_decay as extend_with_decoupled_weight_decay,
)
from pstranspile.fluid.contrib.layers import BasicGRUUnit as BasicGRUUnit
from pstranspile.fluid.contrib.layers import BasicLSTMUnit as BasicLSTMUnit
from pstranspile.fluid.contrib.layers import basic_gru as basic_gru
from pstranspile.fluid.contrib.layers import basic_lstm as basic_lstm
from pstranspile.fluid.contrib.layers import ctr_metric_bundle as ctr_metric_bundle
from pstranspile.fluid.contrib.layers import fused_elemwise_activation as fused_elemwise_activation
from pstranspile.fluid.contrib.layers import fused_embedding_seq_pool as fused_embedding_seq_pool
from pstranspile.fluid.contrib.layers import match_matrix_tensor as match_matrix_tensor
from pstranspile.fluid.contrib.layers import multiclass_nms2 as multiclass_nms2
from pstranspile.fluid.contrib.layers import partial_concat as partial_concat
from pstranspile.fluid.contrib.layers import partial_sum as partial_sum
from pstranspile.fluid.contrib.layers import rank_attention as rank_attention
from pstranspile.fluid.contrib.layers import search_pyramid_hash as search_pyramid_hash
from pstranspile.fluid.contrib.layers import sequence_topk_avg_pooling as sequence_topk_avg_pooling
from pstranspile.fluid.contrib.layers import shuffle_batch as shuffle_batch
from pstranspile.fluid.contrib.layers import tdm_child as tdm_child
from pstranspile.fluid.contrib.layers import tdm_sampler as tdm_sampler
from pstranspile.fluid.contrib.layers import tree_conv as tree_conv
from pstranspile.fluid.contrib.layers import var_conv_2d as var_conv_2d
from pstranspile.fluid.contrib.model_stat import memory_usage as memory_usage
from pstranspile.fluid.contrib.model_stat import op_freq_statistic as op_freq_statistic
from pstranspile.fluid.contrib.model_stat import summary as summary
from pstranspile.fluid.contrib.quantize import QuantizeTranspiler as QuantizeTranspiler
from pstranspile.fluid.contrib.reader import distributed_batch_reader as distributed_batch_reader
from pstranspile.fluid.contrib.utils import HDFSClient as HDFSClient
from pstranspile.fluid.contrib.utils import multi_download as multi_download
from pstranspile.fluid.contrib.utils import multi_upload as multi_upload
from pstranspile.fluid.missing import names_of_fluid

memory_usage_calc = model_stat
"""Fluid's module of the memory that variables need."""
op_frequence = model_stat
"""Fluid's module of the frequencies of ops in a program."""

_get = names_of_fluid(__name__, globals())


def __getattr__(name: str) -> Any:
    return _get(name)
