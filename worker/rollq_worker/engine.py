"""The SGLang client: token ids in, token ids out, over one pooled HTTP session.

The invariant: an engine that is away, full or paused costs nothing (it is waited for, with `check` called meanwhile);
one that breaks in mid-request is tried again a bounded number of times; a request it cannot play is never sent twice.
Nothing is ever sent as text. It knows nothing of episodes, templates or Redis.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
import logging
import random
import re
import socket
import threading
import time
import uuid
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.exceptions import NewConnectionError

from rollq.errors import EngineFailure, JobFailure
from rollq.job import Json
from rollq.trajectory import Finish
from rollq_worker.engine_limits import Limits, read_limits
from rollq_worker.engine_reply import AbortError, ReplyError, context_limit, read_error, read_reply
from rollq_worker.engine_state import Availability
from rollq_worker.protocols import Generated

log = logging.getLogger(__name__)

RETRIES = 3
"""How often a request is sent again after the engine broke in the middle of it."""
CONNECT_TIMEOUT_S = 3.0
READ_TIMEOUT_S = 900.0
"""Longest generation, a pause of the engine for new weights included."""
PROBE_TIMEOUT_S = 10.0
ABORT_TIMEOUT_S = 1.0
CHECK_S = 0.5
"""At most this long between two calls of `check` while waiting."""
BACKOFF_S = (0.1, 2.0)
"""First and longest wait between two tries, before jitter."""
LIMITS_RETRY_S = 5.0
"""How long a failed look-up of the engine's limits stands."""
NOT_THE_REQUEST = frozenset({401, 403, 404, 405, 407, 429, 503})
"""Statuses that say something about the engine or the way there, not about this request: waited for."""
KEEPALIVE = [
    # A machine that vanished never resets its connections: notice within half a minute, not after the read timeout.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
]


class _Away(Exception):
    """The engine takes no requests now."""


class _Broken(Exception):
    """The engine broke in the middle of a request."""


class _TooLong(Exception):
    """The engine's context is shorter than was known."""

    def __init__(self, message: str, limit: int) -> None:
        super().__init__(message)
        self.limit = limit


