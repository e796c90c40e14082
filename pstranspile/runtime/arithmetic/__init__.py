"""The functions that kernels calculate with: products, elementwise functions and sums, in numpy's rounding or another.

A kernel calls `dot`, `exp`, `root`, `sum_over`, ... and does not depend on how these are rounded. `numpy` holds numpy's
versions; within `arithmetic(module)` those of another module are used.
"""

from pstranspile.runtime.arithmetic import numpy as plain
from pstranspile.runtime.arithmetic import slopes
from pstranspile.runtime.arithmetic.choice import arithmetic as arithmetic
from pstranspile.runtime.arithmetic.choice import either as either
from pstranspile.runtime.arithmetic.choice import same_everywhere as same_everywhere
from pstranspile.runtime.arithmetic.choice import word
from pstranspile.runtime.arithmetic.numpy import is_small as is_small
from pstranspile.runtime.arithmetic.numpy import product as product
from pstranspile.runtime.arithmetic.numpy import product_of as product_of

number_of = word(plain.number_of)

dot = word(plain.dot)
matmul = word(plain.matmul)
sum_of_products = word(plain.sum_of_products)

exp = word(plain.exp)
exp_of_each = word(plain.exp_of_each)
log = word(plain.log)
log_of_each = word(plain.log_of_each)
log1p_of_each = word(plain.log1p_of_each)
softplus = word(plain.softplus)
softplus_slope = word(plain.softplus_slope)
sigmoid = word(plain.sigmoid)
tanh = word(plain.tanh)
cos = word(plain.cos)
sin = word(plain.sin)
power = word(plain.power)
root = word(plain.root)
inverse_root = word(plain.inverse_root)
over_root = word(plain.over_root)

total = word(plain.total)
norm = word(plain.norm)
sum_over = word(plain.sum_over)
sum_of_row = word(plain.sum_of_row)
sum_runs = word(plain.sum_runs)
sum_of_channels = word(plain.sum_of_channels)
norm_mean = word(plain.norm_mean)
norm_grad_mean = word(plain.norm_grad_mean)

shares_of_exp = word(plain.shares_of_exp)
minus_log_of_shares = word(plain.minus_log_of_shares)
shares_of_runs = word(plain.shares_of_runs)

FUNCTIONS = {
    function.__name__: function
    for function in (
        *(cos, exp, log, root, sigmoid, sin, softplus, softplus_slope, tanh, total),
        *(slopes.relu_grad, slopes.sigmoid_grad, slopes.tanh_grad),
    )
}
"""The functions that the expressions of kernels may call, in addition to numpy."""
