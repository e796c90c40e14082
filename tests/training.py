"""The training programs that Fluid itself built, and what it means to equal them."""

from __future__ import annotations

import json
import tarfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from pstranspile.frontends.autodiff import (
    L1,
    L2,
    OPTIMIZERS,
    ClipByGlobalNorm,
    ClipByNorm,
    ClipByValue,
    Cosine,
    Exponential,
    ExponentialMovingAverage,
    InverseTime,
    LinearWarmup,
    ModelAverage,
    NaturalExp,
    Noam,
    Optimizer,
    Piecewise,
    Polynomial,
    lookahead,
    minimize,
    set_gradient_clip,
)
from pstranspile.frontends.layers import Draft, Value
from pstranspile.frontends.meta import apply_meta, infer_parameters, parse_meta
from pstranspile.frontends.program_desc import program_from_bytes
from pstranspile.ir.model import MAIN, STARTUP, FrozenMap, Module, Op, Program
from pstranspile.ir.types import OpRole

ARCHIVE = Path(__file__).parent / "data" / "fluid" / "training.tar.xz"
LOSS_GRADIENT = OpRole.BACKWARD | OpRole.LOSS
SCHEDULES = {
    "exponential": Exponential,
    "natural_exp": NaturalExp,
    "inverse_time": InverseTime,
    "polynomial": Polynomial,
    "noam": Noam,
    "cosine": Cosine,
}
CLIPS = {"value": ClipByValue, "norm": ClipByNorm, "global_norm": ClipByGlobalNorm}
UNORDERED = ("while", "recurrent", "conditional_block", "while_grad", "recurrent_grad", "conditional_block_grad")
"""Ops whose slots Fluid fills in hash order."""


@cache
def files() -> dict[str, bytes]:
    with tarfile.open(ARCHIVE) as archive:
        return {m.name: f.read() for m in archive.getmembers() if (f := archive.extractfile(m)) is not None}


CASES = sorted({name.partition("/")[0] for name in files()})


@cache
def case(name: str) -> dict[str, Any]:
    return json.loads(files()[f"{name}/case.json"])


@cache
def recorded(name: str) -> Module:
    held = files()
    programs = {
        MAIN: program_from_bytes(held[f"{name}/main.pb"], "main.pb", MAIN),
        STARTUP: program_from_bytes(held[f"{name}/startup.pb"], "startup.pb", STARTUP),
    }
    settings = parse_meta(held[f"{name}/case.json"].decode(), "case.json")
    return infer_parameters(apply_meta(Module(FrozenMap(programs)), settings)[0])


# What a case asks for


