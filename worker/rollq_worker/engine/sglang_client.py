"""The SGLang client: token ids in, token ids out, over one pooled HTTP session.

The invariant: an engine that is away, full, paused or hung costs nothing (it is waited for, with `check` called
meanwhile); one that breaks in mid-request is tried again a bounded number of times; a request it cannot play is never
sent twice, and one under which engines die is sent alone. Nothing is ever sent as text. It knows nothing of episodes,
templates or Redis.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import logging
import re
import threading
import uuid
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from rollq.errors import EngineFailure, JobFailure
from rollq.job import Json
from rollq.trajectory import Finish
from rollq_worker.engine import patience
from rollq_worker.engine.availability import Availability, Standstill
from rollq_worker.engine.control import EngineControl
from rollq_worker.engine.errors import Away, Broken, Cut, Reset, TooLong, refusal
from rollq_worker.engine.http import Answer, Line, NoAnswer, TimedOut, Unreached
from rollq_worker.engine.in_flight import Flights
from rollq_worker.engine.limits import KnownLimits
from rollq_worker.engine.patience import backoff, wait
from rollq_worker.engine.quarantine import DEATHS, Quarantine, Suspect
from rollq_worker.engine.reply import AbortError, ReplyError, read_reply
from rollq_worker.engine.request import Prompts, write_request
from rollq_worker.engine.tokenizer_check import KnownTokenizer
from rollq_worker.engine.vocabulary import Vocabulary
from rollq_worker.protocols import Generated

log = logging.getLogger(__name__)

RETRIES = 3
"""How often a request is sent again after the engine broke in the middle of it."""
READ_TIMEOUT_S = 900.0
"""Longest generation, a pause for new weights included; `engine_watch` finds a hung engine long before."""
ABORTS_AT_ONCE = 8
OTHER_TOKENIZER = "its tokenizer gives other ids than ours"


@dataclass
class _Tries:
    """How often one call of `generate` met with what, so far."""

    away: int = 0
    broken: int = 0
    """In a row, with the engine still there afterwards."""
    reset: bool = False
    """The last of these hung up without an answer."""
    deaths: int = 0
    suspect: Suspect | None = None


class SGLangEngine:
    """`protocols.Engine` over SGLang's native API, also behind a router. One object a process, used by all threads.

    `stop_ids` end every turn besides the job's own `stop_token_ids`. `vocab_size` is the tokenizer's; ids above it are
    only sent when this engine sampled them or `admit` was told of them. While a thread waits for a reply it cannot call
    `check`: `abort_running` has the engine end all replies that are under way, `cut` ends the wait for one. `turn` is a
    lock that workers share, around requests under which engines have died. `spelling` are our ids of
    `engine_tokenizer.PROBE`: an engine that gives others is sent nothing.
    """

    def __init__(
        self,
        url: str,
        *,
        concurrency: int = 64,
        stop_ids: Sequence[int] = (),
        vocab_size: int | None = None,
        read_timeout_s: float = READ_TIMEOUT_S,
        api_key: str | None = None,
        turn: Callable[[Callable[[], None]], AbstractContextManager[None]] | None = None,
        spelling: Sequence[int] = (),
    ) -> None:
        self.url = url.rstrip("/")
        self._standstill = Standstill()
        self.availability = Availability(re.sub("//[^/@]*@", "//", self.url), self._standstill)
        self._quarantine = Quarantine(self._standstill, turn)
        self._stop_ids = tuple(stop_ids)
        self._vocabulary = Vocabulary(vocab_size)
        self._read_timeout_s = read_timeout_s
        self._slots = threading.BoundedSemaphore(concurrency)
        self._line = Line(self.url, concurrency + ABORTS_AT_ONCE, api_key)
        self._control = EngineControl(self._line)
        self._flights = Flights(self._line.wires)
        self._prompts = Prompts(concurrency)
        self._limits = KnownLimits(self._control.json)
        self._tokenizer = KnownTokenizer(self._control.tokens, spelling)
        self._hung = False

    @property
    def available(self) -> bool:
        """Whether the engine takes requests, as far as is known. While it does not, claiming jobs is pointless."""
        return self.availability.up

    @property
    def outage_s(self) -> float:
        """Seconds so far in which nothing could be sampled, the engine being away or suspects being sent alone.

        Deadlines do not run meanwhile.
        """
        return self._standstill.seconds

    def admit(self, ids: Sequence[int]) -> None:
        """These ids were sampled by this model before (a resumed journal): padding ids of its vocabulary are valid."""
        self._vocabulary.admit(ids)

    def room(self, prompt: int) -> int:
        """How many tokens may follow a prompt of that many tokens; very many while the engine does not say."""
        return self._limits.now().room(prompt)

    def generate(
        self,
        ids: array[int],
        *,
        sampling: Mapping[str, Json],
        max_new_tokens: int,
        key: str,
        check: Callable[[], None],
    ) -> Generated:
        """Sample a continuation; see `protocols.Engine`. A prompt that fills the context yields LENGTH and no ids."""
        self._validate(ids, max_new_tokens, key)
        tries = _Tries()
        with self._slot(check), ExitStack() as suspicion:
            while True:
                check()
                room = min(max_new_tokens, self.room(len(ids)))
                if room <= 0:
                    return Generated(ids=array("I"), logprobs=array("f"), versions=(), finish=Finish.LENGTH)
                try:
                    if self.differs():
                        raise Away(OTHER_TOKENIZER)
                    with self._quarantine.passing(tries.suspect, check):
                        got = self._request(ids, sampling, room, key)
                except Away as e:
                    self.availability.lost(str(e))
                    tries.away += 1
                    if e.gone and tries.reset:  # a dying server's port closes last
                        self._died(tries, key, suspicion)
                    wait(backoff(tries.away), check)
                except TooLong as e:
                    if not self._limits.learn(e.limit, len(ids) + room):
                        raise JobFailure(f"{key}: {e}") from e
                except Broken as e:
                    self._broke(e, tries, key, suspicion, check)
                except Cut as e:
                    if e.hung:
                        self._recover(0.0, check)
                        self._died(tries, key, suspicion)
                else:
                    self._came_back()
                    if self.differs():
                        continue  # another engine came back, and these ids are not ours
                    self._quarantine.answered()
                    self.admit(got.ids)
                    return got

    def ready(self) -> bool:
        """Ask the engine now whether it takes requests, and keep the answer as `available`."""
        trouble, gone = self._control.trouble(generating=self._hung)
        if not trouble and self.differs():
            trouble = OTHER_TOKENIZER
        if trouble:
            self.availability.lost(trouble, gone=gone)
            return False
        self._hung = False
        self._came_back()
        return True

    def differs(self) -> bool:
        """Whether the engine is known to have another tokenizer than ours."""
        return self._tokenizer.differs()

    def abort_running(self) -> int:
        """Abort every request of this process; returns how many were asked for (0: none is running, or no way to ask).

        Asynchronous: the replies come back to their threads as finish ABORT. A request that was just being sent may be
        missed, so call it again until it returns 0. Routers do not pass it on.
        """
        running = self._flights.rids()
        if not running:
            return 0
        with ThreadPoolExecutor(ABORTS_AT_ONCE) as pool:
            return sum(pool.map(self._control.abort, running))

    def cut(self, key: str | None = None, *, hung: bool = False) -> int:
        """End this process's wait for that job's reply (None: for all), whatever the engine does. Returns how many.

        What had been sampled is lost; `generate` calls `check` and, unless that raises, sends it again.
        """
        return self._flights.cut(key, hung=hung)

    def waiting_s(self) -> float:
        """For how long the request has been under way that has been longest."""
        return self._flights.longest_s()

    def generates(self) -> bool:
        """Ask the engine whether it gets anywhere; one that is paused or starting does as it should."""
        return self._control.generates()

    def give_up(self) -> None:
        """The engine hangs: end all waits, and trust it again once it has generated something."""
        self._hung = True
        self.availability.lost("it does not answer", gone=True)
        self.cut(hung=True)

    def rest(self) -> None:
        """Close the connections that lie idle."""
        self._line.sweep()

    def close(self) -> None:
        """Close all connections."""
        self._line.close()

    def _validate(self, ids: array[int], max_new_tokens: int, key: str) -> None:
        """An empty prompt or an id outside the vocabulary kills a real server and everything in flight there."""
        if not ids:
            raise JobFailure(f"{key}: the prompt is empty")
        if (stranger := self._vocabulary.stranger(ids)) is not None:
            raise JobFailure(f"{key}: token id {stranger} is outside the model's vocabulary")
        if max_new_tokens < 1:
            raise JobFailure(f"{key}: max_new_tokens is {max_new_tokens}")

    @contextmanager
    def _slot(self, check: Callable[[], None]) -> Iterator[None]:
        """One of the process's inference slots: an episode in its environment holds none."""
        while not self._slots.acquire(timeout=patience.CHECK_S):
            check()
        try:
            yield
        finally:
            self._slots.release()

    def _request(self, ids: array[int], sampling: Mapping[str, Json], room: int, key: str) -> Generated:
        """Send it once, under a fresh request id. Raises what `engine_outcome` names, or JobFailure."""
        rid = uuid.uuid4().hex
        prompt = self._prompts.write(ids, key)
        body = write_request(prompt, sampling, stop_ids=self._stop_ids, max_new_tokens=room, rid=rid)
        answer = self._send(rid, body, key)
        if answer.status != 200:
            raise refusal(answer, key)
        try:
            end = self._vocabulary.end
            return read_reply(answer.body, rid=rid, prompt=len(ids), max_new_tokens=room, vocabulary=end)
        except AbortError as e:
            if e.status is not None and 400 <= e.status < 500:
                raise JobFailure(f"{key}: {e}") from e
            raise (Away if e.status == 503 else Broken)(str(e)) from e
        except ReplyError as e:
            raise Broken(str(e)) from e

    def _send(self, rid: str, body: bytes, key: str) -> Answer:
        with self._flights.flight(rid, key) as flight:
            try:
                headers = {"X-SMG-Routing-Key": key}
                return self._line.post("/generate", body, timeout_s=self._read_timeout_s, headers=headers)
            except Unreached as e:
                self.availability.lost(str(e), gone=True)
                raise Away(str(e), gone=True) from e
            except NoAnswer as e:
                if flight.cut is not None:
                    raise flight.cut from e
                if isinstance(e, TimedOut):
                    self._control.abort(rid)  # it may still be generating for nobody
                    raise Broken(str(e)) from e
                raise Reset(str(e)) from e

    def _broke(self, error: Broken, tries: _Tries, key: str, suspicion: ExitStack, check: Callable[[], None]) -> None:
        """The request broke: wait until the engine is there, and see whether it had died. Raises when that is it."""
        reset = isinstance(error, Reset)
        if self._recover(backoff(tries.broken, reset=reset), check) and reset:
            self._died(tries, key, suspicion)
            return
        tries.broken, tries.reset = tries.broken + 1, reset
        if tries.broken > RETRIES:
            raise EngineFailure(f"{key}: {error}, {tries.broken} times in a row") from error
        log.info("%s: %s; sending it again", key, error)

    def _died(self, tries: _Tries, key: str, suspicion: ExitStack) -> None:
        """The engine died, or had to be given up, with this request in flight. Raises Poison."""
        tries.broken, tries.reset, tries.deaths = 0, False, tries.deaths + 1
        if tries.suspect is not None:
            self._quarantine.died(tries.suspect, key)
        elif tries.deaths >= DEATHS:
            tries.suspect = suspicion.enter_context(self._quarantine.suspect())

    def _recover(self, pause_s: float, check: Callable[[], None]) -> bool:
        """After a broken request: pause, and if the engine itself is away, wait until it is back. True when it was."""
        gone = not self.ready()  # asked at once, as a supervisor may be quick
        wait(pause_s, check)
        tries = 0
        while not self.ready():
            gone = True
            tries += 1
            wait(backoff(tries), check)
        return gone

    def _came_back(self) -> None:
        if self.availability.found():
            self._limits.forget()  # it may be another engine now
            self._tokenizer.forget()
