"""A generation of one server: one request and the meaning of its answer, and a probe of the path.

It sends a request once, and never waits for an engine or chooses one: `EngineClient` does.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import uuid
from array import array
from collections.abc import Sequence
from dataclasses import replace

from rollq.errors import JobFailure
from rollq.events import VersionSpan
from rollq_worker.engine.exchange.http import ROUTING_KEY, EngineHttp, WaitCut
from rollq_worker.engine.exchange.prompts import write_ids
from rollq_worker.engine.exchange.replies import (
    EngineAborted,
    EngineUnavailable,
    RequestFailed,
)
from rollq_worker.engine.exchange.server import GenerationRequest, Server
from rollq_worker.protocols import Generated, SampleRequest
from rollq_worker.remote.http_client import ConnectFailed, NoResponse, ResponseTimeout

PROBE = "rollq-start"
"""Name of the request that `probe` sends."""
PROBE_TIMEOUT_S = 20.0
PROBES = 3
"""Number of unreadable answers that prove another server. A single one may be a connection that
broke.
"""


class ConnectionLost(RequestFailed):
    """The engine closed the connection without an answer."""


class OtherServer(Exception):
    """The server is neither SGLang nor vLLM. The message names rollq's need, and not the server."""

    def __init__(self, path: str, answer: str) -> None:
        super().__init__(
            f"POST {path} {answer}; rollq needs SGLang's native API, or vLLM (docs/engine.md)"
        )


def sample_once(
    server: Server, http: EngineHttp, request: GenerationRequest, *, group: str
) -> Generated:
    """Samples after the request's ids.

    The versions of a reply that an adapter sampled are the adapter's: the engine reports those of
    the model below it.

    Raises WaitCut, ContextExceeded, AdapterMissing, and the errors of `Server.refusal` and
    `Server.read_reply`.
    """
    body = server.write_body(request)
    try:
        response = http.generate(
            server.path, body, rid=request.rid, key=request.turn.key, routing_key=group
        )
    except WaitCut as e:
        if not e.hung:
            # a server may take seconds to notice that the connection has gone
            server.abort(request.rid)
        raise
    except ConnectFailed as e:
        raise EngineUnavailable(str(e), unreachable=True) from e
    except ResponseTimeout as e:
        server.abort(request.rid)  # the engine may still be generating
        raise RequestFailed(str(e)) from e
    except NoResponse as e:
        raise ConnectionLost(str(e)) from e
    if response.status != 200:
        raise server.refusal(response, request)
    generated = server.read_reply(response.body, request)
    if request.adapter is None or not generated.ids:
        return generated
    span = VersionSpan(request.adapter.version, 0, len(generated.ids))
    return replace(generated, versions=(span,))


def _one_token(ids: Sequence[int]) -> GenerationRequest:
    sample = SampleRequest(
        ids=array("I", ids), sampling={}, max_new_tokens=1, key=PROBE, check=lambda: None
    )
    return GenerationRequest(
        turn=sample, prompt=write_ids(sample.ids), rid=f"{PROBE}/{uuid.uuid4().hex}"
    )


def cached_prompts(server: Server, http: EngineHttp, ids: Sequence[int]) -> list[int]:
    """Tokens of this prompt that each of some requests of one group found in a cache. Raises
    NoResponse.
    """
    group = {ROUTING_KEY: uuid.uuid4().hex}
    cached: list[int] = []
    for _ in range(6):
        # of so many, two engines that take turns or draw lots serve some each nearly always
        request = _one_token(ids)
        body = server.write_body(request)
        response = http.post(server.path, body, timeout_s=PROBE_TIMEOUT_S, headers=group)
        try:
            cached.append(server.read_reply(response.body, request).cached_tokens)
        except (EngineUnavailable, RequestFailed, JobFailure) as e:
            raise NoResponse(str(e)) from e
    return cached


def probe(server: Server, http: EngineHttp, ids: Sequence[int]) -> str:
    """Asks for one token after these ids. Returns the reason why there was none, or "".

    Raises OtherServer when the answer is not an engine's. A server that is busy, hangs or wants a
    key may be one.
    """
    for tries in range(1, PROBES + 1):
        request = _one_token(ids)
        try:
            response = http.post(server.path, server.write_body(request), timeout_s=PROBE_TIMEOUT_S)
        except NoResponse as e:
            if isinstance(e, ResponseTimeout):
                server.abort(request.rid)
            return str(e)
        if response.status != 200:
            if server.is_other_server(response.status):
                raise OtherServer(server.path, f"answers {response.status}")
            return str(server.refusal(response, request))
        try:
            server.read_reply(response.body, request)
        except (EngineUnavailable, EngineAborted, JobFailure) as e:
            return str(e)
        except RequestFailed as e:
            if tries == PROBES:
                raise OtherServer(server.path, f"answers something else: {e}") from e
        else:
            break
    return ""
