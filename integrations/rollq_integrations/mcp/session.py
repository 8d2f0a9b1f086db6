"""Tools of an MCP server, over stdio or streamable HTTP, by the official SDK.

    load = dataset("tasks.jsonl", reward="number", tools=mcp_server("python", "server.py"))

A command is a server of its own for each episode, which ends with it. An address is one server that
all episodes share, so it must keep no state between calls, or keep it by session. A tool's error is
an observation; a server that dies or does not answer is the environment's failure. The tools are
those that the server had when the episode began. It does not know tasks or rewards.
"""

import asyncio
import json
import logging
import os
import re
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from rollq.env import Action, Json, Tools, mask_url
from rollq.env.foreign_tools import own_copy
from rollq.errors import EnvironmentFailure, JobFailure
from rollq.pip_extras import install_line

OPEN_S = 60.0
"""Longest start of a server in seconds."""
SAID = 2000
"""Number of bytes of a server's stderr that a failure shows, the last ones."""
CALL_S = 50.0
"""Longest call in seconds: less than the time limit of a step, so that this is what fails."""
CLOSE_S = 4.5
"""Longest wait in seconds for a server's end. The SDK kills it after 4, and an isolated environment
has 5 to close.
"""
READ_S = 300.0
"""Longest wait in seconds for the next bytes of an address, because a server may hold a stream
open.
"""
HEADER_VALUE = re.compile(r"(?:[!-~](?:[\t -~]*[!-~])?)?")
"""Other values are refused where they are sent, by errors that show them."""
WRONG_CALL = (-32602, -32601)
"""JSON-RPC codes of a call that the policy got wrong: invalid parameters, no such method."""
UNREADABLE = re.compile(r"""Invalid JSON: .*input_value=b?'\{.*"jsonrpc\"""", re.DOTALL)
"""The SDK's error of a message that is no JSON; it quotes the beginning and the end."""


