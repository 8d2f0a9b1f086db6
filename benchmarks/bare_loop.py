"""The floor of bench_turn: agent rollouts with no queue, no journal, no retries, and nothing
checked.

Threads and urllib3's pool, the stock `tokenizers` encoder, orjson. Token ids go in and come out;
only what is new of a turn is encoded. The environment is rollq's own: its data is shared by all
episodes, and the ground truth of a task is computed once. It knows templates of the ChatML kind
with Hermes calls, as Qwen's and the bundled one.

    python bare_loop.py SETTING.json

SETTING names env, split, engine_url, tokenizer and concurrency. Each line on standard input is a
JSON list of task indices to play; the answer is a line of JSON with the CPU that it took.
"""

import contextlib
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import urllib3
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from rollq.env import RESPOND, Action
from rollq_worker.environments import domain
from rollq_worker.users.scripted import ScriptedUser

MAX_TURNS = 30
CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
HEADERS = {"Content-Type": "application/json"}
MARK = "@@content@@"
"""Stands for a message's text where the template is rendered to find what surrounds it."""


class Edges:
    """The ids of the first prompt up to the user's words, and the texts around every
    later message.
    """

    def __init__(self, folder: str, policy: str, tools: Sequence[Any]) -> None:
        template = AutoTokenizer.from_pretrained(folder)
        self.stop = str(template.eos_token)
        self.encoder = Tokenizer.from_file(str(Path(folder, "tokenizer.json")))
        first = [{"role": "system", "content": policy}, {"role": "user", "content": MARK}]

        def render(messages: list[Any]) -> str:
            kwargs = {"tools": list(tools), "add_generation_prompt": True, "tokenize": False}
            return str(template.apply_chat_template(messages, **kwargs))

        head, self.opening_end = render(first).split(MARK)
        self.head = self.encode(head)
        call = {"type": "function", "function": {"name": "x", "arguments": {}}}
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        self.around = {
            role: self._around(render([*first, said, {"role": role, "content": MARK}]))
            for role in ("tool", "user")
        }

    def _around(self, text: str) -> tuple[str, str]:
        before, _, after = text.rpartition(MARK)
        return before.rpartition(self.stop)[2], after

    def encode(self, text: str) -> list[int]:
        return list(self.encoder.encode(text, add_special_tokens=False).ids)

    def bridge(self, role: str, text: str) -> list[int]:
        """The ids from the end of a turn to the head of the next one, with a reply between them."""
        before, after = self.around[role]
        return self.encode(before + text + after)


class Loop:
    """Plays tasks by index, from any thread."""

    def __init__(self, setting: dict[str, Any]) -> None:
        self.domain = domain(setting["env"])
        self.split = setting["split"]
        any_task = self.domain.open(self.split, 0, {})
        self.edges = Edges(setting["tokenizer"], any_task.system_prompt, any_task.tools)
        at = urllib3.util.parse_url(setting["engine_url"])
        self.pool = urllib3.HTTPConnectionPool(
            at.host or "", at.port, maxsize=setting["concurrency"], block=True
        )
        self.stop_ids = self.edges.encode(self.edges.stop)

    def rollout(self, index: int) -> dict[str, Any]:
        task = self.domain.task(self.split, index)
        environment = self.domain.open(self.split, index, {})
        opening = str(environment.reset(ScriptedUser(task.opening, task.replies)))
        ids = self.edges.head + self.edges.encode(opening + self.edges.opening_end)
        mask, logprobs = [0] * len(ids), [0.0] * len(ids)
        for turns in range(1, MAX_TURNS + 1):  # noqa: B007 - the last one is the number of turns
            said, scores, text = self.sample(ids)
            ids += said
            mask += [1] * len(said)
            logprobs += scores
            action = self.read(text)
            seen = environment.step(action)
            if seen.done:
                break
            new = self.edges.bridge("user" if action.name == RESPOND else "tool", seen.text)
            ids += new
            mask += [0] * len(new)
            logprobs += [0.0] * len(new)
        return {"reward": environment.grade().reward, "turns": turns, "tokens": len(ids)}

    def sample(self, ids: list[int]) -> tuple[list[int], list[float], str]:
        params = {
            "temperature": 1.0,
            "max_new_tokens": 1024,
            "stop_token_ids": self.stop_ids,
            "skip_special_tokens": False,
        }
        body = orjson.dumps({"input_ids": ids, "sampling_params": params, "return_logprob": True})
        answer = orjson.loads(
            self.pool.urlopen("POST", "/generate", body=body, headers=HEADERS).data
        )
        scores = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
        return answer["output_ids"], scores, answer["text"].removesuffix(self.edges.stop)

    def read(self, text: str) -> Action:
        """The turn's first call, or its text as words to the user."""
        if found := CALL.search(text):
            with contextlib.suppress(orjson.JSONDecodeError):
                call = orjson.loads(found[1])
                return Action(call["name"], call["arguments"])
        return Action(RESPOND, {"content": text})


def serve(setting: str, make: Callable[[dict[str, Any]], Callable[[int], dict[str, Any]]]) -> None:
    """Plays what standard input asks for, with the rollouts that `make` makes of the setting."""
    found = json.loads(Path(setting).read_text())
    rollout = make(found)
    print("ready", flush=True)
    with ThreadPoolExecutor(found["concurrency"]) as threads:
        for line in sys.stdin:
            began = time.monotonic()
            cpu = time.process_time()
            rollouts = list(threads.map(rollout, json.loads(line)))
            cpu, wall = time.process_time() - cpu, time.monotonic() - began
            print(json.dumps({"cpu_s": cpu, "wall_s": wall, "rollouts": rollouts}), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], lambda setting: Loop(setting).rollout)
