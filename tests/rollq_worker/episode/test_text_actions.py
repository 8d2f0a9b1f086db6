"""Actions written as text: what a turn does, what is wrong with it, and the prompt that asks for
them.
"""

import json
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq.env import RESPOND, Action
from rollq.events import Observed, Prompt, Sampled, Stop
from rollq.job import History
from rollq_worker.episode.text_actions import (
    INSTRUCTIONS,
    TextForm,
    form_of,
    read_action,
    write_action,
)
from rollq_worker.fakes import FakeEnvironment, FakeRenderer, FakeUser
from rollq_worker.protocols import ReadTurn
from tests.rollq_worker.episode.episodes import play_with_fakes, run
from tests.rollq_worker.json_values import JSON_VALUES, TEXT

ADD = Action("add", {"a": 1})
BYE = Action(RESPOND, {"content": "bye"})
FORMS = list(TextForm)


@given(
    st.sampled_from(FORMS),
    TEXT.filter(lambda name: name not in ("", RESPOND)),
    st.dictionaries(TEXT, JSON_VALUES),
)
def test_what_is_written_is_read_back(form, name, arguments):
    assert read_action(write_action(Action(name, arguments), form)) == Action(name, arguments)


CALL = '{"name": "add", "arguments": {"a": 1}}'


@pytest.mark.parametrize(
    "text",
    [
        f"Action:\n{CALL}",
        f"Action: {CALL}\n",
        f"Thought:\nThe Action: is clear.\nAction:\n{CALL}",
        f'Thought:\nx\nAction:\n{{"name": "sub", "arguments": {{}}}}\nAction:\n{CALL}',
        'Action:\n{"arguments": {"a": 1},\n  "name": "add"}',
    ],
)
def test_the_last_action_counts(text):
    assert read_action(text) == ADD


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("I shall add.", 'no line "Action:"'),
        ("", 'no line "Action:"'),
        (CALL, 'no line "Action:"'),
        ("Action:", "not valid JSON"),
        ("Action:\nadd(1)", "not valid JSON"),
        (f"Action:\n```json\n{CALL}\n```", "not valid JSON"),
        (f"Action:\n{CALL[:-3]}", "cut off"),
        (f"Action:\n{CALL}\nAPI output: 1", "Something follows"),
        (f"Action:\n[{CALL}]", "not a JSON object"),
        ('Action:\n{"arguments": {}}', 'no "name"'),
        ('Action:\n{"name": "", "arguments": {}}', 'no "name"'),
        ('Action:\n{"name": "add"}', "\"arguments\" of the action 'add'"),
        ('Action:\n{"name": "add", "arguments": "{}"}', "\"arguments\" of the action 'add'"),
        ('Action:\n{"name": "add", "arguments": {"a": NaN}}', "NaN"),
        ('Action:\n{"name": "add", "arguments": {"a": 1, "a": 2}}', "twice"),
        ('Action:\n{"name": "respond", "arguments": {}}', "takes one argument"),
        ('Action:\n{"name": "respond", "arguments": {"content": 1}}', "takes one argument"),
        (
            'Action:\n{"name": "respond", "arguments": {"content": "a", "to": "b"}}',
            "takes one argument",
        ),
    ],
)
def test_what_is_wrong_with_a_turn(text, wrong):
    read = read_action(text)
    assert isinstance(read, str) and wrong in read


def test_a_prompt_tells_its_form():
    for form in FORMS:
        assert form_of(f"policy\n\n{INSTRUCTIONS[form]}") is form
    assert form_of("policy") is None
    assert [("Thought:" in INSTRUCTIONS[form]) for form in FORMS] == [False, True]


