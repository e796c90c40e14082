"""How fast the text is read and printed, against other ways to do it, measured in the same run.

    python benchmarks/text.py [--layers N] [--repeat N]

Reading is compared with a plain Lark LALR parse of the same text (the tree alone, no program made of it), and
with `orjson.loads` of a JSON of the same contents plus building the same values from it; reading and printing
with MLIR's parser and printer (the bindings that come with jaxlib) on a module of the same ops. Each ratio
says how the times compare; above 1 is in our favour. What is not installed is left out and named.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import programs

from pstranspile.ir.attributes import KINDS, PYTHON_TYPES, AttrKind, BlockRef, BlockRefs, Floats, Ints, Longs, same_attr
from pstranspile.ir.model import Block, FrozenMap, Location, Module, Op, Origin, ParameterInfo, Program, TensorType, Var
from pstranspile.ir.text.diagnose import grammar_parser
from pstranspile.ir.types import DType, OpRole, VarKind
from pstranspile.ops import schema_of
from pstranspile.ops.textual import parse, print_module


def best(action: Callable[[], Any], repeat: int) -> float:
    """The shortest of `repeat` times, in seconds; what the action returns is dropped outside the clock."""
    times: list[float] = []
    for _ in range(repeat):
        gc.collect()
        start = time.perf_counter()
        result = action()
        times.append(time.perf_counter() - start)
        del result
    return min(times)


# --- the same contents as JSON ---


def _attribute_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _op_json(op: Op) -> list[Any]:
    defaults = schema_of(op.type).defaults
    given = {
        name: [KINDS[type(value)].value, _attribute_json(value)]
        for name, value in op.attrs.items()
        if name not in defaults or not same_attr(value, defaults[name])
    }
    location = op.origin.location
    inputs = {slot: list(names) for slot, names in op.inputs.items() if names}
    outputs = {slot: list(names) for slot, names in op.outputs.items()}
    return [op.type, inputs, outputs, given, int(op.role), list(op.role_vars), location.line, location.column]


def _var_json(var: Var) -> list[Any]:
    location = var.location
    parameter = list(var.parameter) if var.parameter else None
    tensor = [var.tensor.dtype.value, list(var.tensor.shape), var.tensor.lod_level]
    return [
        var.name,
        var.kind.value,
        tensor,
        var.persistable,
        var.need_check_feed,
        parameter,
        location.line,
        location.column,
    ]


def to_json(module: Module) -> bytes:
    """A compact JSON with the contents of a text: no defaults, and every line number."""
    import orjson

    out: dict[str, Any] = {}
    for name, program in module.programs.items():
        blocks = [
            [[_var_json(v) for v in b.vars.values()], [_op_json(op) for op in b.ops], b.parent, b.forward_block]
            for b in program.blocks
        ]
        out[name] = [program.random_seed, program.version, blocks]
    return orjson.dumps(out)


def _op_value(data: list[Any], program: str, block: int, index: int) -> Op:
    op_type, inputs, outputs, given, role, role_vars, line, column = data
    schema = schema_of(op_type)
    attrs = dict(schema.defaults)
    for name, (kind, value) in given.items():
        attrs[name] = PYTHON_TYPES[AttrKind(kind)](value)
    return Op(
        op_type,
        FrozenMap({**schema.empty_inputs, **{slot: tuple(names) for slot, names in inputs.items()}}),
        FrozenMap({slot: tuple(names) for slot, names in outputs.items()}),
        FrozenMap(attrs),
        OpRole(role),
        tuple(role_vars),
        False,
        Origin(program, block, index, Location("a.json", line, column)),
    )


def _var_value(data: list[Any]) -> Var:
    name, kind, (dtype, shape, lod), persistable, feed, parameter, line, column = data
    info = ParameterInfo(*parameter) if parameter else None
    tensor = TensorType(DType(dtype), tuple(shape), lod)
    place = Location("a.json", line, column)
    return Var(name, VarKind(kind), tensor, persistable, feed, info, location=place)


def from_json(data: bytes) -> Module:
    """The module of such a JSON, built as one would: value by value, the collector paused as well."""
    import orjson

    gc.disable()
    try:
        programs_: dict[str, Program] = {}
        for name, (seed, version, blocks) in orjson.loads(data).items():
            made: list[Block] = []
            for number, (variables, ops, parent, forward) in enumerate(blocks):
                declared = FrozenMap({item[0]: _var_value(item) for item in variables})
                made.append(
                    Block(
                        declared,
                        tuple([_op_value(op, name, number, i) for i, op in enumerate(ops)]),
                        parent,
                        forward,
                    )
                )
            programs_[name] = Program(tuple(made), seed, version)
        return Module(FrozenMap(programs_))
    finally:
        gc.enable()


# --- the same ops as an MLIR module ---


def _mlir_type(var: Var | None) -> str:
    shape = var.shape if var else (1,)
    return "tensor<" + "".join(f"{'?' if dim < 0 else dim}x" for dim in shape) + "f32>"


def _mlir_attribute(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, Longs | Ints):
        return f"array<i64: {', '.join(map(str, value))}>" if value else "[]"
    if isinstance(value, BlockRef | BlockRefs | Floats) or not isinstance(value, int | float):
        return f'"{value}"'
    return f"{float(value)!r} : f32" if isinstance(value, float) else f"{int(value)} : i32"


def to_mlir(module: Module) -> str:
    """The ops as unregistered ops in SSA form: a variable written again gets a new value."""
    out: list[str] = ["module {"]
    for program in module.programs.values():
        block = program.main_block
        values: dict[str, str] = {}
        for op in block.ops:
            schema = schema_of(op.type)
            for name in op.input_names:
                if name not in values:
                    values[name] = f"%v{len(out)}"
                    out.append(
                        f'  {values[name]} = "state"() {{name = "{name}"}} : () -> {_mlir_type(block.vars.get(name))}'
                    )
            inputs = [values[name] for name in op.input_names]
            types = [_mlir_type(block.vars.get(name)) for name in op.input_names]
            attrs = [
                f"{name} = {_mlir_attribute(value)}"
                for name, value in op.attrs.items()
                if name not in schema.defaults or not same_attr(value, schema.defaults[name])
            ]
            if op.role:
                attrs.append(f'op_role = "{op.role!r}"')
            if op.role_vars:
                attrs.append(f"op_role_var = [{', '.join(_mlir_attribute(name) for name in op.role_vars)}]")
            outputs = list(op.output_names)
            results = [f"%v{len(out)}_{number}" for number in range(len(outputs))]
            values.update(zip(outputs, results, strict=True))
            result_types = ", ".join(_mlir_type(block.vars.get(name)) for name in outputs)
            braces = f" {{{', '.join(attrs)}}}" if attrs else ""
            left = f"{', '.join(results)} = " if results else ""
            out.append(f'  {left}"{op.type}"({", ".join(inputs)}){braces} : ({", ".join(types)}) -> ({result_types})')
    return "\n".join([*out, "}", ""])


def mlir_times(text: str, repeat: int) -> tuple[float, float, float]:
    """Seconds of MLIR's parser, of its printer, and of its printer in the generic form."""
    from jaxlib.mlir import ir

    with ir.Context() as context:
        context.allow_unregistered_dialects = True
        reading = best(lambda: ir.Module.parse(text), repeat)
        module = ir.Module.parse(text)
        printing = best(lambda: str(module), repeat)
        generic = best(lambda: module.operation.get_asm(print_generic_op_form=True), repeat)
    return reading, printing, generic


