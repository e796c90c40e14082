"""Runs all machines of a job: simulated in one process, as processes of their own, or as actors of Ray.

`machines` are trainers and servers that post messages to each other, with a scheduler, faults and pictures. `net` plays
them as processes over sockets, `ray` on a cluster of Ray's. `data` deals rows of files to trainers, `checkpoint` saves
the state of all machines and loads it into a cluster of any size.

Other wings use `machines` (simulate, Cluster, Scenario), `net` (processes), `ray` (`ray.launch`, `ray.session`), `data`
(Data), `pytorch` (models that were traced) and `checkpoint` (load_checkpoint, save_checkpoint). Its own are
`machines.asynchronous`, `machines.injection`, `machines.placement`, `machines.snapshots`, `machines.synchronous`,
`net.http2`, `net.state`, `ray.cuts`, `ray.datasets`, `ray.hosts`, `data.columns`, `data.tables` and `checkpoint.store`.
Read `machines/cluster.py` first.
"""
