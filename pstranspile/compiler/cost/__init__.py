"""The predicted cost of a job: the bytes that its machines move in a step, and the placement with the least such cost.

`counts` says how often each row of a table is looked up, `balance` how many bytes each parameter moves, and cuts and
places parameters so that the busiest server moves as few as can be. Nothing here needs numpy. Read `balance.py` first.
"""
