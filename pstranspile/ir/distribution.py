"""How a program takes part in a cluster: the data that Fluid's transpiler attaches to its Python
object of the program.
"""

from __future__ import annotations

from typing import NamedTuple


class DistributedVar(NamedTuple):
    """A variable on a parameter server, as an entry of Fluid's overview of variables on pservers. `offset` counts
    elements.
    """

    origin: str
    origin_shape: tuple[int, ...]
    slice: str
    slice_shape: tuple[int, ...]
    is_slice: bool
    block_id: int
    offset: int
    endpoint: str
    vtype: str


class Distribution(NamedTuple):
    """The part that a program takes in a cluster, in fields with Fluid's names and defaults.

    `endpoints` are the parameter servers; `ps_endpoint` is the one that runs this program, or that it loads from.
    `is_chief` is true for trainer 0. `variables` are the variables on servers that a trainer fetches, or that a server
    holds. The other fields are for a multi-process executor in mode nccl2.
    """

    is_distributed: bool = False
    is_chief: bool = False
    endpoints: tuple[str, ...] = ()
    ps_endpoint: str | None = None
    distributed_lookup_table: str | None = None
    trainers_endpoints: tuple[str, ...] = ()
    nccl_comm_num: int = 1
    use_hierarchical_allreduce: bool = False
    hierarchical_allreduce_inter_nranks: int = 0
    variables: tuple[DistributedVar, ...] = ()
