"""Trainer, pserver and startup programs: pure functions of program, facts and plan."""
