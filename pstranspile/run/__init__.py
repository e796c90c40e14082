"""The reference interpreter: programs run on numpy arrays, on one machine."""
