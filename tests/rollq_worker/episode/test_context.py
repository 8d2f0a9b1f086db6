"""A conversation that has grown long is shortened: what is sent, what is recorded, and what an
interruption leaves.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollq import errors
from rollq.events import Event, Observed, Prompt, Sampled, Stop
from rollq.export.record import record
from rollq.export.validation import faults
from rollq.job import History
from rollq.training.turn_credit import TurnCredit
from rollq.trajectory import Trajectory
from rollq.wire.events import decode_event, encode_event
from rollq_worker.context.summary import HEADING, ModelSummary
from rollq_worker.fakes import END, REFUSED, FakeEngine, FakeEnvironment, FakeJournal, FakeUser
from rollq_worker.protocols import Context
from tests.rollq_worker.episode.episodes import CALL, TWO_CALLS, play_with_fakes

HEAD = "[system]policy[user]hello"
FIRST, LATER = f"{CALL}{chr(END)}", '[tool]{"a": 1}'
TURN = f"[assistant]{FIRST}{LATER}"
"""A turn in a trace: as it was sampled."""
RENDERED = f"[assistant]{LATER}"
"""The same turn where the fake template writes it."""
SHORT = {"kind": "summary", "over": 150, "ask": "In short?"}


def texts(trajectory: Trajectory) -> list[str]:
    """Each trace as text."""
    found, at = [], 0
    for length in trajectory.traces:
        found.append("".join(map(chr, trajectory.tokens[at : at + length])))
        at += length
    return found


def trained(trajectory: Trajectory) -> list[str]:
    return [
        "".join(map(chr, event.ids))
        for row in trajectory.segments()
        for event in row.events
        if isinstance(event, Sampled)
    ]


def test_a_window_keeps_whole_turns_behind_the_first_prompt() -> None:
    engine = FakeEngine([CALL, CALL, CALL, CALL, "bye"])
    played = play_with_fakes(engine=engine, context={"kind": "window", "over": 170, "turns": 1})
    assert texts(played) == [
        f"{HEAD}{TURN}{TURN}[assistant]{FIRST}",
        f"{HEAD}{RENDERED}{TURN}[assistant]bye{chr(END)}",
    ]
    assert trained(played) == [FIRST] * 4 + [f"bye{chr(END)}"]
    assert (played.stop, played.reward, played.turns) == (Stop.DONE, 1.0, 5)
    [_, second] = played.segments()
    assert [message.get("tool_call_id") for message in second.prompt_messages] == [
        None,
        None,
        None,
        "call_2",
    ]
    assert [call["id"] for call in second.prompt_messages[2]["tool_calls"]] == ["call_2"]
    assert [message.get("tool_call_id") for message in second.messages[:2]] == [None, "call_3"]
    assert [sent for sent in engine.requests if sent[:1] != engine.requests[0][:1]] == []


def test_a_window_never_parts_a_turn_from_any_of_its_results() -> None:
    played = play_with_fakes(
        *[TWO_CALLS] * 3,
        "bye",
        context={"kind": "window", "over": 120, "turns": 1},
        agent_args={"calls": "all"},
    )
    for segment in played.segments()[1:]:
        [turn, *results] = segment.prompt_messages[2:]
        assert [call["id"] for call in turn["tool_calls"]] == [
            result["tool_call_id"] for result in results
        ]


def test_the_policy_writes_a_summary_that_begins_a_new_trace() -> None:
    engine = FakeEngine([CALL, CALL, "did things", CALL, "bye"])
    played = play_with_fakes(engine=engine, context=SHORT)
    assert texts(played) == [
        f"{HEAD}{TURN}{TURN}[user]In short?[assistant]did things{chr(END)}",
        f"{HEAD}{HEADING}did things{TURN}[assistant]bye{chr(END)}",
    ]
    assert trained(played) == [FIRST, FIRST, f"did things{chr(END)}", FIRST, f"bye{chr(END)}"]
    assert (played.stop, played.reward, played.turns) == (Stop.DONE, 1.0, 5)
    summary = [event for event in played.events if isinstance(event, Observed)][2]
    assert (summary.actions, summary.replies, len(summary.ids)) == ([], [], 0)
    assert summary.message == {"role": "assistant", "content": "did things"}
    [first, second] = played.segments()
    assert [sum(row.mask) for row in (first, second)] == [2 * len(FIRST) + 11, len(FIRST) + 4]


def test_a_second_summary_takes_the_place_of_the_first() -> None:
    played = play_with_fakes(CALL, CALL, "one", CALL, CALL, "two", "bye", context=SHORT)
    assert [trace.partition("[assistant]")[0] for trace in texts(played)] == [
        HEAD,
        f"{HEAD}{HEADING}one",
        f"{HEAD}{HEADING}two",
    ]


def test_a_summary_without_words_is_asked_for_again_and_then_ends_it() -> None:
    environment = FakeEnvironment()
    talk = (
        CALL,
        CALL,
        CALL,
        " ",
        "did things",
        "{oops",
        "bye",
    )  # two without words, and after them one that is odd
    played = play_with_fakes(*talk, context=SHORT, environment=environment)
    assert (played.stop, len(environment.actions)) == (Stop.DONE, 3)  # two calls and the farewell
    assert texts(played)[0].count("Error: write the summary as plain text, without a call.") == 2
    assert texts(played)[0].count("In short?") == 1
    played = play_with_fakes(CALL, context=SHORT)
    assert (played.stop, played.turns, len(played.traces)) == (Stop.MALFORMED, 5, 1)


def test_no_summary_is_asked_for_that_no_turn_would_follow() -> None:
    for most in (2, 3):
        played = play_with_fakes(CALL, context={**SHORT, "over": 40}, budget={"max_turns": most})
        asked = [message for message in played.messages if message["content"] == "In short?"]
        assert (played.stop, len(asked)) == (Stop.TURNS, most - 2)


def model(said: list[Sequence[Mapping[str, str]]], text: str = "they added") -> Context:
    def answer(messages: Sequence[Mapping[str, str]]) -> str:
        said.append(messages)
        return f"{text} {len(said)}"

    return Context(
        shorten=ModelSummary(100, "Sum up.", answer), over=100, failure=errors.UserFailure
    )


def test_another_model_writes_the_summary() -> None:
    asked: list[Sequence[Mapping[str, str]]] = []
    played = play_with_fakes(CALL, CALL, CALL, CALL, "bye", context=model(asked))
    assert texts(played) == [
        f"{HEAD}{TURN}[assistant]{FIRST}",
        f"{HEAD}{HEADING}they added 1[assistant]{FIRST}",
        f"{HEAD}{HEADING}they added 2[assistant]{FIRST}",
        f"{HEAD}{HEADING}they added 3[assistant]bye{chr(END)}",
    ]
    assert [len(messages) for messages in asked] == [2, 2, 2]
    system, told = asked[1]
    assert system["content"] == "Sum up."
    assert [line[:30] for line in told["content"].split("\n")] == [
        '{"role": "system", "content": ',
        '{"role": "user", "content": "h',
        '{"role": "assistant", "content',
        '{"role": "tool", "tool_call_id',
    ]


def test_a_model_that_fails_is_a_failure_of_users() -> None:
    def fail(messages: Any) -> str:
        raise OSError("away")

    with pytest.raises(errors.UserFailure, match="away"):
        play_with_fakes(
            CALL, context=Context(shorten=ModelSummary(60, "", fail), failure=errors.UserFailure)
        )


def test_a_first_prompt_over_the_limit_is_the_jobs_failure() -> None:
    with pytest.raises(errors.JobFailure, match="first prompt of 36 tokens is longer than over=35"):
        play_with_fakes(CALL, context={"kind": "window", "over": 35, "turns": 1})


def test_nothing_is_asked_about_a_trace_that_goes_on_in_the_journal() -> None:
    recorded, asked = play_with_fakes(CALL, "bye").events[:3], list[int]()

    def shorten(opening: Any, messages: Any, tokens: int) -> None:
        asked.append(tokens)

    assert play_with_fakes("bye", recorded=recorded, context=Context(shorten=shorten)).turns == 2
    assert asked == []


def test_a_kept_turn_that_the_template_refuses_ends_the_episode_and_not_the_job() -> None:
    played = play_with_fakes(
        CALL,
        f"{REFUSED} and?",
        CALL,
        user=FakeUser(["hello", "go on"]),
        context={"kind": "window", "over": 90, "turns": 1},
    )
    assert (played.stop, played.reward, played.turns) == (Stop.MALFORMED, 0.0, 2)


def test_a_turn_that_leaves_no_room_for_the_question_ends_as_ever() -> None:
    played = play_with_fakes(CALL, context=SHORT, budget={"max_tokens": 165})
    assert (played.stop, played.turns) == (Stop.LENGTH, 2)


@pytest.mark.parametrize("agent", ["act", "react"])
@pytest.mark.parametrize("kind", [{"kind": "window", "turns": 1}, {"kind": "summary"}])
def test_actions_as_text(agent: str, kind: dict[str, Any]) -> None:
    call, done = f"Action:\n{CALL}", 'Action:\n{"name": "respond", "arguments": {"content": "bye"}}'
    engine = FakeEngine([*[call] * 6, done])
    played = play_with_fakes(engine=engine, agent=agent, context={**kind, "over": 1300})
    prompt = engine.requests[0][:-11]
    assert len(played.traces) > 1
    assert all(row.prompt_ids[: len(prompt)] == prompt for row in played.segments())
    assert played.stop is Stop.DONE


def test_credit_by_turn_counts_the_turn_of_a_summary() -> None:
    played = play_with_fakes(CALL, CALL, "did things", CALL, "bye", context=SHORT)
    assert TurnCredit(discount=0.5).returns(played, 1.0) == [0.0625, 0.125, 0.25, 0.5, 1.0]
    assert played.turn_rewards == [None] * 5


@pytest.mark.parametrize("context", [SHORT, {"kind": "window", "over": 150, "turns": 1}])
def test_an_export_has_the_conversation_of_each_trace(context: dict[str, Any]) -> None:
    played = play_with_fakes(
        CALL, CALL, "did things", CALL, "bye", user=FakeUser(["hello", "go on"]), context=context
    )
    line = record(played)
    assert faults(line) == []
    assert [trace["messages"] for trace in line["conversations"]] == played.conversations
    assert [turn for trace in line["conversations"] for turn in trace["turns"]] == [
        *range(played.turns)
    ]
    assert [what for what, *_ in line["times"]].count("user") == 2


KINDS = ("window", "summary", "model")
TALK = (
    "{oops",
    CALL,
    "and now?",
    CALL,
    "",
    TWO_CALLS,
    "one more",
    f"{REFUSED}?",
    "so far so good",
    "bye",
)


class Scripted(FakeEngine):
    """Replies to the n-th request of the episode with the n-th text, also where an earlier attempt
    made the first.
    """

    def __init__(self, talk: Sequence[str], made: int) -> None:
        super().__init__(talk)
        self._sampled = made


def requests_in(events: Sequence[Event]) -> int:
    return sum(isinstance(event, Sampled) for event in events)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_episode_is_trained_once_and_goes_on_from_any_event(data: st.DataObject) -> None:
    kind, over = data.draw(st.sampled_from(KINDS)), data.draw(st.integers(40, 400))
    talk = data.draw(st.lists(st.sampled_from(TALK), min_size=1, max_size=14))
    most = {
        "max_turns": data.draw(st.integers(1, 16)),
        "max_tokens": data.draw(st.integers(over + 1, 900)),
    }
    history = data.draw(st.sampled_from(list(History)))
    asked: list[Sequence[Mapping[str, str]]] = []

    def answer(messages: Sequence[Mapping[str, str]]) -> str:
        asked.append(messages)
        return f"{len(messages[1]['content'])} characters"

    more = (
        {"turns": data.draw(st.integers(1, 3), "turns")}
        if kind == "window"
        else {"ask": "In short?"}
    )
    of_model = Context(shorten=ModelSummary(over, "Sum up.", answer), over=over)
    context = of_model if kind == "model" else {"kind": kind, "over": over, **more}

    def go(recorded: Sequence[Event], engine: FakeEngine, journal: FakeJournal) -> Trajectory:
        return play_with_fakes(
            engine=engine,
            user=FakeUser(["hello", *["go on"] * 6]),
            context=context,
            history=history,
            budget=most,
            agent_args={"calls": "all"},
            recorded=recorded,
            journal=journal,
        )

    engine = Scripted(talk, 0)
    whole = go([], engine, FakeJournal())
    check_trained_once(whole, engine)
    times = len(asked)
    cut = data.draw(st.integers(0, len(whole.events) - 1))
    recorded = [decode_event(encode_event(event, "r/g/0"), "r/g/0") for event in whole.events[:cut]]
    asked.clear()
    other, journal = Scripted(talk, requests_in(recorded)), FakeJournal()
    again = go(recorded, other, journal)
    assert (again.tokens, again.mask, again.traces) == (whole.tokens, whole.mask, whole.traces)
    assert (again.messages, again.stop, again.reward) == (whole.messages, whole.stop, whole.reward)
    assert len(other.requests) == len(engine.requests) - requests_in(recorded)  # none twice
    assert journal.events == list(again.events[cut:-1])
    answered = [
        event for event in recorded[1:] if isinstance(event, Prompt) and len(event.messages) == 2
    ]
    assert len(asked) == (times - len(answered) if kind == "model" else 0)


def check_trained_once(played: Trajectory, engine: FakeEngine) -> None:
    """Every sampled token is trained in one row, right behind what was sent for it."""
    rows = [
        (row.prompt_ids + row.response_ids, bytes(len(row.prompt_ids)) + row.mask)
        for row in played.segments()
    ]
    taken: set[tuple[int, int]] = set()
    for sent, said in zip(engine.requests, engine.replies, strict=True):
        start, end = len(sent), len(sent) + len(said)
        homes = [
            row
            for row, (ids, mask) in enumerate(rows)
            if ids[:end] == sent + said and all(mask[start:end])
        ]
        taken.add(next((row, start) for row in homes if (row, start) not in taken))
    assert len(taken) == len(engine.replies)
    assert (
        sum(sum(mask) for _, mask in rows) == sum(map(len, engine.replies)) == played.sampled_tokens
    )
