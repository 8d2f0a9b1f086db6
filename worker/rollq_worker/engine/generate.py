"""POST /generate of one server: a request, and what its answer means. Also whether the server has it at all.

It sends a request once, and never waits for an engine or chooses one: `SGLangEngine` does.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import itertools
import uuid
from array import array
from collections.abc import Mapping, Sequence

from rollq.errors import JobFailure
from rollq.job import Json
from rollq_worker.engine.call import Call, Shared
from rollq_worker.engine.control import EngineControl
from rollq_worker.engine.http import ROUTING_KEY, EngineHttp, WaitCut
from rollq_worker.engine.limits import ANY_ID
from rollq_worker.engine.reply import EngineAborted, EngineUnavailable, RequestFailed, read_refusal, read_reply
from rollq_worker.engine.request import Prompt, collapsed, write_ids, write_request
from rollq_worker.http_client import ConnectFailed, NoResponse, Response, ResponseTimeout
from rollq_worker.protocols import Generated

PATH = "/generate"
PROBE = "rollq-start"
"""Name of the request that `probe` sends."""
PROBE_TIMEOUT_S = 20.0
SAME_GROUP = 6
"""Requests of one group, of which two engines that take turns or draw lots serve some each nearly always."""
PROBES = 3
"""Number of unreadable answers that say what a server is. A single one may be a connection that broke."""
NOT_SGLANG = frozenset({404, 405, 422, 501})
"""Statuses of servers that have no such path, or one with another body."""


class ConnectionLost(RequestFailed):
    """The engine closed the connection without an answer."""


class OtherServer(Exception):
    """The server is not an SGLang server. The message names what rollq needs, and not the server."""

    def __init__(self, answer: str) -> None:
        super().__init__(f"POST {PATH} {answer}; rollq needs SGLang's native API (docs/engine.md)")


class GenerateEndpoint:
    """One server's /generate, for all threads. The options are those of `SGLangEngine`."""

    def __init__(
        self,
        http: EngineHttp,
        control: EngineControl,
        shared: Shared,
        *,
        stop_ids: Sequence[int],
    ) -> None:
        self._http = http
        self._control = control
        self._shared = shared
        self._stop_ids = tuple(stop_ids)
        self._name = uuid.uuid4().hex
        """What no other process calls its requests."""
        self._requests = itertools.count()

    def ask(self, ids: array[int], prompt: Prompt, sampling: Mapping[str, Json], room: int, call: Call) -> Generated:
        """Sample at most `room` tokens after `ids`, which `prompt` has as digits.

        Raises WaitCut, ContextExceeded, and what `read_refusal` and `read_reply` say of the answer.
        """
        rid = f"{call.key}/{self._name}{next(self._requests):x}"  # the engine's log names the job
        images, routing = call.images, call.routing
        if images is not None:
            prompt = write_ids(collapsed(ids, images.token))
        body = write_request(
            prompt, sampling, stop_ids=self._stop_ids, max_new_tokens=room, rid=rid, routing=routing, images=images
        )
        try:
            response = self._send(rid, body, call)
        except WaitCut as e:
            if not e.hung:
                self._control.abort(rid)  # a server may take seconds to notice that the connection has gone
            raise
        if response.status != 200:
            raise read_refusal(response, call.key)
        end = self._shared.vocabulary.end
        return read_reply(
            response.body, rid=rid, key=call.key, prompt=len(ids), max_new_tokens=room, vocabulary=end, routing=routing
        )

    def _send(self, rid: str, body: Sequence[bytes], call: Call) -> Response:
        """Raises EngineUnavailable, RequestFailed, WaitCut."""
        try:
            return self._http.generate(PATH, body, rid=rid, key=call.key, routing_key=call.group)
        except ConnectFailed as e:
            raise EngineUnavailable(str(e), unreachable=True) from e
        except ResponseTimeout as e:
            self._control.abort(rid)  # the engine may still be generating
            raise RequestFailed(str(e)) from e
        except NoResponse as e:
            raise ConnectionLost(str(e)) from e


def cached_prompts(http: EngineHttp, ids: Sequence[int]) -> list[int]:
    """How many tokens of this prompt each of SAME_GROUP requests of one group found in a cache. Raises NoResponse."""
    prompt, group, found = write_ids(array("I", ids)), {ROUTING_KEY: uuid.uuid4().hex}, []
    for _ in range(SAME_GROUP):
        rid = f"{PROBE}/{uuid.uuid4().hex}"
        body = b"".join(write_request(prompt, {}, stop_ids=(), max_new_tokens=1, rid=rid))
        response = http.post(PATH, body, timeout_s=PROBE_TIMEOUT_S, headers=group)
        try:
            sampled = read_reply(
                response.body, rid=rid, key=PROBE, prompt=len(ids), max_new_tokens=1, vocabulary=ANY_ID
            )
        except (EngineUnavailable, RequestFailed, JobFailure) as e:
            raise NoResponse(str(e)) from e
        found.append(sampled.cached_tokens)
    return found


def probe(http: EngineHttp, ids: Sequence[int]) -> str:
    """Ask for one token after these ids. Returns why there was none, or "".

    Raises OtherServer when the answer is none of SGLang's. A server that is busy, hangs or wants a key may be one.
    """
    prompt = write_ids(array("I", ids))
    for tries in range(1, PROBES + 1):
        rid = f"{PROBE}/{uuid.uuid4().hex}"
        body = write_request(prompt, {}, stop_ids=(), max_new_tokens=1, rid=rid)
        try:
            response = http.post(PATH, b"".join(body), timeout_s=PROBE_TIMEOUT_S)
        except NoResponse as e:
            if isinstance(e, ResponseTimeout):
                EngineControl(http).abort(rid)
            return str(e)
        if response.status in NOT_SGLANG:
            raise OtherServer(f"answers {response.status}")
        if response.status != 200:
            return str(read_refusal(response, PROBE))
        try:
            read_reply(response.body, rid=rid, key=PROBE, prompt=len(ids), max_new_tokens=1, vocabulary=ANY_ID)
        except (EngineUnavailable, EngineAborted, JobFailure) as e:
            return str(e)
        except RequestFailed as e:
            if tries == PROBES:
                raise OtherServer(f"answers something else: {e}") from e
        else:
            break
    return ""
