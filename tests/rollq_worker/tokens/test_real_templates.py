"""Whole episodes on real chat templates: cut turns are closed, and calls named, as the template
itself does it.
"""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from rollq.events import Observed
from rollq.trajectory import Trajectory
from rollq_worker.fakes import FakeEnvironment, FakeUser
from rollq_worker.tokens.selfcheck.check import checked_renderer
from rollq_worker.tokens.tokenizer import Tokenizer
from tests.rollq_worker.episode.episodes import play_with_fakes
from tests.rollq_worker.tokens.family_habits import ALL_HABITS
from tests.rollq_worker.tokens.models import NAMES, RealTemplates
from tests.rollq_worker.tokens.scripted_engine import Piece, ScriptedEngine

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer", "description": "a number"}}}
TOOLS = (
    {
        "type": "function",
        "function": {"name": "add", "description": "Adds.", "parameters": PARAMETERS},
    },
)


def episode(tokenizer: Tokenizer, *texts: str, **job: Any) -> Trajectory:
    """An episode in which the engine samples these texts; one without its stop token was cut by a
    stop string.

    Every bridge is compared with the end of the template's render of the same conversation.
    """
    environment = FakeEnvironment(tools=TOOLS)
    shown = [] if job.get("agent") == "react" else list(environment.tools)
    renderer = checked_renderer(tokenizer, shown)
    engine = ScriptedEngine([Piece(tokenizer.encode(text)) for text in texts])
    user = FakeUser(["hello", "go on", "and then?"])
    trajectory = play_with_fakes(
        engine=engine, renderer=renderer, environment=environment, user=user, **job
    )
    messages = trajectory.messages[:2]
    for event in trajectory.events:
        if isinstance(event, Observed):
            if event.ids:
                full = renderer.open([*messages, event.message, *event.replies], shown)
                assert full[-len(event.ids) :] == event.ids
            messages += [event.message, *event.replies]
    return trajectory


def bridges(trajectory: Trajectory) -> list[array[int]]:
    return [event.ids for event in trajectory.events if isinstance(event, Observed) and event.ids]


CUT = "Wait a moment, END"
CLOSES = {
    "qwen2.5": "<|im_end|>",
    "llama-3.1": "<|eot_id|>",
    "deepseek-v3.1": "<｜end▁of▁sentence｜>",
    "glm-4.6": "<|user|>",
    "gpt-oss": "<|end|>",
    "gemma-4": "<turn|>",
    "granite-4.0": "<|end_of_text|>",
}
SPOKEN = {"gpt-oss": "<|channel|>final<|message|>"}


@pytest.mark.parametrize("name", CLOSES)
def test_a_turn_that_was_cut_is_closed_as_the_template_does(real: RealTemplates, name: str) -> None:
    tokenizer = real.tokenizer(name)
    cut = SPOKEN.get(name, "") + CUT
    trajectory = episode(tokenizer, cut, cut, cut, sampling={"stop": "END"})
    assert [m["role"] for m in trajectory.messages] == ["system", "user"] + [
        "assistant",
        "user",
    ] * 3
    for bridge in bridges(trajectory):
        assert tokenizer.decode(bridge[:1]) == CLOSES[name]
        assert (
            tokenizer.decode(bridge).count(CLOSES[name])
            == tokenizer.decode(bridge[1:]).count(CLOSES[name]) + 1
        )
    sampled = [token for token, bit in zip(trajectory.tokens, trajectory.mask, strict=True) if bit]
    assert tokenizer.added_tokens[CLOSES[name]] not in sampled


