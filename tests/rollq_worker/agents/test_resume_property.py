"""An agent that asks in branches and at once, killed after any event: the resumed episode is the
undisturbed one.
"""

import json
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rollq.env import Episode
from rollq.events import Event, Finish, Message, Prompt, Sampled, VersionSpan
from rollq.trajectory import Trajectory
from rollq_worker.fakes import END, FakeEngine, char_ids
from rollq_worker.protocols import Generated, SampleRequest
from tests.rollq_worker.agents.played import TOOL, ask, play, said, text_of, user

HEADER = "[assistant]"


class SameAgain(FakeEngine):
    """Answers a prompt with the same text whenever it is asked, and interrupts every third answer
    once.
    """

    def __init__(self) -> None:
        super().__init__(["unused"])

    def generate(self, request: SampleRequest) -> Generated:
        self.requests.append(request.ids[:])
        prompt, _, begun = text_of(request.ids).rpartition(HEADER)
        number = zlib.crc32(prompt.encode())
        text = (
            f"said {number}"
            if number % 4
            else json.dumps({"name": "add", "arguments": {"n": number}})
        )[len(begun) :]
        interrupted = number % 3 == 0 and not begun
        out = char_ids(text[:2] if interrupted else text + chr(END))
        return Generated(
            ids=out,
            logprobs=array("f", [-0.5] * len(out)),
            versions=[VersionSpan("v", 0, len(out))],
            finish=Finish.ABORT if interrupted else Finish.STOP,
        )


def agent(plan: Sequence[tuple[str, int]]) -> Callable[[Episode], None]:
    """An agent that does these things one after the other."""

    def play_it(episode: Episode) -> None:
        messages: list[Message] = list(episode.messages)
        for what, n in plan:
            if what == "ask":
                messages += [answered(episode, messages), user(f"go on {n}")]
            elif what == "act":
                messages.append(user(episode.step("add", {"n": n}).text))
            elif what == "sub":  # another conversation, perhaps one that was there before
                answered(episode, [user(f"sub {n}")], tools=[TOOL], temperature=0.5)
            elif what == "edit":  # an earlier place of the conversation goes on otherwise
                answered(episode, [*messages[: 1 + n], user("edited")])
            else:  # several at once, some of them equal
                with ThreadPoolExecutor(4) as pool:
                    list(
                        pool.map(lambda i: answered(episode, [user(f"part {i % 3}")]), range(n + 2))
                    )
        answered(episode, [*messages, user("at last")])

    return play_it


def answered(episode: Episode, messages: Sequence[Message], **options: Any) -> Message:
    """The reply as it is sent back: a call has its answer in the next message, so it is sent as
    words.
    """
    message = said(ask(episode, messages, **options))
    calls = message.pop("tool_calls", None)
    return {"role": "assistant", "content": json.dumps(calls)} if calls else message


def traces(played: Trajectory) -> Counter[tuple[bytes, bytes]]:
    """The ids and the mask of each trace, in any order."""
    found: Counter[tuple[bytes, bytes]] = Counter()
    at = 0
    for length in played.traces:
        found[played.tokens[at : at + length].tobytes(), played.mask[at : at + length]] += 1
        at += length
    return found


def played_by(
    plan: Sequence[tuple[str, int]], recorded: Sequence[Event] = ()
) -> tuple[Trajectory, Counter[bytes]]:
    """The trajectory, and the requests that the engine got."""
    engine = SameAgain()
    played = play(
        agent(plan),
        engine=engine,
        recorded=recorded,
        budget={"max_turns": 100, "max_tokens": 100_000},
    )
    return played, Counter(ids.tobytes() for ids in engine.requests)


PLANS = st.lists(
    st.tuples(st.sampled_from(["ask", "act", "sub", "edit", "at once"]), st.integers(0, 3)),
    max_size=6,
)


@settings(max_examples=30, deadline=None)
@given(plan=PLANS, data=st.data())
def test_a_resumed_episode_equals_the_undisturbed_one(
    plan: list[tuple[str, int]], data: st.DataObject
) -> None:
    whole, asked = played_by(plan)
    played = whole
    for attempt in range(2):  # the second one resumes the journal that the first one went on with
        events = played.events[
            : data.draw(st.integers(0, len(played.events) - 1), f"events of attempt {attempt}")
        ]
        pieces = sum(isinstance(event, Sampled) for event in events)
        played, again = played_by(plan, events)
        assert traces(played) == traces(whole)
        assert (played.reward, played.stop, played.turns) == (whole.reward, whole.stop, whole.turns)
        # No recorded piece is sampled again, and nothing else is asked than before.
        assert again <= asked and again.total() == asked.total() - pieces


def test_equal_requests_that_a_kill_left_unanswered_go_on_in_a_trace_each() -> None:
    plan = [("at once", 2)]  # part 0 twice, part 1 and part 2
    whole, _ = played_by(plan)
    prompts = [event for event in whole.events if isinstance(event, Prompt)]
    resumed, _ = played_by(plan, prompts[:4])
    assert traces(resumed) == traces(whole)
