"""Parts of a step's graph without a gradient, found before it is decomposed: `torch.no_grad()` blocks, `detach_()`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pstranspile.frontends.torch.refusals import user_place
from pstranspile.ir.diagnostics import DiagnosticError, Note, error

_BLOCK = "wrap_with_set_grad_enabled"
"""The operator that calls a graph of its own with gradients on or off."""


def detach_blocks(torch: Any, exported: Any) -> None:
    """Has everything that an exported graph computes without gradient take detached values.

    A decomposition puts the graphs of blocks into that around them, after which nothing tells that they had no
    gradient. What a block takes is detached at its begin, and `detach_()` becomes `detach()`. Raises DiagnosticError
    (`torch-op`) for a block that writes into a tensor with a gradient: torch goes on with the gradient that the tensor
    had before, whatever is written.
    """
    detach = torch.ops.aten.detach.default
    graphs = [one for one in exported.graph_module.modules() if hasattr(one, "graph")]
    changed: set[Any] = set()
    for module in graphs:
        if _detach_in_place(torch, module.graph, detach):
            changed.add(module)
    with_gradient = _with_gradient(torch, exported)
    for module in graphs:
        for node in [*module.graph.nodes]:
            if getattr(node.target, "__name__", "") != _BLOCK or node.args[0] is not False:
                continue
            block = getattr(module, node.args[1].target)
            _require_unwritten(node, block.graph, with_gradient)
            for inner in [one for one in block.graph.nodes if one.op == "placeholder"]:
                if hasattr(inner.meta.get("val"), "shape"):
                    _detach(block.graph, inner, detach)
            changed.add(block)
    for module in changed:
        module.recompile()


def _detach(graph: Any, node: Any, detach: Any) -> None:
    """Has all users of a node take it detached."""
    users = [*node.users]
    if not users:
        return
    with graph.inserting_after(node):
        made = graph.call_function(detach, (node,))
    made.meta = {**node.meta, "stack_trace": users[0].meta.get("stack_trace")}
    for user in users:
        user.replace_input_with(node, made)


def _detach_in_place(torch: Any, graph: Any, detach: Any) -> bool:
    """Replaces each `detach_()` of a graph by `detach()`, which all later users of the tensor take."""
    found = [node for node in graph.nodes if node.target is torch.ops.aten.detach_.default]
    for node in found:
        order = {one: at for at, one in enumerate(graph.nodes)}
        tensor = node.args[0]
        node.target = detach
        for user in [one for one in tensor.users if order[one] > order[node]]:
            user.replace_input_with(tensor, node)
    return bool(found)


def _written(node: Any) -> Iterator[Any]:
    """The arguments that an operator writes into."""
    for arg, told in zip(node.args, _arguments(node), strict=False):
        if told.alias_info is not None and told.alias_info.is_write and hasattr(arg, "op"):
            yield arg
    for told in _arguments(node):
        arg = node.kwargs.get(told.name)
        if told.alias_info is not None and told.alias_info.is_write and hasattr(arg, "op"):
            yield arg


def _arguments(node: Any) -> list[Any]:
    schema = getattr(node.target, "_schema", None)
    return [] if schema is None else list(schema.arguments)


def _bases(node: Any) -> Iterator[Any]:
    """A node, and the nodes whose memory it shows."""
    yield node
    for arg, told in zip(node.args, _arguments(node), strict=False):
        if told.alias_info is not None and hasattr(arg, "op"):
            yield from _bases(arg)


def _with_gradient(torch: Any, exported: Any) -> set[Any]:
    """The nodes of the outer graph that have a gradient."""
    trained = {
        spec.arg.name
        for spec in exported.graph_signature.input_specs
        if spec.kind.name == "PARAMETER" and exported.state_dict[spec.target].requires_grad
    }
    result: set[Any] = set()
    for node in exported.graph.nodes:
        name = getattr(node.target, "__name__", "")
        if node.op == "placeholder" and node.name in trained:
            result.add(node)
            continue
        if name == _BLOCK or node.target is torch.ops.aten.detach.default:
            continue
        if result.intersection(node.all_input_nodes):
            result.add(node)
            for arg in _written(node):
                result.update(_bases(arg))
    return result


def _require_unwritten(call: Any, block: Any, with_gradient: set[Any]) -> None:
    """Raises DiagnosticError if the graph of a block writes into a tensor that has a gradient."""
    given = [one for one in block.nodes if one.op == "placeholder"]
    outside = dict(zip(given, call.args[2:], strict=True))
    for node in block.nodes:
        for base in (one for arg in _written(node) for one in _bases(arg)):
            if outside.get(base) in with_gradient:
                message = "it writes into a tensor that has a gradient, where gradients are off (torch.no_grad)"
                says = "torch keeps the gradient that the tensor had before; y = x + (new - x).detach() does that"
                place = user_place(node.meta.get("stack_trace"))
                raise DiagnosticError([error("torch-op", message, place, notes=[Note(says)])])
