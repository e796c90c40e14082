"""Facts about a program, recomputable from it: def-use, roles, parameter/gradient pairs, update groups."""
