"""Choices of a job: slices, placement and minted names, as one frozen, printable Plan."""
