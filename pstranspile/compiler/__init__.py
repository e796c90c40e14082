"""One program and a job in, every machine's programs out.

`job` says which cluster is wanted; `analysis` finds facts about the program; `plan` makes the choices, as one value;
`emit` makes the programs, as the mode of distribution in `modes` says; `link` checks that they fit together. `verify`
says whether one program is well formed, `compile` also what a compile would refuse of it, `diff` what differs between
two, `explain` why an op or a variable is there, `cost` what the machines of a job compute, move and store in a step.

Other wings use `compile` (compile, prepare, Compiled), `pipeline`, `job` (Job), `plan` (Plan), `verify`, `link`,
`diff`, `folders`, `explain` and `cost` (cost, and counts of ids), of facts `analysis` (analyze, Facts),
`analysis.tables`, `analysis.updates` and `analysis.uses`, and of emitted programs `emit.rules`, `emit.servers` and
`modes.geo`. Read `pipeline.py` first: it is a compile from top to bottom.
"""
