"""The mutable graph that scripts build: programs, blocks, ops and variables, each a view on a draft of its frozen
counterpart.
"""
