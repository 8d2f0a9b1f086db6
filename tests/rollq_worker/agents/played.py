"""Episodes of agent functions that play with fakes, through the real endpoint."""

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import requests

from rollq.env import Episode
from rollq.events import Event, Message
from rollq.job import Budget, Job
from rollq.trajectory import Trajectory
from rollq_worker.agents.endpoint import AgentEndpoint
from rollq_worker.agents.known_agents import agent_starter
from rollq_worker.agents.play import play_with_agent
from rollq_worker.agents.programs.running import AgentThread
from rollq_worker.fakes import END, FakeEngine, FakeEnvironment, FakeJournal, FakeRenderer, FakeUser

ENDPOINT: list[AgentEndpoint] = []
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}

ASKS = """
    import json, os, sys, urllib.request

    def post(url, body):
        headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": \
"application/json"}
        data = None if body is None else json.dumps(body).encode()
        return json.load(urllib.request.urlopen(urllib.request.Request(url, data, headers)))

    def ask(messages=({"role": "user", "content": "?"},)):
        reply = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", {"messages": messages})
        return reply["choices"][0]["message"]["content"]

    episode = os.environ["ROLLQ_EPISODE_URL"]
"""
"""What every agent's file in Python begins with."""


def job(**options: Any) -> Job:
    budget = Budget(
        **{
            "max_turns": 20,
            "max_tokens": 10_000,
            "max_new_tokens": 500,
            **options.pop("budget", {}),
        }
    )
    return Job(
        **{
            "run": "r",
            "group": "g",
            "env": "fake",
            "split": "train",
            "task": 0,
            "agent": "program",
            "budget": budget,
            **options,
        }
    )


def play(
    agent: Callable[..., Any] | str,
    *texts: str,
    engine: Any = None,
    recorded: Sequence[Event] = (),
    environment: Any = None,
    journal: FakeJournal | None = None,
    user: Any = None,
    renderer: Any = None,
    renderer_of: Any = None,
    **options: Any,
) -> Trajectory:
    """The trajectory of an agent, a function or one that is known by its name, whose policy says
    these texts.
    """
    if not ENDPOINT:
        ENDPOINT.append(AgentEndpoint())
    if isinstance(agent, str):
        played = job(agent=agent, **options)
        start = agent_starter(played)
    else:
        played, start = (
            job(**options),
            lambda given, on_end: AgentThread("program", agent, given, {}, on_end),
        )
    return play_with_agent(
        played,
        start,
        ENDPOINT[0],
        engine=engine or FakeEngine(texts),
        renderer_of=renderer_of or (lambda tools, **_: renderer or FakeRenderer()),
        environment=environment or FakeEnvironment(),
        user=user or FakeUser(("hello", "go on", "more")),
        journal=journal or FakeJournal(),
        recorded=recorded,
    )


def ask(episode: Episode, messages: Sequence[Mapping[str, Any]], **options: Any) -> Message:
    """The message that answers a request. Raises Refused."""
    reply = post(episode, {"model": "m", "messages": list(messages), **options})
    message: Message = reply["choices"][0]["message"]
    return message


class Refused(Exception):
    """The endpoint answered with an error."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(f"{status} {error.get('code')}: {error.get('message')}")
        self.status, self.error = status, error


def post(
    episode: Episode, body: Any, key: str | None = None, path: str = "/chat/completions"
) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {key or episode.api_key}"}
    got = requests.post(episode.base_url + path, json=body, headers=headers, timeout=60)
    answer: dict[str, Any] = got.json()
    if got.status_code != 200:
        raise Refused(got.status_code, answer["error"])
    return answer


def said(message: Message) -> Message:
    """A reply as an agent sends it back: without what is empty."""
    return {key: value for key, value in message.items() if value is not None and key != "refusal"}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def text_of(ids: "array[int]") -> str:
    """What FakeRenderer's ids say, without the ends of turns."""
    return "".join(chr(id) for id in ids if id != END)


def conversation(messages: Sequence[Mapping[str, Any]]) -> str:
    """What the engine must be sent for these messages."""
    return "".join(f"[{m['role']}]{sampled_text(m)}" for m in messages) + "[assistant]"


def sampled_text(message: Mapping[str, Any]) -> str:
    calls = [
        {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}
        for call in message.get("tool_calls") or ()
    ]
    return json.dumps(calls[0]) if calls else message["content"] or ""


def run_file(
    name: str, journal: FakeJournal | None = None, said: str = "hi", **args: Any
) -> Trajectory:
    """The same of an agent's file, with a user who answers once."""
    return play(name, said, journal=journal, user=FakeUser(("hello",)), agent_args=args)
