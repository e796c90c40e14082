"""Facts about a program, which can be computed from it at any time: def-use, roles, parameter/gradient pairs, update
groups.
"""
