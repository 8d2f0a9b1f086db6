"""Several engines as one, and counts of their requests: each group of jobs has its engine, and an
episode leaves it only when that goes away.

`EnginePlacement` chooses the engine. The invariant: a request waits for an engine that is away only
when no other one is up. It does not know the source of the list.
"""

import logging
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rollq.job import parse_id
from rollq_worker.engine.call import Call, EngineLeft
from rollq_worker.engine.client import EngineClient, Shared
from rollq_worker.engine.exchange.server import EngineLoad
from rollq_worker.engine.hang_watch import HangWatch
from rollq_worker.engine.limits import UNLIMITED
from rollq_worker.engine.scheduling.load_watch import Idle, LoadWatch
from rollq_worker.engine.scheduling.placement import EnginePlacement
from rollq_worker.failures import OtherWeights
from rollq_worker.protocols import Generated, SampleRequest
from rollq_worker.remote.waiting import CHECK_S, wait

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Replies:
    """Replies of engines so far."""

    by_finish: Counter[str]
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that were in a prefix cache."""
    sampled_tokens: int = 0


class Traffic:
    """The requests of one process, for all threads."""

    def __init__(self) -> None:
        self.asking: Counter[str] = Counter()
        """Jobs with their number of requests; an agent program may have several."""
        self.answered = 0
        """Number of waits that have ended so far."""
        self._replies = Replies(Counter())
        self._lock = threading.Lock()

    def begin(self, key: str) -> None:
        """Counts that job as waiting for a reply, until `end`."""
        with self._lock:
            self.asking[key] += 1

    def end(self, key: str, prompt: int, got: Generated | None) -> None:
        """Counts the job's reply to a prompt of that many tokens, if it got one."""
        with self._lock:
            self.answered += 1
            self.asking[key] -= 1
            if not self.asking[key]:
                del self.asking[key]
            if got is not None:
                replies = self._replies
                replies.by_finish[got.finish] += 1
                replies.prompt_tokens += prompt
                replies.cached_tokens += got.cached_tokens
                replies.sampled_tokens += len(got.ids)

    def replies(self) -> Replies:
        """A copy of the counts."""
        with self._lock:
            return replace(self._replies, by_finish=self._replies.by_finish.copy())


class Usage(NamedTuple):
    """Use of one engine, for people."""

    engine: EngineClient
    idle: Idle | None
    """Reason why it generates nothing; None if it does."""
    episodes: int
    """Episodes of this process that play there."""
    load: EngineLoad | None
    """Last report of its load; None when it has no episodes, or does not report."""


