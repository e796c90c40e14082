"""Rows of files, and of Python, as what programs are fed: found, read, shuffled, and dealt to trainers."""
