"""Ops that find objects in images: boxes laid over them, matched with what is there, and chosen."""
