"""What a transpiler knows of a program's part in a cluster: what Fluid keeps on its Python object."""

from __future__ import annotations

from typing import NamedTuple


class DistributedVar(NamedTuple):
    """One variable held by a server: Fluid's overview of variables on pservers. Offset in elements."""

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
    """The part of a program in a cluster, under Fluid's names and with its defaults.

    `endpoints` are the parameter servers; `ps_endpoint` the one that this program is, or loads from. `is_chief` is
    trainer 0. `variables` are variables on the servers: those that a trainer fetches, or those that a server holds.
    The rest is what a multi-process executor needs in mode nccl2.
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
