"""Prints many ops and declarations: with a function for each shape of op, and cached text for each description.

The result equals that of `op_text` and `var_text`, which print everything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from pstranspile.ir.attributes import BlockRef, BlockRefs, Floats
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Attrs, Op, Var
from pstranspile.ir.text.literals import name as name_text
from pstranspile.ir.text.schemas import Language
from pstranspile.ir.text.scripts import script_text
from pstranspile.ir.text.statements import braces_text, op_text, var_parts

_ALL_PLAIN = re.compile(r"[A-Za-z0-9_.@/\n]*").fullmatch
_PLAIN = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.@/"
_MADE_FOR = 12  # uses of a shape before a function is compiled for it
_LONGEST = 200  # names beyond which none is compiled
_MARK = "\x00"


def block_refs(attrs: Attrs) -> tuple[int, ...]:
    """The blocks that attributes refer to, in order of the attributes' names."""
    result: list[int] = []
    for attribute in sorted([a for a, value in attrs.items() if isinstance(value, BlockRef | BlockRefs)]):
        value = attrs[attribute]
        result += value if isinstance(value, BlockRefs) else [int(value)]  # pyright: ignore[reportArgumentType]
    return tuple(result)


# The fields of a variable that its line shows, what stands before its name, what after.
_Description: TypeAlias = tuple[tuple[Any, ...], str, str]


# A compiled function, and the number of odd characters it puts around names and braces.
_Show: TypeAlias = tuple[Callable[..., str | None], int]

# The text of attributes in braces, its odd characters, the blocks it refers to.
_Braces: TypeAlias = tuple[str, int, tuple[int, ...]]


class _Shape:
    """What ops of one type, role and set of slots share.

    `braces` is keyed by the identity of the attributes, which outlive the printing.
    """

    def __init__(self) -> None:
        self.uses = 0
        self.braces: dict[int, _Braces] = {}
        self.show: Callable[..., str | None] | None = None
        self.quoted = 0
        self.variants: dict[tuple[int, ...], _Show | int | None] = {}


def odd_characters(text: str) -> int:
    """The number of bytes in `text` that can't occur in unquoted names.

    Lines are made with unquoted names. If no name needs quotes, the number for all lines equals that of the shapes.
    Counting once is cheaper than checking every name.
    """
    return len(text.encode("utf-8", "surrogatepass").translate(None, _PLAIN))


def _pattern(first: int, counts: Iterable[int]) -> str:
    """Source of an assignment target that unpacks the slots: `(a0,), (), (a1, a2), `."""
    out: list[str] = []
    for count in counts:
        out.append(f"({', '.join([f'a{first + i}' for i in range(count)])}{',' if count == 1 else ''}), ")
        first += count
    return "".join(out)


def _compiled(op: Op, language: Language) -> _Show | None:
    """A function that prints ops like this one, and the number of odd characters it puts around the names.

    It takes (values of inputs, values of outputs, braces, role variables, indentation), gives None when a name
    is empty, and raises ValueError when slots hold other numbers of names. None for ops with too many names.
    """
    counts = [len(names) for names in (*op.inputs.values(), *op.outputs.values())]
    role_vars = op.role_vars or ()
    total = sum(counts) + len(role_vars)
    if total > _LONGEST:
        return None
    marks = iter([f"{_MARK}{index}{_MARK}" for index in range(total)])
    marked = op._replace(
        inputs=FrozenMap({slot: tuple([next(marks) for _ in names]) for slot, names in op.inputs.items()}),
        outputs=FrozenMap({slot: tuple([next(marks) for _ in names]) for slot, names in op.outputs.items()}),
        role_vars=tuple([next(marks) for _ in role_vars]) or op.role_vars,
    )
    parts = op_text(marked, language, braces=f"{_MARK}braces{_MARK}", write=str).split(_MARK)
    source: list[str] = []
    for index, part in enumerate(parts):
        literal = "f" + repr(part.replace("{", "{{").replace("}", "}}"))
        source.append(literal if index % 2 == 0 else f'f"{{{_expression(part)}}}"')
    first_output = sum(counts[: len(op.inputs)])
    inputs = _pattern(0, counts[: len(op.inputs)])
    outputs = _pattern(first_output, counts[len(op.inputs) :])
    lines = [
        "def show(inputs, outputs, braces, role_vars, indent):",
        f"    {inputs}= inputs" if inputs else "    pass",
        f"    {outputs}= outputs" if outputs else "    pass",
        f"    {_pattern(sum(counts), [len(role_vars)])}= role_vars," if role_vars else "    pass",
        f"    if {' and '.join([f'a{index}' for index in range(total)]) or 'True'}:",
        f'        return f"{{indent}}" {" ".join(source)}',
        "    return None",
    ]
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)
    return scope["show"], odd_characters("".join(parts[::2]))


def _with_scripts(lines: list[str], ops: tuple[Op, ...], start: int) -> list[str]:
    """Lines of the ops from `start` on, each with the place in the script that created the op, if known."""
    for index, op in enumerate(ops[start : start + len(lines)] if start or len(lines) < len(ops) else ops):
        origin = op[7]
        location = origin[3] if origin is not None else None
        if location is not None and location[3] is not None:
            lines[index] += script_text(location)
    return lines


