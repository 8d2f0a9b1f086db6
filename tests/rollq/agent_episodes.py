"""Episodes of agent programs: a tree of traces, whose events lie in the journal in turns."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from rollq.events import Acted, Event, Message, Observed, Prompt, Sampled
from rollq.trajectory import AGENT_REWARDS, Trajectory
from tests.rollq.export.trajectories import sound, sound_traces
from tests.rollq.samples import closed, ids, job, observed, sampled, trajectory

LOOK = {"type": "function", "function": {"name": "look"}}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def opened(tokens: Sequence[int], *messages: Message, tools: Sequence[object] = ()) -> Prompt:
    return Prompt(ids=ids(*tokens), messages=messages, tools=list(tools), at=1.0)


def said(turn: int, trace: int, tokens: Sequence[int], at: float, **asked: object) -> Sampled:
    return replace(
        sampled(turn, *tokens), trace=trace, asked=asked, text=f"a{turn}", at=at, seconds=1.0
    )


def answered(
    turn: int, trace: int, bridge: Sequence[int], at: float, *replies: Message, seconds: float = 0.0
) -> Observed:
    message = {"role": "assistant", "content": f"a{turn}"}
    event = replace(
        observed(turn), message=message, actions=[], replies=replies, at=at, seconds=seconds
    )
    return replace(event, ids=ids(*bridge), trace=trace)


def branching(**changes: object) -> Trajectory:
    """Three traces: the main one, a helper with its own prompt and temperature that takes turns
    with it, and a branch of the main one behind its first turn.
    """
    system, hello = {"role": "system", "content": "Be brief."}, user("Hello")
    events = [
        Acted(action={"name": "", "arguments": {}}, text="Hello", at=0.5, seconds=0.1),
        opened([1, 2, 3], system, hello, tools=[LOOK]),
        said(0, 0, [10, 11], 2.0),
        Acted(
            action={"name": "look", "arguments": {"at": "it"}},
            text="It is red.",
            at=3.2,
            seconds=0.5,
        ),
        opened([6, 7], {"role": "system", "content": "You help."}, user("Look it up")),
        said(1, 1, [20], 4.0, temperature=0.3),
        answered(0, 0, [4, 5], 3.0, user("go on"), seconds=2.0),
        said(2, 0, [12], 5.0),
        answered(1, 1, [8], 5.0, user("and?"), seconds=1.5),
        said(3, 1, [21], 6.5, temperature=0.3),
        opened(
            [1, 2, 3, 10, 11, 4, 9],
            system,
            hello,
            {"role": "assistant", "content": "a0"},
            user("or rather"),
        ),
        said(4, 2, [30], 8.0, max_new_tokens=1),
        answered(2, 0, [], 6.0),
        answered(3, 1, [], 7.5),
        answered(4, 2, [], 9.0),
        replace(closed(), at=9.5, info={"agent_output": "done\n"}),
    ]
    return replace(trajectory(of=job(agent="program")), events=events, **changes)


def with_traces(trajectory: Trajectory) -> Trajectory:
    """The same episode, as an agent program's: each event says its trace."""
    events: list[Event] = []
    trace = -1
    for event in trajectory.events:
        trace += isinstance(event, Prompt)
        events.append(
            replace(event, trace=trace) if isinstance(event, Sampled | Observed) else event
        )
    return replace(trajectory, events=events)


@st.composite
def interleaved(draw: st.DrawFn) -> tuple[Trajectory, Trajectory]:
    """An episode whose traces follow one another, and the same one whose traces take turns. Prompts
    keep their order.
    """
    whole = with_traces(sound(draw(sound_traces)))
    left = [[prompt, *response] for prompt, response in whole.trace_events()]
    mixed: list[Event] = []
    begun = 0
    while any(left):
        choices = [n for n, events in enumerate(left) if events and n <= begun]
        trace = draw(st.sampled_from(choices))
        begun = max(begun, trace + 1)
        mixed.append(left[trace].pop(0))
    return whole, replace(whole, events=[*mixed, whole.events[-1]])


def rewarded_apart() -> Trajectory:
    """Its agents have rewards of their own."""
    played = branching()
    closed = replace(played.events[-1], info={AGENT_REWARDS: {"red": 1.0, "blue": 0.0}})
    own = replace(played.job, models={"red": {}, "blue": {}})
    return replace(played, job=own, events=[*played.events[:-1], closed])