@pytest.mark.parametrize("form", FORMS)
def test_an_action_then_a_farewell(form):
    environment, user = FakeEnvironment(), FakeUser()
    first = write_action(ADD, form)
    trajectory = run(
        first, write_action(BYE, form), agent=form.value, environment=environment, user=user
    )
    assert (trajectory.stop, trajectory.reward, user.heard) == (Stop.DONE, 1.0, ["bye"])
    assert environment.actions == [ADD, BYE]
    assert trajectory.messages[2:4] == [
        {"role": "assistant", "content": first},
        {"role": "user", "content": 'API output: {"a": 1}'},
    ]
    prompt = trajectory.events[0]
    assert isinstance(prompt, Prompt)
    assert (prompt.tools, form_of(prompt.messages[0]["content"])) == ([], form)
    assert json.dumps(environment.tools[0]) in prompt.messages[0]["content"]
    assert "".join(map(chr, prompt.ids)).startswith("[system]policy\n\n# Tools\n")
    actions = [event.actions for event in trajectory.events if isinstance(event, Observed)]
    assert actions == [
        [{"name": "add", "arguments": {"a": 1}}],
        [{"name": "respond", "arguments": {"content": "bye"}}],
    ]


def test_malformed_turns_are_told_in_the_users_role_and_end_the_episode():
    environment = FakeEnvironment()
    trajectory = run("I would say", "Action:\n{oops", CALL, agent="act", environment=environment)
    assert (trajectory.stop, trajectory.reward, environment.actions) == (Stop.MALFORMED, 0.0, [])
    assert [m["role"] for m in trajectory.messages[2:]] == ["assistant", "user"] * 2 + ["assistant"]
    assert trajectory.messages[3]["content"].startswith('Error: The turn has no line "Action:".')
    told = [event.ids for event in trajectory.events if isinstance(event, Observed)]
    masked = [
        token for token, bit in zip(trajectory.tokens, trajectory.mask, strict=True) if not bit
    ]
    assert masked[-sum(map(len, told)) :] == [token for ids in told for token in ids]
    assert trajectory.sampled_tokens == sum(
        len(e.ids) for e in trajectory.events if isinstance(e, Sampled)
    )


def test_a_call_in_the_models_own_format_is_malformed():
    trajectory = run(CALL, write_action(BYE, TextForm.ACT), agent="act")
    assert "no tool calls here" in trajectory.messages[3]["content"]


class StopsNameTheSpeaker(FakeRenderer):
    """As with GLM: the stop token says that a tool speaks next."""

    roles = frozenset({"tool"})


def test_a_stop_token_that_hands_over_to_a_tool_is_answered_by_one():
    environment = FakeEnvironment()
    text = write_action(ADD, TextForm.ACT)
    trajectory = run(text, agent="act", renderer=StopsNameTheSpeaker(), environment=environment)
    assert (trajectory.stop, environment.actions) == (Stop.MALFORMED, [])
    assert trajectory.messages[3]["role"] == "tool"
    assert "somebody else" in trajectory.messages[3]["content"]


def test_reasoning_is_not_part_of_the_action():
    class Thinks(FakeRenderer):
        def read(self, ids: "array[int]") -> ReadTurn:
            text = super().read(ids).content
            thought, _, said = text.rpartition("</think>")
            return ReadTurn(said, reasoning=thought)

    environment = FakeEnvironment()
    texts = (f"Action:\n{{}}</think>{write_action(a, TextForm.REACT)}" for a in (ADD, BYE))
    trajectory = run(*texts, agent="react", renderer=Thinks(), environment=environment)
    assert environment.actions == [ADD, BYE]
    assert trajectory.messages[2]["reasoning_content"] == "Action:\n{}"


def test_history_by_the_template_is_rendered_without_tools():
    shown = []

    class Watched(FakeRenderer):
        def open(self, messages, tools):
            shown.append(list(tools))
            return super().open(messages, tools)

    texts = [write_action(action, TextForm.ACT) for action in (ADD, BYE)]
    trajectory = play_with_fakes(*texts, agent="act", renderer=Watched(), history=History.TEMPLATE)
    assert (shown, len(trajectory.traces), trajectory.reward) == ([[], []], 2, 1.0)
