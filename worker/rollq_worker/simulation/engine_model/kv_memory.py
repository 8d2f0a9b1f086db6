"""The KV memory of a simulated engine: which tokens a request holds, and which are only cached.

The invariant: what requests hold by themselves, what they hold in the cache, and what is only cached is never more than
the memory's size. Sampled tokens count at once, one step before SGLang allocates them. It does not know time.
"""

from rollq_worker.simulation.engine_model.prefix_cache import Chain, Node, PrefixCache
from rollq_worker.simulation.engine_model.seat import Seat


class KvMemory:
    def __init__(self, tokens: int, caching: bool) -> None:
        self._tokens = tokens
        self._caching = caching
        self._own = 0
        self.cache = PrefixCache()

    @property
    def used(self) -> int:
        """Tokens that requests hold."""
        return self._own + self.cache.locked

    @property
    def available(self) -> int:
        """Tokens that are free, or free after an eviction."""
        return self._tokens - self._own - self.cache.locked

    def match(self, seat: Seat) -> tuple[int, int]:
        """Hold the cached part of the request's prefix. Returns the tokens still to prefill, at least one, and the
        tokens that were only cached before."""
        cache = self.cache
        seat.node, seat.depth, seat.covered = cache.match(seat.request.prefix if self._caching else ())
        before = cache.locked
        cache.lock(seat.node)
        seat.held = True
        seat.computed = min(seat.covered, seat.prompt + seat.sampled - 1)
        return seat.missing, cache.locked - before

    def let_go(self, seat: Seat) -> None:
        """Undo `match`."""
        assert seat.node is not None
        self.cache.unlock(seat.node)
        seat.held, seat.node, seat.computed = False, None, 0

    def take(self, seat: Seat, tokens: int) -> None:
        """Give the request tokens of its own."""
        seat.own += tokens
        self.grow_all(tokens)

    def grow_all(self, tokens: int) -> None:
        """Give that many tokens to running requests, whose own are counted again by `settle`."""
        self._own += tokens
        self._evict()

    def store_prompt(self, seat: Seat) -> None:
        """Move what is prefilled of the prompt into the cache, where others find it, and hold it there."""
        if self._caching:
            self._store(seat, seat.request.prefix, seat.computed)
        if not seat.missing and self._caching:
            self._give_back(seat, seat.own - seat.sampled)  # a token of a prompt that was cached to its end

    def settle(self, seat: Seat) -> None:
        """Count the tokens of a request that leaves the running batch."""
        seat.computed = seat.prompt + seat.sampled
        seat.own = seat.sampled if self._caching else seat.prompt + seat.sampled

    def finish(self, seat: Seat, stored: Chain | None) -> None:
        """Leave the request's tokens in the cache, and let go of them."""
        request = seat.request
        if self._caching and not seat.missing:
            if stored is None and seat.sampled:
                stored = (*request.prefix, (request.new_key, seat.sampled))
            if stored is not None and self._back_to_shared(seat, stored):
                self._store(seat, stored, seat.prompt + seat.sampled)
        self.drop(seat)

    def drop(self, seat: Seat) -> None:
        """Let go of the request's tokens. Only those that are in the cache stay there."""
        self._give_back(seat, seat.own)
        self.let_go(seat)

    def flush(self) -> None:
        self.cache.clear()

    def _store(self, seat: Seat, chain: Chain, computed: int) -> None:
        """Move the request's own tokens into the cache: the pairs that end within the first `computed` tokens. Tokens
        that another request has cached in the meantime are freed."""
        assert seat.node is not None
        while seat.depth < len(chain) and seat.covered + chain[seat.depth][1] <= computed:
            pair = chain[seat.depth]
            self._give_back(seat, pair[1])
            child = self.cache.add(seat.node, pair)
            self.cache.move_lock(seat.node, child)
            seat.node = child
            seat.depth += 1
            seat.covered += pair[1]

    def _back_to_shared(self, seat: Seat, chain: Chain) -> bool:
        """Move the request's hold up to where `chain` leaves its prefix, and take over the tokens below. False: memory
        is too full for it."""
        prefix, node = seat.request.prefix, seat.node
        assert node is not None
        shared = 0
        while shared < min(len(prefix), len(chain)) and prefix[shared] == chain[shared]:
            shared += 1
        while seat.depth > shared:
            parent: Node | None = node.parent
            assert parent is not None
            self.cache.move_lock(node, parent)
            self.cache.remove_unused(node)
            seat.depth -= 1
            seat.covered -= node.tokens
            node = seat.node = parent
        missing = seat.prompt + seat.sampled - seat.covered - seat.own
        if missing > self.available:
            return False
        self.take(seat, missing)
        return True

    def _give_back(self, seat: Seat, tokens: int) -> None:
        seat.own -= tokens
        self._own -= tokens

    def _evict(self) -> None:
        excess = self._own + self.cache.locked + self.cache.evictable - self._tokens
        if excess > 0:
            self.cache.evict(excess)
