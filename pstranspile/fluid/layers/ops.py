"""Fluid's `layers.ops`, and activations: one tensor in, one of the same dims out."""

from __future__ import annotations

from pstranspile.fluid.layers.adapt import adapt, one_op
from pstranspile.fluid.layers.layer_function_generator import generate_activation_fn as generate_activation_fn
from pstranspile.fluid.layers.layer_function_generator import generate_layer_fn as generate_layer_fn
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends import layers as L
from pstranspile.frontends.layers import basic, nn, tensor

relu = adapt(L.relu, "x, name=None")
sigmoid = adapt(L.sigmoid, "x, name=None")
tanh = adapt(L.tanh, "x, name=None")
log = adapt(basic.log, "x, name=None")
abs = adapt(basic.absolute, "x, name=None")
round = adapt(nn.round_, "x, name=None")
softshrink = adapt(nn.softshrink, "x, alpha=0.5")
hard_shrink = adapt(nn.hard_shrink, "x, threshold=0.5")
thresholded_relu = adapt(nn.thresholded_relu, "x, threshold=1.0")
cumsum = adapt(tensor.cumsum, "x, axis=None, exclusive=None, reverse=None")
gelu = one_op("gelu", "x, approximate=False", "X=x", attrs="approximate")
erf = adapt(nn.erf, "x")
selu = adapt(nn.selu, "x, scale=None, alpha=None, name=None")
elu = adapt(nn.elu, "x, alpha=1.0, name=None")
relu6 = adapt(nn.relu6, "x, threshold=6.0, name=None")
pow = adapt(nn.power, "x, factor=1.0, name=None", called="pow")
stanh = adapt(nn.stanh, "x, scale_a=0.67, scale_b=1.7159, name=None")
hard_sigmoid = adapt(nn.hard_sigmoid, "x, slope=0.2, offset=0.5, name=None")
swish = one_op("swish", "x, beta=1.0, name=None", "X=x", attrs="beta")
prelu = adapt(nn.prelu, "x, mode, param_attr=None, name=None")
brelu = adapt(nn.brelu, "x, t_min=0.0, t_max=24.0, name=None")
leaky_relu = adapt(nn.leaky_relu, "x, alpha=0.02, name=None")
soft_relu = adapt(nn.soft_relu, "x, threshold=40.0, name=None")
hard_swish = adapt(nn.hard_swish, "x, threshold=6.0, scale=6.0, offset=3.0, name=None")

exp = adapt(basic.exp, "x, name=None")
sqrt = adapt(basic.sqrt, "x, name=None")
ceil = adapt(basic.ceil, "x, name=None")
floor = adapt(basic.floor, "x, name=None")
cos = adapt(basic.cos, "x, name=None")
sin = adapt(basic.sin, "x, name=None")
square = adapt(basic.square, "x, name=None")
logsigmoid = adapt(nn.logsigmoid, "x, name=None")
atan = adapt(nn.atan, "x, name=None")
tanh_shrink = adapt(nn.tanh_shrink, "x, name=None")
rsqrt = adapt(nn.rsqrt, "x, name=None")
reciprocal = adapt(nn.reciprocal, "x, name=None")
softplus = adapt(nn.softplus, "x, name=None")
softsign = adapt(nn.softsign, "x, name=None")
acos = one_op("acos", "x, name=None", "X=x")
asin = one_op("asin", "x, name=None", "X=x")
_scale = generate_layer_fn("scale")  # scripts know it by this name
_elementwise_div = generate_layer_fn("elementwise_div")  # and this one too
__getattr__ = names_of_fluid(__name__, globals())
