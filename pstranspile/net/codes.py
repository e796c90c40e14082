"""The codes of findings about processes."""

from pstranspile.ir.codes import declare

ROLE = declare("start-role", "A process is to play a machine that its job does not have, or nothing says which.")
MISSING = declare("start-library", "A library that processes need to talk to each other is not installed.")
CHECKPOINT = declare("launch-checkpoint", "The processes of a job can't leave such checkpoints, or begin from one.")
TLS = declare("start-tls", "Machines on other hosts talk with certificates, which are missing.")
ENDED = declare("launch-ended", "A process of a job has ended before its part was done.")
