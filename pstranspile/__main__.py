"""The command as a process: `python -m pstranspile`, and what the console script calls."""

import signal
import sys

TERMINATED = 143
"""The exit status that shells report for a process that was told to end."""


def _end(*_: object) -> None:
    """Ends the process as an error does, so that what it has begun to write is taken away."""
    sys.exit(TERMINATED)


def main() -> int:
    """Runs the command of the process's arguments; an interrupt ends it without a traceback even while it starts."""
    signal.signal(signal.SIGTERM, _end)
    try:
        from pstranspile.cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
