"""Kernels. Convolution over the nodes of trees.

A tree is given by its edges [parent, child] with nodes counted from 1. The first edge with a 0 ends them. The subtree
of a node are the nodes below it, down to `max_depth` levels with the node itself. Each gets three weights: for its
depth, and for its place from the left and from the right among the children of its parent.
"""

from __future__ import annotations

import numpy as np

from pstranspile.runtime.kernels.kernel import plain_kernel
from pstranspile.runtime.values import Array


def _children(edges: Array, room: int) -> list[list[int]]:
    """The children of each node, nodes counted from 0. Raises ValueError for nodes without room."""
    full = (edges != 0).all(axis=1)
    count = int(full.sum()) + 1
    given = edges[: len(edges) if full.all() else int(full.argmin())] - 1
    if count > room or (given < 0).any() or (given >= count).any():
        raise ValueError(f"{count - 1} edges are a tree of {count} nodes, of {room}: the edges name other nodes")
    children: list[list[int]] = [[] for _ in range(count)]
    for parent, child in given:
        children[int(parent)].append(int(child))
    return children


def _subtree(root: int, levels: int, children: list[list[int]]) -> list[tuple[int, int, int, int]]:
    """The nodes of a subtree: each with its place among its siblings from 1, how many these are, and its depth."""
    found, seen, open_nodes = [(root, 1, 1, 0)], {root}, [(root, 0)]
    while open_nodes:
        node, depth = open_nodes[-1]
        new = (
            [(at, child) for at, child in enumerate(children[node]) if child not in seen] if depth + 1 < levels else []
        )
        if not new:
            open_nodes.pop()
        for at, child in new:
            seen.add(child)
            open_nodes.append((child, depth + 1))
            found.append((child, at + 1, len(children[node]), depth + 1))
    return found


def _weights(edges: Array, room: int, levels: int, kind: np.dtype[np.generic]) -> Array:
    """How much each node counts in the subtree of each: [3, subtrees, nodes], from the left, the right and the top."""
    weights = np.zeros((3, room, room), kind)
    children = _children(edges, room)
    rows = [(root, *entry) for root in range(len(children)) for entry in _subtree(root, levels, children)]
    root, node, place, siblings, depth = np.array(rows).T
    top = (levels - depth) / levels
    left = (1 - top) * np.where(siblings == 1, 0.5, (place - 1) / np.maximum(siblings - 1, 1))
    weights[:, root, node] = left, (1 - top) * (1 - left), top
    return weights


@plain_kernel("tree_conv", lod="none")
def _tree_conv(NodesVector: Array, EdgeSet: Array, Filter: Array, *, max_depth: int) -> Array:
    out = np.zeros((*NodesVector.shape[:2], *Filter.shape[2:]), NodesVector.dtype)
    for tree, (nodes, edges) in enumerate(zip(NodesVector, EdgeSet, strict=True)):
        weights = _weights(edges, len(nodes), max_depth, nodes.dtype)
        out[tree] = np.tensordot(weights @ nodes, Filter, ((0, 2), (1, 0)))
    return out


@plain_kernel("tree_conv_grad", "NodesVector@GRAD Filter@GRAD", lod="none")
def _tree_conv_grad(
    Out_GRAD: Array, Filter: Array, EdgeSet: Array, NodesVector: Array, *, max_depth: int
) -> tuple[Array, Array]:
    nodes_grad, filter_grad = np.zeros_like(NodesVector), np.zeros_like(Filter)
    for tree, (nodes, edges) in enumerate(zip(NodesVector, EdgeSet, strict=True)):
        weights = _weights(edges, len(nodes), max_depth, nodes.dtype)
        spread = np.tensordot(Out_GRAD[tree], Filter, ((1, 2), (2, 3)))  # [subtrees, width, 3]
        nodes_grad[tree] = np.einsum("kuv,ufk->vf", weights, spread)
        filter_grad += np.tensordot(weights @ nodes, Out_GRAD[tree], ((1,), (0,))).swapaxes(0, 1)
    return nodes_grad, filter_grad
