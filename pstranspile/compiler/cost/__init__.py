"""The predicted cost of a job: what its machines compute, move and store in a step, and the placement that moves least.

`counts` says how often each row of a table is looked up, `traffic` how many bytes each parameter moves, `steps` the
operations and the memory of a step of a program, `predicted` all of this for the machines of a job; `balance` cuts and
places parameters so that the busiest server moves as few bytes as can be. Nothing here needs numpy. Read `traffic.py`
first.
"""
