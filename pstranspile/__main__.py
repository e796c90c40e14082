"""The command as a process: `python -m pstranspile`, and what the console script calls."""

import sys


def main() -> int:
    """Runs the command of the process's arguments; an interrupt ends it without a traceback even while it starts."""
    try:
        from pstranspile.cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
