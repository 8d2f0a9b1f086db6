"""The kind of the server at an address."""

from rollq_worker.engine.exchange.http import EngineHttp
from rollq_worker.engine.exchange.replies import json_of
from rollq_worker.engine.exchange.server import Server
from rollq_worker.engine.sglang.server import SGLangServer
from rollq_worker.engine.vllm.server import VllmServer
from rollq_worker.remote.http_client import NoResponse

TIMEOUT_S = 10.0


class FoundServer:
    """The server at an address, for all threads. It is asked which one it is when that is first
    needed.
    """

    def __init__(self, http: EngineHttp) -> None:
        self._http = http
        self._server: Server | None = None

    @property
    def now(self) -> Server:
        """SGLang and its routers do not say what they are, and one that is away says so to any
        question.
        """
        server = self._server
        if server is None:
            try:
                server = self._server = self._found()
            except NoResponse:
                return SGLangServer(self._http)
        return server

    def _found(self) -> Server:
        """Raises NoResponse."""
        reply = json_of("/version", self._http.get("/version", timeout_s=TIMEOUT_S))
        is_vllm = isinstance(reply, dict) and isinstance(reply.get("version"), str)
        return VllmServer(self._http) if is_vllm else SGLangServer(self._http)

    def forget(self) -> None:
        """Forgets the server: another one may be there now."""
        self._server = None