# --- the table ---


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--layers", type=int, default=5560, help="size of the program (18 ops a layer)")
    options.add_argument("--repeat", type=int, default=3)
    given = options.parse_args()

    text = print_module(programs.mlp(given.layers))
    module = parse(text, "a.ir")
    ops = sum(len(b.ops) for p in module.programs.values() for b in p.blocks)
    variables = sum(len(b.vars) for p in module.programs.values() for b in p.blocks)
    assert print_module(module) == text
    print(f"{ops} ops, {variables} variables, {len(text) / 1e6:.1f} MB of text\n")

    reading = best(lambda: parse(text, "a.ir"), given.repeat)
    printing = best(lambda: print_module(module), given.repeat)
    print(f"{'':34}{'seconds':>9}{'us/op':>8}{'ratio':>8}")

    def row(what: str, seconds: float, own: float) -> None:
        print(f"{what:34}{seconds:9.3f}{seconds / ops * 1e6:8.2f}{seconds / own:8.2f}")

    row("parse into the model", reading, reading)
    row("plain Lark parse, tree only", best(lambda: grammar_parser().parse(text, start="module"), 1), reading)
    if importlib.util.find_spec("orjson"):
        data = to_json(module)
        assert from_json(data) == module
        row("orjson and building the values", best(lambda: from_json(data), given.repeat), reading)
    else:
        print("orjson is not installed: no comparison with JSON")
    row("print", printing, printing)
    if importlib.util.find_spec("jaxlib"):
        mlir_reading, mlir_printing, mlir_generic = mlir_times(to_mlir(module), given.repeat)
        row("MLIR parse", mlir_reading, reading)
        row("MLIR print", mlir_printing, printing)
        row("MLIR print, generic form", mlir_generic, printing)
    else:
        print("jaxlib is not installed: no comparison with MLIR")


if __name__ == "__main__":
    main()
