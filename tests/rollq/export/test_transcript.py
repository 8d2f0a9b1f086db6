"""What `rollq show` prints."""

from array import array
from dataclasses import replace
from typing import Any

import pytest

from rollq.events import Finish, Prompt, Sampled, VersionSpan
from rollq.export.record import record
from rollq.export.transcript import LONGEST_TEXT, Transcript
from tests.rollq.agent_episodes import branching
from tests.rollq.export.trajectories import played


def shown(found: dict[str, Any], *, colour: bool = False) -> str:
    return "\n".join(Transcript(found, colour=colour).lines())


def test_says_who_what_and_why() -> None:
    said = shown(record(played(3, 1, 0.5)))
    assert "job       r/g3/1   shop/train task 3, attempt 1" in said
    assert "stop      done   reward 0.5" in said
    assert "tokens    2 sampled of 6, 1 turns; logprobs mean -0.750, lowest -1.000" in said
    assert "assistant turn 0: 2 sampled, logprob mean -0.750, lowest -1.000\n  hi" in said
    assert "\x1b" not in said


def test_a_reward_within_the_episode_is_beside_its_turn() -> None:
    said = shown(record(played(3, 1, 0.5)) | {"turn_rewards": [0.25]})
    assert "assistant turn 0: 2 sampled, logprob mean -0.750, lowest -1.000; reward 0.25\n" in said


def test_colours_only_when_asked() -> None:
    assert "\x1b[1;32massistant\x1b[0m" in shown(record(played(3, 1, 0.5)), colour=True)


@pytest.mark.parametrize(
    "evil", ["\x1b[2J", "\x9b2J", "\r", "\x07", "\u202e", "\ud800", "\x1b]0;title\x07"]
)
def test_texts_cannot_control_the_terminal(evil: str) -> None:
    found = record(played(0, 0, 1.0))
    found["messages"] = [
        {"role": "tool", "content": f"a{evil}b"},
        {"role": evil, "content": "x"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": evil, "arguments": evil}}],
        },
    ]
    found["info"] = {evil: evil}
    found["env"] = f"shop{evil}"
    assert evil not in shown(found, colour=False)


def test_a_turn_without_a_message_is_shown_as_well() -> None:
    trajectory = played(0, 0, None)
    more = Sampled(
        turn=1,
        ids=array("I", [9]),
        logprobs=array("f", [-4.0]),
        versions=[VersionSpan("1", 0, 1)],
        finish=Finish.ABORT,
    )
    crash = replace(more, text="<tool_call>crash\x1b[2J")
    for events, text in (
        ([more], ""),
        ([crash], "\n  <tool_call>crash\\x1b[2J"),
        ([crash, trajectory.events[-2]], None),
    ):
        found = record(replace(trajectory, events=[*trajectory.events[:-1], *events]))
        if text is None:
            assert "unanswered" not in found
            continue
        said = shown(found)
        assert said.endswith(
            f"turn 1: 1 sampled, logprob mean -4.000, lowest -4.000 (never answered){text}"
        )
    assert "stop      not yet   reward -" in said


def test_assistant_messages_of_the_prompt_were_not_sampled() -> None:
    trajectory = played(0, 0, 1.0)
    example = {"role": "assistant", "content": "an example"}
    prompt = Prompt(ids=array("I", [1, 2, 3]), messages=[example], tools=[])
    said = shown(record(replace(trajectory, events=[prompt, *trajectory.events[1:]])))
    assert "assistant\n  an example\nassistant turn 0:" in said


def test_assistant_messages_of_the_prompt_do_not_answer_the_turn_that_failed() -> None:
    trajectory = played(0, 0, None)
    prompt = replace(
        trajectory.events[0], messages=[{"role": "assistant", "content": "an example"}]
    )
    for text, last in (("crash", "\n  crash"), ("", "")):  # a special token alone has no text
        sampled = replace(trajectory.events[1], text=text)
        said = shown(record(replace(trajectory, events=[prompt, sampled])))
        assert "assistant\n  an example\nassistant turn 0: " in said and said.endswith(
            f" (never answered){last}"
        )


def test_long_messages_are_clipped() -> None:
    found = record(played(0, 0, 1.0))
    found["messages"] = [{"role": "system", "content": "x" * (LONGEST_TEXT + 77)}]
    assert f"{'x' * LONGEST_TEXT} ... (77 more characters: --json)" in shown(found)


def test_a_failure_is_named() -> None:
    found = record(played(0, 0, 1.0)) | {"stop": "failed", "failure": "engine", "reward": None}
    assert "stop      failed   reward -   failure engine" in shown(found)


def test_labels_are_shown() -> None:
    trajectory = played(3, 1, 0.5)
    labelled = replace(trajectory, job=replace(trajectory.job, labels={"uid": "a-7"}))
    assert 'labels    {"uid": "a-7"}' in shown(record(labelled))
    assert "labels" not in shown(record(trajectory))


def test_an_image_is_its_size_and_hash() -> None:
    found = record(played(0, 0, 1.0))
    part = {
        "type": "image",
        "sha256": "0123456789abcdef",
        "mime": "image/png",
        "width": 300,
        "height": 20,
        "bytes": 9,
    }
    found["messages"] = [{"role": "tool", "content": [{"type": "text", "text": "Here:"}, part]}]
    assert "  Here:\n  [image 300 x 20, sha256 0123456789ab]" in shown(found)


def test_traces_have_headings_and_what_an_agent_did_is_shown_where_it_happened() -> None:
    words = "\n".join(Transcript(record(branching()), colour=False).lines())
    parts = [
        *(
            "step      opens",
            "-- trace 0 (main); tools: look --",
            "turn 0:",
            'step      look {"at": "it"}',
            "It is red.",
            "go on",
        ),
        *(
            "turn 2:",
            "-- trace 1 (helper); tools: none --",
            "turn 1:",
            "asked for temperature 0.3",
            "turn 3:",
        ),
        *(
            "-- trace 2 (helper), which begins like trace 0 up to the end of turn 0;",
            "or rather",
            "turn 4:",
            "the agent wrote:",
        ),
    ]
    places = [words.index(part) for part in parts]
    assert places == sorted(places)