CALLS = {
    "glm-4.6": (
        "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        "<|observation|>",
    ),
    "gpt-oss": (
        '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}',
        "<|call|>",
    ),
    "qwen2.5": ('<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', "<|im_end|>"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_cut_call_is_closed_for_the_tool(real: RealTemplates, name: str) -> None:
    """In some families the token that closes a turn names who speaks next."""
    tokenizer = real.tokenizer(name)
    call, close = CALLS[name]
    cut = SPOKEN.get(name, "") + CUT
    trajectory = episode(
        tokenizer, call, cut, cut, cut, sampling={"stop": ["</tool_call>", "}", "END"]}
    )
    assert [m["role"] for m in trajectory.messages[2:6]] == [
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert [tokenizer.decode(bridge[:1]) for bridge in bridges(trajectory)][:2] == [
        close,
        CLOSES[name],
    ]


def test_a_cut_call_that_cannot_be_read_is_closed_for_the_complaint(real: RealTemplates) -> None:
    tokenizer = real.tokenizer("glm-4.6")
    broken = "<tool_call>add\n<arg_key>a END"
    trajectory = episode(tokenizer, broken, broken, broken, sampling={"stop": "END"})
    assert [m["role"] for m in trajectory.messages[2:]] == [
        "assistant",
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert [tokenizer.decode(bridge[:1]) for bridge in bridges(trajectory)] == ["<|user|>"] * 2
    assert trajectory.stop == "malformed"


def test_a_turn_that_ends_as_the_template_ends_it_needs_no_other_end(real: RealTemplates) -> None:
    """gpt-oss is made to stop at `<|end|>`, which it samples in mid-turn and the template writes
    behind turns.
    """
    tokenizer = real.tokenizer("gpt-oss")
    end = tokenizer.added_tokens["<|end|>"]
    said = SPOKEN["gpt-oss"] + "Hello.<|end|>"
    trajectory = episode(tokenizer, said, said, said, sampling={"stop_token_ids": [end]})
    assert all(bridge[0] == tokenizer.added_tokens["<|start|>"] for bridge in bridges(trajectory))


REACT = "Thought:\nx\nAction:\n"
ACTIONS = (
    REACT + '{"name": "add", "arguments": {"a": 1}}',
    "This is no action.",
    REACT + '{"name": "respond", "arguments": {"content": "and?"}}',
    REACT + '{"name": "add", "arguments": {"a": 2}}',
)


BEFORE = SPOKEN | dict.fromkeys(("glm-4.7", "minimax-m2", "nemotron-3", "qwen3.5"), "</think>")
"""What a turn of text starts with: some headers open reasoning."""


@pytest.mark.parametrize(
    "name", sorted({*NAMES} - {"mistral-nemo"})
)  # it moves the system prompt to the last user
def test_actions_as_text_need_only_users(real: RealTemplates, name: str) -> None:
    tokenizer = real.tokenizer(name)
    stop = tokenizer.decode([checked_renderer(tokenizer, []).stop_ids[0]])
    texts = (BEFORE.get(name, "") + text + stop for text in ACTIONS)
    trajectory = episode(tokenizer, *texts, agent="react", budget={"max_turns": 4})
    assert [m["role"] for m in trajectory.messages] == ["system", "user"] + [
        "assistant",
        "user",
    ] * 4
    said = [m["content"] for m in trajectory.messages[3:10:2]]
    assert said[0] == 'API output: {"a": 1}' and said[1].startswith("Error: ")
    assert said[2:] == ["go on", 'API output: {"a": 2}']


def call_ids(trajectory: Trajectory) -> list[str]:
    """The ids of all calls, which are those of their replies."""
    calls = [
        call["id"] for message in trajectory.messages for call in message.get("tool_calls", ())
    ]
    assert calls == [
        m["tool_call_id"]
        for m in trajectory.messages
        if m["role"] == "tool" and "Error" not in m["content"]
    ]
    return calls


def kimi(*ids: str) -> str:
    calls = "".join(
        f'<|tool_call_begin|>{id}<|tool_call_argument_begin|>{{"a": {n}}}<|tool_call_end|>'
        for n, id in enumerate(ids)
    )
    return f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|><|im_end|>"


KIMI, NEMO, LATER = "kimi-k2", "mistral-nemo", "mistral with names and ids"
OF_CALLS: dict[str, tuple[str, list[str], list[str]]] = {
    "kimi keeps what the model gave": (
        KIMI,
        [
            kimi("functions.add:0"),
            kimi("functions.add:7", "functions.add:8"),
            "<|tool_calls_section_begin|>oops<|im_end|>",
            kimi("functions.add:0"),
        ],
        ["functions.add:0", "functions.add:7", "functions.add:8", "functions.add:0"],
    ),
    "kimi counts over the episode where one cannot stay": (
        KIMI,
        [kimi("add:5"), kimi("functions.add:0", "functions.add:0")],
        ["functions.add:0", "functions.add:0", "functions.add:2"],
    ),
    "a number that the model used up is none of another call": (
        KIMI,
        [kimi("functions.add:1", "functions.add:1")],
        ["functions.add:1", "functions.add:2"],
    ),
    "nemo keeps those of nine characters": (
        NEMO,
        [
            '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}, "id": "abcdef123"}]</s>',
            '[TOOL_CALLS][{"name": "add", "arguments": {"a": 2}}]</s>',
            '[TOOL_CALLS][{"name": "add", "arguments": {"a": 3}, "id": "short"}]</s>',
        ],
        ["abcdef123", "000000001", "000000002"],
    ),
    "later mistrals count unread calls, too": (
        LATER,
        [
            '[TOOL_CALLS]add[CALL_ID]abcdef123[ARGS]{"a": 1}</s>',
            '[TOOL_CALLS]add[ARGS]{"a": 2}</s>',
            "[TOOL_CALLS]add[ARGS]oops</s>",
            '[TOOL_CALLS]add[ARGS]{"a": 2}</s>',
        ],
        ["abcdef123", "000000001", "000000003"],
    ),
}


@pytest.mark.parametrize(("name", "texts", "ids"), OF_CALLS.values(), ids=OF_CALLS)
def test_calls_keep_their_ids_or_are_numbered(
    real: RealTemplates, name: str, texts: list[str], ids: list[str]
) -> None:
    tokenizer = real.tokenizer(name) if name == NEMO else ALL_HABITS[name].tokenizer(name)
    texts = [*texts, "bye<|im_end|>" if name == KIMI else "bye</s>"]
    trajectory = episode(
        tokenizer, *texts, agent_args={"calls": "all"}, budget={"max_turns": len(texts)}
    )
    assert call_ids(trajectory) == ids
    assert all(id in tokenizer.decode(trajectory.tokens) for id in ids)
