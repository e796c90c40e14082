"""Places on which Fluid's scripts want to compute. All is computed on the CPU."""

from __future__ import annotations

import sys


class Place:
    """The base of places; equal to every other place of its kind and number."""

    def __init__(self, device_id: int = 0):
        self.device_id = device_id

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Place) and other.device_id == self.device_id

    def set_place(self, place: Place) -> None:
        """Has the base stand for another place."""
        self._stands_for: Place = place

    def _equals(self, other: object) -> bool:
        """Whether it is the same place."""
        return self == other

    def _type(self) -> int:
        """A number for the kind of place."""
        meant = getattr(self, "_stands_for", self)
        return ["Place", "CPUPlace", "CUDAPlace", "CUDAPinnedPlace"].index(type(meant).__name__)

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.device_id))

    def __repr__(self) -> str:
        return type(self).__name__


class CPUPlace(Place):
    """The CPU."""

    def __init__(self) -> None:
        super().__init__()


_TOLD: list[str] = []


def _tell(name: str) -> None:
    if not _TOLD:
        _TOLD.append(name)
        print(f"{name}: there is no GPU here, the CPU computes", file=sys.stderr)


class CUDAPlace(Place):
    """A GPU, for which the CPU computes; that is told once on stderr."""

    def __init__(self, device_id: int = 0):
        super().__init__(device_id)
        _tell(f"CUDAPlace({device_id})")

    def __repr__(self) -> str:
        return f"CUDAPlace({self.device_id})"


class CUDAPinnedPlace(Place):
    """Memory that a GPU reads, for which ordinary memory stands."""

    def __init__(self) -> None:
        super().__init__()
