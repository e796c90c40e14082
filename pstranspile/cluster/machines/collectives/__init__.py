"""Collective operations: what trainers without servers sum, average and hand on among themselves."""
