"""Places on which Fluid's scripts ask to compute. Everything is computed on the CPU."""

from __future__ import annotations

import sys


class Place:
    """The base class of places; two places are equal if they have the same kind and number."""

    def __init__(self, device_id: int = 0):
        self.device_id = device_id

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Place) and other.device_id == self.device_id

    def set_place(self, place: Place) -> None:
        """Makes this general place stand for another place."""
        self._stands_for: Place = place

    def _equals(self, other: object) -> bool:
        """Whether this place equals another one."""
        return self == other

    def _type(self) -> int:
        """The number of the kind of place."""
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
    """A GPU, which the CPU replaces; this is reported once on stderr."""

    def __init__(self, device_id: int = 0):
        super().__init__(device_id)
        _tell(f"CUDAPlace({device_id})")

    def __repr__(self) -> str:
        return f"CUDAPlace({self.device_id})"


class CUDAPinnedPlace(Place):
    """Memory that a GPU can read, which ordinary memory replaces."""

    def __init__(self) -> None:
        super().__init__()
