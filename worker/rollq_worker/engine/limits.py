"""Facts about an engine: the length of its prompts, the parameters and token ids that it takes, and
its tokenizer.

The invariant: a fact that the engine does not report is not a limit, because a server refuses too
long a prompt by itself and names the limit. It knows nothing of jobs.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from rollq_worker.engine.vocabulary_proof import VocabularyProof
from rollq_worker.remote.http_client import NoResponse

log = logging.getLogger(__name__)

UNLIMITED = 2**30
"""The limit, in tokens, of an engine that reports none."""
ANY_ID = 1 << 32
PADDING = 2048
"""Upper bound on the padding ids that a model adds to its tokenizer's. Higher ids are garbage."""
DROPPED = ("logit_bias", "stop_regex")
"""Sampling parameters that routers drop in silence (sglang-router 0.3.2, smg 1.13.0)."""
RETRY_S = 5.0
"""Seconds between two questions to an engine that was away or has another tokenizer."""
IDLE_S = 10.0
"""Seconds without a request after which another engine may have come to the address."""


@dataclass(frozen=True, slots=True)
class ContextLimits:
    """Limits in tokens. SGLang refuses prompt + max_new_tokens > `context`, and prompts of `prompt`
    or more tokens.
    """

    context: int = UNLIMITED
    prompt: int = UNLIMITED
    reported: bool = False
    """True if the engine itself reported them. Else they were learnt from a refusal."""

    def room(self, prompt: int) -> int:
        """Number of tokens that may follow a prompt of that many tokens."""
        if prompt < self.prompt:
            return max(0, self.context - prompt)
        return 0


def read_limits(get: Callable[[str], object]) -> ContextLimits:
    """The limits that the engine reports. `get` returns the JSON at a path, or None if the server
    does not have it (a router).
    """
    info = object_or_empty(get("/server_info"))
    prompt = positive_number(info.get("max_req_input_len"))
    context = positive_number(info.get("context_length"))
    if context is None:  # only set when the server was started with --context-length
        context = positive_number(first_model(get).get("max_model_len"))
    return ContextLimits(
        context=context or UNLIMITED, prompt=prompt or UNLIMITED, reported=bool(context or prompt)
    )


def first_model(get: Callable[[str], object]) -> Mapping[str, object]:
    """The first entry of /v1/models; empty without one."""
    models = object_or_empty(get("/v1/models")).get("data")
    return object_or_empty(models[0]) if isinstance(models, list) and models else {}


def object_or_empty(value: object) -> Mapping[str, object]:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def positive_number(value: object) -> int | None:
    """The number, or None unless it is positive: with a context of 0 every episode would end by
    length, and be graded.
    """
    return value if type(value) is int and value > 0 else None


class EngineLimits:
    """The context limits of one engine, for all threads. The engine is asked when they are first
    needed. It is asked again where another one may have come to the address unseen: after a time in
    which nothing was sent there, and for a prompt that does not fit.
    """

    def __init__(self, ask: Callable[[], ContextLimits]) -> None:
        """`ask` is `Server.limits`."""
        self._ask = ask
        self._lock = threading.Lock()
        self._limits: ContextLimits | None = None
        self._ask_at = 0.0  # monotonic time before which the engine is not asked again
        self._asked_at = 0.0
        self._used_at = 0.0

    def use(self) -> None:
        """Notes that a request is sent."""
        now = time.monotonic()
        was_idle = now - self._used_at > IDLE_S
        self._used_at = now
        if was_idle:
            self._renew()

    def room(self, prompt: int) -> int:
        """Number of tokens that may follow a prompt of that many tokens."""
        if self.current().room(prompt) <= 0:
            self._renew()
        return self.current().room(prompt)

    def current(self) -> ContextLimits:
        if self._limits is None:
            with self._lock:
                if self._limits is None:
                    self._update()
        return self._limits or ContextLimits()

    def dropped(self, sampling: Collection[str]) -> list[str]:
        """Names of these parameters that get lost. A server that generates and reports no limits is
        a router.
        """
        if self.current().reported or self._limits is None:
            return []
        return [name for name in DROPPED if name in sampling]

    def forget(self) -> None:
        """The engine may be another one now."""
        with self._lock:
            self._limits = None
            self._ask_at = 0.0

    def learn(self, limit: int, reserved: int, requested: int) -> None:
        """Takes over the limit that a refusal of `requested` tokens named, less the tokens that the
        engine reserves.

        Limits that the engine reports stay, because one odd refusal must not shorten every
        episode. It is asked again, because it may have been replaced while nothing was sent.
        """
        with self._lock:
            self._update()
        # With EAGLE, SGLang counts its draft tokens, at most some 256, as part of every prompt.
        room = limit - reserved if 0 < reserved <= 256 else limit
        if not 0 < room <= requested:
            return
        with self._lock:
            limits = self._limits or ContextLimits()
            is_below_report = limit < min(limits.context, limits.prompt)
            if limits.reported and is_below_report:
                return
            self._limits = replace(
                limits, context=min(limits.context, room), prompt=min(limits.prompt, room)
            )

    def _renew(self) -> None:
        with self._lock:
            if time.monotonic() - self._asked_at > IDLE_S:
                self._update()

    def _update(self) -> None:
        """Asks the engine, unless it gave no reply just now. Without a reply the limits stay."""
        if time.monotonic() < self._ask_at:
            return
        try:
            self._limits = self._ask()
            self._asked_at = time.monotonic()
        except NoResponse as e:
            log.debug("the engine's limits are unknown: %s", e)
            self._ask_at = time.monotonic() + RETRY_S


