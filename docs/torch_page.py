"""Writes the reference of what is translated of PyTorch: `python docs/torch_page.py` makes docs/reference/pytorch.md.

The page is made of the readers of operators and of optimizers: what each one refuses is what its code says. A test
holds that the committed page is the one this script makes.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "pytorch.md"

INTRODUCTION = """# PyTorch models: what is translated

What [`pt.trace`](../guides/pytorch.md) makes ops of a program of. `make generated` writes this page from the code that
does it.

An operator without an overload (`add`) stands for all of them, and those that write in place (`add_`) are as the
others. Operators that are not listed are replaced by what PyTorch itself defines them by, where it does:
`torch.nn.functional.fold` or `cosine_embedding_loss` need no row here. What is left is refused with its line of the
model's code, and so is what a row says on the right; `...` stands for what the model gives.
"""
"""What the page begins with."""

AS_IN_TORCH = """
## What has no gradient, and what no graph shows

What a model computes under `torch.no_grad()`, `set_grad_enabled(False)` or a decorator of theirs has no gradient in its
program either, and `detach_()` detaches. These are refused with their line, because the operators of a step do not show
them; `step="torch"` has PyTorch make the step:

- a hook on the gradient of a tensor, a parameter or a module;
- `torch.autocast`, unless it is disabled: the values of a program are f32 or f64;
- `torch.inference_mode()`, and a write under `no_grad()` into a tensor that has a gradient;
- numbers that Python's `random` or `np.random` draws;
- a state that is no buffer (`self.count += 1`), if a second step of PyTorch's on the same batch has another loss. If
  the loss is the same, a warning names the state: the program has what the first step has.

`trace` makes steps of PyTorch's for this, after which the model is as before. A tensor of the batch can't be called as
a parameter or buffer of the model; other variables of a program get names that the model has not.
"""
"""What stands before the optimizers of what a trace observes."""

DERIVATIVES = """
## Backwards of your own, and gradients within a step

- A `torch.autograd.Function` is translated with its backward, whose operators compute the gradients of its arguments:
  tensors that it saves, attributes of `ctx`, `needs_input_grad`, arguments that are no tensors, several results, None
  for a gradient, and functions that call others. Where the backward is not linear in the gradient, as one that clips,
  the mean over ranks is taken of the gradients of parameters, as DDP does. Results that it marks as written in place
  (`mark_dirty`), several results whose gradients may be None (`set_materialize_grads(False)`), a backward that branches
  on data or writes a state, and functions in Python of PyTorch's own are refused.
- `torch.autograd.grad` within a step, as in a gradient penalty, gives what PyTorch derives of the operators between
  its tensors, and has gradients in turn with `create_graph=True`: also of gradients, and of parameters. It is refused
  for operators whose backward is not translated, for a `torch.autograd.Function`, and with `is_grads_batched`.
  `backward()` within a step, and `torch.func`, are refused.
"""
"""What stands before packed sequences, of derivatives that the code states or asks for."""

OF_A_RUN = """
## Packed sequences, sizes that a run computes, complex numbers, checks

- `pack_padded_sequence` and `pad_packed_sequence` are translated with the LSTM, GRU or RNN between them, for lengths
  that are a tensor, or a list or an array made of one: a layer goes over all steps, and a row that has ended keeps its
  state. A loop of Python over `batch_sizes` is refused.
- A whole number that `.item()` makes of a tensor, such as `lengths.max().item()`, may be a size, the end of a slice or
  a factor. A branch on it is refused, and so is a number with a fraction.
- Complex numbers are pairs of real ones in a program: Fourier transforms over dims of known size, `view_as_complex`,
  `polar`, sums, products and quotients. Parameters that are complex themselves are refused, and so are other functions
  of complex numbers.
- A check of data, which is an `assert` or an `if` that only raises an error, is passed as in the step that `trace` made
  of the example batch: a program has no such checks.
"""
"""What stands before the operators that are defined by others, of what depends on a run."""

DEFINED = """
## Operators that are defined by others

{title}

"""
"""What stands before the list of operators that this package defines."""

OPTIMIZERS = """
## Optimizers

