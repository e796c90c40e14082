"""What launchers tell the processes of a script: variables of the environment, and messages."""

from __future__ import annotations

LAUNCHER = "PSTRANSPILE_LAUNCHER"
"""The variable of the environment with the number of the pipe to which the launcher writes."""

TRAINERS_ENDED = b"t"
"""The bytes that the launcher writes to the pipe of a server when all trainers have ended."""

MEETING = "PADDLE_GLOO_HTTP_ENDPOINT"
"""The variable of the environment by which launchers, like those of 2.x, set the address where trainers meet."""
