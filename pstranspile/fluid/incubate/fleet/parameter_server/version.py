"""Fluid's `incubate.fleet.parameter_server.version`."""


def is_transpiler() -> bool:
    """True: programs of clusters are transpiled."""
    return True