def _expression(mark: str) -> str:
    return "braces" if mark == "braces" else f"a{mark}"


class Lines:
    """Prints the ops and declarations of one program, which must live as long as this does."""

    def __init__(self, language: Language):
        self.language = language
        self.shapes: dict[tuple[Any, ...], _Shape] = {}
        self.descriptions: dict[str, dict[int, _Description]] = {}
        self.described: dict[tuple[Any, ...], _Description] = {}
        self.alike: dict[tuple[Any, ...], _Braces] = {}

    def declarations(self, variables: Iterable[Var], indent: str) -> list[str]:
        """The lines of the declarations of a block."""
        names = [var.name for var in variables]
        joined = "\n".join(names)
        if not _ALL_PLAIN(joined) or joined.count("\n") != len(names) - 1 or "" in names:
            parts = [var_parts(var) for var in variables]
            return [f"{indent}{p[0]}{name_text(name)}{p[1]}" for name, p in zip(names, parts, strict=True)]
        known, out = self.descriptions.setdefault(indent, {}).get, list[str]()
        for var in variables:
            name, tensor, described = var[0], var[2], var[1:8]
            result = known(id(tensor))
            if result is None or result[0] != described or result[0][4] is not var[5] or var[9] is not None:
                result = self._description(var, indent)
            out.append(f"{result[1]}{name}{result[2]}")
        return out

    def _description(self, var: Var, indent: str) -> _Description:
        """The text around the name of a variable, cached by the identity of its tensor description."""
        key = (indent, *var[1:8], repr(var.parameter), var.written_defaults)
        result = self.described.get(key)
        if result is None:
            before, after = var_parts(var)
            result = self.described[key] = (var[1:8], indent + before, after)
        if var.written_defaults is None:
            self.descriptions[indent][id(var.tensor)] = result
        return result

    def ops(self, ops: tuple[Op, ...], start: int, indent: str) -> tuple[list[str], tuple[int, ...]]:
        """(the lines of the ops from `start` up to the first that refers to blocks, those blocks)."""
        known, out, refs = self.shapes.get, list[str](), ()
        quoted = 0
        for op in ops[start:] if start else ops:
            op_type, inputs, outputs, attrs, role, role_vars, is_target, _ = op
            key = (op_type, role, is_target, role_vars and True, *inputs, None, *outputs)
            shape = known(key)
            if shape is None:
                shape = self.shapes[key] = _Shape()
            braces = shape.braces.get(id(attrs))
            if braces is None:
                braces = shape.braces[id(attrs)] = self._braces(op)
            text = None
            if shape.show is not None:
                try:
                    text = shape.show(inputs.values(), outputs.values(), braces[0], role_vars, indent)
                    quoted += shape.quoted + braces[1] if text is not None else 0
                except ValueError:
                    text, more = self._variant(shape, op, braces, indent)
                    quoted += more
            if text is None:
                text, more = self._plainly(shape, op, braces[0], indent)
                quoted += more
            out.append(text)
            if braces[2]:
                refs = braces[2]
                break
        quoted += (len(indent) + 1) * len(out) - 1
        if out and odd_characters("\n".join(out)) != quoted:  # some name has to be quoted
            out = [indent + op_text(op, self.language) for op in ops[start : start + len(out)]]
        return _with_scripts(out, ops, start), refs

    def _braces(self, op: Op) -> _Braces:
        """The text between the braces of an op, cached for attributes of equal kinds and values."""
        values = op.attrs.values()
        exact = [repr(v) if isinstance(v, float | Floats) else v for v in values]  # tells -0.0 from 0.0
        key = (op.type, op.role_vars is None, *op.attrs, None, *map(type, values), *exact)
        result = self.alike.get(key)
        if result is None:
            text = braces_text(op.type, op.attrs, op.role_vars is not None, self.language)
            result = self.alike[key] = (text, odd_characters(text), block_refs(op.attrs))
        return result

    def _plainly(self, shape: _Shape, op: Op, braces: str, indent: str) -> tuple[str, int]:
        """(the line of an op whose shape has no function yet, the odd characters in it)."""
        shape.uses += 1
        if shape.uses == _MADE_FOR:
            shape.show, shape.quoted = _compiled(op, self.language) or (None, 0)
        text = op_text(op, self.language, braces)
        return indent + text, odd_characters(text)

    def _variant(self, shape: _Shape, op: Op, braces: _Braces, indent: str) -> tuple[str | None, int]:
        """(the line of an op with other numbers of names than the first of its shape, its odd characters)."""
        counts = tuple([len(names) for names in (*op.inputs.values(), *op.outputs.values(), op.role_vars or ())])
        made = shape.variants.get(counts, 0)
        if isinstance(made, int):
            made = shape.variants[counts] = _compiled(op, self.language) if made == _MADE_FOR else made + 1
        if made is None or isinstance(made, int):
            return None, 0
        text = made[0](op.inputs.values(), op.outputs.values(), braces[0], op.role_vars, indent)
        return text, made[1] + braces[1] if text is not None else 0