def rate_of(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    settings = dict(given)
    kind = settings.pop("kind")
    if kind == "warmup":
        inner = rate_of(settings["inner"])
        return LinearWarmup(inner, settings["warmup_steps"], settings["start_lr"], settings["end_lr"])
    if kind == "piecewise":
        return Piecewise(tuple(settings["boundaries"]), tuple(settings["values"]))
    return SCHEDULES[kind](**settings)


def optimizer_of(spec: dict[str, Any], draft: Draft) -> Optimizer:
    apart = ("type", "lr", "reg", "clip", "_dp_clip", "after", "only", "second", "set_clip", "set_clip_only")
    arguments = {key: value for key, value in spec.items() if key not in apart}
    arguments["learning_rate"] = rate_of(spec["lr"])
    if "reg" in spec:
        arguments["regularizer"] = {"l1": L1, "l2": L2}[spec["reg"][0]](spec["reg"][1])
    if "clip" in spec:
        arguments["clip"] = CLIPS[spec["clip"][0]](spec["clip"][1])
    if "_dp_clip" in spec:
        arguments["clip_norm"] = spec["_dp_clip"]
    if spec["type"] == "ftrl":
        arguments["l2"] = arguments["l1"]  # a fault of Fluid 1.8.5, which passes l1 twice
    for key in ("beta1", "beta2"):
        if isinstance(arguments.get(key), str):
            arguments[key] = Value(draft, arguments[key].partition("=")[0])
    return OPTIMIZERS[spec["type"]](**arguments)


def add_training(loss: Value, spec: dict[str, Any]) -> None:
    """What the recording did to the model: clips set, one optimizer or two, averages."""
    draft = loss.draft
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a clip set for some parameters only clips none
        if "set_clip" in spec:
            kind, value = spec["set_clip"]
            set_gradient_clip(draft, CLIPS[kind](value))
        if "set_clip_only" in spec:
            (kind, value), names = spec["set_clip_only"]
            set_gradient_clip(draft, CLIPS[kind](value), names)
        following: dict[str, Any] | None = spec
        while following:
            minimize(loss, optimizer_of(following, draft), following.get("only"))
            following = following.get("second")
    after = spec.get("after", [""])
    if after[0] == "ema":
        ExponentialMovingAverage(draft, after[1]).update()
    elif after[0] == "lookahead":
        lookahead(draft, after[1], after[2])
    elif after[0] == "model_average":
        ModelAverage(draft, after[1], 2, 4)  # the windows of the recording


# Comparing


def ordered(op: Op) -> Op:
    if op.type not in UNORDERED:
        return op
    inputs = FrozenMap({slot: tuple(sorted(names)) for slot, names in op.inputs.items()})
    outputs = FrozenMap({slot: tuple(sorted(names)) for slot, names in op.outputs.items()})
    return op._replace(inputs=inputs, outputs=outputs)


def op_difference(built: Op, expected: Op) -> str:
    if built != expected:
        return f"built {built._replace(origin=None)}\nFluid {expected._replace(origin=None)}"
    kinds = [name for name, value in built.attrs.items() if type(value) is not type(expected.attrs[name])]
    return f"{built.type}: other kinds of attributes {kinds}" if kinds else ""


def differences(built: Program, expected: Program) -> list[str]:
    """Where two programs differ, in order of ops, names, attributes, or declarations."""
    found: list[str] = []
    if len(built.blocks) != len(expected.blocks):
        found.append(f"{len(built.blocks)} blocks, Fluid has {len(expected.blocks)}")
    for index, (a, b) in enumerate(zip(built.blocks, expected.blocks, strict=False)):
        if (a.parent, a.forward_block) != (b.parent, b.forward_block):
            found.append(f"block {index} has other parents")
        if len(a.ops) != len(b.ops):
            found.append(f"block {index} has {len(a.ops)} ops, Fluid's {len(b.ops)}")
        for at, (one, other) in enumerate(zip(a.ops, b.ops, strict=False)):
            difference = op_difference(ordered(one), ordered(other))
            if difference:
                found.append(f"block {index} op {at}: {difference}")
                break
        found += [f"block {index} has no %{name}" for name in b.vars if name not in a.vars]
        found += [
            f"block {index}: {a.vars[name]} != {b.vars.get(name)}"
            for name in a.vars
            if a.vars[name] != b.vars.get(name)
        ]
    return found


def module_differences(built: Module, expected: Module) -> list[str]:
    assert built.startup is not None
    assert expected.startup is not None
    return differences(built.main, expected.main) + differences(built.startup, expected.startup)


# Undoing training


def forward_part(name: str) -> Module:
    """The recorded program without what `minimize` and the averages added: what a user would have written."""
    module, made = recorded(name), case(name)
    main, startup = module.main, module.startup
    assert startup is not None
    ops = main.main_block.ops
    start = next(index for index, op in enumerate(ops) if op.role == LOSS_GRADIENT)
    kept = [op for op in ops[:start] if op.role != OpRole.LR_SCHED and "@EMA_STEP_COUNTER@" not in op.output_names]
    inner = [int(block) for op in kept if isinstance(block := op.attrs.get("sub_block"), int)]
    blocks = main.blocks[1 : max(inner, default=0) + 1]
    used = {
        name
        for op in (*kept, *(op for block in blocks for op in block.ops))
        for name in (*op.input_names, *op.output_names)
    }
    used |= {feed["name"] for feed in made["feeds"]} | {"b1var", "b2var"}
    order = [param["name"] for param in made["params"]]
    held = main.main_block.vars
    variables = {param: held[param] for param in order if param in held}
    variables |= {name: var for name, var in held.items() if name in used or (name not in order and var.readers)}
    ops_kept = tuple(op._replace(role=OpRole.FORWARD) if op.role == OpRole.LOSS else op for op in kept)
    first = main.main_block._replace(vars=FrozenMap(variables), ops=ops_kept)
    starts = startup.main_block
    still = tuple(
        op
        for op in starts.ops
        if any((name in variables or name not in held) and not name.endswith("@SLOW") for name in op.output_names)
    )
    named = {name for op in still for name in (*op.input_names, *op.output_names)} | variables.keys()
    begun = starts._replace(vars=FrozenMap({n: v for n, v in starts.vars.items() if n in named}), ops=still)
    programs = {
        MAIN: main._replace(blocks=(first, *blocks)),
        STARTUP: startup._replace(blocks=(begun, *startup.blocks[1:])),
    }
    return Module(FrozenMap(programs))
