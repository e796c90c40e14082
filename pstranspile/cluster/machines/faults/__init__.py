"""Machines and messages that fail: what is to happen, how it is brought about, and what machines come back with."""
