"""`paddle.static.InputSpec`: what a program is fed."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.graph.vartype import numpy_name


class InputSpec:
    """The dims, the element type and the name of what is fed; None or -1 where a dim is known at run time only."""

    def __init__(self, shape: Any, dtype: Any = "float32", name: str | None = None):
        self.shape = tuple(-1 if dim is None else int(dim) for dim in shape)
        self.dtype = dtype if isinstance(dtype, str) else numpy_name(dtype)
        self.name = name

    @classmethod
    def from_tensor(cls, tensor: Any, name: str | None = None) -> InputSpec:
        """That of a variable."""
        return cls(tensor.shape, tensor.dtype, name or tensor.name)

    @classmethod
    def from_numpy(cls, ndarray: Any, name: str | None = None) -> InputSpec:
        """That of an array."""
        return cls(ndarray.shape, str(ndarray.dtype), name)

    def batch(self, batch_size: int) -> InputSpec:
        """Puts the size of a batch in front of the dims."""
        self.shape = (int(batch_size), *self.shape)
        return self

    def unbatch(self) -> InputSpec:
        """Takes the first dim away. Raises ValueError where there is none."""
        if not self.shape:
            raise ValueError("there is no dim to take away")
        self.shape = self.shape[1:]
        return self

    def __repr__(self) -> str:
        return f"InputSpec(shape={self.shape}, dtype={self.dtype}, name={self.name})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InputSpec) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype, self.name))
