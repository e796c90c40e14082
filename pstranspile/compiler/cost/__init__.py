"""What a job costs before it runs: the bytes that its machines move in a step, and the placement that is best for them.

`counts` says how often each row of a table is looked up, `traffic` how many bytes each parameter moves, `balance` cuts
and places parameters so that the busiest server moves as few as can be. Nothing here needs numpy. Read `traffic.py`
first.
"""
