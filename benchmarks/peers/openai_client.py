"""The task as it is often written first: asyncio, the openai client, messages; nothing is kept.
Needs openai.
"""

import asyncio
import json

import httpx
from openai import AsyncOpenAI
from peers.lines import serve, setting
from peers.task import POLICY, TOOLS, TURNS, observation, opening


async def rollout(client, index):
    """The reward. Raises openai.OpenAIError."""
    messages = [
        {"role": "system", "content": POLICY},
        {"role": "user", "content": opening(index)},
    ]
    calls = 0
    while True:
        reply = await client.chat.completions.create(
            model="peer", messages=messages, tools=list(TOOLS), temperature=1.0
        )
        message = reply.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return float(calls == TURNS - 1)
        for call in message.tool_calls:
            json.loads(call.function.arguments)
            calls += 1
            seen = observation(index, calls)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": seen})


def http_client(concurrency):
    limits = httpx.Limits(max_connections=concurrency)
    return httpx.AsyncClient(limits=limits, timeout=None, trust_env=False)


if __name__ == "__main__":
    told = setting()
    with asyncio.Runner() as runner:
        http = http_client(told["concurrency"])
        client = AsyncOpenAI(
            base_url=told["chat_url"], api_key="x", http_client=http, max_retries=0
        )

        async def play(indices):
            return await asyncio.gather(*(rollout(client, index) for index in indices))

        serve(lambda indices: runner.run(play(indices)))
