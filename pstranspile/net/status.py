"""What a process of a job tells the one that started it: lines of JSON on a pipe."""

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
    """Tells the parent how it goes, if there is one."""

    def __init__(self) -> None:
        number = os.environ.get(STATUS, "")
        self._lock = threading.Lock()
        self.watched = os.environ.get(WATCHED) == "1"
        """Whether the parent wants to be told more than steps and states."""
        self.told: dict[str, Any] = {}
        """What was told last, by the name of the field."""
        self._stream: TextIO | None = os.fdopen(int(number), "w", buffering=1) if number.isdecimal() else None

    def __call__(self, **fields: Any) -> None:
        """Sends one line, from any thread, with the seconds of CPU that were used. A parent that is gone is not missed:
        this process then ends anyway.
        """
        fields["cpu"] = round(time.process_time(), 4)
        self.told = {**self.told, **fields}
        if self._stream is None:
            return
        line = json.dumps(fields, separators=(",", ":")) + "\n"
        try:
            with self._lock:
                self._stream.write(line)
        except OSError:
            self._stream = None


def end_with_parent() -> None:
    """Has this process end as by SIGTERM when the parent's end of its stdin is closed, however the parent ends."""
    if os.environ.get(PARENT) != "1":
        return

    def watch() -> None:
        while os.read(0, 1024):  # not through sys.stdin, whose lock would keep the process from ending
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
