"""The machines of a job as processes: frames, connections, and one process's part of a cluster."""
