"""Rows to train on with their shared prefixes stored once: siblings of a group share their prompt.

A model runs over the tree as over one packed row: each token attends to its own prefix and to
nothing else, and each sampled token is there once. `Batch.prefix_tree` is the way in.
"""

from __future__ import annotations  # numpy's names are not there at run time

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import TYPE_CHECKING

from rollq.pip_extras import needs
from rollq.training.arrays import Array, PackedArrays, Row, SegmentArrays, pack, per_token, tensors

if TYPE_CHECKING:
    from torch import Tensor

    from rollq.training.arrays import Numpy


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefixTree(SegmentArrays[Array]):
    """The rows as a tree, depth first: `tokens`, `positions`, `mask`, `logprobs`, `versions`,
    `parents`, `row_index` and `subtree_ends` have the shape (total,).

    Token q attends to token k exactly when `k <= q < subtree_ends[k]`.
    """

    positions: Array
    """int64: the token's place in its row, from 0."""
    parents: Array
    """int64: where the token before it in its row is; -1 for a row's first token. The model's
    output there predicts the token.
    """
    subtree_ends: Array
    """int64: the end of the subtree that the token leads to. A mask function for flexible attention
    needs nothing else.
    """
    row_index: Array
    """int64: the row that sampled the token, and whose advantage it gets; -1 where the mask is
    False.
    """
    last_tokens: Array
    """int64, (rows,): where the row's last token is. Its row is what that token attends to."""

    def torch(self) -> PrefixTree[Tensor]:
        """The same as torch tensors on the CPU, which share the memory of the numpy arrays. Raises
        SettingsError when torch is not installed.
        """
        return PrefixTree(**tensors(self))


@dataclass(slots=True, eq=False)
class _Node:
    """Tokens `[begin, end)` of the packed rows, and what continues them."""

    begin: int
    end: int
    row: int
    """The row of those tokens that are sampled."""
    children: dict[int, list[_Node]] = field(default_factory=dict)
    """By their first token, so that a row looks only at those that may begin like it. Several begin
    with the same token where it was sampled: sampled tokens are not shared.
    """
    last_of: list[int] = field(default_factory=list)
    """The rows that end here."""
    at: int = 0
    """Where it begins in the tree's arrays."""
    parent: int = -1
    """The token before it, likewise; -1 at a root."""

    def add(self, child: _Node, tokens: Numpy) -> None:
        self.children.setdefault(int(tokens[child.begin]), []).append(child)

    @property
    def all_children(self) -> list[_Node]:
        return list(chain.from_iterable(self.children.values()))


def share_prefixes(
    rows: Sequence[Row], *, dtype: str, version_steps: Mapping[str, int]
) -> PrefixTree[Numpy]:
    """The rows as a tree. A row shares no token that it sampled, so each of those keeps its own
    advantage.
    """
    with needs("numpy"):
        import numpy as np

    packed = pack(rows, dtype=dtype, version_steps=version_steps)
    nodes = _depth_first(_tree(packed, len(rows)))
    order = np.concatenate([np.arange(0), *(np.arange(node.begin, node.end) for node in nodes)])
    ends, row_index = np.zeros(len(order), "int64"), np.full(len(order), -1, "int64")
    parents, last = np.arange(-1, len(order) - 1), np.zeros(len(rows), "int64")
    for node in reversed(nodes):  # children first
        end = node.at + node.end - node.begin
        ends[node.at : end] = max([end, *(ends[child.at] for child in node.all_children)])
        row_index[node.at : end], parents[node.at], last[node.last_of] = (
            node.row,
            node.parent,
            end - 1,
        )
    of_tokens = {name: getattr(packed, name)[order] for name in per_token(rows)}
    kept = {shared.name: getattr(packed, shared.name) for shared in fields(SegmentArrays)}
    return PrefixTree(
        **kept | of_tokens,
        positions=packed.positions[order],
        parents=parents,
        subtree_ends=ends,
        row_index=np.where(of_tokens["mask"], row_index, -1),
        last_tokens=last,
    )


def _tree(packed: PackedArrays[Numpy], rows: int) -> _Node:
    root = _Node(0, 0, -1)
    for row in range(rows):
        _insert(root, row, packed)
    return root


def _insert(root: _Node, row: int, packed: PackedArrays[Numpy]) -> None:
    """Follow the row's prompt down the tree as far as it is there, and add the rest."""
    begin, end = int(packed.offsets[row]), int(packed.offsets[row + 1])
    prompt_end = begin + int(packed.prompt_lengths[row])
    node, at = root, begin
    while at < prompt_end:
        alike = node.children.get(int(packed.tokens[at]), ())
        shared, child = max(
            ((_common(packed.tokens, child, at, prompt_end), child) for child in alike),
            key=lambda found: found[0],
            default=(0, node),
        )
        if not shared:
            break
        if shared < child.end - child.begin:
            _split(child, shared, packed.tokens)
        node, at = child, at + shared
    node.add(_Node(at, end, row, last_of=[row]), packed.tokens)


def _common(tokens: Numpy, node: _Node, at: int, end: int) -> int:
    """How many tokens the node and the packed tokens from there on have in common."""
    length = min(node.end - node.begin, end - at)
    differ = tokens[node.begin : node.begin + length] != tokens[at : at + length]
    first = int(differ.argmax()) if length else 0
    return first if length and differ[first] else length


def _split(node: _Node, length: int, tokens: Numpy) -> None:
    rest = _Node(node.begin + length, node.end, node.row, node.children, node.last_of)
    node.end, node.children, node.last_of = node.begin + length, {}, []
    node.add(rest, tokens)


def _depth_first(root: _Node) -> list[_Node]:
    """All nodes below the root, in the order of the arrays, each with its places there."""
    found: list[_Node] = []
    todo, at = root.all_children[::-1], 0
    while todo:
        node = todo.pop()
        node.at, at = at, at + node.end - node.begin
        for child in node.all_children:
            child.parent = at - 1
        found.append(node)
        todo += reversed(node.all_children)
    return found
