"""An agent's conversations as traces: what was sampled stays ids, and each sampled token is in one
segment.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollq.env import Episode
from rollq.errors import JobFailure
from rollq.events import Finish, Message, Observed, Prompt, Sampled
from rollq.token_stats import count_tokens
from rollq.trajectory import Trajectory
from rollq.wire.codec import encode_header, read_trajectory
from rollq.wire.events import encode_event
from rollq_worker.fakes import FakeEngine, FakeRenderer
from tests.rollq_worker.agents.played import (
    TOOL,
    Refused,
    ask,
    conversation,
    play,
    said,
    text_of,
    user,
)
from tests.rollq_worker.episode.episodes import PieceEngine


def sampled_once(played: Trajectory) -> None:
    """Each sampled token is trained in exactly one segment, with its logprob."""
    sampled = [event for event in played.events if isinstance(event, Sampled)]
    in_segments = [
        event
        for segment in played.segments()
        for event in segment.events
        if isinstance(event, Sampled)
    ]
    assert sorted(map(id, in_segments)) == sorted(map(id, sampled))
    assert (
        sum(sum(segment.mask) for segment in played.segments())
        == played.sampled_tokens
        == sum(played.mask)
    )
    assert len(played.tokens) == len(played.mask) == len(played.logprobs) == sum(played.traces)


CALL = '{"name": "look", "arguments": {"at":  1.0, "b": "x"}}'


def rewritten(call: Message, arguments: str, **more: Any) -> Message:
    """A turn with a call, as a client writes it back."""
    function = {"name": "look", "arguments": arguments}
    calls = [{**call["tool_calls"][0], "function": function}]
    return {**call, "tool_calls": calls, **more}


@pytest.mark.parametrize(
    "written_back",
    [
        lambda call: call,
        lambda call: rewritten(call, '{"b":"x","at":1}'),
        lambda call: rewritten(call, '{"at": 1, "b": "x", "replace_all": false}'),
        lambda call: rewritten(call, "{}", content=None, name="assistant"),
        lambda call: rewritten(call, "{}", content="I look.", reasoning_content="because"),
    ],
    ids=["as it is", "other JSON", "with defaults", "without text", "with other text"],
)
def test_a_call_is_known_by_its_id_and_what_was_sampled_stays(
    written_back: Callable[[Message], Message],
) -> None:
    engine = FakeEngine(["one\n two", CALL, "three"])

    def agent(episode: Episode) -> None:
        messages = list(episode.messages)
        first = said(ask(episode, messages, tools=[TOOL]))
        messages += [{**first, "content": " one two "}, user("and?")]
        call = said(ask(episode, messages, tools=[TOOL]))
        id = call["tool_calls"][0]["id"]
        messages += [
            written_back(call),
            {"role": "tool", "tool_call_id": id, "content": "seen"},
        ]
        ask(episode, messages, tools=[TOOL])

    played = play(agent, engine=engine)
    assert [text_of(ids) for ids in engine.requests] == [
        "[system]policy[user]hello[assistant]",
        "[system]policy[user]hello[assistant]one\n two[user]and?[assistant]",
        f"[system]policy[user]hello[assistant]one\n two[user]and?[assistant]{CALL}[tool]seen"
        "[assistant]",
    ]
    assert (len(played.traces), played.turns) == (1, 3)
    sampled_once(played)


def said_in(prompt: Prompt) -> str:
    """The arguments of the call in its second message."""
    return str(prompt.messages[1]["tool_calls"][0]["function"]["arguments"])


def test_a_call_that_the_policy_did_not_make_counts_with_its_arguments() -> None:
    engine = FakeEngine(["one", "two", "three"])
    shown = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    example = [user("see"), {"role": "assistant", "content": "", "tool_calls": [shown]}]
    answers = [{"role": "tool", "tool_call_id": "a", "content": "seen"}]

    def agent(episode: Episode) -> None:
        first = [*example, *answers]
        ask(episode, [*first, said(ask(episode, first)), user("and?")])
        other = rewritten(example[1], '{"at": 2}')
        ask(episode, [example[0], other, *answers])

    prompts = [event for event in play(agent, engine=engine).events if isinstance(event, Prompt)]
    assert [said_in(prompt) for prompt in prompts] == ["{}", '{"at": 2}']


def test_two_turns_that_differ_in_white_space_are_two() -> None:
    engine = FakeEngine(["a  b", "a b", "left", "right"])

    def agent(episode: Episode) -> None:
        for reply in [said(ask(episode, episode.messages)) for _ in range(2)]:
            ask(episode, [*episode.messages, reply, user("and?")])

    played = play(agent, engine=engine)
    assert [text_of(ids).split("]")[3] for ids in engine.requests[2:]] == [
        "a  b[user",
        "a b[user",
    ]
    assert len(played.traces) == 2


@pytest.mark.parametrize(
    ("results", "refused"),
    [
        (("call_1", "call_0"), None),
        (("call_0",), None),
        (("call_0", "call_0"), "twice"),
        (("call_0", "call_7"), "call_7"),
    ],
)
def test_results_of_calls_belong_to_them_by_their_ids(
    results: Sequence[str], refused: str | None
) -> None:
    calls = '[{"name": "look", "arguments": {}}, {"name": "look", "arguments": {}}]'
    engine = FakeEngine([calls, "end"])

    def agent(episode: Episode) -> None:
        first = said(ask(episode, episode.messages, tools=[TOOL]))
        replies = [{"role": "tool", "tool_call_id": id, "content": f"of {id}"} for id in results]
        if refused:
            with pytest.raises(Refused, match=refused):
                ask(episode, [*episode.messages, first, *replies], tools=[TOOL])
        else:
            ask(episode, [*episode.messages, first, *replies], tools=[TOOL])

    play(agent, engine=engine)
    if not refused:
        written = "".join(f"[tool]of {id}" for id in sorted(results))
        assert text_of(engine.requests[1]).endswith(f"{calls}{written}[assistant]")


def test_results_go_to_the_calls_that_were_sampled_where_a_client_reorders_them() -> None:
    calls = '[{"name": "look", "arguments": {}}, {"name": "look", "arguments": {}}]'
    engine = FakeEngine([calls, "end"])

    def agent(episode: Episode) -> None:
        first = said(ask(episode, episode.messages, tools=[TOOL]))
        written_back = list(reversed(first["tool_calls"]))
        replies = [
            {"role": "tool", "tool_call_id": call["id"], "content": f"of {call['id']}"}
            for call in written_back
        ]
        turn = {**first, "tool_calls": written_back}
        ask(episode, [*episode.messages, turn, *replies], tools=[TOOL])

    assert len(play(agent, engine=engine).traces) == 1
    assert text_of(engine.requests[1]).endswith(f"{calls}[tool]of call_0[tool]of call_1[assistant]")


def test_a_branch_keeps_the_ids_that_were_sampled_before_it() -> None:
    engine = FakeEngine(["one", "left", "right"])

    def agent(episode: Episode) -> None:
        start = [*episode.messages, said(ask(episode, episode.messages))]
        ask(episode, [*start, user("left?")])
        ask(episode, [*start, user("right?")])

    played = play(agent, engine=engine)
    left, right = engine.requests[1:]
    common = (
        len("[system]policy[user]hello[assistant]one") + 1
    )  # with the stop token, which no template wrote
    assert left[:common] == right[:common]
    assert [isinstance(event, Prompt) for event in played.events].count(True) == 2
    sampled_once(played)


def test_a_sub_agent_has_a_trace_of_its_own_and_the_first_one_goes_on() -> None:
    engine = FakeEngine(["main", "sub", "main again", "sub again"])

    def agent(episode: Episode) -> None:
        main = [*episode.messages, said(ask(episode, episode.messages))]
        sub = [{"role": "system", "content": "you search"}, user("find it")]
        sub.append(said(ask(episode, sub, tools=[TOOL])))
        ask(episode, [*main, user("it says")])
        ask(episode, [*sub, user("more")], tools=[TOOL])

    played = play(agent, engine=engine)
    assert [event.trace for event in played.events if isinstance(event, Sampled)] == [0, 1, 0, 1]
    assert len(played.traces) == 2
    assert [text_of(segment.response_ids) for segment in played.segments()] == [
        "main[user]it says[assistant]main again",
        "sub[user]more[assistant]sub again",
    ]
    sampled_once(played)


def test_the_wire_and_the_counts_keep_the_traces() -> None:
    def agent(episode: Episode) -> None:
        first = said(ask(episode, episode.messages))
        ask(episode, [user("other")], temperature=0.5)
        ask(episode, [*episode.messages, first, user("again")])

    played = play(agent, "one", "two", "three")
    again = read_trajectory(
        played.job,
        encode_header(played.header),
        [encode_event(event, "r/g/0") for event in played.events],
    )
    assert (again.tokens, again.mask, again.traces) == (played.tokens, played.mask, played.traces)
    assert [event.asked for event in again.events if isinstance(event, Sampled)] == [
        {},
        {"temperature": 0.5},
        {},
    ]
    stats = count_tokens(again)
    assert (stats.traces, stats.malformed_turns, stats.version_breaks) == (2, 0, 0)
    assert again.messages[:2] == played.messages[:2]


def test_where_the_template_cannot_be_trusted_with_a_bridge_it_writes_the_conversation() -> None:
    calls = '[{"name": "look", "arguments": {}}, {"name": "look", "arguments": {}}]'
    asked: list[dict[str, bool]] = []

    def renderer_of(tools: Any, **edges: bool) -> FakeRenderer:
        if edges:
            asked.append(edges)
            raise JobFailure("the chat template does not support the edge")
        return FakeRenderer()

    def agent(episode: Episode) -> None:
        first = said(ask(episode, episode.messages, tools=[TOOL]))
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "seen"}
            for call in first["tool_calls"]
        ]
        ask(episode, [*episode.messages, first, *results], tools=[TOOL])
        cut = said(ask(episode, [user("short")], max_tokens=2))
        ask(episode, [user("short"), cut, user("go on")])

    played = play(agent, calls, "done", "long words", "end", renderer_of=renderer_of)
    assert (len(played.traces), played.turns) == (4, 4)
    assert asked == [{"several": True, "cut": False}, {"several": False, "cut": True}]
    sampled_once(played)


def test_an_interrupted_turn_goes_on_where_it_was() -> None:
    engine = PieceEngine(("on", Finish.ABORT), ("e\0", Finish.STOP), ("two\0", Finish.STOP))

    def agent(episode: Episode) -> None:
        first = said(ask(episode, episode.messages))
        assert first["content"] == "one"
        ask(episode, [*episode.messages, first, user("and?")])

    played = play(agent, engine=engine)
    assert [text_of(event.ids) for event in played.events if isinstance(event, Sampled)] == [
        "on",
        "e",
        "two",
    ]
    assert sum(isinstance(event, Observed) for event in played.events) == 2
    sampled_once(played)


@given(
    moves=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 9), st.booleans()), min_size=1, max_size=15
    )
)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_every_request_is_the_conversation_that_was_asked_for(
    moves: list[tuple[int, int, bool]],
) -> None:
    """`moves`: which conversation to go on with, at which of its turns, and whether to edit its
    beginning.
    """
    engine = FakeEngine([f"t{n}" for n in range(20)])
    wanted: list[str] = []

    def agent(episode: Episode) -> None:
        known: list[list[dict[str, Any]]] = [[dict(message) for message in episode.messages]]
        for n, (which, at, edited) in enumerate(moves):
            messages = list(known[which % len(known)])
            ends = [m for m, message in enumerate(messages) if message["role"] == "assistant"]
            if ends:
                messages = [*messages[: ends[at % len(ends)] + 1], user(f"reply {n % 3}")]
            if edited:
                messages[0] = {"role": "system", "content": f"edited {n % 2}"}
            wanted.append(conversation(messages))
            known.append([*messages, said(ask(episode, messages))])

    played = play(agent, engine=engine)
    assert [text_of(ids) for ids in engine.requests] == wanted
    sampled_once(played)
    for trace in played.segments():
        assert text_of(trace.prompt_ids + trace.response_ids).startswith("[")


def test_a_system_prompt_that_changes_is_named_with_its_words() -> None:
    def agent(episode: Episode) -> None:
        messages = list(episode.messages)
        for n in range(3):
            messages[0] = {"role": "system", "content": f"It is 10:0{n} now."}
            messages += [said(ask(episode, messages)), user("and?")]

    played = play(agent, "one")
    assert played.info["system_prompt"] == (
        "it changes from request to request: '10:01' became '10:02'"
    )
    assert count_tokens(played).changed_prompts == 2
