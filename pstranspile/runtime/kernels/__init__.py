"""What ops compute, in numpy: a file per family, named as that which declares its ops in `pstranspile.ops`."""
