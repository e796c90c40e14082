"""The base of layers as objects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pstranspile.fluid import unique_name
from pstranspile.fluid.graph.variable import Parameter
from pstranspile.fluid.layer_helper import LayerHelper

_WORDS = re.compile(r"(?<=.)(?=[A-Z][a-z])|(?<=[a-z])(?=[A-Z])")
"""The beginning of a word in a class's name, by Fluid's rule."""


class Layer:
    """A layer with its parameters and the layers within it; a call makes its ops in the program in use."""

    def __init__(self, name_scope: str | None = None, dtype: Any = "float32"):
        scope = name_scope or _WORDS.sub("_", type(self).__name__).lower()
        self._full_name = unique_name.generate(scope)
        self._helper = LayerHelper(scope, name=self._full_name)
        self._dtype = dtype
        self.training = True
        self._built = False
        self._parameters: dict[str, Parameter] = {}
        self._sub_layers: dict[str, Layer] = {}

    def full_name(self) -> str:
        """The layer's name, with its number."""
        return self._full_name

    def create_parameter(
        self,
        shape: Any,
        attr: Any = None,
        dtype: Any = "float32",
        is_bias: bool = False,
        default_initializer: Any = None,
    ) -> Any:
        """A parameter called after the layer; None where `attr` is False."""
        return self._helper.create_parameter(attr, shape, dtype, is_bias, default_initializer)

    def add_parameter(self, name: str, parameter: Any) -> Any:
        """Makes a parameter one of the layer's; gives it back. Raises TypeError for anything else."""
        if not isinstance(parameter, Parameter):
            raise TypeError(f"add_parameter takes a Parameter, not {type(parameter).__name__}")
        self._parameters[name] = parameter
        return parameter

    def add_sublayer(self, name: str, sublayer: Layer) -> Layer:
        """Makes a layer one of those within this one; gives it back. Raises TypeError for anything else."""
        if not isinstance(sublayer, Layer):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"add_sublayer takes a Layer, not {type(sublayer).__name__}")
        self._sub_layers[name] = sublayer
        return sublayer

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Parameter):
            self.add_parameter(name, value)
        elif isinstance(value, Layer):
            self.add_sublayer(name, value)
        object.__setattr__(self, name, value)

    def named_sublayers(self, prefix: str = "", include_sublayers: bool = True) -> Iterator[tuple[str, Layer]]:
        """The layers within this one, with their names, `outer.inner` for those within them."""
        for name, layer in self._sub_layers.items():
            yield prefix + name, layer
            if include_sublayers:
                yield from layer.named_sublayers(f"{prefix}{name}.")

    def sublayers(self, include_sublayers: bool = True) -> list[Layer]:
        """The layers within this one."""
        return [layer for _, layer in self.named_sublayers(include_sublayers=include_sublayers)]

    def named_parameters(self, prefix: str = "", include_sublayers: bool = True) -> Iterator[tuple[str, Any]]:
        """The parameters with their names, `layer.name` for those of layers within this one."""
        for name, parameter in self._parameters.items():
            yield prefix + name, parameter
        if include_sublayers:
            for name, layer in self._sub_layers.items():
                yield from layer.named_parameters(f"{prefix}{name}.")

    def parameters(self, include_sublayers: bool = True) -> list[Any]:
        """The parameters, those of layers within this one too."""
        return [parameter for _, parameter in self.named_parameters(include_sublayers=include_sublayers)]

    def train(self) -> None:
        """Sets `training` in the layer and those within it."""
        for layer in (self, *self.sublayers()):
            layer.training = True

    def eval(self) -> None:
        """Takes `training` back in the layer and those within it."""
        for layer in (self, *self.sublayers()):
            layer.training = False

    def _build_once(self, *inputs: Any, **kwargs: Any) -> None:
        """Makes the parameters that need the inputs to be known; called before the first `forward`."""

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        """What `forward` gives."""
        if not self._built:
            self._build_once(*inputs, **kwargs)
            self._built = True
        return self.forward(*inputs, **kwargs)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """What the layer makes of its inputs. Raises NotImplementedError here: each layer has its own."""
        raise NotImplementedError(f"{type(self).__name__} must define forward(inputs)")