An optimizer computes what PyTorch's own does, by its formulas, and goes on from the state that it has. Options that
say only how it is computed (`foreach`, `fused`, `capturable`) change nothing. Optimizers that are not listed are
refused by name, as are hooks on steps, a step of one's own, and these options if they are set: {refused}.
`SparseAdam` has no `weight_decay` in PyTorch.

Schedulers give a rate for each step: one, several of one optimizer, which are stepped in order, or those that call
others (`SequentialLR`, `ChainedScheduler`). `ReduceLROnPlateau` is refused, and so is one that changes more than rates.

| optimizer | options |
|---|---|
"""
"""What stands before the table of optimizers."""


HEAD = """| operators | refused, as the message says |
|---|---|
"""
"""The head of a table of operators."""


class Functions:
    """The functions of a module: what each refuses, and what it asks of the options of a group."""

    def __init__(self, module: ModuleType):
        tree = ast.parse(inspect.getsource(module))
        self._functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}

    def _with_called(self, name: str, seen: set[str]) -> Iterator[ast.FunctionDef]:
        """A function and those of its module that it calls, each once, in order."""
        if name not in self._functions or name in seen:
            return
        seen.add(name)
        yield self._functions[name]
        for node in ast.walk(self._functions[name]):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                yield from self._with_called(node.func.id, seen)

    def refused(self, name: str) -> list[str]:
        """The sentences of what a function and those it calls refuse."""
        found: dict[str, None] = {}
        for function in self._with_called(name, set()):
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Refused":
                    found[_text(node.args[0])] = None
        return list(found)

    def options(self, name: str) -> list[str]:
        """The options of a group that a function and those it calls read."""
        found: dict[str, None] = {}
        for function in self._with_called(name, set()):
            for node in ast.walk(function):
                key = None
                if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "group":
                    key = node.slice
                elif isinstance(node, ast.Call) and ast.unparse(node.func) == "group.get":
                    key = node.args[0]
                if isinstance(key, ast.Constant):
                    found[str(key.value)] = None
        return list(found)


def _text(message: ast.expr) -> str:
    """A sentence as it stands in the code, with dots for what is put in."""
    if isinstance(message, ast.JoinedStr):
        return "".join(_text(part) for part in message.values)
    return str(message.value) if isinstance(message, ast.Constant) else "..."


def page() -> str:
    """The whole page: a table for each family of operators, and one of optimizers."""
    sys.path.insert(0, str(ROOT))
    from pstranspile.frontends.torch import definitions, optimizers
    from pstranspile.frontends.torch.tracing import READERS
    from pstranspile.frontends.torch.training import operators

    parts = [INTRODUCTION]
    for family, names in sorted(operators().items()):
        module = sys.modules[f"pstranspile.frontends.torch.{family}"]
        functions = Functions(module)
        parts.append(f"\n## {family.capitalize()}\n\n{_title(module)}\n\n{HEAD}")
        by_reader: dict[str, list[str]] = {}
        for name in names:
            by_reader.setdefault(READERS[name].__name__, []).append(name)
        for reader, held in by_reader.items():
            listed = ", ".join(f"`{name}`" for name in held)
            parts.append(f"| {listed} | {'; '.join(functions.refused(reader))} |\n")
    names = ", ".join(f"`{name.removesuffix('.default')}`" for name in sorted(definitions.DEFINITIONS))
    parts.append(DEFINED.format(title=_title(definitions)) + f"{names}\n")
    parts.extend((DERIVATIVES, OF_A_RUN, AS_IN_TORCH))
    parts += _optimizers(optimizers)
    return "".join(parts)


def _title(module: ModuleType) -> str:
    return (module.__doc__ or "").split("\n\n")[0].replace("\n", " ").strip()


def _optimizers(module: ModuleType) -> Iterator[str]:
    functions = Functions(module)
    yield OPTIMIZERS.format(refused=", ".join(f"`{name}`" for name in module.REFUSED))
    common = functions.options("_translate_group")
    translated: Mapping[str, object] = module.TRANSLATED
    for kind, function in translated.items():
        own = [name for name in functions.options(getattr(function, "__name__", "")) if name not in common]
        yield f"| `{kind}` | {', '.join(f'`{name}`' for name in [*common, *own])} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
