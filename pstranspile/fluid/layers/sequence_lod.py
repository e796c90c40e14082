"""Fluid's `layers.sequence_lod`: sequences of ragged tensors."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.layers.adapt import adapt, to_core, with_argument_checks, wrap
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends.layers import sequence

sequence_conv = adapt(
    sequence.sequence_conv,
    "input, num_filters, filter_size=3, filter_stride=1, padding=True, padding_start=None, bias_attr=None, "
    "param_attr=None, act=None, name=None",
    x="input",
)
sequence_softmax = adapt(sequence.sequence_softmax, "input, use_cudnn=False, name=None", x="input")
sequence_pool = adapt(sequence.sequence_pool, "input, pool_type, is_test=False, pad_value=0.0", x="input")
sequence_concat = adapt(sequence.sequence_concat, "input, name=None", values="input")
sequence_first_step = adapt(sequence.sequence_first_step, "input", x="input")
sequence_last_step = adapt(sequence.sequence_last_step, "input", x="input")
sequence_slice = adapt(sequence.sequence_slice, "input, offset, length, name=None", x="input")
sequence_expand = adapt(sequence.sequence_expand, "x, y, ref_level=-1, name=None")
sequence_expand_as = adapt(sequence.sequence_expand_as, "x, y, name=None")
sequence_unpad = adapt(sequence.sequence_unpad, "x, length, name=None")
sequence_reshape = adapt(sequence.sequence_reshape, "input, new_dim", x="input")
sequence_scatter = adapt(sequence.sequence_scatter, "input, index, updates, name=None", x="input")
sequence_enumerate = adapt(sequence.sequence_enumerate, "input, win_size, pad_value=0, name=None", x="input")
sequence_mask = adapt(sequence.sequence_mask, "x, maxlen=None, dtype='int64', name=None")
sequence_reverse = adapt(sequence.sequence_reverse, "x, name=None")


@with_argument_checks
def sequence_pad(x: Any, pad_value: Any, maxlen: int | None = None, name: str | None = None) -> Any:
    """The sequences as one tensor, padded with `pad_value`, and their lengths."""
    made = sequence.sequence_pad(to_core(x), to_core(pad_value), maxlen=-1 if maxlen is None else maxlen)
    return tuple(wrap(list(made)))


__getattr__ = names_of_fluid(__name__, globals())
