"""What the tokens of a turn cost, by the length of the history before it.

Reading and bridging a turn and writing the next request must cost the same after 1,000 tokens as
after 12,000. Twice the turns must take about twice the time. Beside them stands the cost of
rendering and encoding the whole conversation. With `--templates`, a folder of chat templates that
are named as in `tests/rollq_worker/tokens/models.py`, the same turn is measured with each of them
on the same vocabulary. Exit code 1 when a target is missed.

    python benchmarks/bench_tokens.py [--tokenizer DIR] [--templates DIR] [--json]
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from checks import Check, add_tokenizer, conclude, parser_for
from tables import ms, table
from template_models import template_renderers, written_calls

from rollq.env import RESPOND, Action
from rollq.events import Message
from rollq_worker.engine.exchange.prompts import PromptWriter
from rollq_worker.environments import domain
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.tokenizer import load_tokenizer

ENV = "shop"
TOOLS = 4
"""Few tools, so that the first prompt is shorter than the shortest history."""
POLICY = "You help the customers of a shop. Look up an order before you speak of it."
LENGTHS = (1_000, 4_000, 12_000)
EPISODES = (30, 60)
REPEATS = 15
LARGEST_GROWTH = 1.2
LARGEST_DOUBLING = 2.5
OF_WHOLE = 0.1
"""Target: the tokens of one turn after the longest history, over rendering and encoding it all."""
ORDER = {
    f"item_{n}": {"name": f"kettle {n}", "price": n * 7.5, "options": ["1.5 l", "steel"]}
    for n in range(8)
}


class Conversation:
    """An endless conversation of tool calls, each with another result."""

    def __init__(self, renderer: ChatRenderer, policy: str, tools: list[Any]) -> None:
        self.renderer = renderer
        self.tools = tools
        self.messages: list[Message] = [
            {"role": "system", "content": policy},
            {"role": "user", "content": "Where is my order?"},
        ]
        self.ids = array("I", renderer.open(self.messages, tools))
        self.prompts = PromptWriter()
        self.turns = 0
        self._write, self._stop = written_calls(renderer)

    def sampled(self) -> array[int]:
        """array('I'): a turn as an engine samples it."""
        name = self.tools[self.turns % len(self.tools)]["function"]["name"]
        text = self._write(name, {"order": f"#{self.turns:06}"})
        return self.renderer.tokenizer.encode(text) + array("I", [self._stop])

    def turn(self) -> tuple[float, float, float]:
        """One turn as an episode has it. Returns the seconds of reading, of bridging, of writing
        the next request.
        """
        sampled = self.sampled()
        began = time.process_time()
        read = self.renderer.read(sampled)
        middle = time.process_time()
        call = read.calls[0]
        message, reply = turn_of(call, self.renderer.call_id("", call.name, self.turns), self.turns)
        start = time.process_time()
        bridge = self.renderer.bridge(message, [reply], self._stop)
        ended = time.process_time()
        self.ids.extend(sampled)
        self.ids.extend(bridge)
        write = time.process_time()
        self.prompts.write(self.ids)
        written = time.process_time()
        self.messages += [{**message, "tool_calls": [call_as_object(message)]}, reply]
        self.turns += 1
        return middle - began, ended - start, written - write


def turn_of(call: Action, id: str, turn: int) -> tuple[Message, Message]:
    """The assistant's message and the tool's answer."""
    assert call.name != RESPOND
    function = {"name": call.name, "arguments": json.dumps(dict(call.arguments))}
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": id, "type": "function", "function": function}],
    }
    return message, {
        "role": "tool",
        "tool_call_id": id,
        "content": json.dumps({**ORDER, "turn": turn}),
    }


def call_as_object(message: Message) -> dict[str, Any]:
    """The call as templates take it, its arguments an object."""
    call = message["tool_calls"][0]
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_for(__doc__)
    add_tokenizer(parser)
    parser.add_argument(
        "--templates", type=Path, metavar="DIR", help="a folder of chat templates, NAME.jinja"
    )
    args = parser.parse_args(argv)
    tokenizer = load_tokenizer(args.tokenizer)
    tools = list(domain(ENV).open("train", 0, {}).tools)[:TOOLS]
    renderer = ChatRenderer(tokenizer, tools=tools)

    def begin() -> Conversation:
        return Conversation(renderer, POLICY, tools)

    begin().turn()  # templates are compiled at first use
    result: dict[str, Any] = {
        "lengths": [after_history(begin, length) for length in LENGTHS],
        "episodes": episodes(begin),
        "templates": of_templates(args.templates, args.tokenizer, tools) if args.templates else {},
    }
    first, last = result["lengths"][0], result["lengths"][-1]
    result["growth"] = last["turn_s"] / first["turn_s"]
    result["doubling"] = result["episodes"][-1]["seconds"] / result["episodes"][0]["seconds"]
    report(result)
    most = {"": last} | result["templates"]
    checks = [
        Check("tokens of a turn, after the longest " "history over the shortest", result["growth"], LARGEST_GROWTH),  # noqa: E501
        Check(f"tokens of an episode, {EPISODES[1]} " "turns " f"over {EPISODES[0]}", result["doubling"], LARGEST_DOUBLING),  # noqa: E501
        *(
            Check("read, bridge and write, over rendering " f"and encoding it all{name and ', '}{name}", one["turn_s"] / one["whole_s"], OF_WHOLE)  # noqa: E501
            for name, one in most.items()
        ),
    ]  # fmt: skip
    return conclude(result, checks, args.json)


def of_templates(
    folder: Path, tokenizer: str | None, tools: list[Any]
) -> dict[str, dict[str, float]]:
    """Figures of a turn after the longest history, by template."""
    found = {}
    for name, renderer in template_renderers(folder, tokenizer, tools):
        found[name] = after_history(
            lambda renderer=renderer: Conversation(renderer, POLICY, tools), LENGTHS[-1]
        )
    return found


def after_history(begin: Callable[[], Conversation], length: int) -> dict[str, float]:
    """Seconds of the fastest turn after a history of that many tokens, and of what rendering it
    whole would take.
    """
    talk = begin()
    while len(talk.ids) < length:
        talk.turn()
    reached = len(talk.ids)
    whole = []
    tokenizer = talk.renderer.tokenizer
    for _ in range(REPEATS):
        began = time.process_time()
        tokenizer.encode(tokenizer.render(talk.messages, talk.tools, True))
        whole.append(time.process_time() - began)
    turns = [talk.turn() for _ in range(REPEATS)]
    read, bridge, write = map(min, zip(*turns, strict=True))
    seconds = {
        "read_s": read,
        "bridge_s": bridge,
        "write_s": write,
        "turn_s": read + bridge + write,
    }
    return {"tokens": reached, **seconds, "whole_s": min(whole)}


def episodes(begin: Callable[[], Conversation]) -> list[dict[str, float]]:
    """Seconds of whole episodes, first prompt included: the fastest of several."""
    found: dict[int, tuple[float, int]] = {}
    for _ in range(5):
        for turns in EPISODES:  # in turns, because the speed of a shared machine changes
            began = time.process_time()
            talk = begin()
            for _ in range(turns):
                talk.turn()
            took = time.process_time() - began
            found[turns] = min((took, len(talk.ids)), found.get(turns, (took, len(talk.ids))))
    return [
        {"turns": turns, "seconds": took, "tokens": tokens}
        for turns, (took, tokens) in found.items()
    ]


def report(result: dict[str, Any]) -> None:
    head = [
        "tokens before the turn",
        "read, ms",
        "bridge, ms",
        "write, ms",
        "render and encode it all, ms",
    ]
    rows = [
        [
            f"{row['tokens']}",
            *(ms(row[name]) for name in ("read_s", "bridge_s", "write_s", "whole_s")),
        ]
        for row in result["lengths"]
    ]
    print(table(head, rows))
    print()
    rows = [
        [f"{row['turns']}", f"{row['tokens']}", ms(row["seconds"])] for row in result["episodes"]
    ]
    print(table(["turns", "tokens", "CPU ms of an episode"], rows))
    if result["templates"]:
        names = ("read_s", "bridge_s", "write_s", "turn_s", "whole_s")
        rows = [
            [template, *(ms(row[name]) for name in names)]
            for template, row in result["templates"].items()
        ]
        head = [
            "template",
            "read, ms",
            "bridge, ms",
            "write, ms",
            "together",
            "render and encode it all, ms",
        ]
        print("\n" + table(head, rows))


if __name__ == "__main__":
    sys.exit(main())
