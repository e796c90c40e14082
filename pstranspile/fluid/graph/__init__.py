"""The mutable graph that scripts build: programs, blocks, ops and variables as views on drafts of the frozen ones."""
