"""How the packages are installed that some functions need, and that the project calls extras."""

from __future__ import annotations

from typing import Literal, TypeAlias

Extra: TypeAlias = Literal["cluster", "data", "live", "lsp", "metrics", "onnx", "plot", "ray", "torch"]
"""The extras that messages name, as `pyproject.toml` does."""


def installing(extra: Extra) -> str:
    """The command that installs an extra, and where it is run: `pip install '.[data]' in the folder of pstranspile`."""
    return f"pip install '.[{extra}]' in the folder of pstranspile"
