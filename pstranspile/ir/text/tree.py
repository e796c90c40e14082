"""Parse trees, whose children are tokens or trees by the rules of the grammar, and typed access to them."""

from __future__ import annotations

from typing import TypeAlias, cast


class Token(str):
    """A piece of the text: `type` is the name of its terminal; lines and columns count from 1.

    Lark's own tokens have the same attributes and replace these if Lark parses.
    """

    __slots__ = ("column", "line", "start_pos", "type")

    type: str
    start_pos: int
    line: int
    column: int


def make_token(type_name: str, text: str, start_pos: int, line: int, column: int) -> Token:
    """A token with its place."""
    made = Token(text)
    made.type, made.start_pos, made.line, made.column = type_name, start_pos, line, column
    return made


class Tree:
    """A parse tree; `data` is the name of its rule."""

    __slots__ = ("children", "data")

    def __init__(self, data: str, children: list[Token | Tree], meta: object = None):
        self.data = data
        self.children = children


Node: TypeAlias = Tree


def token(node: Node, index: int) -> Token:
    """The child at `index`, which is a token by the grammar."""
    return cast(Token, node.children[index])


def tokens(node: Node) -> list[Token]:
    """All children of a rule that has tokens only."""
    return cast("list[Token]", node.children)


def nodes(node: Node) -> list[Node]:
    """The children of a rule that has only trees (or only trees from some index on)."""
    return cast("list[Node]", node.children)


def node_at(node: Node, index: int) -> Node:
    """The child at `index`, which is a tree by the grammar."""
    return cast(Node, node.children[index])
