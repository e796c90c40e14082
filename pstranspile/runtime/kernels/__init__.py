"""The computation of ops in numpy: a file for each family, with the name of the file in `pstranspile.ops` that declares
the family's ops.
"""
