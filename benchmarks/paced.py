"""Machines of a job whose processes run on this host, each with a link of its own that carries a given rate."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

HUB = f"pstr-{os.getpid()}"
"""The network in which the links of all machines meet."""

BURST = 18_000
"""The bytes that a link carries at once."""

HELD = 4_000_000
"""The bytes that wait for a link at most."""

ENTER = """\
import ctypes, sys
words = sys.argv
if "--role" in words and "start" in words:
    role = words[words.index("--role") + 1]
    places = dict(part.split("=") for part in {places!r}.split())
    with open("/run/netns/{hub}-" + role) as network:
        if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), 0x40000000):
            raise OSError(ctypes.get_errno(), "setns")
    for at, word in enumerate(words):
        name, equals, address = word.partition("=")
        if equals and words[at - 1] == "--address" and name in places:
            words[at] = name + "=" + places[name] + ":" + address.rpartition(":")[2]
    words.append("--insecure")
"""
"""What the process of a machine does first: it enters its network, where the servers have other addresses."""


def run(*words: str) -> None:
    """Runs a command. Raises CalledProcessError if it fails."""
    subprocess.run(words, check=True)


@contextmanager
def paced(roles: Sequence[str], rate: float) -> Generator[None]:
    """Processes with these roles that are started meanwhile have links of `rate` bytes per second in each direction."""
    if sys.platform != "linux" or os.geteuid() or not shutil.which("ip") or not shutil.which("tc"):
        raise SystemExit("links of a given rate need Linux, the commands ip and tc, and the rights of root")
    shape = f"tbf rate {round(rate * 8)}bit burst {BURST} limit {HELD}".split()
    with ExitStack() as at_end:
        before_term = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        at_end.callback(signal.signal, signal.SIGTERM, before_term)  # networks outlive the process that made them
        place = Path(at_end.enter_context(tempfile.TemporaryDirectory()))
        places = " ".join(f"{role}=10.77.0.{number + 1}" for number, role in enumerate(roles))
        (place / "sitecustomize.py").write_text(ENTER.format(places=places, hub=HUB))
        run("ip", "netns", "add", HUB)
        at_end.callback(run, "ip", "netns", "del", HUB)
        run("ip", "-n", HUB, "link", "add", "hub", "mtu", "9000", "type", "bridge")
        run("ip", "-n", HUB, "link", "set", "hub", "up")
        for number, role in enumerate(roles):
            own, port = f"{HUB}-{role}", f"port{number}"
            run("ip", "netns", "add", own)
            at_end.callback(run, "ip", "netns", "del", own)
            peer = ("peer", "name", "wire", "mtu", "9000", "netns", own)
            run("ip", "-n", HUB, "link", "add", port, "mtu", "9000", "type", "veth", *peer)
            run("ip", "-n", HUB, "link", "set", port, "master", "hub", "up")
            run("ip", "-n", own, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "wire")
            for name in ("lo", "wire"):
                run("ip", "-n", own, "link", "set", "dev", name, "up")
            run("tc", "-n", own, "qdisc", "add", "dev", "wire", "root", *shape)
            run("tc", "-n", HUB, "qdisc", "add", "dev", port, "root", *shape)
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = str(place) + (os.pathsep + before if before else "")
        try:
            yield
        finally:
            if before is None:
                os.environ.pop("PYTHONPATH")
            else:
                os.environ["PYTHONPATH"] = before
