"""`python -m paddle.distributed.launch`: the trainers of a collective script as processes of this host."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pstranspile.fluid.aliases import install_for_children
from pstranspile.fluid.paddle.distributed.processes import start, wait


def parser() -> argparse.ArgumentParser:
    """The options, under Fluid's names; `--nproc_per_node` says how many trainers, where Fluid counts GPUs."""
    made = argparse.ArgumentParser(prog="launch", description="Starts the trainers of a script.")
    made.add_argument("--cluster_node_ips", default="127.0.0.1", help="all hosts, each with as many trainers")
    made.add_argument("--node_ip", default="127.0.0.1", help="this host")
    made.add_argument("--started_port", type=int, default=6170, help="the port of the first trainer of a host")
    made.add_argument("--selected_gpus", default="", help="as many trainers as are named here")
    made.add_argument("--nproc_per_node", type=int, default=0, help="how many trainers each host has")
    made.add_argument("--log_dir", default=None, help="where logs go")
    made.add_argument("--log_level", default="20", help="accepted, as in Fluid")
    made.add_argument("--use_paddlecloud", action="store_true", help="accepted, as in Fluid")
    made.add_argument("--print_config", default="True", help="accepted, as in Fluid")
    made.add_argument("training_script", help="the script")
    made.add_argument("training_script_args", nargs=argparse.REMAINDER, help="its own arguments")
    return made


def launch(arguments: Sequence[str] | None = None) -> int:
    """Starts this host's trainers and waits for them; gives the exit status of the first that fails, or 0."""
    options = parser().parse_args(arguments)
    hosts = [text.strip() for text in options.cluster_node_ips.split(",")]
    if options.node_ip not in hosts:
        parser().error(f"--node_ip {options.node_ip} is none of --cluster_node_ips")
    install_for_children()
    count = options.nproc_per_node or len([gpu for gpu in options.selected_gpus.split(",") if gpu]) or 1
    endpoints = [f"{host}:{options.started_port + number}" for host in hosts for number in range(count)]
    first = hosts.index(options.node_ip) * count
    script = [options.training_script, *options.training_script_args]
    workers = [
        start(
            f"workerlog.{number}",
            script,
            {
                "PADDLE_TRAINER_ID": str(first + number),
                "PADDLE_CURRENT_ENDPOINT": endpoints[first + number],
                "PADDLE_TRAINERS_NUM": str(len(endpoints)),
                "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            },
            options.log_dir,
        )
        for number in range(count)
    ]
    return wait(workers)


if __name__ == "__main__":
    sys.exit(launch())
