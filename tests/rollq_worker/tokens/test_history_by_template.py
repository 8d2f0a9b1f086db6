"""Episodes with history as the template writes it: what opens a trace, what does not, and what
never fails.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import random
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from rollq.errors import JobFailure
from rollq.events import Message, Observed, Prompt, Stop
from rollq.job import History
from rollq.trajectory import Trajectory
from rollq_worker.fakes import FakeEnvironment, FakeUser
from rollq_worker.protocols import TurnRefused
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.selfcheck.check import checked_renderer
from tests.rollq_worker.episode.episodes import play_with_fakes
from tests.rollq_worker.tokens import template_habits
from tests.rollq_worker.tokens.messages import OPENING, REPLY, TOOLS, USER, called, result
from tests.rollq_worker.tokens.models import NAMES, RealTemplates, tokenizer_with
from tests.rollq_worker.tokens.scripted_engine import Piece, ScriptedEngine
from tests.rollq_worker.tokens.template_habits import chatml

CALL = '<tool_call>\n{"name": "get_order", "arguments": {"x": "#W123"}}\n</tool_call>'
HARMONY_CALL = (
    "<|channel|>commentary to=functions.get_order "
    '<|constrain|>json<|message|>{"x": "#W123"}<|call|>'
)
ANALYSIS = "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant"
THOUGHT = called() | {"reasoning_content": "Look it up."}
SAID = {"role": "assistant", "content": "It is on its way. "}
TURNS = (
    called(),
    called() | {"content": "I look."},
    REPLY,
    THOUGHT,
    REPLY | {"reasoning_content": "Done."},
)


def rewritten(
    renderer: ChatRenderer, text: str, turn: Message, reply: Message
) -> array[int] | None:
    """What becomes of the history when the policy says `text`, which was read as `turn`."""
    return renderer.rewritten([*OPENING, turn], renderer.tokenizer.encode(text), [reply], TOOLS)


def played(
    renderer: ChatRenderer, texts: Sequence[str], **job: Any
) -> tuple[Trajectory, ScriptedEngine]:
    """An episode in which these texts are sampled."""
    engine = ScriptedEngine([Piece(renderer.tokenizer.encode(text)) for text in texts])
    options = {"environment": FakeEnvironment(tools=TOOLS), "history": History.TEMPLATE, **job}
    user = FakeUser(["hello", *["and <|im_end|> then?"] * 9])
    return play_with_fakes(engine=engine, renderer=renderer, user=user, **options), engine


@pytest.mark.parametrize(
    ("name", "text", "turn", "rewrites"),
    [
        ("qwen3", f"{CALL}<|im_end|>", called(), False),
        # It shows an empty think block on the last turn only
        ("qwen3", f"<think>\n\n</think>\n\n{CALL}<|im_end|>", called(), True),
        ("qwen3", f"<think>\nLook it up.\n</think>\n\n{CALL}<|im_end|>", THOUGHT, False),
        ("qwen3", "It is on its way.<|im_end|>", REPLY, False),
        ("qwen3-coder", "It is on its way.<|im_end|>", REPLY, False),
        ("qwen2.5", f"{CALL}<|im_end|>", called(), False),
        # The same call and the same words, written otherwise
        ("qwen2.5", CALL.replace(": ", ":") + "<|im_end|>", called(), False),
        ("qwen2.5", CALL.replace("{", "{ ").replace("\n", "") + "\n<|im_end|>", called(), False),
        ("qwen2.5", "It is on its way. <|im_end|>", SAID, False),
        # Other words, another end, another order
        ("qwen2.5", f"{CALL}<|endoftext|>", called(), True),
        ("qwen2.5", f"<think>Look it up.</think>{CALL}<|im_end|>", THOUGHT, True),
        (
            "qwen2.5",
            f"{CALL}\n{CALL}<|im_end|>",
            called(),
            True,
        ),  # only the first one was carried out
        ("qwen2.5", f"{CALL}\nI look.<|im_end|>", called() | {"content": "I look."}, True),
        ("qwen2.5", f"I look.\n{CALL}<|im_end|>", called() | {"content": "I look."}, False),
        ("hermes-3", f"I look.\n{CALL}<|im_end|>", called() | {"content": "I look."}, True),
        ("gpt-oss", HARMONY_CALL, called(), False),
        ("gpt-oss", ANALYSIS + HARMONY_CALL, THOUGHT, False),
        (
            "gpt-oss",
            "<|channel|>final<|message|>It is on its way.<|return|>",
            REPLY,
            True,
        ),  # <|end|> takes its place
        ("glm-4.6", "\n<think></think>\nIt is on its way.<|user|>", REPLY, False),
    ],
)
def test_a_trace_is_opened_where_the_template_says_something_else(
    real: RealTemplates, name: str, text: str, turn: Message, rewrites: bool
):
    renderer = checked_renderer(real.tokenizer(name), TOOLS, rerender=True)
    reply = result("x") if "tool_calls" in turn else USER
    ids = rewritten(renderer, text, turn, reply)
    assert ids == (renderer.open([*OPENING, turn, reply], TOOLS) if rewrites else None)


def test_ids_that_no_encoder_would_choose_open_no_trace():
    renderer = checked_renderer(tokenizer_with("plain", chatml()), TOOLS, rerender=True)
    spelled = array(
        "I", [id for char in REPLY["content"] for id in renderer.tokenizer.encode_plain(char)[0]]
    )
    assert spelled != renderer.tokenizer.encode(REPLY["content"])
    assert (
        renderer.rewritten(
            [*OPENING, REPLY], spelled + array("I", [renderer.stop_ids[0]]), [USER], TOOLS
        )
        is None
    )


BEFORE = dict.fromkeys(("glm-4.7", "minimax-m2", "nemotron-3", "qwen3.5"), "</think>") | {
    "gpt-oss": "<|channel|>final<|message|>"
}
"""What a turn of words starts with."""


def sampled_turns(renderer: ChatRenderer) -> Iterator[str]:
    """Turns of words, and turns as the template writes them behind its own header."""
    stops = tuple(renderer.tokenizer.decode([id]) for id in renderer.stop_ids)
    for words in ("It is on its way.", "Well."):
        yield BEFORE.get(renderer.tokenizer.name, "") + words + stops[0]
    for turn in TURNS:
        reply = result("x") if "tool_calls" in turn else USER
        with suppress(JobFailure):
            continued = renderer.extend([*OPENING, turn], [reply], TOOLS)
            prompt = renderer.prompt(OPENING, TOOLS)
            if continued.before_replies.startswith(prompt) and continued.before_replies.endswith(
                stops
            ):
                yield continued.before_replies.removeprefix(prompt)


@pytest.mark.parametrize("name", NAMES)
def test_each_request_says_what_the_template_writes(real: RealTemplates, name: str):
    """But for white space: of the present turn and all before it, in random episodes."""
    renderer = checked_renderer(real.tokenizer(name), TOOLS, rerender=True)
    turns = sorted({*sampled_turns(renderer)})
    for seed in range(4):
        chosen = random.Random(seed).choices(turns, k=6)
        trajectory, engine = played(renderer, chosen, budget={"max_turns": 6})
        messages: list[Message] = []
        requests = iter(engine.requests)
        for event in trajectory.events:
            if isinstance(event, Observed):
                messages += [event.message, *event.replies]
            if isinstance(event, Prompt):
                messages = list(event.messages)
            if isinstance(event, Prompt) or (isinstance(event, Observed) and event.ids):
                text = renderer.tokenizer.decode(next(requests))
                assert "".join(text.split()) == "".join(renderer.prompt(messages, TOOLS).split())
        assert next(requests, None) is None


TAGS = [
    "<|channel|>analysis<|message|>",
    "<|channel|>final<|message|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "{",
]
WORDS = [
    *TAGS,
    "Well.",
    "\n",
    "</tool_call>",
    " to=functions.get_order",
    '{"x": 1}',
    "<|im_end",
    "|>",
    "{{ x }}",
    "é",
]


def of_random_words(renderer: ChatRenderer, rng: random.Random, turns: int) -> list[str]:
    """Turns of random words, calls and control tokens, which may end with any stop token."""
    tokenizer = renderer.tokenizer
    stops = [tokenizer.decode([id]) for id in renderer.stop_ids]
    words = [*WORDS, *[token for token in tokenizer.added_tokens if token not in stops]]
    calls = [
        text.removesuffix(stop)
        for text in sampled_turns(renderer)
        for stop in stops
        if text.endswith(stop)
    ]
    words += calls
    return [
        "".join(rng.choice(words) for _ in range(rng.randrange(1, 9))) + rng.choice(stops)
        for _ in range(turns)
    ]


@pytest.mark.parametrize("history", History)
@pytest.mark.parametrize("name", NAMES)
def test_no_words_of_the_policy_fail_the_job(real: RealTemplates, name: str, history: History):
    renderer = checked_renderer(real.tokenizer(name), TOOLS, rerender=history is History.TEMPLATE)
    for seed in range(6):
        rng = random.Random(seed)
        texts = of_random_words(renderer, rng, 8)
        trajectory, _ = played(renderer, texts, history=history, budget={"max_turns": 8})
        assert trajectory.stop in (Stop.TURNS, Stop.DONE, Stop.MALFORMED)


@pytest.mark.parametrize("kind", [{"kind": "window", "turns": 1}, {"kind": "summary"}])
@pytest.mark.parametrize("name", NAMES)
def test_nor_where_its_context_is_shortened(real: RealTemplates, name: str, kind: dict[str, Any]):
    if name == "mistral-nemo" and kind["kind"] == "summary":
        pytest.skip("it takes no two messages of the user in a row")
    opened = 0
    for seed in range(2):
        rng, history = random.Random(seed), [*History][seed % 2]
        renderer = checked_renderer(
            real.tokenizer(name), TOOLS, rerender=history is History.TEMPLATE
        )
        over = len(
            renderer.open(
                [{"role": "system", "content": "policy"}, {"role": "user", "content": "hello"}],
                TOOLS,
            )
        )
        texts = of_random_words(renderer, rng, 10)
        context, budget = {**kind, "over": over + 10 * (1 + seed)}, {"max_turns": 10}
        trajectory, engine = played(
            renderer, texts, history=history, context=context, budget=budget
        )
        assert trajectory.stop in (Stop.TURNS, Stop.DONE, Stop.MALFORMED)
        sampled = texts[: len(engine.requests)]
        rows = [bytes(row.mask) for row in trajectory.segments()]
        assert sum(map(sum, rows)) == sum(len(renderer.tokenizer.encode(text)) for text in sampled)
        opened += len(trajectory.traces) - 1
    assert opened


REFUSES = "{%- if 'forbidden' in m.content %}{{ raise_exception('it is forbidden') }}{%- endif %}"


def test_words_that_the_template_refuses_end_the_episode_without_reward():
    tokenizer = tokenizer_with("refuses", chatml(turn=REFUSES + template_habits.TURN))
    renderer = checked_renderer(tokenizer, TOOLS, rerender=True)
    trajectory, _ = played(renderer, ["Hello.<|im_end|>", "This is forbidden.<|im_end|>"])
    assert (trajectory.stop, trajectory.reward, trajectory.turns) == (Stop.MALFORMED, 0.0, 2)
    last = [event for event in trajectory.events if isinstance(event, Observed)][-1]
    assert "it is forbidden" in last.errors[-1] and not last.ids
    assert [reply["content"] for reply in last.replies] == ["and <|im_end|> then?"]
    kept, _ = played(
        renderer, ["This is forbidden.<|im_end|>"], history=History.KEEP, budget={"max_turns": 3}
    )
    assert kept.stop is Stop.TURNS  # a bridge does not hold the policy's words
    call = called() | {"content": "forbidden"}
    with pytest.raises(TurnRefused, match="it is forbidden"):
        rewritten(renderer, "forbidden" + CALL + "<|im_end|>", call, result("x"))


def test_words_of_a_reply_that_the_template_refuses_fail_the_job():
    renderer = ChatRenderer(tokenizer_with("refuses", chatml(tool=REFUSES)), TOOLS)
    with pytest.raises(JobFailure, match="it is forbidden"):
        rewritten(renderer, f"{CALL}<|im_end|>", called(), result("This is forbidden."))


def two_calls() -> Message:
    calls = [
        called(id, name=tool["function"]["name"])["tool_calls"][0]
        for id, tool in zip("ab", TOOLS, strict=True)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def test_gpt_oss_names_each_result_by_its_own_tool(real: RealTemplates):
    """Its template names the tool of a turn's first call at each result."""
    renderer = checked_renderer(real.tokenizer("gpt-oss"), TOOLS, rerender=True)
    replies = [result("one", "a"), result("two", "b")]
    bridge = renderer.tokenizer.decode(renderer.bridge(two_calls(), replies))
    written = [
        f"<|start|>functions.{tool['function']['name']} "
        f'to=assistant<|channel|>commentary<|message|>"{word}"<|end|>'
        for tool, word in zip(TOOLS, ("one", "two"), strict=True)
    ]
    assert bridge == "".join(written) + "<|start|>assistant"
    text = renderer.prompt([*OPENING, two_calls(), *replies, REPLY, USER], TOOLS)
    assert all(one in text for one in written) and text.count("<|call|>") == 2


def test_a_template_that_refuses_a_turn_ends_the_episode_and_one_that_refuses_the_rest_the_job():
    template = chatml(turn=REFUSES + template_habits.TURN, user=REFUSES + template_habits.USER)
    renderer = checked_renderer(tokenizer_with("plain", template), TOOLS)
    odd = {"content": "forbidden"}
    with pytest.raises(TurnRefused):
        renderer.reopen([*OPENING, REPLY | odd, USER, called() | odd, result("x")], TOOLS)
    with pytest.raises(JobFailure):
        renderer.reopen([*OPENING, REPLY | odd, USER | odd], TOOLS)
