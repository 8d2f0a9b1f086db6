"""A cable between Redis and its clients that can be cut, slowed and frozen: a TCP proxy on loopback."""

import asyncio
import threading
from contextlib import suppress

CHUNK = 1 << 16


class Cable:
    """Forwards bytes both ways, from a thread of its own."""

    def __init__(self, port: int, upstream: int) -> None:
        self.port = port
        self.upstream = upstream
        self.delay_s = 0.0
        """Of every chunk, in each direction."""
        self.plugged = 0
        """Connections that were made."""
        self.delayed = 0
        """Chunks that were late for `delay_s`."""
        self.held = 0
        """Chunks that were late for a freeze."""
        self._ends: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cable")
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def cut(self) -> int:
        """Resets every connection; new ones are taken. Returns how many ends there were, 0 if not all have gone."""

        async def cut() -> int:
            ends = list(self._ends)
            for end in ends:
                end.transport.abort()
            for _ in range(100):
                if not self._ends.intersection(ends):
                    return len(ends)
                await asyncio.sleep(0.01)
            return 0

        return asyncio.run_coroutine_threadsafe(cut(), self._loop).result(10)

    def freeze(self) -> None:
        """Nothing moves, no connection ends. What was sent arrives after `thaw`, even if its sender has given up."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def thaw(self) -> None:
        self._loop.call_soon_threadsafe(self._flowing.set)

    def close(self) -> None:
        async def close() -> None:
            self._server.close()
            for pump in self._pumps:
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)
            for end in self._ends:
                end.transport.abort()
            await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._plug, "127.0.0.1", self.port)

    async def _plug(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        except OSError:
            writer.transport.abort()
            return
        self.plugged += 1
        self._ends |= {writer, far_writer}
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            pump = asyncio.create_task(self._pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await source.read(CHUNK):
                if not self._flowing.is_set():
                    await self._flowing.wait()
                    self.held += 1
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                    self.delayed += 1
                sink.write(chunk)
                await sink.drain()
        self._ends.discard(sink)
        sink.close()
