"""Scripts as processes, each forked from one that has imported the package already."""

from __future__ import annotations

import atexit
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.forking import prepared


class Script:
    """`python -m pstranspile.fluid ARGUMENTS` in a process of its own, which prints to files in `folder`."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path):
        folder.mkdir(parents=True)
        self._printed = folder / "out", folder / "errors"
        names = [str(path) for path in self._printed]
        self._process: BaseProcess = prepared().Process(target=_run, args=(list(arguments), dict(environment), *names))
        self._process.start()

    def terminate(self) -> None:
        """Tells the process to end."""
        self._process.terminate()

    def communicate(self, timeout: float) -> tuple[str, str]:
        """What the process has printed on its standard output and error when it has ended."""
        self._process.join(timeout)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        out, errors = (path.read_text() for path in self._printed)
        return out, errors

    @property
    def returncode(self) -> int | None:
        """The exit status of the process; None while it runs."""
        return self._process.exitcode


def _run(arguments: list[str], environment: dict[str, str], out: str, errors: str) -> None:
    for number, name in ((1, out), (2, errors)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["", *arguments]
    try:
        runpy.run_module("pstranspile.fluid", run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
