"""The prefix cache of a simulated engine: a radix tree with locks and LRU eviction, as in SGLang.

An edge of the tree is a pair of a key and its number of tokens, so equal chains of pairs share their tokens. The
invariants: a locked node and all nodes above it stay, and only leaves are evicted, the least recently matched first. It
does not know the engine's capacity.
"""

import heapq
from collections.abc import Hashable, Iterable, Iterator
from typing import TypeAlias

Pair: TypeAlias = tuple[Hashable, int]
"""A key and the number of tokens that it stands for."""
Chain: TypeAlias = tuple[Pair, ...]
STALE_ENTRIES = 1024
"""Number of outdated heap entries beside those of the nodes, above which the heap is built again."""


class Node:
    """One pair of a chain. Shared by all requests whose chain begins with the pairs down to it."""

    __slots__ = ("children", "locks", "matched", "pair", "parent", "tokens")

    def __init__(self, pair: Pair, parent: "Node | None") -> None:
        self.pair = pair
        self.parent = parent
        self.tokens = pair[1]
        self.children: dict[Pair, Node] = {}
        self.locks = 0
        """Number of requests that hold it, plus its locked children."""
        self.matched = 0
        """When it was last matched, in calls of `match`; -1 once it is evicted."""


class PrefixCache:
    def __init__(self) -> None:
        self.root = Node((None, 0), None)
        self.locked = 0
        """Tokens that requests hold."""
        self.evictable = 0
        """Tokens that no request holds."""
        self._calls = 0
        self._nodes = 0
        self._pushes = 0
        self._leaves: list[tuple[int, int, Node]] = []
        """Heap of evictable leaves by their time of matching. Outdated entries are dropped when they come up."""

    def match(self, chain: Chain) -> tuple[Node, int, int]:
        """The deepest cached node of the chain, the number of pairs down to it, and the tokens of these."""
        self._calls += 1
        node, depth, tokens = self.root, 0, 0
        for pair in chain:
            child = node.children.get(pair)
            if child is None:
                break
            node = child
            node.matched = self._calls
            depth += 1
            tokens += pair[1]
        return node, depth, tokens

    def add(self, parent: Node, pair: Pair) -> Node:
        """The child of `parent` for that pair, made if it is missing. The caller holds the parent's lock, and moves it
        to the child with `move_lock`."""
        child = parent.children.get(pair)
        if child is None:
            child = parent.children[pair] = Node(pair, parent)
            self._nodes += 1
            self.evictable += child.tokens
        child.matched = self._calls
        return child

    def lock(self, node: Node) -> None:
        climber: Node | None = node
        while climber is not None and climber is not self.root:
            climber.locks += 1
            if climber.locks > 1:
                return
            self.locked += climber.tokens
            self.evictable -= climber.tokens
            climber = climber.parent

    def unlock(self, node: Node) -> None:
        climber: Node | None = node
        while climber is not None and climber is not self.root:
            climber.locks -= 1
            if climber.locks:
                return
            self.locked -= climber.tokens
            self.evictable += climber.tokens
            if not climber.children:
                self._push(climber)
            climber = climber.parent

    def move_lock(self, old: Node, new: Node) -> None:
        self.lock(new)
        self.unlock(old)

    def remove_unused(self, node: Node) -> None:
        """Evict that node, unless a request or another node needs it."""
        if not node.locks and not node.children:
            self._remove(node)

    def evict(self, tokens: int) -> None:
        """Evict whole leaves until at least `tokens` are gone. Evicts all that it can when they are fewer."""
        while tokens > 0 and self._leaves:
            stamp, _, node = heapq.heappop(self._leaves)
            if node.locks or node.children or node.matched < 0:
                continue
            if node.matched != stamp:  # matched since, so its turn comes later
                self._push(node)
                continue
            tokens -= node.tokens
            self._remove(node)

    def clear(self) -> None:
        """Evict all that is not locked."""
        self.evict(self.evictable)

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root, each after its parent."""
        pending: list[Iterable[Node]] = [self.root.children.values()]
        while pending:
            for node in pending.pop():
                yield node
                pending.append(node.children.values())

    def _remove(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None
        self.evictable -= leaf.tokens
        self._nodes -= 1
        leaf.matched = -1
        del parent.children[leaf.pair]
        if parent is not self.root and not parent.children and not parent.locks:
            self._push(parent)

    def _push(self, leaf: Node) -> None:
        self._pushes += 1
        heapq.heappush(self._leaves, (leaf.matched, self._pushes, leaf))
        if len(self._leaves) > 2 * self._nodes + STALE_ENTRIES:
            self._rebuild()

    def _rebuild(self) -> None:
        leaves = [node for node in self.nodes() if not node.children and not node.locks]
        self._leaves = [(node.matched, number, node) for number, node in enumerate(leaves)]
        heapq.heapify(self._leaves)
