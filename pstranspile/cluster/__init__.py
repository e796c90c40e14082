"""Runs all machines of a job: simulated in one process, as processes of their own, or as actors of Ray.

`machines` are trainers and servers that post messages to each other, with a scheduler, faults and pictures. `net` plays
them as processes over sockets, `ray` on a cluster of Ray's. `data` deals rows of files to trainers, `checkpoint` saves
the state of all machines and loads it into a cluster of any size.

Other wings use `machines.simulate` (simulate), `machines.cluster` (Cluster), `machines.scenario` (Scenario),
`data.source` (Data) and `checkpoint.api` (load_checkpoint, save_checkpoint). Read `machines/cluster.py` first.
"""
