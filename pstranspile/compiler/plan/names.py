"""Every generated name, minted here once and looked up afterwards, never parsed."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

CONTROL = "__control_var@"
"""Prefix of variables that only carry an order between ops; Fluid's send skips them by this prefix."""


class NameMint:
    """Gives out names that the program does not use yet; the same requests give the same names.

    `declared` are names that are taken too; they are looked up where they stand, not copied.
    """

    def __init__(self, taken: Iterable[str], declared: Container[str] = ()):
        self._taken = set(taken)
        self._declared = declared

    def mint(self, wanted: str) -> str:
        """`wanted`, with underscores added if the program (or an earlier request) has it already."""
        while wanted in self._taken or wanted in self._declared:
            wanted += "_"
        self._taken.add(wanted)
        return wanted

    def mint_family(self, wanted: str, suffixes: Iterable[str]) -> str:
        """A name of which neither itself nor any of its suffixed forms is taken; takes them all."""
        suffixes = ("", *suffixes)
        while any(self._is_taken(wanted + suffix) for suffix in suffixes):
            wanted += "_"
        self._taken.update(wanted + suffix for suffix in suffixes)
        return wanted

    def extend(self, name: str, suffixes: Sequence[str]) -> str:
        """`name`, which the program has, if none of its suffixed forms is taken, else a new name; takes them all."""
        forms = [name + suffix for suffix in suffixes]
        if any(map(self._is_taken, forms)):
            return self.mint_family(name, suffixes)
        self._taken.update(forms)
        return name

    def _is_taken(self, name: str) -> bool:
        return name in self._taken or name in self._declared


def slice_name(variable: str, index: int) -> str:
    """Slice `index` of a variable: `fc_0.w_0.block1`."""
    return f"{variable}.block{index}"


def trainer_suffix(trainer: int) -> str:
    """What a trainer adds to the name of a gradient it sends: `.trainer_0`."""
    return f".trainer_{trainer}"
