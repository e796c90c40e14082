"""Typed access to Lark's parse trees, whose children are tokens or trees by the rules of the grammar."""

from __future__ import annotations

from typing import TypeAlias, cast

from lark import Token, Tree

__all__ = ["Node", "Token", "Tree", "node_at", "nodes", "token", "tokens"]

Node: TypeAlias = Tree[Token]
"""A parse tree; `data` is the name of its rule."""


def token(node: Node, index: int) -> Token:
    """The child at `index`, which the grammar makes a token."""
    return cast(Token, node.children[index])


def tokens(node: Node) -> list[Token]:
    """All children of a rule that has tokens only."""
    return cast("list[Token]", node.children)


def nodes(node: Node) -> list[Node]:
    """All children of a rule that has trees only."""
    return cast("list[Node]", node.children)


def node_at(node: Node, index: int) -> Node:
    """The child at `index`, which the grammar makes a tree."""
    return cast(Node, node.children[index])
