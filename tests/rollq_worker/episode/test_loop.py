"""The agent loop against the fakes: what is sent, what is recorded, how it ends."""

import json
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rollq import errors
from rollq.env import STOP_MARKER, Grade, Observation
from rollq.events import Closed, Observed, Prompt, Sampled, Stop
from rollq.job import History
from rollq_worker.episode.loop import MAX_MALFORMED
from rollq_worker.failures import DeadlineExceeded
from rollq_worker.fakes import (
    END,
    FakeEngine,
    FakeEnvironment,
    FakeJournal,
    FakeRenderer,
    FakeUser,
    char_ids,
)
from rollq_worker.protocols import ReadTurn
from tests.rollq.samples import decoded, encoded
from tests.rollq_worker.episode.episodes import CALL, play_with_fakes, run


def test_a_call_then_a_farewell():
    trajectory = run(CALL, "done, bye")
    assert [type(e) for e in trajectory.events] == [
        Prompt,
        Sampled,
        Observed,
        Sampled,
        Observed,
        Closed,
    ]
    assert (trajectory.stop, trajectory.reward, trajectory.turns) == (Stop.DONE, 1.0, 2)
    assert [m["role"] for m in trajectory.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert trajectory.messages[2]["tool_calls"][0]["function"] == {
        "name": "add",
        "arguments": '{"a": 1}',
    }
    assert trajectory.messages[-1]["content"] == STOP_MARKER
    assert "".join(map(chr, trajectory.tokens)) == (
        "[system]policy[user]hello[assistant]"
        + CALL
        + chr(END)
        + '[tool]{"a": 1}[assistant]'
        + "done, bye"
        + chr(END)
    )


def test_the_turn_budget_ends_it_ungraded_by_the_environment():
    trajectory = run(CALL, budget={"max_turns": 3})
    assert (trajectory.stop, trajectory.reward, trajectory.turns) == (Stop.TURNS, 0.0, 3)
    assert trajectory.events[-2].ids == char_ids("")  # no bridge to a turn that never comes


def test_malformed_turns_are_shown_to_the_policy_then_end_it_graded():
    trajectory = run("{oops")
    assert (trajectory.stop, trajectory.reward, trajectory.turns) == (
        Stop.MALFORMED,
        0.0,
        MAX_MALFORMED,
    )
    assert [m["role"] for m in trajectory.messages[2:]] == ["assistant", "tool"] * 2 + ["assistant"]
    assert trajectory.messages[3]["content"].startswith("Error: not a call")


def test_a_turn_full_of_broken_calls_is_told_of_a_few():
    class Stutterer(FakeRenderer):
        def read(self, ids):
            return ReadTurn("", (), ["cut off."] * 400 + [f"bad {n}." for n in range(400)])

    trajectory = run(engine=FakeEngine(["{" * 400]), renderer=Stutterer())
    assert trajectory.messages[3]["content"] == "Error: cut off. bad 0. bad 1. bad 2. bad 3."
    assert trajectory.stop is Stop.MALFORMED


def test_a_good_turn_forgives_malformed_ones():
    assert run("{oops", "{oops", CALL, "{oops", "{oops", "bye").stop is Stop.DONE


def test_a_turn_that_hands_over_to_the_wrong_speaker_is_malformed():
    """As with GLM, whose stop tokens are the headers of who speaks next."""

    class OnlyUsers(FakeRenderer):
        roles = frozenset({"user"})

        def complaint_role(self, stop):
            return "user"

    environment = FakeEnvironment()
    trajectory = run(engine=FakeEngine([CALL]), renderer=OnlyUsers(), environment=environment)
    assert (trajectory.stop, environment.actions) == (Stop.MALFORMED, [])
    assert trajectory.messages[3]["role"] == "user"
    assert "somebody else" in trajectory.messages[3]["content"]


def test_history_by_the_template_opens_a_trace_where_it_rewrites():
    """The fake template rewrites whenever the user speaks."""
    engine = FakeEngine([CALL, "and?", CALL, "bye"])
    trajectory = play_with_fakes(
        engine=engine, user=FakeUser(["hello", "go on"]), history=History.TEMPLATE
    )
    assert len(trajectory.traces) == 2
    assert sum(trajectory.traces) == len(trajectory.tokens)
    first, second = (
        trajectory.tokens[: trajectory.traces[0]],
        trajectory.tokens[trajectory.traces[0] :],
    )
    assert first == engine.requests[1] + engine.replies[1]
    assert second == engine.requests[3] + engine.replies[3]
    assert trajectory.sampled_tokens == sum(map(len, engine.replies)) == sum(trajectory.mask)
    rows = trajectory.segments()
    assert [row.prompt_ids for row in rows] == [engine.requests[0], engine.requests[2]]
    assert [row.prompt_ids + row.response_ids for row in rows] == [first, second]
    trained = [
        token for row in rows for token, bit in zip(row.response_ids, row.mask, strict=True) if bit
    ]
    assert trained == [token for reply in engine.replies for token in reply]  # each once
    assert [m["role"] for m in trajectory.messages] == (
        [
            "system",
            "user",
            "assistant",
            "tool",
            "assistant",
            "user",
            "assistant",
            "tool",
            "assistant",
            "user",
        ]
    )


def odd(**methods: Any) -> FakeEnvironment:
    """An environment with these functions in place of its methods."""
    environment = FakeEnvironment()
    for name, function in methods.items():
        setattr(environment, name, function)
    return environment


@pytest.mark.parametrize(
    ("environment", "what"),
    [
        (odd(step=lambda action: 1 / 0), "environment.step(respond): ZeroDivisionError"),
        (odd(step=lambda action: Observation(None)), "the observation is a NoneType, not a string"),
        (
            odd(step=lambda action: Observation("", reward=math.nan)),
            "step(respond): TypeError: the reward is nan",
        ),
        (
            odd(step=lambda action: Observation("", reward="1")),
            "the reward is '1', not a finite int or float",
        ),
        (
            odd(step=lambda action: Observation("", reward=True)),
            "the reward is True, not a finite int or float",
        ),
        (odd(step=lambda action: Observation("", np.ones(2))), "step(respond): ValueError"),
        (odd(grade=lambda: Grade(math.nan)), "environment.grade: TypeError: the reward is nan"),
        (odd(grade=lambda: Grade(1.0, {"seen": {1, 2}})), "environment.grade: TypeError"),
        (odd(grade=lambda: None), "grade() returns a NoneType, not Grade"),
        (odd(reset=lambda user: None), "the message is a NoneType, not a string"),
        (odd(system_prompt=None), "the system prompt is a NoneType, not a string"),
    ],
)
def test_what_the_environment_breaks_is_its_own_failure(environment, what):
    with pytest.raises(errors.EnvironmentFailure, match=re.escape(what)):
        run("bye", environment=environment)


class FlakyUser(FakeUser):
    def reply(self, message: str) -> str:
        raise errors.UserFailure("user endpoint is down")


def test_a_user_failure_stays_a_user_failure():
    with pytest.raises(errors.UserFailure, match="down"):
        run("hi", user=FlakyUser())


class DeadEngine(FakeEngine):
    def generate(self, *args, **kwargs):
        raise ConnectionResetError


class SlowEngine(FakeEngine):
    def generate(self, *args, **kwargs):
        raise DeadlineExceeded("past the deadline of 1 s")


@pytest.mark.parametrize(
    "engine", [DeadEngine([""]), SlowEngine([""])], ids=lambda e: type(e).__name__
)
def test_what_the_engine_breaks_is_an_engine_failure(engine):
    with pytest.raises(errors.EngineFailure):
        run(engine=engine)


def test_check_stops_the_episode_between_turns():
    journal = FakeJournal(stop=errors.Fenced("r/g/0"), limit=3)
    with pytest.raises(errors.Fenced):
        run(CALL, journal=journal)
    assert len(journal.events) == 3


def test_an_opening_that_is_not_the_users_own_is_the_environments_failure():
    """A journal has the message only, so a replay would not know what the user had said."""

    class Embroiders(FakeEnvironment):
        def reset(self, user):
            return "Customer: " + super().reset(user)

    with pytest.raises(errors.EnvironmentFailure, match="Customer: hello"):
        run("bye", environment=Embroiders())

    class Mute(FakeEnvironment):
        def reset(self, user):
            super().reset(FakeUser(["unheard"]))
            self.user = user
            return "Ticket 7"

    assert (
        run("bye", environment=Mute(), user=FakeUser(["never said"])).messages[1]["content"]
        == "Ticket 7"
    )


def test_an_environment_that_changes_arguments_changes_nothing_that_is_recorded():
    class Takes(FakeEnvironment):
        def step(self, action):
            action.arguments.get("items", []).clear()
            action.arguments.pop("when", None)
            return super().step(action)

    arguments = {"items": [1], "when": "today"}
    trajectory = run(
        json.dumps({"name": "add", "arguments": arguments}), "bye", environment=Takes()
    )
    assert trajectory.events[2].actions == [{"name": "add", "arguments": arguments}]
    assert json.loads(trajectory.messages[2]["tool_calls"][0]["function"]["arguments"]) == arguments


class Paying(FakeEnvironment):
    """Pays for each step."""

    def __init__(self, *rewards):
        super().__init__()
        self.rewards = iter(rewards)

    def step(self, action):
        return replace(super().step(action), reward=next(self.rewards))


def test_rewards_of_steps_are_recorded_with_their_actions():
    trajectory = run(CALL, CALL, "bye", environment=Paying(0.25, None, -1))
    assert trajectory.turn_rewards == [0.25, None, -1.0]
    assert trajectory.events[2].actions == [{"name": "add", "arguments": {"a": 1}, "reward": 0.25}]
    assert trajectory.reward == 1.0  # the grade is apart from them
    assert decoded(encoded(trajectory)).turn_rewards == [0.25, None, -1.0]
