"""The communicators of trainers, which send and fetch while the trainers run, one for each mode."""