class SGLangEngine:
    """`protocols.Engine` over SGLang's native API, also behind a router. One object a process, used by all threads.

    `stop_ids` end every turn besides the job's own `stop_token_ids`. `vocab_size` is the tokenizer's; ids above it are
    only sent when this engine sampled them or `admit` was told of them: an unknown id kills a real server. While a
    thread waits for a reply it cannot call `check`: `abort_running` ends all replies that are under way.
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
    ) -> None:
        self.url = url.rstrip("/")
        self.availability = Availability(re.sub("//[^/@]*@", "//", self.url))
        self._stop_ids = tuple(stop_ids)
        self._ceiling = vocab_size
        self._timeout = (CONNECT_TIMEOUT_S, read_timeout_s)
        self._slots = threading.BoundedSemaphore(concurrency)
        self._running: set[str] = set()
        self._lock = threading.Lock()
        self._limits: Limits | None = None
        self._limits_at = 0.0  # monotonic time from which a look-up is worth while
        self._limits_lock = threading.Lock()
        self._session = _session(concurrency, api_key)

    @property
    def available(self) -> bool:
        """Whether the engine takes requests, as far as is known. While it does not, claiming jobs is pointless."""
        return self.availability.up

    @property
    def outage_s(self) -> float:
        """Seconds that the engine has been away so far, all outages together: deadlines do not run meanwhile."""
        return self.availability.outage_s

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
        broken = away = 0
        with self._slot(check):
            while True:
                check()
                room = min(max_new_tokens, self.room(len(ids)))
                if room <= 0:
                    return Generated(ids=array("I"), logprobs=array("f"), versions=(), finish=Finish.LENGTH)
                try:
                    got = self._request(ids, sampling, room, key)
                except _Away as e:
                    self.availability.lost(str(e))
                    away += 1
                    _wait(_backoff(away), check)
                except _TooLong as e:
                    if not self._learn(e.limit, len(ids) + room):
                        raise JobFailure(f"{key}: {e}") from e
                except _Broken as e:
                    broken += 1
                    if broken > RETRIES:
                        raise EngineFailure(f"{key}: {e}, {broken} times in a row") from e
                    log.info("%s: %s; sending it again", key, e)
                    self._recover(broken, check)
                else:
                    self._came_back()
                    self.admit(got.ids)
                    return got

    def ready(self) -> bool:
        """Ask the engine now whether it takes requests, and keep the answer as `available`."""
        try:
            answer = self._session.get(f"{self.url}/ready", timeout=(CONNECT_TIMEOUT_S, PROBE_TIMEOUT_S))
        except requests.RequestException as e:
            self.availability.lost(_brief(e), gone=True)
            return False
        if answer.status_code >= 500:
            self.availability.lost(f"/ready answers {answer.status_code}")
            return False
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
        for done, rid in enumerate(running):
            if not self.abort(rid):
                return done
        return len(running)

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
        rid = uuid.uuid4().hex
        body = self._body(ids, sampling, room, rid)
        with self._lock:
            self._running.add(rid)
        try:
            answer = self._session.post(
                f"{self.url}/generate", data=body, headers={"X-SMG-Routing-Key": key}, timeout=self._timeout
            )
        except requests.RequestException as e:
            if _refused(e):
                self.availability.lost(_brief(e), gone=True)
                raise _Away(_brief(e)) from e
            self.abort(rid)  # it may still be generating for nobody
            raise _Broken(_brief(e)) from e
        finally:
            with self._lock:
                self._running.discard(rid)
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

    def _body(self, ids: array[int], sampling: Mapping[str, Json], room: int, rid: str) -> bytes:
        stops = list(dict.fromkeys((*self._stop_ids, *(sampling.get("stop_token_ids") or ()))))
        params: dict[str, Any] = {
            **sampling,
            "max_new_tokens": room,
            "stop_token_ids": stops,
            "skip_special_tokens": False,  # so that the text, which is for people, is whole
        }
        rest = json.dumps({"rid": rid, "sampling_params": params, "return_logprob": True})
        return f'{{"input_ids":[{",".join(map(_DIGITS.__getitem__, ids))}],{rest[1:]}'.encode()

    def _recover(self, broken: int, check: Callable[[], None]) -> None:
        """After a broken request: back off, and if the engine itself is away, wait until it is back."""
        _wait(_backoff(broken), check)
        tries = 0
        while not self.ready():
            tries += 1
            _wait(_backoff(tries), check)

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
                        log.debug("limits of %s are unknown: %s", self.url, _brief(e))
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
            if not 0 < limit <= asked or limit >= min(known.context, known.prompt):
                return False
            self._limits = known.shortened(limit)
        return True


class _Digits(dict[int, str]):
    """Decimal digits by id, made once: a long prompt is written four times as fast as by json."""

    def __missing__(self, id: int) -> str:
        self[id] = digits = str(id)
        return digits


_DIGITS = _Digits()


def _session(concurrency: int, api_key: str | None) -> requests.Session:
    session = requests.Session()
    session.trust_env = False  # no proxy and no .netrc between a worker and its engine, and no look-up for each request
    session.headers["Content-Type"] = "application/json"
    if api_key:
        session.headers["Authorization"] = f"Bearer {api_key}"
    adapter = _Adapter(pool_connections=4, pool_maxsize=concurrency + 4, max_retries=0)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        kwargs["socket_options"] = [*HTTPConnection.default_socket_options, *KEEPALIVE]
        super().init_poolmanager(*args, **kwargs)


def _failure(answer: requests.Response, key: str) -> Exception:
    """What a status other than 200 means."""
    message = f"the engine answered {answer.status_code}: {read_error(answer.content)}"
    if answer.status_code in NOT_THE_REQUEST:
        return _Away(message)
    if answer.status_code >= 500 or answer.status_code == 408 or "duplicate request id" in message.lower():
        return _Broken(message)
    limit = context_limit(message)
    return JobFailure(f"{key}: {message}") if limit is None else _TooLong(message, limit)


def _refused(error: requests.RequestException) -> bool:
    """Nothing was sent: refused, unreachable, unresolved, or no answer to the connection in time."""
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    return isinstance(error, requests.ConnectTimeout) or isinstance(reason, NewConnectionError)


def _brief(error: requests.RequestException) -> str:
    reason = getattr(error.args[0] if error.args else None, "reason", None) or error
    return f"{type(error).__name__}: {str(reason).partition('): ')[2] or reason}"


def _backoff(tries: int) -> float:
    """Seconds to wait after that many tries, with jitter so that hundreds of episodes do not come back at once."""
    first, longest = BACKOFF_S
    return min(longest, first * 2.0 ** min(tries, 10)) * random.uniform(0.5, 1.0)


def _wait(seconds: float, check: Callable[[], None]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        check()
        time.sleep(min(left, CHECK_S))
    check()
