"""Declarations of ops: control flow, files, and talking to other machines."""
