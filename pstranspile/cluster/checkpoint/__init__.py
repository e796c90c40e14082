"""Checkpoints of jobs: saved whole, loaded into a cluster of any size, and never half.

`manifest` says what a checkpoint holds, `runs` keeps a folder of them under a lock.
"""
