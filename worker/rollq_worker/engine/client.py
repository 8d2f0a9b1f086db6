"""The client of one server, SGLang or vLLM: token ids in, token ids out, over one pool of HTTP
connections.

The invariants: waiting for an engine that is away, full, paused or hung costs the job nothing. A
request that fails, or under which engines die, is sent again a bounded number of times. A request
that the engine refuses is never sent twice. Only ids are sent, never text. It knows nothing of
episodes, templates or Redis.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import itertools
import logging
import uuid
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from rollq.errors import EngineFailure, JobFailure
from rollq.events import Finish
from rollq.urls import mask_url
from rollq_worker.engine.availability import AllAway, Availability, OutageClock
from rollq_worker.engine.call import RETRIES, Call, EngineLeft
from rollq_worker.engine.detection import FoundServer
from rollq_worker.engine.exchange.generate import ConnectionLost, cached_prompts, probe, sample_once
from rollq_worker.engine.exchange.http import EngineHttp, WaitCut
from rollq_worker.engine.exchange.prompts import Prompt, PromptWriter
from rollq_worker.engine.exchange.replies import (
    AdapterMissing,
    ContextExceeded,
    EngineUnavailable,
    RequestFailed,
)
from rollq_worker.engine.exchange.server import PAUSED, GenerationRequest, Server
from rollq_worker.engine.limits import EngineLimits, TokenizerCheck, Vocabulary
from rollq_worker.engine.served_policies import ServedPolicies, WeightWaits
from rollq_worker.engine.vocabulary_proof import VocabularyProof
from rollq_worker.protocols import Adapter, Generated, SampleRequest
from rollq_worker.remote.waiting import backoff, wait

log = logging.getLogger(__name__)

BACKOFF_S = (0.1, 2.0)
"""First and longest pause in seconds between two tries, before jitter."""
CONNECTION_LOST_BACKOFF_S = (1.0, 4.0)
"""First and longest pause in seconds after a lost connection. A dying SGLang resets connections
some 5 s before its port closes.
"""
OTHER_TOKENIZER = "its tokenizer gives other ids than ours"


class Shared:
    """State that all engines of one process share, as they serve one model to the same jobs."""

    def __init__(self, *, vocab_size: int | None, engines: int) -> None:
        """`engines` is the number of engines so far."""
        self.clock = OutageClock()
        self.away = AllAway(self.clock, engines)
        self.weight_waits = WeightWaits()
        self.vocabulary = Vocabulary(vocab_size)
        self.prompts = PromptWriter()


class EngineClient:
    """`protocols.Engine` over SGLang's native API, also behind a router, or vLLM's. One object per
    server, used by all threads.

    `stop_ids` end every turn besides the job's own `stop_token_ids`. `vocab_size` is the
    tokenizer's; higher ids are only sent if the model sampled them (`Shared.vocabulary`).
    An engine whose tokenizer differs from that of `proof` is sent nothing. Several engines of a
    process are given what they `share`.

    A thread that waits for a response cannot call `check`: `abort_running` has the engine end all
    running requests, and `cut` ends the wait for one.
    """

    def __init__(
        self,
        url: str,
        *,
        stop_ids: Sequence[int] = (),
        vocab_size: int | None = None,
        proof: VocabularyProof | None = None,
        share: Shared | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.name = mask_url(self.url)
        self._shared = share or Shared(vocab_size=vocab_size, engines=1)
        self._availability = Availability(self.name, self._shared.away)
        self._http = EngineHttp(self.url)
        self._found = FoundServer(self._http)
        self._in_flight = self._http.in_flight
        self._stop_ids = tuple(stop_ids)
        self._process = uuid.uuid4().hex
        """A prefix of request ids that no other process has."""
        self._requests = itertools.count()
        self._limits = EngineLimits(lambda: self.server.limits())
        self.vocabulary = TokenizerCheck(lambda text: self.server.tokenize(text), proof)
        """Compares its vocabulary with ours."""
        self._proof = proof
        self.policies = ServedPolicies(
            lambda: self.server.weight_version(), self.name, self._shared.weight_waits
        )
        self._hung = False
        self.paused = False
        """True if it said so when it was asked last. Only one that is not available is asked."""

    @property
    def server(self) -> Server:
        """The server in its own form. It may be another one after an outage."""
        return self._found.now

    @property
    def available(self) -> bool:
        """True if the engine takes requests, as far as this process knows. While it does not,
        claiming jobs is pointless.
        """
        return self._availability.up

    def room(self, prompt: int) -> int:
        """Number of tokens that may follow a prompt of that many tokens. Very many while the engine
        reports no limit.
        """
        return self._limits.room(prompt)

    def generate(self, request: SampleRequest) -> Generated:
        """See `protocols.Engine`."""
        return self.sample(Call(request))

    def sample(self, call: Call) -> Generated:
        """`generate` for a call that may have been on another engine before. Raises EngineLeft when
        it should go to another one.
        """
        request = call.request
        prompt = self._write_prompt(request)
        call.unavailable = 0
        call.connection_lost = False
        while True:
            self._check(call)
            if self.available and not self.policies.suit(call):
                raise EngineLeft
            adapter = request.adapter() if request.adapter else None
            self._limits.use()
            room = min(request.max_new_tokens, self.room(len(request.ids)))
            if room <= 0:
                return Generated(
                    ids=array("I"), logprobs=array("f"), versions=(), finish=Finish.LENGTH
                )
            seems_router = bool(self._limits.dropped(request.sampling))
            try:
                if self.vocabulary.differs():
                    raise EngineUnavailable(OTHER_TOKENIZER)
                if objection := self.server.objection():
                    raise EngineUnavailable(objection, foreign=True)
                probes = call.probes or seems_router
                generated = self._sample_once(call, prompt, room, adapter, probes)
            except (
                EngineUnavailable,
                ContextExceeded,
                RequestFailed,
                AdapterMissing,
                WaitCut,
            ) as e:
                self._recover(e, call, room, adapter)
                continue
            self._mark_up()
            if self._may_keep(generated, call, adapter, seems_router):
                self._shared.vocabulary.admit(generated.ids)
                return generated

    def _recover(
        self,
        error: Exception,
        call: Call,
        room: int,
        adapter: Adapter | None,
    ) -> None:
        """Recover from the error, so that the request can be sent again.

        Raises EngineLeft, JobFailure or EngineFailure where it must not be sent here again.
        """
        match error:
            case EngineUnavailable():
                self._unavailable(error, call)
            case ContextExceeded():
                self._learn_context(error, call, room)
            case RequestFailed():
                self._handle_failure(error, call)
            case AdapterMissing():
                if adapter:
                    self.policies.adapters.refused(adapter, str(error))
                raise EngineLeft from error
            case WaitCut(hung=True):
                self._wait_until_ready(0.0, call)
                call.engine_died()

    def _learn_context(self, error: ContextExceeded, call: Call, room: int) -> None:
        """Takes over the context that a refusal names. Raises JobFailure if nothing was learnt."""
        length = len(call.request.ids)
        reserved = error.prompt - length if error.prompt else 0
        self._limits.learn(error.limit, reserved, length + room)
        if self.room(length) >= room:  # it would be refused again
            raise JobFailure(f"{call.key}: {error}") from error

    def _may_keep(
        self,
        generated: Generated,
        call: Call,
        adapter: Adapter | None,
        seemed_router: bool,
    ) -> bool:
        """False if the request must be sent again. Raises JobFailure if a router drops parameters
        of the job.
        """
        if self.vocabulary.differs() or self.server.objection():
            return False  # another engine came back, and these ids or logprobs are of no use
        dropped = self._limits.dropped(call.request.sampling)
        if dropped:
            raise JobFailure(
                f"{call.key}: the server at {self.name} is a router, and routers drop "
                f"{' and '.join(dropped)}: give workers the engines' own addresses (--engine, "
                "several times), or leave it out of the job"
            )
        if seemed_router:
            return False  # another engine came back, and only one token was requested
        if adapter:
            self.policies.adapters.served(adapter)
        return self.policies.may_keep(generated, call)

    def ready(self) -> bool:
        """Asks the engine now whether it takes requests, and keeps the answer as `available`."""
        return not self.why_not_ready()

    def why_not_ready(self) -> str:
        """Asks as `ready` does. Returns the reason why the engine takes no requests, or ""."""
        not_ready = self.server.why_not_ready(hung=self._hung)
        reason = not_ready.reason if not_ready else ""
        self.paused = reason == PAUSED
        if not reason and self.vocabulary.differs():
            reason = OTHER_TOKENIZER
        if not reason and (reason := self.server.objection()):
            self._found.forget()
        if reason:
            is_unreachable = not_ready is not None and not_ready.is_unreachable
            self._availability.mark_down(reason, unreachable=is_unreachable)
            return reason
        self._hung = False
        if self._availability.mark_ready():
            self._forget()
        return ""

    def probe(self) -> str:
        """Asks the engine for one token. Returns why there was none, or "". Raises OtherServer.

        Without a `proof` it is not asked, because ids of another model would kill it.
        """
        why = probe(self.server, self._http, self._proof.test_ids) if self._proof else ""
        if why:
            self._forget()  # the facts may be another server's, such as a proxy's
        return why

    def cached_prompts(self, ids: Sequence[int]) -> Sequence[int]:
        """Tokens of this prompt that each of some requests of one group found in a cache. Raises
        NoResponse.
        """
        return cached_prompts(self.server, self._http, ids)

    def abort_running(self) -> int:
        """Abort every request of this process. Returns how many the engine was asked to abort.

        Asynchronous: the replies come back to their threads as finish ABORT. A request that was
        just being sent may be missed, so call it again until it returns 0. Routers do not pass
        aborts on.
        """
        running = self._in_flight.rids()
        if not running:
            return 0
        with ThreadPoolExecutor(8) as pool:
            return sum(pool.map(self.server.abort, running))

    def cut(self, key: str | None = None, *, hung: bool = False) -> int:
        """Ends this process's wait for that job's response, or all of its waits with None. Returns
        how many waits were ended.

        The tokens so far are lost; `generate` calls `check` and, unless that raises, sends the
        request again.
        """
        return self._in_flight.cut(key, hung=hung)

    def longest_wait_s(self) -> float:
        """Seconds that the oldest request in flight has been waiting for its response."""
        return self._in_flight.longest_wait_s()

    def give_up(self) -> None:
        """Gives up an engine that hangs: ends all waits, and trusts it again once it has passed its
        health check.
        """
        self._hung = True
        self._availability.mark_down("it does not answer", unreachable=True)
        self.cut(hung=True)

    def retire(self) -> None:
        """This process sends no further requests here; those in flight go on."""
        self._availability.retire()

    def close_idle_connections(self) -> None:
        self._http.close_idle()

    def close(self) -> None:
        """Closes all connections."""
        self._http.close()

    def _write_prompt(self, request: SampleRequest) -> Prompt:
        """The prompt as digits. Raises JobFailure for one that would kill a real server, with
        everything in flight: empty, or with an id outside the vocabulary.
        """
        if not request.ids:
            raise JobFailure(f"{request.key}: the prompt is empty")
        if request.max_new_tokens < 1:
            raise JobFailure(f"{request.key}: max_new_tokens is {request.max_new_tokens}")
        prompt = self._shared.prompts.write(request.ids)
        if not self._shared.vocabulary.knows(prompt.highest):
            raise JobFailure(
                f"{request.key}: token id {prompt.highest} is outside the model's vocabulary"
            )
        return prompt

    def _sample_once(
        self,
        call: Call,
        prompt: Prompt,
        room: int,
        adapter: Adapter | None,
        probes: bool,
    ) -> Generated:
        """Sends one request for at most `room` tokens.

        `probes`: it only shows which weights sample, or that a router answers.
        """
        if probes:
            sample = replace(call.request, sampling={}, max_new_tokens=1)
        else:
            sample = replace(call.request, max_new_tokens=room)
        if adapter:
            self.policies.adapters.sent(adapter)
        try:
            request = GenerationRequest(
                turn=sample,
                prompt=prompt,
                # the engine's log names the job
                rid=f"{call.key}/{self._process}{next(self._requests):x}",
                stop_ids=self._stop_ids,
                vocabulary=self._shared.vocabulary.end,
                adapter=adapter,
            )
            return sample_once(self.server, self._http, request, group=call.group)
        except (ContextExceeded, AdapterMissing, JobFailure, EngineFailure):
            self._mark_up()  # the answer blames the request
            raise

    def _mark_up(self) -> None:
        """The engine has answered a request."""
        if self._availability.mark_up():
            self._forget()

    def _check(self, call: Call) -> None:
        """Checks that the call may go on here. Raises EngineLeft if it should not."""
        call.check()
        if call.has_better(call, self.url):
            raise EngineLeft

    def _unavailable(self, error: EngineUnavailable, call: Call) -> None:
        another = error.unreachable or error.foreign
        self._availability.mark_down(str(error), unreachable=another, refused=not error.unreachable)
        if error.foreign:
            self._found.forget()  # one of another kind refuses each request in this form
        if error.unreachable:
            self.policies.forget()
        call.unavailable += 1
        if error.unreachable and call.connection_lost:  # a dying server's port closes last
            call.engine_died()
        if not call.has_better(call, self.url):
            wait(backoff(call.unavailable, *BACKOFF_S), call.check)

    def _handle_failure(self, error: RequestFailed, call: Call) -> None:
        """Waits until the engine is ready, and notes a death. Raises EngineFailure after
        too many failures.
        """
        lost = isinstance(error, ConnectionLost)
        if lost:
            self.policies.forget()
        pause_s = backoff(call.failed, *(CONNECTION_LOST_BACKOFF_S if lost else BACKOFF_S))
        if self._wait_until_ready(pause_s, call) and lost:
            call.engine_died()
            return
        call.failed = call.failed + 1
        call.connection_lost = lost
        if not lost:  # after a lost connection, only this engine can show whether it died
            call.avoided.add(self.url)
        if call.failed > RETRIES:
            raise EngineFailure(f"{call.key}: {error}, {call.failed} times in a row") from error
        log.info("%s: %s; sending it again", call.key, error)

    def _wait_until_ready(self, pause_s: float, call: Call) -> bool:
        """Pauses after a failure, and goes on waiting until the engine is ready, or away and
        another one is better.

        True if it was not ready at first.
        """
        if self._hung and call.has_better(call, self.url):
            return True  # asking would take long
        # before the pause, because a supervisor may restart the engine quickly
        was_away = not self.ready()
        if was_away and call.has_better(call, self.url):
            return True
        wait(pause_s, call.check)
        tries = 0
        while not self.ready():
            was_away = True
            if call.has_better(call, self.url):
                break
            tries += 1
            wait(backoff(tries, *BACKOFF_S), call.check)
        return was_away

    def _forget(self) -> None:
        """The engine was unreachable, so it may be another one now."""
        self._found.forget()
        self._limits.forget()
        self.vocabulary.forget()
        self.policies.forget()
