"""The agent of openai_client.py behind Agent Lightning's gateway, with a rollout and a reward for
each episode, as its examples do. Needs agentlightning 1.0 and openai.
"""

import asyncio
import socket
import subprocess
import sys
import time

import httpx
from openai import AsyncOpenAI
from peers.lines import serve, setting
from peers.openai_client import http_client, rollout


def gateway():
    """Starts the gateway. Returns its process and address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["host=127.0.0.1", f"port={port}", "default_proxy.model_name=peer"]
    process = subprocess.Popen(
        [sys.executable, "-m", "agentlightning.server", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            httpx.get(f"{url}/healthz", trust_env=False)
            return process, url
        except httpx.HTTPError:
            time.sleep(0.1)
    sys.exit("the gateway does not answer")


async def episode(http, url, index):
    created = await http.post(f"{url}/api/rollouts", json=[{"input": {"index": index}}])
    name = created.raise_for_status().json()[0]["rollout_id"]
    await state(http, url, name, "running")
    base = f"{url}/proxy/rollout/{name}/attempt/0/mode/train/openai/v1"
    client = AsyncOpenAI(base_url=base, api_key="x", http_client=http, max_retries=0)
    reward = await rollout(client, index)
    event = {"event_type": "reward", "data": {"value": reward}}
    events = f"{url}/api/rollouts/{name}/attempt/0/events"
    (await http.post(events, json=event)).raise_for_status()
    await state(http, url, name, "succeeded")
    return reward


async def state(http, url, name, to):
    change = {"status": {"state": to}}
    (await http.patch(f"{url}/api/rollouts/{name}", json=change)).raise_for_status()


if __name__ == "__main__":
    told = setting()
    process, url = gateway()
    try:
        server = [{"model": "peer", "endpoint": told["chat_url"]}]
        httpx.post(f"{url}/api/models", json=server, trust_env=False).raise_for_status()
        with asyncio.Runner() as runner:
            http = http_client(told["concurrency"])

            async def play(indices):
                return await asyncio.gather(*(episode(http, url, index) for index in indices))

            serve(lambda indices: runner.run(play(indices)))
    finally:
        process.terminate()
        process.wait()