def mcp_server(
    *command: str,
    env: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Callable[[], Tools]:
    """Opens the tools of an episode: those of the server that `command` starts, or of the one at
    the address that is given alone. The process gets `env` and a few harmless variables of the
    worker's, no others. `headers` go with each request to an address.

    Raises JobFailure without a command, and for a header that cannot be sent.
    """
    for name, value in (headers or {}).items():
        if not HEADER_VALUE.fullmatch(value):
            raise JobFailure(
                f"the header {name!r} of an MCP server has a line break, a space at an end, or "
                "other characters than ASCII's"
            )
    if not command:
        raise JobFailure(
            "mcp_server needs a command, as in mcp_server('python', 'server.py'), or an address"
        )
    if command[0].startswith(("http://", "https://")):
        if len(command) > 1 or env:
            raise JobFailure("mcp_server takes an address alone, without arguments and env")
        return lambda: Session(command, headers=headers)
    if headers:
        raise JobFailure("mcp_server takes headers with an address only")
    return lambda: Session(command, dict(env or {}))


class Session:
    """Implements Tools. The connection lives in the thread of `_loop`, because the SDK is
    asynchronous.
    """

    def __init__(
        self,
        server: Sequence[str],
        env: dict[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`env` is None for an address. Raises EnvironmentFailure when there is no server, and
        JobFailure without the SDK.
        """
        _sdk()
        self._server = server
        self._env = env
        self._headers = headers
        self._stderr: Any = tempfile.TemporaryFile()  # noqa: SIM115 (it goes with the session)
        self._unreadable = asyncio.Event()
        self._calls: asyncio.Queue[tuple[str, dict[str, Json], Future[str]]] = asyncio.Queue()
        self._opened: Future[Sequence[Json]] = Future()
        self._gone = threading.Event()
        self._loop = _loop()
        self._ended = asyncio.run_coroutine_threadsafe(self._serve(), self._loop)
        try:
            self.schemas = self._opened.result(OPEN_S)
        except BaseException as e:
            failure = self._failure("did not start", e, OPEN_S)
            self.close()
            raise failure from e
        self._names = {schema["function"]["name"] for schema in self.schemas}

    def call(self, action: Action) -> str:
        if action.name not in self._names:
            return f"Error: there is no tool {action.name!r:.80}"
        try:
            arguments = {name: own_copy(value) for name, value in action.arguments.items()}
            # Invalid JSON, such as half a surrogate pair, would end the connection.
            json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
        except ValueError as e:
            return f"Error: {e}"
        answer: Future[str] = Future()
        self._loop.call_soon_threadsafe(self._calls.put_nowait, (action.name, arguments, answer))
        self._ended.add_done_callback(lambda _: _fail(answer, ConnectionError("it has ended")))
        try:
            return answer.result(CALL_S)
        except Exception as e:
            raise self._failure(f"failed in its tool {action.name}", e, CALL_S) from e

    def close(self) -> None:
        """Ends the connection, and the server if it is this session's own. Waits for that server's
        end: what still runs when this process ends would stay.
        """
        self._ended.cancel()
        if self._env is not None:
            self._gone.wait(CLOSE_S)
        self._stderr.close()

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        if self._env is None:
            import httpx2
            from mcp.client.streamable_http import streamable_http_client

            timeout = httpx2.Timeout(OPEN_S, read=READ_S)
            async with httpx2.AsyncClient(headers=self._headers, timeout=timeout) as http:
                yield streamable_http_client(self._server[0], http_client=http)
            return
        from mcp.client.stdio import StdioServerParameters, stdio_client

        started = StdioServerParameters(
            command=self._server[0],
            args=list(self._server[1:]),
            env=self._env or None,
            encoding_error_handler="replace",  # what it prints beside the protocol may not be UTF-8
        )
        yield stdio_client(started, errlog=self._stderr)

    def _failure(self, what: str, error: BaseException, limit_s: float) -> BaseException:
        """The error to raise. Its text is that of the first exception in the SDK's groups, and the
        server's last words.
        """
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if not isinstance(error, Exception):
            return error
        last_words = ""
        if not self._stderr.closed:
            self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - SAID))
            last_words = self._stderr.read().decode("utf-8", "replace").strip()
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, TimeoutError):
            why = f"no answer within {limit_s:g} s"
        # More of its command may be a secret.
        server = mask_url(self._server[0]) if self._env is None else " ".join(self._server[:2])
        text = f"the MCP server {server!r} {what}: {why}"
        if last_words:
            text += f"\nIt said: {last_words}"
        return EnvironmentFailure(text)

    async def _serve(self) -> None:
        """The whole connection, in one task, as the SDK wants it."""
        try:
            async with (
                self._transport() as transport,
                _sdk().Client(
                    transport, read_timeout_seconds=CALL_S, message_handler=self._hear
                ) as client,
            ):
                self._opened.set_result(await _schemas(client))
                while True:
                    name, arguments, answer = await self._calls.get()
                    await self._answer(client.call_tool(name, arguments), answer)
        except BaseException as e:
            if not self._opened.done():
                self._opened.set_exception(
                    e if isinstance(e, Exception) else ConnectionError("it was closed")
                )
            if not isinstance(e, Exception):  # others end the session; calls have their own
                raise
        finally:
            self._gone.set()

    async def _hear(self, message: Any) -> None:
        """Notes a message that the SDK cannot read, such as one with half a surrogate pair. A line
        that is not a message at all is passed over: servers print such.
        """
        if isinstance(message, ValueError) and UNREADABLE.search(str(message)):
            self._unreadable.set()

    async def _answer(self, called: Any, answer: "Future[str]") -> None:
        """Passes on the result of a call, or an error for the policy."""
        self._unreadable.clear()
        call = asyncio.ensure_future(called)
        unreadable = asyncio.ensure_future(self._unreadable.wait())
        try:
            await asyncio.wait({call, unreadable}, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                text = _observation_text(call.result())
            else:
                text = "Error: the tool's result is not valid Unicode"
        except Exception as e:
            if getattr(e, "code", None) not in WRONG_CALL:
                return _fail(answer, e)
            text = f"Error: {e}"
        finally:
            call.cancel()
            unreadable.cancel()
        if not answer.done():
            answer.set_result(text)


async def _schemas(client: Any) -> list[Json]:
    """The tools of all pages. Raises ValueError for a reply that is not a list of tools."""
    schemas: list[Json] = []
    names: set[str] = set()
    cursors: set[str] = set()
    cursor = None
    while True:
        page = await client.list_tools(cursor=cursor)
        if page.next_cursor in cursors:
            raise ValueError(f"its list of tools does not end: page {cursor!r} comes again")
        for tool in page.tools:
            function = {
                "name": tool.name,
                "description": tool.description or "",
                "parameters": tool.input_schema,
            }
            schemas.append({"type": "function", "function": function})
            if tool.name in names:
                raise ValueError(f"it has two tools with the name {tool.name!r}")
            names.add(tool.name)
        cursor = page.next_cursor
        if cursor is None:
            break
        cursors.add(cursor)
    if not schemas:
        raise ValueError("it has no tools")
    return schemas


def _observation_text(result: Any) -> str:
    """A call's result, as the policy reads it."""
    text = "\n".join(map(_as_text, result.content))
    if not result.content and result.structured_content is not None:
        text = json.dumps(result.structured_content)
    if result.is_error and not text.startswith("Error"):
        text = f"Error: {text}"
    return text


def _as_text(part: Any) -> str:
    """A part of a result: text, the text of a resource, or what it is, such as `[image]`."""
    text = getattr(getattr(part, "resource", part), "text", None)
    return text if isinstance(text, str) else f"[{part.type}]"


def _fail(answer: "Future[str]", error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


@cache
def _sdk() -> Any:
    try:
        import mcp
    except ImportError as e:
        raise JobFailure(
            f"tools of an MCP server need the package mcp: {install_line('mcp')}"
        ) from e
    # Its tracebacks quote what servers print, which may be a secret. Failures tell the rest.
    logging.getLogger("mcp.client.stdio").addFilter(lambda record: not record.exc_info)
    return mcp


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """A loop in a thread of its own, for all sessions of this process. (Two that are opened first
    and at once may get one each.)
    """
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="mcp", daemon=True).start()
    return loop
