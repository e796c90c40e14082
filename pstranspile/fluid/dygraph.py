"""Fluid's `dygraph`, as far as it applies to programs: layers as objects, which add ops to the program in use when
called.

There are no eager tensors, so everything that needs `dygraph.guard` is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pstranspile.fluid import layers as functions
from pstranspile.fluid.layers import objects
from pstranspile.fluid.layers.adapt import check_variable, to_core, wrap
from pstranspile.fluid.layers.objects import Layer
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.frontends.layers.basic import layer_outputs

layers = objects
"""Fluid's `dygraph.layers`."""


class Embedding(Layer):
    """A lookup of ids in a table ([rows, size])."""

    def __init__(
        self,
        size: Sequence[int],
        is_sparse: bool = False,
        is_distributed: bool = False,
        padding_idx: int | None = None,
        param_attr: Any = None,
        dtype: Any = "float32",
    ):
        super().__init__()
        padding = -1 if padding_idx is None else padding_idx if padding_idx >= 0 else size[0] + padding_idx
        self._attrs: dict[str, object] = {
            "is_sparse": is_sparse,
            "is_distributed": is_distributed,
            "remote_prefetch": is_sparse and not is_distributed,
            "padding_idx": padding,
        }
        self.weight = self.create_parameter(size, param_attr, dtype)

    def forward(self, input: Any) -> Any:
        """The rows of the ids (int64), with the dims of the ids followed by the size of a row. Raises TypeError for
        other inputs.
        """
        check_variable("Embedding", "input", input, ("int64",))
        ids, table = to_core(input), to_core(self.weight)
        made = layer_outputs(
            "lookup_table_v2", {"Ids": ids, "W": table}, {"Out": table.dtype}, self._attrs, name=self.full_name()
        )
        return wrap(made[0])


class Linear(Layer):
    """A layer input * weight + bias, followed by an activation."""

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        act: str | None = None,
        dtype: Any = "float32",
    ):
        super().__init__()
        self._act = act
        self.weight = self.create_parameter([input_dim, output_dim], param_attr, dtype)
        self.bias = self.create_parameter([output_dim], bias_attr, dtype, is_bias=True)

    def forward(self, input: Any) -> Any:
        """The input [..., input_dim] mapped to [..., output_dim]."""
        made = functions.matmul(input, self.weight)
        if self.bias is not None:
            made = functions.elementwise_add(made, self.bias, axis=len(input.shape) - 1)
        return self._helper.append_activation(made, self._act)


__getattr__ = names_of_fluid(__name__, globals())
