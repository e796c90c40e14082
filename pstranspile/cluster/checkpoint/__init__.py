"""Checkpoints of jobs: saved whole, loaded into a cluster of any size, and never half."""
