"""Models written in Python: layers that make the ops Fluid's layers make, under the same names.

from pstranspile import layers as L
from pstranspile.autodiff import Adam, minimize

model = L.Draft(seed=1)
x, y = L.data(model, "x", [-1, 13]), L.data(model, "y", [-1, 1])
loss = L.mean(L.square_error_cost(L.fc(x, 1), y))
minimize(loss, Adam(0.001))
module = model.module()
"""

from pstranspile.layers.basic import absolute as absolute
from pstranspile.layers.basic import assign as assign
from pstranspile.layers.basic import cast as cast
from pstranspile.layers.basic import ceil as ceil
from pstranspile.layers.basic import clip as clip
from pstranspile.layers.basic import clip_by_norm as clip_by_norm
from pstranspile.layers.basic import cos as cos
from pstranspile.layers.basic import elementwise as elementwise
from pstranspile.layers.basic import elementwise_add as elementwise_add
from pstranspile.layers.basic import elementwise_div as elementwise_div
from pstranspile.layers.basic import elementwise_max as elementwise_max
from pstranspile.layers.basic import elementwise_min as elementwise_min
from pstranspile.layers.basic import elementwise_mod as elementwise_mod
from pstranspile.layers.basic import elementwise_mul as elementwise_mul
from pstranspile.layers.basic import elementwise_sub as elementwise_sub
from pstranspile.layers.basic import exp as exp
from pstranspile.layers.basic import fill_constant as fill_constant
from pstranspile.layers.basic import floor as floor
from pstranspile.layers.basic import increment as increment
from pstranspile.layers.basic import layer as layer
from pstranspile.layers.basic import log as log
from pstranspile.layers.basic import reduce_mean as reduce_mean
from pstranspile.layers.basic import reduce_sum as reduce_sum
from pstranspile.layers.basic import reduction as reduction
from pstranspile.layers.basic import scale as scale
from pstranspile.layers.basic import sin as sin
from pstranspile.layers.basic import sqrt as sqrt
from pstranspile.layers.basic import square as square
from pstranspile.layers.basic import sums as sums
from pstranspile.layers.basic import unary as unary
from pstranspile.layers.branches import Switch as Switch
from pstranspile.layers.branches import logical_and as logical_and
from pstranspile.layers.branches import logical_not as logical_not
from pstranspile.layers.branches import when as when
from pstranspile.layers.conv import conv2d as conv2d
from pstranspile.layers.conv import pool2d as pool2d
from pstranspile.layers.conv import simple_img_conv_pool as simple_img_conv_pool
from pstranspile.layers.draft import Draft as Draft
from pstranspile.layers.initializers import MSRA as MSRA
from pstranspile.layers.initializers import Array as Array
from pstranspile.layers.initializers import Constant as Constant
from pstranspile.layers.initializers import Normal as Normal
from pstranspile.layers.initializers import TruncatedNormal as TruncatedNormal
from pstranspile.layers.initializers import Uniform as Uniform
from pstranspile.layers.initializers import Xavier as Xavier
from pstranspile.layers.loops import StaticRNN as StaticRNN
from pstranspile.layers.loops import array_read as array_read
from pstranspile.layers.loops import array_write as array_write
from pstranspile.layers.loops import less_than as less_than
from pstranspile.layers.loops import while_ as while_
from pstranspile.layers.loss import cos_sim as cos_sim
from pstranspile.layers.loss import cross_entropy as cross_entropy
from pstranspile.layers.loss import hsigmoid as hsigmoid
from pstranspile.layers.loss import huber_loss as huber_loss
from pstranspile.layers.loss import log_loss as log_loss
from pstranspile.layers.loss import nce as nce
from pstranspile.layers.loss import sigmoid_cross_entropy_with_logits as sigmoid_cross_entropy_with_logits
from pstranspile.layers.loss import softmax_and_loss as softmax_and_loss
from pstranspile.layers.loss import softmax_with_cross_entropy as softmax_with_cross_entropy
from pstranspile.layers.loss import square_error_cost as square_error_cost
from pstranspile.layers.metric import accuracy as accuracy
from pstranspile.layers.metric import arg_max as arg_max
from pstranspile.layers.metric import auc as auc
from pstranspile.layers.metric import top_k as top_k
from pstranspile.layers.nn import batch_norm as batch_norm
from pstranspile.layers.nn import dropout as dropout
from pstranspile.layers.nn import embedding as embedding
from pstranspile.layers.nn import embedding_v2 as embedding_v2
from pstranspile.layers.nn import fc as fc
from pstranspile.layers.nn import gelu as gelu
from pstranspile.layers.nn import layer_norm as layer_norm
from pstranspile.layers.nn import relu as relu
from pstranspile.layers.nn import sigmoid as sigmoid
from pstranspile.layers.nn import softmax as softmax
from pstranspile.layers.nn import tanh as tanh
from pstranspile.layers.parameters import ParamAttr as ParamAttr
from pstranspile.layers.parameters import create_global_var as create_global_var
from pstranspile.layers.parameters import create_parameter as create_parameter
from pstranspile.layers.parameters import data as data
from pstranspile.layers.sequence import sequence_concat as sequence_concat
from pstranspile.layers.sequence import sequence_conv as sequence_conv
from pstranspile.layers.sequence import sequence_conv_pool as sequence_conv_pool
from pstranspile.layers.sequence import sequence_expand as sequence_expand
from pstranspile.layers.sequence import sequence_pool as sequence_pool
from pstranspile.layers.sequence import sequence_softmax as sequence_softmax
from pstranspile.layers.tensor import concat as concat
from pstranspile.layers.tensor import fill_constant_batch_size_like as fill_constant_batch_size_like
from pstranspile.layers.tensor import flatten as flatten
from pstranspile.layers.tensor import matmul as matmul
from pstranspile.layers.tensor import mean as mean
from pstranspile.layers.tensor import one_hot as one_hot
from pstranspile.layers.tensor import reshape as reshape
from pstranspile.layers.tensor import slice_ as slice_
from pstranspile.layers.tensor import split as split
from pstranspile.layers.tensor import squeeze as squeeze
from pstranspile.layers.tensor import stack as stack
from pstranspile.layers.tensor import transpose as transpose
from pstranspile.layers.tensor import unsqueeze as unsqueeze
from pstranspile.layers.value import Value as Value
