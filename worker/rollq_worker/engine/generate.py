"""POST /generate of one server: one request and the meaning of its answer, and a probe of the path.

It sends a request once, and never waits for an engine or chooses one: `EngineClient` does.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import uuid
from array import array
from collections.abc import Sequence
from dataclasses import replace

from rollq.errors import JobFailure
from rollq.events import VersionSpan
from rollq_worker.engine.http import ROUTING_KEY, EngineHttp, WaitCut
from rollq_worker.engine.limits import ANY_ID
from rollq_worker.engine.prompts import Prompt, write_ids
from rollq_worker.engine.replies import (
    EngineAborted,
    EngineUnavailable,
    RequestFailed,
    read_refusal,
)
from rollq_worker.engine.sglang.control import EngineControl
from rollq_worker.engine.sglang.reply import read_reply
from rollq_worker.engine.sglang.request import collapsed, write_request
from rollq_worker.protocols import Adapter, Generated, SampleRequest
from rollq_worker.remote.http_client import ConnectFailed, NoResponse, ResponseTimeout

PATH = "/generate"
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
    """The server is not an SGLang server. The message names rollq's need, and not the server."""

    def __init__(self, answer: str) -> None:
        super().__init__(f"POST {PATH} {answer}; rollq needs SGLang's native API (docs/engine.md)")


def sample_once(
    http: EngineHttp,
    request: SampleRequest,
    prompt: Prompt,
    *,
    rid: str,
    group: str,
    stop_ids: Sequence[int],
    vocabulary: int,
    adapter: Adapter | None = None,
) -> Generated:
    """Sample after the request's ids, which `prompt` has as digits. `vocabulary`: ids that are
    sampled are below.

    The versions of a reply that `adapter` sampled are the adapter's: the engine reports those of
    the model below it.

    Raises WaitCut, ContextExceeded, AdapterMissing, and the errors of `read_refusal` and
    `read_reply`.
    """
    if request.images is not None:
        prompt = write_ids(collapsed(request.ids, request.images.token))
    body = write_request(
        prompt,
        request.sampling,
        stop_ids=stop_ids,
        max_new_tokens=request.max_new_tokens,
        rid=rid,
        routing=request.routing,
        images=request.images,
        adapter=adapter,
    )
    try:
        response = http.generate(PATH, body, rid=rid, key=request.key, routing_key=group)
    except WaitCut as e:
        if not e.hung:
            # a server may take seconds to notice that the connection has gone
            EngineControl(http).abort(rid)
        raise
    except ConnectFailed as e:
        raise EngineUnavailable(str(e), unreachable=True) from e
    except ResponseTimeout as e:
        EngineControl(http).abort(rid)  # the engine may still be generating
        raise RequestFailed(str(e)) from e
    except NoResponse as e:
        raise ConnectionLost(str(e)) from e
    if response.status != 200:
        raise read_refusal(response, request.key)
    generated = read_reply(
        response.body,
        rid=rid,
        key=request.key,
        prompt=len(request.ids),
        max_new_tokens=request.max_new_tokens,
        vocabulary=vocabulary,
        routing=request.routing,
    )
    if adapter is None or not generated.ids:
        return generated
    span = VersionSpan(adapter.version, 0, len(generated.ids))
    return replace(generated, versions=(span,))


def cached_prompts(http: EngineHttp, ids: Sequence[int]) -> list[int]:
    """Tokens of this prompt that each of some requests of one group found in a cache. Raises
    NoResponse.
    """
    prompt = write_ids(array("I", ids))
    group = {ROUTING_KEY: uuid.uuid4().hex}
    cached: list[int] = []
    for _ in range(6):
        # of so many, two engines that take turns or draw lots serve some each nearly always
        rid = f"{PROBE}/{uuid.uuid4().hex}"
        body = write_request(prompt, {}, stop_ids=(), max_new_tokens=1, rid=rid)
        response = http.post(PATH, body, timeout_s=PROBE_TIMEOUT_S, headers=group)
        try:
            sampled = read_reply(
                response.body,
                rid=rid,
                key=PROBE,
                prompt=len(ids),
                max_new_tokens=1,
                vocabulary=ANY_ID,
            )
        except (EngineUnavailable, RequestFailed, JobFailure) as e:
            raise NoResponse(str(e)) from e
        cached.append(sampled.cached_tokens)
    return cached


def probe(http: EngineHttp, ids: Sequence[int]) -> str:
    """Ask for one token after these ids. Returns why there was none, or "".

    Raises OtherServer when the answer is none of SGLang's. A server that is busy, hangs or wants a
    key may be one.
    """
    prompt = write_ids(array("I", ids))
    for tries in range(1, PROBES + 1):
        rid = f"{PROBE}/{uuid.uuid4().hex}"
        body = write_request(prompt, {}, stop_ids=(), max_new_tokens=1, rid=rid)
        try:
            response = http.post(PATH, body, timeout_s=PROBE_TIMEOUT_S)
        except NoResponse as e:
            if isinstance(e, ResponseTimeout):
                EngineControl(http).abort(rid)
            return str(e)
        if response.status in (404, 405, 422, 501):  # it has no such path, or one with another body
            raise OtherServer(f"answers {response.status}")
        if response.status != 200:
            return str(read_refusal(response, PROBE))
        try:
            read_reply(
                response.body,
                rid=rid,
                key=PROBE,
                prompt=len(ids),
                max_new_tokens=1,
                vocabulary=ANY_ID,
            )
        except (EngineUnavailable, EngineAborted, JobFailure) as e:
            return str(e)
        except RequestFailed as e:
            if tries == PROBES:
                raise OtherServer(f"answers something else: {e}") from e
        else:
            break
    return ""
