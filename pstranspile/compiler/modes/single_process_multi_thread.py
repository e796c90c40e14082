"""Mode single-process-multi-thread: as grad-allreduce, for the devices of one process."""

from __future__ import annotations

from pstranspile.compiler.modes.grad_allreduce import GradAllreduce


class SingleProcess(GradAllreduce):
    """The devices of one process form one ring by themselves, and share their parameters."""

    settings = GradAllreduce.settings._replace(
        doc="no servers: as grad-allreduce, for the devices of one process",
        cause="collective_mode = single_process_multi_thread",
        options=(),
    )

    in_one_process = True


MODE = SingleProcess()
