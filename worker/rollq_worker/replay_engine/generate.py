"""One generation from request to reply: its turn, its time, and its rest after an interruption.

It knows neither HTTP nor the tasks. Requests are checked before they get here, and the ground truth
chooses the turn.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import math
import random
import time
import zlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

from rollq_worker.replay_engine.generate_request import GenerateRequest
from rollq_worker.replay_engine.policy import made_up
from rollq_worker.replay_engine.policy.ground_truth import POLITE, GroundTruth
from rollq_worker.replay_engine.scheduler import Generation, Scheduler
from rollq_worker.replay_engine.stop_conditions import (
    Completion,
    cut_at_stop_string,
    cut_at_stop_token,
    visible_text,
)

LATENCY_SIGMA = 0.6
"""Sigma of the lognormal latency: one request in twenty takes more than 2.2 times the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The options of a replay engine."""

    host: str = "127.0.0.1"
    port: int = 30000
    """Port to listen on; 0 for any free one, which the ready line names."""
    env: str = "shop"
    """Environments whose tasks it plays: one name, several with commas between them, or `all`."""
    latency: float = 0.0
    """Mean seconds of a turn, lognormal. A turn that is cut short takes its share of them."""
    mistakes: float = 0.0
    """Chance that an episode has at least one mistake of the policy."""
    errors: float = 0.0
    """Chance that a request fails by one of the faults."""
    seed: int = 0
    tokenizer: str | None = None
    template: str | None = None
    weight_version: str = "default"
    context_length: int = 32768
    max_running: int = 0
    """Most requests that run at once, the others queue; 0 for no limit."""
    max_queued: int = 0
    """Most requests that may queue, further ones get 503; 0 for no limit."""


class Fault(StrEnum):
    """Fault of a request, drawn by chance. All faults are equally likely."""

    FULL = "full"
    """503, as from a full queue."""
    RESET = "reset"
    """The connection is closed without an answer."""
    GARBAGE = "garbage"
    """200 with half a body."""
    ABORT = "abort"
    """The generation is aborted somewhere in the middle."""


class ReplayEngine:
    """The engine itself. Each request draws its own randomness; one with a sampling_seed always
    draws the same.
    """

    def __init__(self, options: ReplayOptions, ground_truth: GroundTruth) -> None:
        self.options = options
        self.ground_truth = ground_truth
        self.scheduler = Scheduler(
            version=options.weight_version,
            max_running=options.max_running,
            max_queued=options.max_queued,
        )
        self._count = 0
        self._tokenizer = ground_truth.tokenizer
        self._filler = ground_truth.encode_turn(POLITE)

    def randomness(self) -> random.Random:
        self._count += 1
        return random.Random(f"{self.options.seed}:{self._count}")

    def draw_fault(self, rng: random.Random) -> Fault | None:
        rate = self.options.errors
        if rate and rng.random() < rate:
            return rng.choice(list(Fault))
        return None

    async def generate(
        self, request: GenerateRequest, rng: random.Random, fault: Fault | None = None
    ) -> dict[str, Any]:
        """The reply, as SGLang gives it. Raises HttpError for a duplicate request id and a full
        queue.
        """
        seed = request.sampling.get("sampling_seed")
        if seed is not None:
            rng = random.Random(f"{seed}:{zlib.crc32(request.ids.tobytes())}")
        began = time.monotonic()
        plan = self.ground_truth.next_turn(request.ids, rng)
        planned = cut_at_stop_token(plan.ids, self._filler, request, self.ground_truth.eos_ids)
        planned = cut_at_stop_string(planned, request, self._tokenizer)
        length = len(planned.ids)
        seconds = self._latency(rng) * length / len(plan.ids)
        generation = Generation(rid=request.rid, total=length, seconds=seconds, cached=plan.cached)
        await self.scheduler.run(generation)
        if fault is Fault.ABORT and not generation.aborted and length > 1:
            generation.abort_after(rng.randrange(1, length))
        completion = _released(planned, generation)
        return {
            "text": visible_text(completion, request, self._tokenizer),
            "output_ids": completion.ids.tolist(),
            "meta_info": self._meta_info(request, generation, completion)
            | {"e2e_latency": time.monotonic() - began},
        }

    def _latency(self, rng: random.Random) -> float:
        mean = self.options.latency
        if mean:
            return rng.lognormvariate(math.log(mean) - LATENCY_SIGMA**2 / 2, LATENCY_SIGMA)
        return 0.0

    def _meta_info(
        self, request: GenerateRequest, generation: Generation, completion: Completion
    ) -> dict[str, Any]:
        cached = generation.cached
        spans = generation.spans or [(self.scheduler.version, 0, 0)]
        meta: dict[str, Any] = {
            "id": request.rid,
            "finish_reason": completion.finish,
            "weight_version": spans[-1][0],
            "reasoning_tokens": 0,
            "completion_tokens": len(completion.ids),
            "weight_versions": [
                {"version": name, "start": start, "end": end} for name, start, end in spans
            ],
            "dp_rank": None,
        }
        if generation.started:  # a request that was aborted in the queue lacks these
            if request.return_logprob and request.logprob_start >= 0:
                cached = min(cached, request.logprob_start)
            details = {"device": cached, "host": 0} if cached else None
            meta |= {"prompt_tokens": len(request.ids), "num_retractions": 0}
            meta |= {"cached_tokens": cached, "cached_tokens_details": details}
        if request.return_logprob:
            meta |= self._logprobs(request, completion.ids)
        return meta

    def _logprobs(self, request: GenerateRequest, sampled: array[int]) -> dict[str, Any]:
        if request.logprob_start >= 0:
            start = request.logprob_start
        else:
            start = len(request.ids)
        scored = request.ids[start:]
        last = request.ids[-1]
        logprobs: dict[str, Any] = {
            "input_token_logprobs": _entries(
                zip(made_up.prompt(request.ids, start), scored, strict=True)
            ),
            "output_token_logprobs": _entries(
                zip(made_up.continuation(last, sampled), sampled, strict=True)
            ),
            "output_token_logprobs_length": len(sampled),
        }
        if (count := request.top_logprobs) > 0:  # SGLang takes less as none
            vocab = self._tokenizer.vocab_size
            pairs = pairwise(scored)
            best = [_entries(made_up.best(*pair, count, vocab)) for pair in pairs]
            # no token before the first was scored
            logprobs["input_top_logprobs"] = [None, *best] if scored else []
        return logprobs


def _entries(scored: Iterable[tuple[float | None, int]]) -> list[Any]:
    return [[score, id, None] for score, id in scored]


def _released(planned: Completion, generation: Generation) -> Completion:
    if not generation.aborted:
        return planned
    message = "Aborted" if generation.started else "Abort in waiting queue"
    finish = {"type": "abort", "message": message, "status_code": None, "err_type": None}
    return Completion(planned.ids[: generation.released()], finish)
