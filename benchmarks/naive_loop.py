"""A baseline of bench_turn: agent rollouts as RL examples commonly write them, in one asyncio
process.

It sends text to the engine: it renders the whole conversation for each turn, and twice more for
each message to cut out the text of the training ids. Each episode loads its own database, loads it
again for its reward, and hashes both. Environment, tokenizer and HTTP client are the stock ones.
This module knows nothing of rollq: the tasks come as a JSON file, and the measurements leave as
one.

    python naive_loop.py TASKS ENGINE_URL TOKENIZER CONCURRENCY OUT
"""

import asyncio
import json
import os
import re
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import httpx
from cpu import cpu_seconds
from inspect_ai.tool import ToolError
from inspect_ai.util import Store
from inspect_evals.tau2.common import tools as common
from inspect_evals.tau2.retail.RetailAgentTools import RetailAgentTools
from pydantic import BaseModel
from transformers import AutoTokenizer

MAX_TURNS = 30
CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
FREE = {
    "calculate": common.calculate(),
    "transfer_to_human_agents": common.transfer_to_human_agents(),
}
"""Tools that do not touch the data. The package's scorer does not replay them."""
TRIES = 5


class Function(BaseModel):
    name: str
    description: str
    parameters: dict[str, Any]


class Tool(BaseModel):
    type: str
    function: Function


class Parser:
    """Finds the first call in a turn. It is made from the tools' schemas, once per turn."""

    def __init__(self, tools: list[dict[str, Any]]) -> None:
        self.names = {Tool(**tool).function.name for tool in tools}

    def read(self, text: str) -> tuple[str, dict[str, Any]] | None:
        if found := CALL.search(text):
            call = json.loads(found[1])
            if call["name"] in self.names:
                return call["name"], call["arguments"]
        return None


class Episode:
    """The stock environment of one episode, with a scripted user."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        self.toolkit = self.load()
        self.answers: list[str] = []

    def load(self) -> Any:
        toolkit = RetailAgentTools(store=Store(), instance=uuid.uuid4().hex)
        toolkit.initialize()
        return toolkit

    def respond(self, text: str) -> str:
        self.answers.append(text)
        replies = self.task["replies"]
        return str(replies[min(len(self.answers), len(replies)) - 1])

    async def call(self, toolkit: Any, name: str, arguments: dict[str, Any]) -> str:
        try:
            if name in FREE:
                return str(await FREE[name](**arguments))
            result = getattr(toolkit, name)(**arguments)
        except ToolError as e:
            return f"Error: {e}"
        return result if isinstance(result, str) else json.dumps(result, sort_keys=True)

    async def reward(self) -> float:
        due = self.load()
        for name, arguments in self.task["truth"]:
            if name not in FREE:
                await self.call(due, name, arguments)
        hashes = []
        for toolkit in (due, self.toolkit):
            hashes.append(toolkit.db.get_hash())
        said = "\n".join(self.answers).lower().replace(",", "")
        return float(
            hashes[0] == hashes[1]
            and all(output.lower() in said for output in self.task["outputs"])
        )


class Loop:
    """Plays tasks, at most `concurrency` at once."""

    def __init__(
        self, client: httpx.AsyncClient, engine_url: str, tokenizer: Any, setting: dict[str, Any]
    ) -> None:
        self.client = client
        self.url = f"{engine_url}/generate"
        self.tokenizer = tokenizer
        self.policy, self.tools = setting["policy"], setting["tools"]

    async def play(self, tasks: list[dict[str, Any]], concurrency: int) -> list[dict[str, Any]]:
        slots = asyncio.Semaphore(concurrency)

        async def one(task: dict[str, Any]) -> dict[str, Any]:
            async with slots:
                return await self.rollout(task)

        return await asyncio.gather(*map(one, tasks))

    async def rollout(self, task: dict[str, Any]) -> dict[str, Any]:
        episode = Episode(task)
        messages = [
            {"role": "system", "content": self.policy},
            {"role": "user", "content": task["opening"]},
        ]
        ids = self.encode(self.render(messages, True, self.tools))
        mask = [0] * len(ids)
        turns = 0
        said = ""
        while turns < MAX_TURNS and "###STOP###" not in said:
            turns += 1
            parser = Parser(self.tools)
            text = await self.sample(self.render(messages, True, self.tools))
            call = parser.read(text)
            self.add(messages, ids, mask, {"role": "assistant", "content": text})
            said = await episode.call(episode.toolkit, *call) if call else episode.respond(text)
            reply = (
                {"role": "tool", "name": call[0], "content": said}
                if call
                else {"role": "user", "content": said}
            )
            self.add(messages, ids, mask, reply)
        return {"reward": await episode.reward(), "turns": turns, "tokens": len(ids)}

    async def sample(self, prompt: str) -> str:
        body = {"text": prompt, "sampling_params": {"temperature": 1.0, "max_new_tokens": 1024}}
        for tries in range(1, TRIES + 1):
            try:
                answer = await self.client.post(self.url, json=body)
                break
            except httpx.TransportError:  # the event loop was blocked until the connection was lost
                if tries == TRIES:
                    raise
        answer.raise_for_status()
        return str(answer.json()["text"].removesuffix("<|im_end|>"))

    def add(
        self, messages: list[Any], ids: list[int], mask: list[int], message: dict[str, Any]
    ) -> None:
        """Append the message, and the ids of the text that it adds to the rendered conversation."""
        sampled = message["role"] == "assistant"
        before = self.render(messages, sampled)
        messages.append(message)
        new = self.encode(self.render(messages, False)[len(before) :])
        ids += new
        mask += [int(sampled)] * len(new)

    def render(self, messages: list[Any], prompt: bool, tools: list[Any] | None = None) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                messages, tools=tools, add_generation_prompt=prompt, tokenize=False
            )
        )

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))


async def run(tasks: Path, engine_url: str, tokenizer: Any, concurrency: int) -> dict[str, Any]:
    setting = json.loads(tasks.read_text())
    async with httpx.AsyncClient(
        limits=httpx.Limits(max_connections=concurrency), timeout=None, trust_env=False
    ) as client:
        loop = Loop(client, engine_url, tokenizer, setting)
        await loop.play(setting["warm_up"], concurrency)
        warm = cpu_seconds(os.getpid())
        began = time.monotonic()
        rollouts = await loop.play(setting["tasks"], concurrency)
        wall = time.monotonic() - began
    return {
        "cpu_s": cpu_seconds(os.getpid()) - warm,
        "wall_s": wall,
        "rollouts": rollouts,
    }


def main(tasks: str, engine_url: str, tokenizer: str, concurrency: str, out: str) -> None:
    loaded = AutoTokenizer.from_pretrained(tokenizer)
    result = asyncio.run(run(Path(tasks), engine_url, loaded, int(concurrency)))
    Path(out).write_text(json.dumps(result))
    print("naive loop: finished", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
