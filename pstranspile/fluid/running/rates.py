"""Learning rates that scripts change between runs, as in `paddle.optimizer.lr` of 2.x."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pstranspile.fluid.missing import unsupported_error
from pstranspile.frontends.autodiff import Schedule
from pstranspile.ir.user_warnings import warn
from pstranspile.runtime.run.scope import Scope


class LRScheduler:
    """A learning rate that depends on a count of epochs, which `step` increases; subclasses compute it in `get_lr`.

    Calling the scheduler returns the present rate. Each run of a program that trains with it sets the program's
    learning rate to this rate. Raises TypeError for a rate that is not a number.
    """

    keys: tuple[str, ...] | list[str] = ("last_epoch", "last_lr")
    """The names of the attributes in `state_dict`."""

    def __init__(self, learning_rate: float = 0.1, last_epoch: int = -1, verbose: bool = False):
        if not isinstance(learning_rate, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"the learning rate of a schedule is a number, not a {type(learning_rate).__name__}")
        self.base_lr = self.last_lr = float(learning_rate)
        self.last_epoch, self.verbose = last_epoch, verbose
        self._var_name: str | None = None
        self.step()

    def __call__(self) -> float:
        """The present rate."""
        return self.last_lr

    def get_lr(self) -> float:
        """The rate for `last_epoch`."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its rates are: write get_lr")

    def on_servers(self, steps: int) -> Schedule:
        """The schedule that servers follow instead of calls of `step`: an epoch ends every `steps` updates.

        Raises NotHere for schedules that servers do not compute, as in 2.x.
        """
        raise unsupported_error(
            f"{type(self).__name__} with parameter servers",
            "take NoamDecay, ExponentialDecay, NaturalExpDecay or InverseTimeDecay",
        )

    def step(self, epoch: int | None = None) -> None:
        """Moves to the next epoch, or to a given one, and computes its rate."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        closed = None if epoch is None else getattr(self, "_get_closed_form_lr", None)
        self.last_lr = (closed or self.get_lr)()
        self._show()

    def _show(self) -> None:
        if self.verbose:
            print(f"Epoch {self.last_epoch}: {type(self).__name__} set learning rate to {self.last_lr}.")

    def state_keys(self) -> None:
        """Sets `keys`; subclasses with a larger state override it."""

    def state_dict(self) -> dict[str, Any]:
        """The state by name."""
        self.state_keys()
        return {key: vars(self)[key] for key in self.keys if key in vars(self)}

    def set_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Sets the state. Raises RuntimeError if `state_dict` lacks a part."""
        self.state_keys()
        for key in self.keys:
            if key not in state_dict:
                raise RuntimeError(f"the state of {type(self).__name__} needs {key}, which state_dict does not have")
            vars(self)[key] = state_dict[key]
        if len(state_dict) > len(self.keys):
            warn(f"{type(self).__name__} has no use for all that state_dict has")

    set_dict = set_state_dict


def set_rate(scheduler: LRScheduler, name: str, scope: Scope) -> None:
    """Sets the variable of a program's learning rate to the present rate."""
    scope.put(name, np.array([scheduler()], "float32"))
