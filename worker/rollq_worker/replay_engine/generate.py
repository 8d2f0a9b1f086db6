"""One generation from request to reply: what is said, how long it takes, what has become of it.

It knows neither HTTP nor the tasks: requests come checked, the player knows what to say.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import math
import random
import time
import zlib
from array import array
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rollq.errors import SettingsError
from rollq_worker.replay_engine import faults, made_up_logprobs
from rollq_worker.replay_engine.faults import Fault
from rollq_worker.replay_engine.generate_request import GenerateRequest
from rollq_worker.replay_engine.ground_truth import POLITE, Player
from rollq_worker.replay_engine.scheduler import Generation, Scheduler
from rollq_worker.replay_engine.stop_conditions import Sample, cut_strings, sample, shown

SPREAD = 0.6
"""Sigma of the lognormal latency: one request in twenty takes more than 2.2 times the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything about a replay engine that can be chosen. Raises SettingsError."""

    host: str = "127.0.0.1"
    port: int = 30000
    """0: any free one; the line that says the engine is ready names it."""
    env: str = "shop"
    """Environments whose tasks it plays: a name, several with commas between them, or `all`."""
    latency: float = 0.0
    """Mean seconds of a turn, lognormal; one that is cut short or forced on takes its share."""
    mistakes: float = 0.0
    """Chance that an episode has at least one mistake of the policy."""
    errors: float = 0.0
    """Chance that a request goes wrong: 503, a reset, garbage, an abort."""
    seed: int = 0
    tokenizer: str | None = None
    weight_version: str = "default"
    context_length: int = 32768
    max_running: int = 0
    """Requests that run at once, the others queue; 0: all."""
    max_queued: int = 0
    """Requests that may queue, further ones get 503; 0: any number."""

    def __post_init__(self) -> None:
        for name in ("mistakes", "errors"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise SettingsError(f"{name} is a chance between 0 and 1, not {getattr(self, name)}")
        if not 0.0 <= self.latency < math.inf:
            raise SettingsError(f"latency is a number of seconds, not {self.latency}")
        if self.context_length < 64:
            raise SettingsError(f"a context of {self.context_length} tokens holds no conversation")


class ReplayEngine:
    """Generates. Requests draw independent randomness; one with a sampling_seed always draws the same."""

    def __init__(self, options: Options, player: Player) -> None:
        self.options = options
        self.player = player
        self.scheduler = Scheduler(
            version=options.weight_version, max_running=options.max_running, max_queued=options.max_queued
        )
        self._count = 0
        self._ends = frozenset(player.ends)
        self._filler = player.spell(POLITE)

    def randomness(self) -> random.Random:
        """Fresh for each request."""
        self._count += 1
        return random.Random(f"{self.options.seed}:{self._count}")

    async def generate(
        self, request: GenerateRequest, rng: random.Random, fault: Fault | None = None
    ) -> dict[str, Any]:
        """SGLang's reply. Raises HttpError: a duplicate request id, a full queue."""
        if request.sampling.seed is not None:
            rng = random.Random(f"{request.sampling.seed}:{zlib.crc32(request.ids.tobytes())}")
        began = time.monotonic()
        answer = self.player.answer(request.ids, rng)
        whole = sample(answer.ids, self._filler, request.sampling, request.max_new_tokens, self._ends)
        whole = cut_strings(whole, request.sampling, self.player.tokenizer)
        generation = Generation(
            rid=request.rid, total=len(whole.ids), seconds=self._latency(rng) * len(whole.ids) / len(answer.ids)
        )
        await self.scheduler.run(generation)
        if fault is Fault.ABORT and not generation.aborted and len(whole.ids) > 1:
            generation.cut(rng.randrange(1, len(whole.ids)))
        return self._reply(request, generation, _kept(whole, generation), answer.known, time.monotonic() - began)

    def fault(self, rng: random.Random) -> Fault | None:
        return faults.draw(rng, self.options.errors)

    def _latency(self, rng: random.Random) -> float:
        mean = self.options.latency
        return rng.lognormvariate(math.log(mean) - SPREAD * SPREAD / 2, SPREAD) if mean else 0.0

    def _reply(
        self, request: GenerateRequest, generation: Generation, kept: Sample, known: int, seconds: float
    ) -> dict[str, Any]:
        spans = generation.spans or [(self.scheduler.version, 0, 0)]
        meta: dict[str, Any] = {
            "id": request.rid,
            "finish_reason": kept.finish,
            "weight_version": spans[-1][0],
            "reasoning_tokens": 0,
            "completion_tokens": len(kept.ids),
            "weight_versions": [{"version": name, "start": start, "end": end} for name, start, end in spans],
            "dp_rank": None,
            "e2e_latency": seconds,
        }
        if generation.started:  # a request that was aborted in the queue lacks these
            scored = request.return_logprob and 0 <= request.logprob_start < len(request.ids)
            cached = min(known, request.logprob_start) if scored else known
            details = {"device": cached, "host": 0} if cached else None
            meta |= {"prompt_tokens": len(request.ids), "num_retractions": generation.retractions}
            meta |= {"cached_tokens": cached, "cached_tokens_details": details}
        if request.return_logprob:
            meta |= self._logprobs(request, kept)
        reply = {
            "text": shown(kept, request.sampling, self.player.tokenizer),
            "output_ids": kept.ids.tolist(),
            "meta_info": meta,
        }
        return {**reply, "prompt_token_ids": request.ids.tolist()} if request.show_prompt else reply

    def _logprobs(self, request: GenerateRequest, kept: Sample) -> dict[str, Any]:
        start = request.logprob_start if request.logprob_start >= 0 else len(request.ids)
        rest = request.ids[start:]
        said = made_up_logprobs.continuation(request.ids[-1], kept.ids)
        found: dict[str, Any] = {
            "input_token_logprobs": self._entries(made_up_logprobs.prompt(request.ids, start), rest, request),
            "output_token_logprobs": self._entries(said, kept.ids, request),
            "output_token_logprobs_length": len(said),
        }
        if asked := request.asked_about:
            before = [request.ids[-1], *kept.ids][: len(kept.ids)]
            scores = [[made_up_logprobs.logprob(last, id) for id in asked] for last in before]
            found["output_token_ids_logprobs"] = [self._entries(score, asked, request) for score in scores]
        if request.top_logprobs:
            first = [None] if rest else []  # nothing stands before it that could have been scored
            found["input_top_logprobs"] = [*first, *self._best(rest[:1], rest[1:], request)]
            found["output_top_logprobs"] = self._best(request.ids[-1:], kept.ids, request)
        return found

    def _best(self, before: array[int], tokens: array[int], request: GenerateRequest) -> list[Any]:
        """The best ones at the place of each of `tokens`, the first of which follows `before`."""
        vocab = self.player.tokenizer.vocab_size
        rows = [made_up_logprobs.best(*pair, request.top_logprobs, vocab) for pair in pairwise(before + tokens)]
        return [self._entries([score for score, _ in row], [id for _, id in row], request) for row in rows]

    def _entries(self, scores: Any, ids: Any, request: GenerateRequest) -> list[Any]:
        if not request.text_in_logprobs:
            return [[score, id, None] for score, id in zip(scores, ids, strict=True)]
        decode = self.player.tokenizer.decode
        return [[score, id, decode([id])] for score, id in zip(scores, ids, strict=True)]


def _kept(whole: Sample, generation: Generation) -> Sample:
    """What of the planned generation came out."""
    if not generation.aborted:
        return whole
    message = "Aborted" if generation.started else "Abort in waiting queue"
    finish = {"type": "abort", "message": message, "status_code": None, "err_type": None}
    return Sample(whole.ids[: generation.released()], finish)
