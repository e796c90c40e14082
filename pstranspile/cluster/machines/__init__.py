"""The cluster in one process: emitted trainers and servers as they are, under one scheduler, without threads."""
