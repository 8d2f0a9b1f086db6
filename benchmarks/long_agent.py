"""An agent program for bench_long_episode, as plain as one can be: it asks, makes the calls, and
sends all back.

Its argument `dialect` is the form in which it asks: chat, messages, responses, or chained, which is
responses that go on from the one before.
"""

import http.client
import json
import os
from typing import Any
from urllib.parse import urlsplit

BASE = urlsplit(os.environ["ROLLQ_EPISODE_URL"])
HEADERS = {
    "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
    "Content-Type": "application/json",
}
SERVER = http.client.HTTPConnection(str(BASE.hostname), BASE.port or 80)


def request(method: str, path: str, body: Any = None) -> Any:
    SERVER.request(method, path, None if body is None else json.dumps(body), HEADERS)
    answer = SERVER.getresponse()
    read = json.loads(answer.read())
    if answer.status != 200:
        raise SystemExit(f"{path}: {answer.status} {read}")
    return read


def act(name: str, arguments: dict[str, Any]) -> Any:
    return request("POST", f"{BASE.path}/step", {"name": name, "arguments": arguments})


class Chat:
    path = "/v1/chat/completions"

    def __init__(self, opening: list[Any], tools: list[Any]) -> None:
        self.body = {"messages": opening, "tools": tools}

    def hear(self, reply: Any) -> tuple[str, list[tuple[str, str, Any]]]:
        """What was said, and the calls: id, name and arguments."""
        message = reply["choices"][0]["message"]
        self.body["messages"].append(message)
        calls = [(call["id"], call["function"]) for call in message.get("tool_calls") or ()]
        return message["content"] or "", [
            (id, said["name"], json.loads(said["arguments"])) for id, said in calls
        ]

    def add(self, id: str, text: str) -> None:
        self.body["messages"].append({"role": "tool", "tool_call_id": id, "content": text})


class Messages:
    path = "/v1/messages"

    def __init__(self, opening: list[Any], tools: list[Any]) -> None:
        functions = [tool["function"] for tool in tools]
        shown = [
            {
                "name": one["name"],
                "description": one["description"],
                "input_schema": one["parameters"],
            }
            for one in functions
        ]
        system, user = opening
        self.body = {
            "max_tokens": 500,
            "system": system["content"],
            "messages": [user],
            "tools": shown,
        }

    def hear(self, reply: Any) -> tuple[str, list[tuple[str, str, Any]]]:
        self.body["messages"].append({"role": "assistant", "content": reply["content"]})
        text = "".join(block.get("text", "") for block in reply["content"])
        calls = [block for block in reply["content"] if block["type"] == "tool_use"]
        return text, [(block["id"], block["name"], block["input"]) for block in calls]

    def add(self, id: str, text: str) -> None:
        result = {"type": "tool_result", "tool_use_id": id, "content": text}
        self.body["messages"].append({"role": "user", "content": [result]})


class Responses:
    path = "/v1/responses"
    chained = False

    def __init__(self, opening: list[Any], tools: list[Any]) -> None:
        theirs = [{"type": "function", **tool["function"]} for tool in tools]
        self.body: dict[str, Any] = {"input": opening, "tools": theirs}

    def hear(self, reply: Any) -> tuple[str, list[tuple[str, str, Any]]]:
        if self.chained:
            self.body |= {"previous_response_id": reply["id"], "input": []}
        else:
            self.body["input"] += reply["output"]
        said = [
            part["text"]
            for item in reply["output"]
            if item["type"] == "message"
            for part in item["content"]
        ]
        calls = [item for item in reply["output"] if item["type"] == "function_call"]
        return "".join(said), [
            (item["call_id"], item["name"], json.loads(item["arguments"])) for item in calls
        ]

    def add(self, id: str, text: str) -> None:
        self.body["input"].append({"type": "function_call_output", "call_id": id, "output": text})


class Chained(Responses):
    chained = True


def main() -> None:
    given = request("GET", BASE.path)
    done = False
    forms = {"chat": Chat, "messages": Messages, "responses": Responses, "chained": Chained}
    form = forms[os.environ["ROLLQ_ARG_DIALECT"]]
    asked = form(given["messages"], given["tools"])
    while not done:
        said, calls = asked.hear(request("POST", form.path, asked.body))
        for id, name, arguments in calls:
            asked.add(id, act(name, arguments)["text"])
        if not calls:
            done = act("respond", {"content": said})["done"]


if __name__ == "__main__":
    main()
