"""One program and a job in, every machine's programs out.

`job` says which cluster is wanted; `analysis` finds facts about the program; `plan` makes the choices, as one value;
`emit` makes the programs, as the mode of distribution in `modes` says; `link` holds them against each other. `verify`
says whether one program is well formed, `diff` what differs between two, `explain` why an op or a variable is there.

Other wings use `compile` (compile, prepare, Compiled), `job` (Job), `plan.plan` (Plan), `verify`, `diff` and `explain`.
Read `pipeline.py` first: it is a compile from top to bottom.
"""
