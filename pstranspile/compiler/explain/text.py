"""Answers as text for a reader, and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from pstranspile.compiler.explain.answers import (
    Answer,
    HeldPart,
    Link,
    OpAnswer,
    Overview,
    Place,
    Source,
    VariableAnswer,
)
from pstranspile.ir.diagnostics import cluster_of

SHOWN = 8
"""Lines of one kind that are shown before the rest is only counted (`--all` shows all)."""


def answer_text(answer: Answer, *, full: bool = False) -> str:
    """An answer as text; long lists are cut off, unless `full` is set."""
    if isinstance(answer, OpAnswer):
        lines = _op(answer, full)
    elif isinstance(answer, VariableAnswer):
        lines = _variable(answer, full)
    else:
        lines = _overview(answer)
    return "\n".join(lines) + "\n"


def _op(answer: OpAnswer, full: bool) -> Iterator[str]:
    yield f"{answer.place}"
    yield f"    {answer.text}"
    yield ""
    yield f"rule {answer.rule}" if answer.rule else "the source's own op"
    yield f"    {answer.reason}"
    if answer.source is not None:
        yield ""
        yield f"{'made for' if answer.rule else 'it is'} {_source(answer.source)}"
        if answer.source.text:
            yield f"    {answer.source.text}"
    if answer.links:
        yield ""
        yield "pairs with"
        yield from _shortened(_links(answer.links), full)
    notes = [note for note in answer.attributes if full or not note.is_default]
    if notes:
        yield ""
        yield "attributes"
        for note in notes:
            yield f"    {note.name} = {_short(note.value)}"
            yield f"        {note.meaning}"


def _source(source: Source) -> str:
    place = f"{source.file}:{source.line}" if source.line else source.file
    place += f", made at {source.script}" if source.script else ""
    what = source.op if "#" in source.op else f"{source.op}, the program as a whole"
    return f"{what}, {place}" if place else what


def _links(links: Sequence[Link]) -> Iterator[list[str]]:
    """Each pair on two lines; the same op on several machines once."""
    for (relation, text), places in _alike((link.relation, link.text, link.place) for link in links):
        yield [f"    {_USED.get(relation, relation)} {_places(places)}", f"        {text}"]


_USED = {"writes": "written by", "reads": "read by"}
"""The effects of ops on a variable, with the variable as subject."""


def _alike(rows: Iterable[tuple[str, str, Place]]) -> Iterable[tuple[tuple[str, str], list[Place]]]:
    """Rows that differ in nothing but the machine, together."""
    result: dict[tuple[Any, ...], tuple[tuple[str, str], list[Place]]] = {}
    for relation, text, place in rows:
        key = (relation, place.program, place.block, place.number, place.machine.partition("_")[0])
        result.setdefault(key, ((relation, text), []))[1].append(place)
    return result.values()


def _places(places: Sequence[Place]) -> str:
    first = places[0]
    if len(places) == 1:
        return str(first)
    machines = [place.machine for place in places]
    shown = ", ".join(machines[:3]) + (f" and {len(machines) - 3} more" if len(machines) > 3 else "")
    return f"{shown} @{first.program}^{first.block}#{first.number}"


def _shortened(rows: Iterable[list[str]], full: bool) -> Iterator[str]:
    all_rows = list(rows)
    shown = all_rows if full or len(all_rows) <= SHOWN + 1 else all_rows[:SHOWN]
    for lines in shown:
        yield from lines
    if len(shown) < len(all_rows):
        yield f"    and {len(all_rows) - len(shown)} more (--all shows them)"


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."


def _variable(answer: VariableAnswer, full: bool) -> Iterator[str]:
    yield f"%{answer.name}"
    for sentence in answer.about:
        yield f"    {sentence}"
    if answer.parts:
        yield ""
        yield f"lies as {answer.whole}, in parts" if len(answer.parts) > 1 and answer.whole else "lies"
        yield from _shortened(([*_part(part)] for part in answer.parts), full)
    if answer.why_cut:
        yield ""
        yield "cut so because"
        yield f"    {answer.why_cut}"
    if answer.declared:
        yield ""
        yield "declared"
        rows = ((text, text, _place_named(place)) for place, text in answer.declared)
        yield from _shortened(([f"    {_where(at)}  {text}"] for (text, _), at in _alike(rows)), full)
    if answer.uses:
        yield ""
        yield "used"
        yield from _shortened(_links(answer.uses), full)


def _place_named(text: str) -> Place:
    """`trainer_0 @main^0`, as a place without an op."""
    machine, _, rest = text.partition(" @")
    program, _, block = rest.rpartition("^")
    return Place(machine, program, int(block), 0)


def _where(places: Sequence[Place]) -> str:
    return _places(places).rpartition("#")[0]


def _part(part: HeldPart) -> Iterator[str]:
    machine = f" ({part.machine})" if part.machine else ""
    yield (
        f"    %{part.name}: rows {part.start} to {part.stop}, {list(part.shape)}, from element {part.offset} on, "
        f"at {part.endpoint}{machine}"
    )
    yield f"        {part.why}"


def _overview(answer: Overview) -> Iterator[str]:
    yield f"mode {answer.mode}, {cluster_of(answer.trainers, len(answer.pservers))}"
    groups: dict[tuple[Any, ...], list[str]] = {}
    for machine, what, counts in answer.machines:
        groups.setdefault((what, counts), []).append(machine)
    for (what, counts), machines in groups.items():
        shown = ", ".join(machines[:4]) + (f" and {len(machines) - 4} more" if len(machines) > 4 else "")
        yield ""
        yield f"{shown}: {what}{'s' if len(machines) > 1 else ''}"
        width = max(len(str(count)) for _, _, count in counts)
        for program, rule, count in counts:
            yield f"    @{program}  {count:>{width}}  {rule or 'of the source'}"
    if answer.listed:
        yield ""
        yield "ops that rules made"
        for place, rule, source, text in answer.listed:
            made_for = f" for {_source(source)}" if source else ""
            yield f"    @{place.program}^{place.block}#{place.number}  {rule}{made_for}"
            yield f"        {text}"


def answer_json(answer: Answer) -> dict[str, Any]:
    """An answer as objects, lists, strings and numbers: the fields of the values, by name."""
    plain = cast("dict[str, Any]", _plain(answer))
    kind = {OpAnswer: "op", VariableAnswer: "variable", Overview: "overview"}[type(answer)]
    if isinstance(answer, Overview):
        plain["machines"] = [
            {
                "machine": machine,
                "what": what,
                "ops": [{"program": p, "rule": rule, "count": count} for p, rule, count in counts],
            }
            for machine, what, counts in answer.machines
        ]
    elif isinstance(answer, VariableAnswer):
        plain["declared"] = [{"where": where, "text": text} for where, text in answer.declared]
    return {"kind": kind, **plain}


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        fields = getattr(items, "_fields", None)
        if fields is not None:
            return {name: _plain(item) for name, item in zip(cast("tuple[str, ...]", fields), items, strict=True)}
        return [_plain(item) for item in items]
    return value
