"""Mode geo: what three exchanges of two trainers come to, and that `check` sees every exchange done otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.machines.communicator import GeoCommunicator, GeoParameter
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize
from pstranspile.proof.check import check

JOB = ps.Job(pservers=1, trainers=2, mode="geo", geo_sgd_need_push_nums=1)


def slope() -> ps.Module:
    """A model whose one parameter starts at 0 and whose gradient is -1 in every step of every trainer."""
    draft = L.Draft(seed=1)
    attr = L.ParamAttr(name="w", initializer=L.Constant(0.0))
    minimize(L.mean(L.fc(L.data(draft, "x", [-1, 1]), 1, bias_attr=False, param_attr=attr)), SGD(1.0))
    return draft.module()


def by_hand(steps: int) -> float:
    """What the server ends with, by the recurrence that docs/reference/faults.md gives.

    Both trainers are equal at all times.
    """
    server, train, old = 0.0, [0.0, 0.0], [0.0, 0.0]
    for step in range(steps):
        for t in (0, 1):
            train[t] += 1.0
            delta = (train[t] - old[t]) / 2
            old[t] += delta
            server += delta
        if step + 1 < steps:
            for t in (0, 1):
                train[t] += server - old[t]
                old[t] = server
    return server


def test_the_exchanges_follow_the_recurrence():
    rows = np.full((3, 4, 1), -1.0, "float32")
    done = ps.simulate(ps.compile(slope(), JOB), {"x": rows})
    assert by_hand(3) == 4.25
    assert done.parameters["w"].item() == 4.25


def twice(send: Any) -> Any:
    def changed(self: GeoCommunicator, parameter: GeoParameter, step: int) -> None:
        send(self, parameter, step)
        for part in parameter.slices:
            part.link.post("send", step, part.delta, np.ones((1, 1), "float32"))

    return changed


def lost(send: Any) -> Any:
    def changed(self: GeoCommunicator, parameter: GeoParameter, step: int) -> None:
        if step != 1 or self.index:
            send(self, parameter, step)

    return changed


def shared(send: Any) -> Any:
    def changed(self: GeoCommunicator, parameter: GeoParameter, step: int) -> None:
        self._trainers = 1  # pyright: ignore[reportPrivateUsage]
        send(self, parameter, step)

    return changed


def test_check_holds_the_exchanges():
    assert check(slope(), JOB, steps=3).holds


@pytest.mark.parametrize("change", [twice, lost, shared])
def test_check_sees_another_exchange(change: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(GeoCommunicator, "_send_all", change(GeoCommunicator._send_all))  # pyright: ignore
    assert not check(slope(), JOB, steps=3).holds
