"""The SGLang client: token ids in, token ids out, over one pooled HTTP session.

The invariant: an engine that is away, full, paused or hung costs nothing (it is waited for, with `check` called
meanwhile); one that breaks in mid-request is tried again a bounded number of times; a request it cannot play is never
sent twice, and one under which engines die is sent alone. Nothing is ever sent as text. It knows nothing of episodes,
templates or Redis.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import logging
import random
import re
import threading
import time
import uuid
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field

import requests

from rollq.errors import EngineFailure, JobFailure
from rollq.job import Json
from rollq.trajectory import Finish
from rollq_worker.engine_http import Wires, brief, open_session, refused
from rollq_worker.engine_limits import Limits, read_limits
from rollq_worker.engine_reply import AbortError, ReplyError, context_limit, read_error, read_reply
from rollq_worker.engine_request import write_request
from rollq_worker.engine_state import Availability, Standstill
from rollq_worker.protocols import Generated
from rollq_worker.suspects import DEATHS, Quarantine, Suspect

log = logging.getLogger(__name__)

RETRIES = 3
"""How often a request is sent again after the engine broke in the middle of it."""
CONNECT_TIMEOUT_S = 3.0
READ_TIMEOUT_S = 900.0
"""Longest generation, a pause for new weights included; `engine_watch` finds a hung engine long before."""
PROBE_TIMEOUT_S = 10.0
HEALTH_TIMEOUT_S = 25.0
"""A server that is asked for its health generates a token, and gives up after 20 s."""
ABORT_TIMEOUT_S = 1.0
ABORTS_AT_ONCE = 8
CHECK_S = 0.5
"""At most this long between two calls of `check` while waiting."""
BACKOFF_S = (0.1, 2.0)
"""First and longest wait between two tries, before jitter."""
RESET_BACKOFF_S = (1.0, 4.0)
"""The same after a connection that broke: a dying SGLang resets them some 5 s before its port closes."""
LIMITS_RETRY_S = 5.0
"""How long a failed look-up of the engine's limits stands."""
NOT_THE_REQUEST = frozenset({401, 403, 404, 405, 407, 429, 503})
"""Statuses that say something about the engine or the way there, not about this request: waited for."""


class _Away(Exception):
    """The engine takes no requests now. `gone`: there is nobody."""

    def __init__(self, message: str, gone: bool = False) -> None:
        super().__init__(message)
        self.gone = gone


class _Broken(Exception):
    """The engine broke in the middle of a request."""


class _Reset(_Broken):
    """It hung up without an answer."""


class _Cut(Exception):
    """This process ended the wait. `hung`: because the engine answers nobody."""

    def __init__(self, hung: bool) -> None:
        super().__init__("the engine does not answer" if hung else "the wait was ended")
        self.hung = hung


class _TooLong(Exception):
    """The engine's context is shorter than was known."""

    def __init__(self, message: str, limit: int) -> None:
        super().__init__(message)
        self.limit = limit