class EnginePool:
    """`protocols.Engine` over the engines at some addresses. One object per process, used by all
    threads.

    The options are those of `EngineClient`. Without engines, requests wait. An episode stays on its
    engine until `end`.
    """

    def __init__(
        self,
        urls: Collection[str] = (),
        *,
        vocab_size: int | None = None,
        **options: Any,
    ) -> None:
        self.traffic = Traffic()
        """The requests of this process."""
        self._shared = Shared(vocab_size=vocab_size, engines=0)
        self._options = {"share": self._shared, **options}
        self._engines: tuple[EngineClient, ...] = ()
        self._retired: tuple[EngineClient, ...] = ()
        self._watches: dict[EngineClient, HangWatch] = {}
        """Watches of the engines, also of removed ones until they have answered."""
        self._watching = False
        self._placement = EnginePlacement()
        self._loads = LoadWatch(lambda: self._engines, self._placement)
        self.update(urls)

    @property
    def engines(self) -> Sequence[EngineClient]:
        """The engines that are sent new requests."""
        return self._engines

    @property
    def available(self) -> bool:
        """True if any engine takes requests, as far as this process knows."""
        return any(engine.available for engine in self._engines)

    @property
    def outage_s(self) -> float:
        """Seconds so far in which no engine was there. Deadlines do not run meanwhile."""
        return self._shared.clock.seconds

    def stopped_s(self, run: str) -> float:
        """Seconds so far for which the deadlines of that run stood still: `outage_s`, and waits for
        new weights.
        """
        return self.outage_s + self._shared.weight_waits.seconds(run)

    def awaits_weights(self, run: str) -> bool:
        """True if a call of the run waits for an engine with weights that it accepts."""
        return run in self._shared.weight_waits

    def serves(self, version: str) -> bool:
        """True if an engine may have weights of that version. One that is away, or does not report,
        may.
        """
        return any(
            not engine.available or engine.policies.serve(version) for engine in self._engines
        )

    @contextmanager
    def waits_for_weights(self, key: str) -> Iterator[None]:
        """A turn of that job waits for weights, as `generate` does; the deadlines of its run stand
        still.
        """
        self.traffic.begin(key)
        try:
            with self._shared.weight_waits.of(parse_id(key)[0]):
                yield
        finally:
            self.traffic.end(key, 0, None)

    def usage(self) -> list[Usage]:
        """Use of each engine."""
        loads = self._loads
        placement = self._placement
        usages = []
        for engine in self._engines:
            url = engine.url
            episodes = placement.episodes(url)
            usages.append(Usage(engine, loads.idle(url), episodes, loads.load(url)))
        return usages

    def update(self, urls: Collection[str]) -> None:
        """The engines are now those at these addresses. One that is no longer among them gets no
        new requests, and its connections are closed once the last one has its answer. For one
        thread.
        """
        current = {engine.url: engine for engine in self._engines}
        with ExitStack() as undo:  # all of them, or none
            engines = tuple(
                current.get(url) or self._open(url, undo) for url in dict.fromkeys(urls)
            )
            undo.pop_all()
        gone = [engine for engine in self._engines if engine not in engines]
        new = [engine for engine in engines if engine.url not in current]
        self._shared.away.count(len(new))
        self._engines = engines
        for engine in gone:
            engine.retire()
        self._shared.away.count(-len(gone))
        self._forget_retired(gone)

    def _forget_retired(self, gone: Sequence[EngineClient]) -> None:
        """Closes the retired engines that have answered, and keeps the others."""
        retired = (*self._retired, *gone)
        self._retired = tuple(engine for engine in retired if engine.longest_wait_s())
        for engine in retired:
            if engine not in self._retired:
                self._forget(engine)

    def ask(self) -> None:
        """Asks every engine now whether it takes requests."""
        with ThreadPoolExecutor(max(1, len(self._engines))) as pool:
            # at once, because one that hangs answers late
            list(pool.map(EngineClient.ready, self._engines))

    def watch(self) -> None:
        """Looks for engines that hang, and asks those that are away, in a thread for each, until
        `close`. One more thread asks how busy they are.
        """
        self._watching = True
        for watch in self._watches.values():
            watch.start()
        self._loads.start()

    def admit(self, ids: Sequence[int]) -> None:
        """Notes that the model sampled these ids before (a resumed journal)."""
        self._shared.vocabulary.admit(ids)

    def room(self, prompt: int) -> int:
        """Number of tokens that may follow a prompt of that length on any engine that is up."""
        engines = self._engines
        rooms = [engine.room(prompt) for engine in self._up() or engines]
        return min(rooms, default=UNLIMITED)

    def generate(self, request: SampleRequest) -> Generated:
        """Samples a continuation on the engine of the episode; see `protocols.Engine`.

        That is the engine of its group, unless that has too many episodes. When it goes away the
        request goes on elsewhere, and the episode stays there. So the rest of an aborted turn goes
        where its start was sampled.
        """
        got: Generated | None = None
        self.traffic.begin(request.key)
        try:
            got = self._sample(request)
            return got
        finally:
            self.traffic.end(request.key, len(request.ids), got)

    def _sample(self, request: SampleRequest) -> Generated:
        call = Call(request, self._has_better)
        while True:
            engine = self._enter(call)
            try:
                return engine.sample(call)
            except EngineLeft:
                log.info("%s leaves the engine at %s", request.key, engine.name)

    def end(self, key: str) -> None:
        """Ends a job's episode in this process. A later attempt of the same job that has begun here
        already enters again before its next turn.
        """
        self._placement.leave(key)

    def abort_running(self) -> int:
        """Abort every request of this process, as `EngineClient.abort_running` does."""
        engines = (*self._engines, *self._retired)
        with ThreadPoolExecutor(max(1, len(engines))) as pool:
            # at once, because one that hangs answers late
            return sum(pool.map(EngineClient.abort_running, engines))

    def cut(self, key: str | None = None) -> int:
        """Ends this process's wait for that job's response, or all of its waits with None. Returns
        how many waits were ended.
        """
        return sum(engine.cut(key) for engine in (*self._engines, *self._retired))

    def close(self) -> None:
        """Closes all connections."""
        self._loads.stop()
        for watch in self._watches.values():
            watch.stop()
        for engine in (*self._engines, *self._retired):
            engine.close()

    def _open(self, url: str, undo: ExitStack) -> EngineClient:
        engine = EngineClient(url, **self._options)
        self._watches[engine] = watch = HangWatch(engine)
        undo.callback(self._forget, engine)
        if self._watching:
            watch.start()
        return engine

    def _forget(self, engine: EngineClient) -> None:
        self._watches.pop(engine).stop()
        engine.close()

    def _up(self) -> tuple[EngineClient, ...]:
        return tuple(engine for engine in self._engines if engine.available)

    def _enter(self, call: Call) -> EngineClient:
        """The engine for the call's turn. Waits while there is none, and while none has weights
        that it accepts. Raises OtherWeights in place of the second, where these are of one version
        only, and what `check` raises.
        """
        call.check()  # one that has left its engine may be over
        while not self._engines:
            wait(CHECK_S, call.check)
        fit = self._fit(call)
        if not fit:
            pinned = call.request.pinned
            if pinned:
                raise OtherWeights(call.key, pinned)
            with self._shared.weight_waits.of(call.run):
                while not (fit := self._fit(call)):
                    wait(CHECK_S, call.check)
        engines = {engine.url: engine for engine in fit}
        return engines[self._placement.enter(call.key, call.group, list(engines))]

    def _fit(self, call: Call) -> Sequence[EngineClient]:
        """The engines that the call may go to: those that are up, before those that failed it,
        before all others.
        """
        engines = self._suiting(call)
        if len(engines) <= 1:
            return engines
        up = [engine for engine in engines if engine.available]
        untried = [engine for engine in up if engine.url not in call.avoided]
        return untried or up or engines

    def _suiting(self, call: Call) -> Sequence[EngineClient]:
        """The engines whose weights the call accepts. One that is away is asked for them when it is
        back.
        """
        if call.request.accepts is None and call.request.adapter is None:
            return self._engines
        return [
            engine for engine in self._engines if not engine.available or engine.policies.suit(call)
        ]

    def _has_better(self, call: Call, url: str) -> bool:
        """True if the call should leave the engine at that address for another one."""
        engines = self._engines
        if len(engines) == 1 and engines[0].url == url:
            return False
        here = next((engine for engine in engines if engine.url == url), None)
        if here is None:
            return True  # it was removed
        if here.available and url not in call.avoided:
            return False
        others = [engine for engine in engines if engine is not here]
        return any(_suits(engine, call) for engine in others)


def _suits(engine: EngineClient, call: Call) -> bool:
    """True if the engine is up, has not failed the call, and has weights that it accepts."""
    if engine.url in call.avoided:
        return False
    return engine.available and engine.policies.suit(call)
