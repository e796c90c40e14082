"""The machines of a job as processes: frames, connections, and one process's part of a cluster.

`site` is one process's part of a cluster, and gives up a process that was not heard for its lease (`terms`); `wire`
is the bytes that they exchange; `supervisor` starts processes and starts them again.
"""
