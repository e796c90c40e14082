"""The modes of Fleet by number."""


class Mode:
    """The modes of Fleet."""

    TRANSPILER = 1
    PSLIB = 2
    COLLECTIVE = 3
