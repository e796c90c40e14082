"""The machines of a job as processes: frames, connections, and one process's part of a cluster.

`site` is one process's part of a cluster, and gives up a process that was not heard for its lease (`terms`); `frames`
and `values` are the bytes on the wire; `supervisor` starts processes and starts them again.
"""
