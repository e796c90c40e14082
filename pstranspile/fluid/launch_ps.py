"""`python -m pstranspile.fluid.launch_ps`, or `paddle.distributed.launch_ps`: starts servers and trainers of a script
as processes of this host.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pstranspile.fluid.aliases import install_for_children
from pstranspile.fluid.processes import (
    LauncherParser,
    ProcessToStart,
    meeting,
    number_of_processes,
    run_script,
)
from pstranspile.ir.startup_signals import restore


def parser() -> argparse.ArgumentParser:
    """The parser of the options, under Fluid's names."""
    result = LauncherParser(prog="launch_ps", description="Starts servers and trainers of a script.")
    result.add_argument("--cluster_node_ips", default="127.0.0.1", help="hosts; only this one is started")
    result.add_argument("--node_ip", default="127.0.0.1", help="this host")
    result.add_argument("--start_port", type=int, default=6170, help="the port of the first server")
    result.add_argument("--print_config", default="True", help="accepted, as in Fluid")
    result.add_argument("--endpoints", default="", help="where the servers are, if not on ports in a row")
    result.add_argument("--worker_num", type=number_of_processes, default=2, help="how many trainers")
    result.add_argument("--server_num", type=number_of_processes, default=2, help="how many servers")
    result.add_argument("--log_dir", default="logs", help="where logs go")
    result.add_argument("training_script", help="the script")
    result.add_argument("training_script_args", nargs=argparse.REMAINDER, help="its own arguments")
    return result


def launch(arguments: Sequence[str] | None = None) -> int:
    """Starts all processes and waits for them; returns the exit status of the first that fails, or 0."""
    options = parser().parse_args(arguments)
    if options.cluster_node_ips != options.node_ip:
        parser().error("only processes of this host are started: start each host's by itself, with --endpoints")
    ports = [f"{options.node_ip}:{options.start_port + number}" for number in range(options.server_num)]
    endpoints = [text for text in options.endpoints.split(",") if text] or ports
    if not endpoints or not options.worker_num:
        parser().error("there is at least one server and one trainer: raise --server_num and --worker_num")
    script = [options.training_script, *options.training_script_args]
    return run_cluster(endpoints, options.worker_num, script, options.log_dir)


def run_cluster(endpoints: Sequence[str], worker_num: int, script: Sequence[str], log_dir: str | None) -> int:
    """Starts servers and trainers of a script on this host and waits for them; returns the first exit status that is
    not 0, or 0.
    """
    install_for_children()
    shared = {"PADDLE_PSERVERS_IP_PORT_LIST": ",".join(endpoints), "PADDLE_TRAINERS_NUM": str(worker_num), **meeting()}
    servers = [
        ProcessToStart(
            f"server {number}",
            f"serverlog.{number}",
            True,
            {
                **shared,
                "TRAINING_ROLE": "PSERVER",
                "POD_IP": endpoint.rpartition(":")[0],
                "PADDLE_PORT": endpoint.rpartition(":")[2],
            },
        )
        for number, endpoint in enumerate(endpoints)
    ]
    trainers = [
        ProcessToStart(
            f"trainer {number}",
            f"workerlog.{number}",
            False,
            {**shared, "TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(number)},
        )
        for number in range(worker_num)
    ]
    return run_script(script, [*servers, *trainers], log_dir, endpoints)


if __name__ == "__main__":
    restore()
    sys.exit(launch())
