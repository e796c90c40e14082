"""Machines of another system in a job: what a process needs of them, whatever protocol they speak.

A process is given a `ForeignSystem` if such machines may take part. They bring neither token nor job, so what they send
is checked against the programs of the job.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.net.calls import CallService
from pstranspile.cluster.net.journal import Entry, Journal
from pstranspile.cluster.net.peer import Peer
from pstranspile.cluster.net.site import Site, SiteListener


class ForeignTrainers(SiteListener, ABC):
    """The trainers of another system, as a server of this process sees them.

    Between the turns of machines, those are given up that are missing for too long.
    """

    @property
    @abstractmethod
    def journal(self) -> Journal | None:
        """The calls that came after the kept state of the server; None where no state is kept."""

    @abstractmethod
    def service(self) -> CallService:
        """The methods that the trainers call."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The state that must be kept with the server's state and the journal of later calls."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any], entries: Iterable[Entry]) -> None:
        """Goes on from a kept state with the calls that have come after it; nobody is answered."""

    @abstractmethod
    def end_part(self, peer: Peer, reason: str) -> None:
        """Ends the part of a trainer that has sent what does not fit the job."""

    @abstractmethod
    def close(self) -> None:
        """Refuses the calls that wait: the server has ended."""


class ForeignServer(Protocol):
    """A server of another system, as a trainer of this process sees it."""

    @property
    def peer(self) -> Peer:
        """The machine of the job whose part the server plays."""
        ...

    @property
    def idle(self) -> bool:
        """Whether everything that was posted has been answered."""
        ...

    def close(self) -> None:
        """Makes no more calls; one that is under way is given up."""
        ...


class ForeignSystem(Protocol):
    """A system whose machines may take part in a job."""

    @property
    def name(self) -> str:
        """The name of the system in messages."""
        ...

    def trainers(self, site: Site, server: Server, journal: Journal | None) -> ForeignTrainers:
        """The system's trainers, for a server of this process."""
        ...

    def server(self, site: Site, peer: Peer, address: str) -> ForeignServer:
        """A server of the system, for the trainer of this process. Raises Refused if the job can't have one."""
        ...
