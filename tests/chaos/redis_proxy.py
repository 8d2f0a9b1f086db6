"""A TCP proxy between Redis and its clients that can reset, delay, freeze and silence
connections.
"""

import asyncio
import threading
from contextlib import suppress

CHUNK = 1 << 16


class RedisProxy:
    """Runs in a thread of its own."""

    def __init__(self, port: int, upstream: int) -> None:
        self.port = port
        self.upstream = upstream
        self.delay_s = 0.0
        """For every chunk, in each direction."""
        self.connections = 0
        """Connections made so far."""
        self.delayed_chunks = 0
        """Chunks that waited for `delay_s`."""
        self.held_chunks = 0
        """Chunks that waited for the end of a freeze."""
        self._ends: set[asyncio.StreamWriter] = set()
        self._far_ends: dict[asyncio.StreamWriter, asyncio.StreamWriter] = {}
        """The server's end of each connection, by the client's."""
        self._silent: set[asyncio.StreamWriter] = set()
        self._copies: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="redis-proxy")
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def reset_connections(self) -> int:
        """Resets every connection and accepts new ones. Returns how many ends were reset, 0 when
        some remained.
        """

        async def reset() -> int:
            ends = list(self._ends)
            for end in ends:
                end.transport.abort()
            for _ in range(100):
                if not self._ends.intersection(ends):
                    return len(ends)
                await asyncio.sleep(0.01)
            return 0

        return asyncio.run_coroutine_threadsafe(reset(), self._loop).result(10)

    def silence(self) -> int:
        """Drops all bytes of the connections that there are, for good, and closes none of them at
        the client's end.

        The server loses them, as if it had come back under another address. Later connections work.
        Returns how many there were.
        """

        async def silence() -> int:
            silenced = self._far_ends.keys() - self._silent
            self._silent |= silenced
            for end in silenced:
                self._far_ends[end].transport.abort()
            return len(silenced)

        return asyncio.run_coroutine_threadsafe(silence(), self._loop).result(10)

    def freeze(self) -> None:
        """Holds all bytes and keeps all connections. After `thaw` all of it arrives, even if the
        sender gave up.
        """
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def thaw(self) -> None:
        self._loop.call_soon_threadsafe(self._flowing.set)

    def close(self) -> None:
        async def close() -> None:
            self._server.close()
            for copy in self._copies:
                copy.cancel()
            await asyncio.gather(*self._copies, return_exceptions=True)
            for end in self._ends:
                end.transport.abort()
            await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        except OSError:
            writer.transport.abort()
            return
        self.connections += 1
        self._ends |= {writer, far_writer}
        self._far_ends[writer] = far_writer
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            copy = asyncio.create_task(self._copy(source, sink, writer))
            self._copies.add(copy)
            copy.add_done_callback(self._copies.discard)

    async def _copy(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, client: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while chunk := await source.read(CHUNK):
                if client in self._silent:
                    continue
                if not self._flowing.is_set():
                    await self._flowing.wait()
                    self.held_chunks += 1
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                    self.delayed_chunks += 1
                sink.write(chunk)
                await sink.drain()
        if sink in self._silent:
            return  # the client learns nothing
        self._far_ends.pop(sink, None)
        self._ends.discard(sink)
        sink.close()
