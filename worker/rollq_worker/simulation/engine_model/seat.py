"""A request in a simulated engine, from its submission to its end."""

from rollq_worker.simulation.engine_model.prefix_cache import Node
from rollq_worker.simulation.engine_model.values import Request

LARGEST_LIMIT = 4096
"""What a request may still sample counts up to that when another one is admitted."""


class Seat:
    """A request in the engine."""

    __slots__ = (
        "aborted_after",
        "admissions",
        "admitted_at",
        "cached",
        "computed",
        "covered",
        "depth",
        "first_token_at",
        "held",
        "leaves",
        "limit",
        "node",
        "number",
        "own",
        "prompt",
        "request",
        "retractions",
        "sampled",
        "submitted_at",
    )

    def __init__(self, request: Request, number: int, now: float, most_tokens: int) -> None:
        self.request = request
        self.number = number
        self.prompt = sum(pair[1] for pair in request.prefix)
        self.limit = min(max(request.output_tokens, request.max_new_tokens or 0), most_tokens - self.prompt)
        """Most tokens that it may sample, as far as the engine knows."""
        self.submitted_at = now
        self.admitted_at = now
        self.first_token_at: float | None = None
        self.aborted_after: int | None = None
        """Tokens it had sampled when it was aborted; None: it was not."""
        self.admissions = 0
        self.retractions = 0
        self.cached = 0
        """Tokens of the prompt that were cached when it was first admitted."""
        self.sampled = 0
        """Tokens sampled; while it runs, up to when it joined the batch."""
        self.computed = 0
        """Tokens of its context that are cached or prefilled."""
        self.held = False
        """Whether it holds memory."""
        self.own = 0
        """Tokens that it holds outside the cache."""
        self.node: Node | None = None
        """The deepest node of the cache that it holds."""
        self.depth = 0
        """Pairs of its prefix down to that node."""
        self.covered = 0
        """Tokens of these."""
        self.leaves = 0
        """The decode step after which it has all its tokens."""

    @property
    def missing(self) -> int:
        """Tokens of its context that are still to be prefilled."""
        return self.prompt + self.sampled - self.computed

    @property
    def may_sample(self) -> int:
        """Tokens that admission plans for it."""
        return min(max(self.limit - self.sampled, 0), LARGEST_LIMIT)
