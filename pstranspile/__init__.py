"""Turns a single-machine training program into the programs of a cluster, and checks that they agree."""
