"""HTTP over pooled connections, for models of users and judges. Every request ends in a `Response`
or a `NoResponse`.

The invariant: bodies are read up to a limit, and no error holds a header or an address, which may
contain keys. It knows nothing of retries or of bodies. An engine has a client of its own
(`engine.exchange.http`), because its waits must be cut from another thread.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import requests
from requests.adapters import HTTPAdapter
from requests.auth import HTTPBasicAuth
from requests.utils import get_auth_from_url
from urllib3.exceptions import HTTPError, NewConnectionError, ReadTimeoutError

CHUNK = 1 << 18
"""Number of bytes that are read at a time."""


class NoResponse(Exception):
    """The connection broke before the whole response came; the server may have seen the request."""


class ConnectFailed(NoResponse):
    """No connection was made, so nothing was sent."""


class ResponseTimeout(NoResponse):
    """The request was sent, and the response did not come in time."""


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes
    """The body, cut off at the client's limit."""
    retry_after: str = ""
    """Value of the header Retry-After."""

    def json(self) -> object:
        """The body as JSON; None when it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class HttpClient:
    """One pool of connections, for all threads. Sends JSON and follows no redirects, which lose the
    body.

    The machine's proxies and certificates count (HTTPS_PROXY, REQUESTS_CA_BUNDLE); its .netrc is
    never read.
    """

    def __init__(self, *, max_bytes: int, connect_timeout_s: float) -> None:
        adapter = HTTPAdapter(pool_connections=16, pool_maxsize=256)
        self._max_bytes = max_bytes
        self._connect_timeout_s = connect_timeout_s
        self._session = requests.Session()
        self._session.headers["Content-Type"] = "application/json"
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, adapter)

    def request(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Sends a request. `timeout_s` limits the whole exchange. Raises NoResponse."""
        until = time.monotonic() + timeout_s
        connect_timeout_s = min(self._connect_timeout_s, timeout_s)
        try:
            with self._session.request(
                method,
                url,
                data=body,
                headers=headers,
                auth=_with_login,
                timeout=(connect_timeout_s, timeout_s),
                allow_redirects=False,
                stream=True,
            ) as response:
                raw = response.raw
                # read1 returns what is there
                read = getattr(raw, "read1", raw.read)
                content = read_body(partial(read, decode_content=True), self._max_bytes, until)
                return Response(
                    response.status_code, content, response.headers.get("Retry-After", "")
                )
        except (OSError, HTTPError, ValueError) as e:  # all errors of requests are OSErrors
            failure = failure_of(e)
        # outside of the except block: the library's exception holds the request with its headers
        raise failure

    def close(self) -> None:
        self._session.close()


def read_body(read: Callable[[int], bytes], max_bytes: int, until: float | None = None) -> bytes:
    """All that `read` gives, cut off behind a limit. Raises ResponseTimeout when `until` passes,
    even if each byte comes in time.
    """
    pieces = []
    length = 0
    while length <= max_bytes and (piece := read(CHUNK)):
        pieces.append(piece)
        length += len(piece)
        if until is not None and time.monotonic() > until:
            raise ResponseTimeout("the response did not end in time")
    return b"".join(pieces)


def _with_login(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Adds the login of the address, if there is no other. Passed as `auth`, it keeps requests from
    looking into .netrc.
    """
    user, password = get_auth_from_url(request.url or "")
    if user and "Authorization" not in request.headers:
        HTTPBasicAuth(user.encode(), password.encode())(request)
    return request


def failure_of(error: Exception) -> NoResponse:
    """The error as a NoResponse, without the request, the address and anything else that may hold a
    key.
    """
    if isinstance(error, ValueError):
        # a bad address or header, which its text repeats, or a negative chunk
        return NoResponse(type(error).__name__)
    reason = getattr(error.args[0] if error.args else None, "reason", None) or error
    text = f"{type(error).__name__}: {str(reason).partition('): ')[2] or reason}"
    if isinstance(error, requests.ConnectTimeout) or isinstance(reason, NewConnectionError):
        return ConnectFailed(text)
    if isinstance(error, requests.ReadTimeout | ReadTimeoutError | TimeoutError):
        return ResponseTimeout(text)
    return NoResponse(text)