class Vocabulary:
    """The token ids that an engine may be sent, for all threads. One unknown id kills a real
    server.

    `size` is the tokenizer's, None if it is unknown. A model has some more ids, because its
    matrices are padded to a round size (Qwen2.5: 271 or 399 more). A policy now and then samples
    one; ids that it sampled may be sent.
    """

    def __init__(self, size: int | None) -> None:
        self.end = ANY_ID if size is None else size + PADDING
        """Every id of the model is below."""
        self._sendable = ANY_ID if size is None else size
        self._lock = threading.Lock()

    def admit(self, ids: Sequence[int]) -> None:
        """Notes that the model sampled these ids, so it has them and all below them."""
        highest = max(ids, default=0)
        if highest >= self.end:
            highest = max((id for id in ids if id < self.end), default=0)
        if highest >= self._sendable:
            with self._lock:
                self._sendable = max(self._sendable, highest + 1)

    def knows(self, id: int) -> bool:
        """True if this id and all below it may be sent."""
        return id < self._sendable


def ids_of(reply: object) -> Sequence[int] | None:
    """The ids in the reply of /tokenize; None when it has none."""
    ids = reply.get("tokens") if isinstance(reply, dict) else None
    if not isinstance(ids, list) or not ids:
        return None
    if not all(type(id) is int and 0 <= id < ANY_ID for id in ids):
        return None
    return ids


class TokenizerCheck:
    """Compares one engine's vocabulary with ours, for all threads, when the answer is first needed.

    The engine is asked for the ids of texts that touch every token, once; and for those of the
    first two texts whenever it may be another one: after an outage, and after a time in which
    nothing was sent there. An engine that shows no ids (a router) is trusted.
    """

    def __init__(self, tokenize: Callable[[str], object], proof: VocabularyProof | None) -> None:
        """`tokenize` posts a text to /tokenize and may raise NoResponse; `proof`: of our tokenizer,
        if known.
        """
        self._tokenize = tokenize
        self._proof = proof
        self._lock = threading.Lock()
        self._proved = False
        self.difference = ""
        """The difference; "" if none was seen."""
        self.shows_ids = False
        """True if the engine replied with ids."""
        # monotonic time before which the engine is not asked again
        self._ask_at = 0.0 if proof else float("inf")
        self._used_at = 0.0

    def differs(self) -> bool:
        """True if the engine has another vocabulary than ours."""
        now = time.monotonic()
        was_idle = now - self._used_at > IDLE_S
        self._used_at = now
        if was_idle and self._proof:
            self._ask_at = min(self._ask_at, now)
        if now >= self._ask_at:
            with self._lock:
                if time.monotonic() >= self._ask_at and self._proof:
                    self._ask(self._proof)
        return bool(self.difference)

    def _ask(self, proof: VocabularyProof) -> None:
        try:
            self.difference = self._compare(proof)
        except NoResponse as e:
            log.debug("the engine's tokenizer is unknown: %s", e)
            self._ask_at = time.monotonic() + RETRY_S
        else:
            self._ask_at = time.monotonic() + RETRY_S if self.difference else float("inf")

    def _compare(self, proof: VocabularyProof) -> str:
        # The first two are a text of many scripts, and all control tokens.
        for text, ours in proof.texts[: 2 if self._proved else None]:
            theirs = ids_of(self._tokenize(text))
            self.shows_ids = theirs is not None
            if theirs is None:
                return ""
            difference = proof.difference(ours, theirs)
            if difference:
                return difference
        self._proved = True
        return ""

    def forget(self) -> None:
        """The engine may be another one now."""
        with self._lock:
            self._ask_at = 0.0 if self._proof else float("inf")
