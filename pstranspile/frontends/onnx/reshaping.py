"""Values of other dims: reshaped, and repeated up to dims, which may be known at run time only."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.frontends.onnx.graph import Refused
from pstranspile.frontends.onnx.reading import Reading
from pstranspile.frontends.onnx.sizes import is_code

FAR = (1 << 31) - 1
"""Past the end of any dim."""


def with_x_shape(op_type: str, source: str, out: str, reading: Reading, **attrs: object) -> None:
    """An op such as reshape2, which also writes what the dims were."""
    reading.op(op_type, {"X": source}, {"Out": out, "XShape": reading.temp(out)}, **attrs)


def sizes_of(value: str, reading: Reading) -> list[int]:
    """The dims of a value: numbers, and codes of those that are known at run time only."""
    return [reading.size(value, axis) for axis in range(len(reading.dims(value)))]


def reshape(source: str, out: str, asked: Sequence[int], reading: Reading) -> None:
    """`out` is `source` with these dims: numbers, codes, 0 for a dim of the source at its place, -1 for the rest."""
    if not asked:
        reading.scalars.add(out)
    dims = sizes_of(source, reading)
    wanted = [0 if is_code(dim) and dims[at : at + 1] == [dim] else dim for at, dim in enumerate(asked)] or [1]
    codes = [at for at, dim in enumerate(wanted) if is_code(dim)]
    if len(codes) == 1 and -1 not in wanted:
        wanted[codes[0]] = -1
    elif codes:
        shape = [-1 if is_code(dim) else dim for dim in wanted]
        parts = [reading.measured(dim) for dim in wanted]
        made = {"Out": out, "XShape": reading.temp(out)}
        reading.op("reshape2", {"X": source, "ShapeTensor": parts}, made, shape=shape)
        return
    with_x_shape("reshape2", source, out, reading, shape=wanted)


def transpose(source: str, out: str, order: Sequence[int], reading: Reading) -> None:
    """`out` is `source` with its dims in this order."""
    with_x_shape("transpose2", source, out, reading, axis=list(order))


def swapped(source: str, first: int, second: int, reading: Reading) -> str:
    """A value that is `source` with two dims swapped; itself if they are the same."""
    if first == second:
        return source
    order = [*range(len(reading.dims(source)))]
    order[first], order[second] = second, first
    transpose(source, made := reading.temp(source), order, reading)
    return made


def expand(source: str, out: str, target: Sequence[int], reading: Reading) -> None:
    """`out` is `source` repeated where it has dims of size 1, so that it has the dims `target`, or more."""
    dims = sizes_of(source, reading) or [1]
    target = [*[1] * (len(dims) - len(target)), *target]
    if added := len(target) - len(dims):
        wide = reading.temp(source)
        with_x_shape("unsqueeze2", source, wide, reading, axes=[*range(added)])
        source, dims = wide, [*[1] * added, *dims]
    times = [_times(dim, wanted, reading) for dim, wanted in zip(dims, target, strict=True)]
    if all(count == 1 for count in times):
        reading.alias(out, source)
        return
    listed = [-1 if is_code(count) else count for count in times]
    if -1 in listed:
        parts = [reading.measured(count) for count in times]
        reading.op("expand", {"X": source, "expand_times_tensor": parts}, {"Out": out}, expand_times=listed)
    else:
        reading.op("expand", {"X": source}, {"Out": out}, expand_times=listed)


def _times(dim: int, wanted: int, reading: Reading) -> int:
    if wanted in (1, dim):
        return 1
    if dim == 1:
        return wanted
    if not is_code(dim) and not is_code(wanted):
        raise Refused(f"a dim of {dim} elements can't be repeated to {wanted}")
    sizes = reading.sizes
    return sizes.combined("Div", sizes.combined("Max", dim, wanted), dim)


def common(values: Sequence[str], reading: Reading, *, but: int = 0) -> list[int]:
    """The dims that these values have when each is repeated to fit the others; without the last `but` dims."""
    dims = [held[: len(held) - but] for held in (sizes_of(value, reading) for value in values)]
    rank = max(map(len, dims))
    result: list[int] = []
    for at in range(rank):
        column = [held[at - rank] for held in dims if at >= rank - len(held)]
        wanted = [size for size in dict.fromkeys(column) if size != 1]
        plain = [size for size in wanted if not is_code(size)]
        made = plain[0] if plain else wanted[0] if wanted else 1
        for size in wanted if not plain else []:
            made = reading.sizes.combined("Max", made, size)
        result.append(made)
    return result


def of_one_shape(values: Sequence[str], reading: Reading) -> list[str]:
    """The values, each repeated to the dims that they have in common."""
    target = common(values, reading)
    result: list[str] = []
    for value in values:
        if sizes_of(value, reading) == target:
            result.append(value)
        else:
            expand(value, made := reading.temp(value), target, reading)
            result.append(made)
    return result
