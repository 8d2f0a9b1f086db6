"""A view server in this process, on a free port."""

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode

from aiohttp import web

from rollq_view.place import Place
from rollq_view.server import ViewServer
from rollq_view.token_texts import Texts


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Served(NamedTuple):
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def ask(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(
            method, path, body if body is None or type(body) is bytes else json.dumps(body), given
        )
        reply = connection.getresponse()
        answer = Answer(reply.status, dict(reply.getheaders()), reply.read().decode())
        connection.close()
        return answer

    def get(self, name: str, **params: Any) -> Any:
        """What the API answers; it must be no error."""
        answer = self.ask(f"/api/{name}?{urlencode(params)}")
        assert answer.status == 200, answer.text
        return answer.json


@contextmanager
def served(
    place: Place, *, run: str = "", token: str = "", texts: Texts | None = None
) -> Iterator[Served]:
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(
        ViewServer(place, run=run, token=token, texts=texts).app(), shutdown_timeout=0.1
    )

    async def start() -> None:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    try:
        yield Served(runner.addresses[0][1])
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
