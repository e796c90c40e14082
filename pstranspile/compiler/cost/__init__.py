"""The predicted cost of a job: what its machines compute, move and store in a step, and the placement that moves least.

`counts` says how often each row of a table is looked up; `balance` how many bytes each parameter moves, and cuts and
places parameters so that the busiest server moves as few as can be; `steps` the operations and the memory of a step of
a program; `jobs` all of this for the machines of a job, and for several numbers of machines. `profile` is what a
machine needs for ops and messages, in seconds; `events` simulates in virtual time what machines do with it, and
`seconds` says how long a step of a job takes. Nothing here needs numpy. Read `balance.py` first.
"""
