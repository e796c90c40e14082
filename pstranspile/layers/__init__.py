"""Models written in Python: layers that make the ops Fluid's layers make, under the same names."""
