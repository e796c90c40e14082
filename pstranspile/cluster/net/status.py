"""Reports of a process of a job to the process that started it: lines of JSON on a pipe."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from typing import Any, TextIO

STATUS, PARENT, WATCHED = "PSTRANSPILE_STATUS", "PSTRANSPILE_PARENT", "PSTRANSPILE_WATCHED"
"""Environment variables: the number of the pipe to write to; whether stdin ends when the parent does; whether the
parent wants to see this process at work.
"""

WAITING, TRAINING, SERVING, DONE = "waiting", "training", "serving", "done"
"""What a process may be doing."""


class StatusPipe:
    """Sends reports to the parent, if there is one."""

    def __init__(self) -> None:
        number = os.environ.get(STATUS, "")
        self._lock = threading.Lock()
        self.watched = os.environ.get(WATCHED) == "1"
        """Whether the parent wants more than steps and states."""
        self.reported: dict[str, Any] = {}
        """The last value of each field."""
        self._stream: TextIO | None = os.fdopen(int(number), "w", buffering=1) if number.isdecimal() else None

    def __call__(self, **fields: Any) -> None:
        """Sends one line, from any thread, with the seconds of CPU used. Nothing happens if the parent is gone: this
        process then ends anyway.
        """
        fields["cpu"] = round(time.process_time(), 4)
        self.reported = {**self.reported, **fields}
        if self._stream is None:
            return
        line = json.dumps(fields, separators=(",", ":")) + "\n"
        try:
            with self._lock:
                self._stream.write(line)
        except OSError:
            self._stream = None


def end_with_parent() -> None:
    """Ends this process as by SIGTERM when its stdin is closed, however the parent ends."""
    if os.environ.get(PARENT) != "1":
        return

    def watch() -> None:
        while os.read(0, 1024):  # not through sys.stdin, whose lock would keep the process from ending
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
