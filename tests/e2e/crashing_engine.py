"""A replay engine that kills itself when a prompt contains TEXT: `python crashing_engine.py PORT
TEXT LATENCY`.
"""

import asyncio
import os
import signal
import sys

from aiohttp import web

from rollq_worker.replay_engine import server
from rollq_worker.replay_engine.generate import ReplayOptions

PORT, TEXT, LATENCY = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])


class CrashingServer(server.ReplayServer):
    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if TEXT in self.tokenizer.decode(body["input_ids"]):
            await asyncio.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().generate(request)


options = ReplayOptions(port=PORT, env="shop", latency=LATENCY)
server.serve_until_signalled(CrashingServer.load(options))
