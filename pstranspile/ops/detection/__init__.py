"""Ops that find objects in images: they lay boxes over images, match them with the objects, and select some of them."""
