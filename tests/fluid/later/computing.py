"""What tests of the later names share: programs that are run once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import pstranspile.fluid.paddle as paddle
from tests.fluid.running import fresh


def computed(make: Callable[..., Any], *arrays: Any) -> tuple[list[Any], dict[str, Any]]:
    """What `make` gives of the arrays, and the parameters by name. Gradients of the mean of the first are computed."""
    with fresh():
        paddle.seed(3)
        names = [f"x{number}" for number in range(len(arrays))]
        read = [
            paddle.static.data(name, [-1, *held.shape[1:]], str(held.dtype))
            for name, held in zip(names, arrays, strict=True)
        ]
        made = make(*read)
        fetched = [*made] if isinstance(made, list | tuple) else [made]
        parameters = paddle.static.default_main_program().all_parameters()
        if parameters:
            paddle.optimizer.SGD(0.0).minimize(paddle.mean(fetched[0]))
        exe = paddle.static.Executor(paddle.CPUPlace())
        exe.run(paddle.static.default_startup_program())
        scope = paddle.static.global_scope()
        held = {param.name: np.array(scope.find_var(param.name).get_tensor()) for param in parameters}
        values = exe.run(feed=dict(zip(names, arrays, strict=True)), fetch_list=fetched, return_numpy=False)
        return [np.array(value) for value in values], held