@dataclass(eq=False)
class _Flight:
    """A request that is under way."""

    key: str
    thread: int = field(default_factory=threading.get_ident)
    since: float = field(default_factory=time.monotonic)
    cut: _Cut | None = None


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
    only sent when this engine sampled them or `admit` was told of them: an unknown id kills a real server. While a
    thread waits for a reply it cannot call `check`: `abort_running` has the engine end all replies that are under way,
    `cut` ends the wait for one. `turn` is a lock that workers share, around requests under which engines have died.
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
    ) -> None:
        self.url = url.rstrip("/")
        self._standstill = Standstill()
        self.availability = Availability(re.sub("//[^/@]*@", "//", self.url), self._standstill)
        self._quarantine = Quarantine(self._standstill, turn)
        self._stop_ids = tuple(stop_ids)
        self._ceiling = vocab_size
        self._timeout = (CONNECT_TIMEOUT_S, read_timeout_s)
        self._slots = threading.BoundedSemaphore(concurrency)
        self._running: dict[str, _Flight] = {}
        self._hung = False
        self._lock = threading.Lock()
        self._limits: Limits | None = None
        self._limits_at = 0.0  # monotonic time from which a look-up is worth while
        self._limits_lock = threading.Lock()
        self._wires = Wires()
        self._session = open_session(concurrency + ABORTS_AT_ONCE, api_key, self._wires)

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
        if self._ceiling is not None and ids:
            self._ceiling = max(self._ceiling, max(ids) + 1)

    def room(self, prompt: int) -> int:
        """How many tokens may follow a prompt of that many tokens; very many while the engine does not say."""
        return self._known_limits().room(prompt)

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
                    with self._quarantine.passing(tries.suspect, check):
                        got = self._request(ids, sampling, room, key)
                except _Away as e:
                    self.availability.lost(str(e))
                    tries.away += 1
                    if e.gone and tries.reset:  # a dying server's port closes last
                        self._died(tries, key, suspicion)
                    _wait(_backoff(tries.away), check)
                except _TooLong as e:
                    if not self._learn(e.limit, len(ids) + room):
                        raise JobFailure(f"{key}: {e}") from e
                except _Broken as e:
                    self._broke(e, tries, key, suspicion, check)
                except _Cut as e:
                    if e.hung:
                        self._recover(0.0, check)
                        self._died(tries, key, suspicion)
                else:
                    self._came_back()
                    self._quarantine.answered()
                    self.admit(got.ids)
                    return got

    def ready(self) -> bool:
        """Ask the engine now whether it takes requests, and keep the answer as `available`."""
        # After a hang its word is not enough, it must generate.
        path, timeout = ("/health", HEALTH_TIMEOUT_S) if self._hung else ("/ready", PROBE_TIMEOUT_S)
        try:
            answer = self._session.get(self.url + path, timeout=(CONNECT_TIMEOUT_S, timeout))
        except requests.RequestException as e:
            self.availability.lost(brief(e), gone=True)
            return False
        if answer.status_code >= 500:
            self.availability.lost(f"{path} answers {answer.status_code}")
            return False
        self._hung = False
        self._came_back()  # a router has no /ready: it answers, and says 503 itself when it has no engine
        return True

    def abort(self, rid: str) -> bool:
        """Ask the engine to end this request now with what it has. False when it could not be asked."""
        try:
            answer = self._session.post(f"{self.url}/abort_request", json={"rid": rid}, timeout=ABORT_TIMEOUT_S)
        except requests.RequestException:
            return False
        return answer.ok

    def abort_running(self) -> int:
        """Abort every request of this process; returns how many were asked for (0: none is running, or no way to ask).

        Asynchronous: the replies come back to their threads as finish ABORT. A request that was just being sent may be
        missed, so call it again until it returns 0. Routers do not pass it on.
        """
        with self._lock:
            running = list(self._running)
        if not running:
            return 0
        with ThreadPoolExecutor(ABORTS_AT_ONCE) as pool:
            return sum(pool.map(self.abort, running))

    def cut(self, key: str | None = None, *, hung: bool = False) -> int:
        """End this process's wait for that job's reply (None: for all), whatever the engine does. Returns how many.

        What had been sampled is lost; `generate` calls `check` and, unless that raises, sends it again.
        """
        with self._lock:
            flights = [flight for flight in self._running.values() if key in (None, flight.key)]
            for flight in flights:
                if self._wires.cut(flight.thread):
                    flight.cut = _Cut(hung)
        return sum(flight.cut is not None for flight in flights)

    def waiting_s(self) -> float:
        """For how long the request has been under way that has been longest."""
        with self._lock:
            return max((time.monotonic() - flight.since for flight in self._running.values()), default=0.0)

    def generates(self) -> bool:
        """Ask the engine whether it gets anywhere; one that is paused or starting does as it should."""
        try:
            answer = self._session.get(f"{self.url}/ready", timeout=(CONNECT_TIMEOUT_S, PROBE_TIMEOUT_S))
            if answer.status_code == 503:
                return True
            answer = self._session.get(f"{self.url}/health", timeout=(CONNECT_TIMEOUT_S, HEALTH_TIMEOUT_S))
        except requests.RequestException:
            return False
        return answer.status_code < 500

    def give_up(self) -> None:
        """The engine hangs: end all waits, and trust it again once it has generated something."""
        self._hung = True
        self.availability.lost("it does not answer", gone=True)
        self.cut(hung=True)

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def _validate(self, ids: array[int], max_new_tokens: int, key: str) -> None:
        """An empty prompt or an id outside the vocabulary kills a real server and everything in flight there."""
        if not ids:
            raise JobFailure(f"{key}: the prompt is empty")
        if self._ceiling is not None and max(ids) >= self._ceiling:
            raise JobFailure(f"{key}: token id {max(ids)} is outside the model's vocabulary of {self._ceiling}")
        if max_new_tokens < 1:
            raise JobFailure(f"{key}: max_new_tokens is {max_new_tokens}")

    @contextmanager
    def _slot(self, check: Callable[[], None]) -> Iterator[None]:
        """One of the process's inference slots: an episode in its environment holds none."""
        while not self._slots.acquire(timeout=CHECK_S):
            check()
        try:
            yield
        finally:
            self._slots.release()

    def _request(self, ids: array[int], sampling: Mapping[str, Json], room: int, key: str) -> Generated:
        """Send it once, under a fresh request id. Raises _Away, _Broken, _TooLong or JobFailure."""
        rid, flight = uuid.uuid4().hex, _Flight(key)
        body = write_request(ids, sampling, stop_ids=self._stop_ids, max_new_tokens=room, rid=rid)
        with self._lock:
            self._running[rid] = flight
        try:
            answer = self._session.post(
                f"{self.url}/generate", data=body, headers={"X-SMG-Routing-Key": key}, timeout=self._timeout
            )
        except requests.RequestException as e:
            if refused(e):
                self.availability.lost(brief(e), gone=True)
                raise _Away(brief(e), gone=True) from e
            if flight.cut is not None:
                raise flight.cut from e
            if isinstance(e, requests.ReadTimeout):
                self.abort(rid)  # it may still be generating for nobody
                raise _Broken(brief(e)) from e
            raise _Reset(brief(e)) from e
        finally:
            with self._lock:
                del self._running[rid]
                self._wires.drop()
        if answer.status_code != 200:
            raise _failure(answer, key)
        try:
            return read_reply(answer.content, prompt=len(ids), max_new_tokens=room)
        except AbortError as e:
            if e.status is not None and 400 <= e.status < 500:
                raise JobFailure(f"{key}: {e}") from e
            raise (_Away if e.status == 503 else _Broken)(str(e)) from e
        except ReplyError as e:
            raise _Broken(str(e)) from e

    def _broke(self, error: _Broken, tries: _Tries, key: str, suspicion: ExitStack, check: Callable[[], None]) -> None:
        """The request broke: wait until the engine is there, and see whether it had died. Raises when that is it."""
        reset = isinstance(error, _Reset)
        if self._recover(_backoff(tries.broken, RESET_BACKOFF_S if reset else BACKOFF_S), check) and reset:
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
        _wait(pause_s, check)
        tries = 0
        while not self.ready():
            gone = True
            tries += 1
            _wait(_backoff(tries), check)
        return gone

    def _came_back(self) -> None:
        if self.availability.found():
            with self._limits_lock:  # it may be another engine now
                self._limits, self._limits_at = None, 0.0

    def _known_limits(self) -> Limits:
        if self._limits is None:
            with self._limits_lock:
                if self._limits is None and time.monotonic() >= self._limits_at:
                    try:
                        self._limits = read_limits(self._get)
                    except requests.RequestException as e:
                        log.debug("limits of %s are unknown: %s", self.url, brief(e))
                        self._limits_at = time.monotonic() + LIMITS_RETRY_S
        return self._limits or Limits()

    def _get(self, path: str) -> object:
        answer = self._session.get(self.url + path, timeout=(CONNECT_TIMEOUT_S, PROBE_TIMEOUT_S))
        if answer.status_code >= 500:
            answer.raise_for_status()
        try:
            return answer.json() if answer.ok else None
        except ValueError:
            return None

    def _learn(self, limit: int, asked: int) -> bool:
        """Take over the limit that a refusal named, if that changes anything about the request it refused."""
        with self._limits_lock:
            known = self._limits or Limits()
            if not 0 < limit <= asked:
                return False
            if limit >= (least := min(known.context, known.prompt)):
                return least < asked  # another thread has learnt it meanwhile
            self._limits = known.shortened(limit)
        return True


def _failure(answer: requests.Response, key: str) -> Exception:
    """What a status other than 200 means."""
    message = f"the engine answered {answer.status_code}: {read_error(answer.content)}"
    if answer.status_code in NOT_THE_REQUEST:
        return _Away(message)
    if answer.status_code >= 500 or answer.status_code == 408 or "duplicate request id" in message.lower():
        return _Broken(message)
    limit = context_limit(message)
    return JobFailure(f"{key}: {message}") if limit is None else _TooLong(message, limit)


def _backoff(tries: int, bounds: tuple[float, float] | None = None) -> float:
    """Seconds to wait after that many tries, with jitter so that hundreds of episodes do not come back at once."""
    first, longest = bounds or BACKOFF_S
    return min(longest, first * 2.0 ** min(tries, 10)) * random.uniform(0.5, 1.0)


def _wait(seconds: float, check: Callable[[], None]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        check()
        time.sleep(min(left, CHECK_S))
    check()
