"""`python -m pstranspile.fluid.launch`, or `paddle.distributed.launch`: starts the trainers of a script as processes of
this host, with servers if asked.

`python -m paddle.distributed.fleet.launch`, which `fleetrun` starts in 2.x, does the same.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pstranspile.fluid.aliases import install_for_children
from pstranspile.fluid.launch_ps import run_cluster
from pstranspile.fluid.processes import (
    LauncherParser,
    ProcessToStart,
    meeting,
    number_of_processes,
    run_script,
)
from pstranspile.ir.startup_signals import restore

_ALL_TOGETHER = "processes that fail end all others, and nothing is started again"
_ON_THIS_HOST = "hosts are named with --ips, each with a launcher of its own"
_WITHOUT_EFFECT = {
    **dict.fromkeys(("master", "rank", "sort_ip"), _ON_THIS_HOST),
    "legacy": "there is one launcher",
    "log_overwrite": "logs of an earlier launch are moved to a folder",
    "enable_gpu_log": "all is computed on the CPU",
    **dict.fromkeys(("gloo_port", "with_gloo"), "the trainers of a launch always meet"),
    **dict.fromkeys(("max_restart", "elastic_level", "elastic_timeout"), _ALL_TOGETHER),
    "auto_parallel_config": "it is about dynamic graphs and what divides them by itself",
    "auto_tuner_json": "nothing is tuned",
}
"""Options of Paddle 2.6 that are accepted and have no effect, with the reasons."""


def parser() -> argparse.ArgumentParser:
    """The parser of the options, under Fluid's names; `--nproc_per_node` is the number of trainers, where Fluid counts
    GPUs.
    """
    result = LauncherParser(prog="launch", description="Starts the trainers of a script.")
    result.add_argument("--cluster_node_ips", default="127.0.0.1", help="all hosts, each with as many trainers")
    result.add_argument("--node_ip", "--host", default="127.0.0.1", help="this host")
    result.add_argument(
        "--started_port", "--start_port", type=int, default=6170, help="the port of the first trainer of a host"
    )
    result.add_argument("--selected_gpus", default="", help="as many trainers as are named here")
    result.add_argument(
        "--nproc_per_node", type=number_of_processes, default=None, help="how many trainers each host has"
    )
    result.add_argument("--log_dir", default=None, help="where logs go")
    result.add_argument("--log_level", default="20", help="accepted, as in Fluid")
    result.add_argument("--use_paddlecloud", action="store_true", help="accepted, as in Fluid")
    result.add_argument("--gpus", "--devices", "--npus", "--xpus", default="", help="as --selected_gpus")
    result.add_argument("--ips", default="", help="as --cluster_node_ips")
    result.add_argument("--http_port", type=int, default=0, help="accepted, as in 2.x")
    result.add_argument("--heter_workers", default="", help="refused: all trainers are alike")
    result.add_argument("--heter_worker_num", type=int, default=0, help="refused: all trainers are alike")
    result.add_argument(
        "--server_num", type=number_of_processes, default=0, help="how many servers there are beside the trainers"
    )
    result.add_argument(
        "--worker_num",
        "--trainer_num",
        type=number_of_processes,
        default=None,
        help="how many trainers, beside servers",
    )
    result.add_argument("--servers", default="", help="where the servers are, if not on ports in a row")
    result.add_argument(
        "--workers", "--trainers", default="", help="as many trainers as are listed here, beside servers"
    )
    result.add_argument("--print_config", default="True", help="accepted, as in Fluid")
    result.add_argument("--job_id", default="default", help="accepted, as in 2.x")
    result.add_argument(
        "--run_mode", choices=("collective", "ps"), default=None, help="with servers (ps) or without: they say so too"
    )
    result.add_argument("--nnodes", default="1", help="1: each host has a launcher of its own, see --ips")
    for name, why in _WITHOUT_EFFECT.items():
        result.add_argument(f"--{name}", default="", help=f"accepted, as in 2.6; it has no effect: {why}")
    result.add_argument("training_script", help="the script")
    result.add_argument("training_script_args", nargs=argparse.REMAINDER, help="its own arguments")
    return result


def launch(arguments: Sequence[str] | None = None) -> int:
    """Starts this host's trainers and waits for them; returns the exit status of the first that fails, or 0."""
    options = parser().parse_args(arguments)
    script = [options.training_script, *options.training_script_args]
    for name, why in _WITHOUT_EFFECT.items():
        if getattr(options, name):
            print(f"launch: --{name} {getattr(options, name)} has no effect: {why}", file=sys.stderr)
    if options.heter_workers or options.heter_worker_num:
        parser().error("all trainers are alike: leave out --heter_workers and --heter_worker_num")
    if 0 in (options.nproc_per_node, options.worker_num):
        parser().error("there is at least one trainer: raise --nproc_per_node, or --worker_num beside servers")
    if options.nnodes != "1":
        parser().error(f"--nnodes {options.nnodes}: name the hosts with --ips, and this one with --node_ip")
    if options.run_mode and (options.run_mode == "ps") != bool(options.server_num or options.servers):
        parser().error(f"--run_mode {options.run_mode} goes with {'' if options.run_mode == 'ps' else 'no '}servers")
    if options.server_num or options.servers:
        if options.nproc_per_node is not None and options.worker_num not in (None, options.nproc_per_node):
            parser().error("--nproc_per_node and --worker_num say how many trainers there are beside servers: give one")
        options.worker_num = options.worker_num or (None if options.workers else options.nproc_per_node)
        return _with_servers(options, script)
    if options.worker_num or options.workers:
        parser().error(
            "--worker_num and --workers are for trainers beside servers: give --server_num or --servers, or "
            "--nproc_per_node for trainers alone"
        )
    hosts = _split_at_commas(options.ips or options.cluster_node_ips)
    if options.node_ip not in hosts:
        parser().error(f"--node_ip {options.node_ip} is none of --cluster_node_ips")
    install_for_children()
    count = options.nproc_per_node or len(_split_at_commas(options.selected_gpus or options.gpus)) or 1
    endpoints = [f"{host}:{options.started_port + number}" for host in hosts for number in range(count)]
    first = hosts.index(options.node_ip) * count
    shared = meeting() if len(hosts) == 1 else {}
    trainers = [
        ProcessToStart(
            f"trainer {first + number}",
            f"workerlog.{number}",
            False,
            {
                **shared,
                "PADDLE_TRAINER_ID": str(first + number),
                "PADDLE_CURRENT_ENDPOINT": endpoints[first + number],
                "PADDLE_TRAINERS_NUM": str(len(endpoints)),
                "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            },
        )
        for number in range(count)
    ]
    return run_script(script, trainers, options.log_dir)


def _split_at_commas(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _with_servers(options: argparse.Namespace, script: Sequence[str]) -> int:
    """Starts a script with parameter servers; the options are those of the launcher of 2.x."""
    ports = [f"{options.node_ip}:{options.started_port + number}" for number in range(options.server_num)]
    servers, workers = _split_at_commas(options.servers) or ports, _split_at_commas(options.workers)
    hosts = sorted({text.rpartition(":")[0] for text in (*servers, *workers)})
    if len(hosts) > 1:
        parser().error(f"only processes of this host are started, not those of {', '.join(hosts)}")
    return run_cluster(servers, options.worker_num or len(workers) or 1, script, options.log_dir)


if __name__ == "__main__":
    restore()
    sys.exit(launch())
