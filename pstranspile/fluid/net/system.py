"""Fluid 1.8 as a system whose machines may take part in a job."""

from __future__ import annotations

from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.net.journal import Journal
from pstranspile.cluster.net.peer import Peer
from pstranspile.cluster.net.site import Site
from pstranspile.fluid.net.client import FluidClient
from pstranspile.fluid.net.service import FluidService


class FluidSystem:
    """Real trainers and servers of Fluid, by its own network protocol (gRPC with VariableMessages)."""

    name = "Fluid"

    def trainers(self, site: Site, server: Server, journal: Journal | None) -> FluidService:
        """Fluid's trainers, for a server of this process."""
        return FluidService(site, server, journal)

    def server(self, site: Site, peer: Peer, address: str) -> FluidClient:
        """A server of Fluid, for the trainer of this process. Raises Refused if the job can't have one."""
        return FluidClient(site, peer, address)
