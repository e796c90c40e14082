"""The cluster in one process: emitted trainers and servers as they are, under one scheduler, without threads.

`cluster` holds the machines, `network` the scheduler, `trainer` and `server` are the two kinds of machine, `scenario`
and `injection` are the faults. `feeding` shares a batch out over trainers (rows of files are dealt in
`cluster/data/source.py`).
"""
