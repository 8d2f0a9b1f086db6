"""Several agents in an episode: which model samples a request, which traces are trained, and what a
resumed attempt is given again.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import requests

from rollq.client.consuming.functions import unequal_rewards
from rollq.env import Grade
from rollq.errors import ContractError, EnvironmentFailure, RewardFailure
from rollq.events import Replied, Sampled
from rollq.job import Job
from rollq.trajectory import AGENT_REWARDS, Trajectory
from rollq_worker.agents import growth
from rollq_worker.episode.environment_checks import with_end
from rollq_worker.fakes import FakeEngine, FakeEnvironment, FakeUser
from rollq_worker.protocols import Generated, SampleRequest
from tests.rollq.token_rows import batch_of
from tests.rollq_worker.agents.played import Refused, ask, job, play, said, text_of, user

MODELS = {"red": {"adapter": "red"}, "blue": {"adapter": "blue"}, "old": {"model": "frozen"}}
ROUNDS = 2


class Engines(FakeEngine):
    """Each model says its name and how often it was asked."""

    def __init__(self, interrupts: int = 0) -> None:
        super().__init__(("",), interrupts=interrupts)
        self.asked: list[str] = []

    def generate(self, request: SampleRequest) -> Generated:
        if self._rest is None:
            self.asked.append(request.model)
            count = self.asked.count(request.model)
            self.texts = (f"{request.model or 'policy'} {count}",)
        return super().generate(request)


def game(*names: str) -> Any:
    """An agent that has the models play in turn, each with a conversation of its own."""

    def agent(episode: Any) -> str:
        told: dict[str, list[Any]] = {name: [user("begin")] for name in names}
        for _ in range(ROUNDS):
            for name, other in zip(names, (*names[1:], names[0]), strict=True):
                reply = said(ask(episode, told[name], model=name))
                told[name] += [reply]
                told[other] += [user(f"{name} says {reply['content']}")]
        return "over"

    return agent


class Graded(FakeEnvironment):
    rewards: dict[str, float] = {"red": 1.0, "blue": -1.0}  # noqa: RUF012

    def grade(self) -> Grade:
        return Grade(0.5, rewards=self.rewards)


def played(agent: Any, engine: Engines, **options: Any) -> Trajectory:
    return play(agent, engine=engine, models=MODELS, user=FakeUser(["begin"]), **options)


def test_each_model_has_traces_of_its_own_and_a_frozen_one_none() -> None:
    engine = Engines()
    done = played(game("red", "old"), engine)
    assert engine.asked == ["red", "old"] * ROUNDS
    [row] = done.segments()  # one trace, though the other spoke in between
    assert (row.model, row.kind, text_of(row.prompt_ids)) == (
        "red",
        "main",
        "[user]begin[assistant]",
    )
    assert bytes(row.mask).count(1) == len("red 1" + "red 2") + 2
    replies = [event for event in done.events if isinstance(event, Replied)]
    assert [(each.model, text_of(each.ids)) for each in replies] == [
        ("old", "old 1"),
        ("old", "old 2"),
    ]
    sampled = [text_of(event.ids) for event in done.events if isinstance(event, Sampled)]
    assert sampled == ["red 1", "red 2"] and done.turns == 2
    # the frozen model's own turns went on as tokens
    last = text_of(engine.requests[-1])
    assert last.startswith("[user]begin[user]red says red 1[assistant]old 1")


def test_conversations_of_a_frozen_model_take_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "LARGEST_JOURNAL", 50_000)

    def agent(episode: Any) -> str:
        ask(episode, [user("begin")], model="red")
        with pytest.raises(Refused, match="journal_full"):
            for number in range(100):
                ask(episode, [user(f"{number} {'x' * 2_000}")], model="old")
        return "over"

    engine = Engines()
    played(agent, engine)
    assert 1 < engine.asked.count("old") < 10


def test_equal_conversations_of_two_models_are_two_traces() -> None:
    def agent(episode: Any) -> str:
        for name in ("red", "blue", "rollq", "red"):
            ask(episode, [user("begin")], model=name)
        return "over"

    engine = Engines()
    done = played(agent, engine)
    assert engine.asked == ["red", "blue", "", "red"]
    assert [(row.model, row.kind) for row in done.segments()] == [
        ("red", "main"),
        ("blue", "main"),
        ("", "main"),
        ("red", "main"),
    ]


def test_another_name_is_refused_and_without_models_any_name_is_the_policy() -> None:
    def agent(episode: Any) -> str:
        with pytest.raises(Refused, match=r"404 model_not_found: .*'gpt'.* rollq, red, blue, old"):
            ask(episode, [user("begin")], model="gpt")
        with pytest.raises(Refused, match=r"404 model_not_found: the model is .'red'.;"):
            ask(episode, [user("begin")], model=["red"])
        headers = {"Authorization": f"Bearer {episode.api_key}"}
        for version, more in (({}, "object"), ({"anthropic-version": "1"}, "has_more")):
            listed = requests.get(
                f"{episode.base_url}/models", headers={**headers, **version}, timeout=60
            )
            assert [each["id"] for each in listed.json()["data"]] == ["rollq", "red", "blue", "old"]
            assert more in listed.json()
        return str(ask(episode, [user("begin")], model="red")["content"])

    played(agent, Engines())
    engine = Engines()
    done = play(
        lambda episode: ask(episode, [user("begin")], model="gpt")["content"], engine=engine
    )
    assert engine.asked == [""] and done.segments()[0].model == ""


@pytest.mark.parametrize("interrupts", [0, 2])
def test_an_attempt_that_resumes_is_given_the_replies_again(interrupts: int) -> None:
    agent = game("red", "old", "blue")
    whole = played(agent, Engines(interrupts))
    turns = [
        (end, event.model if isinstance(event, Replied) else model_of(whole, event))
        for end, event in enumerate(whole.events, 1)
        if isinstance(event, Sampled | Replied) and event.finish == "stop"
    ]
    for count, (end, _) in enumerate(turns, 1):
        engine = Engines()
        engine.asked = [model for _, model in turns[:count]]  # these are not asked again
        again = played(agent, engine, recorded=whole.events[:end])
        assert (again.tokens, again.mask) == (whole.tokens, whole.mask)
        assert engine.asked == [model for _, model in turns]
        replies = [event.ids for event in again.events if isinstance(event, Replied)]
        assert replies == [event.ids for event in whole.events if isinstance(event, Replied)]


def model_of(done: Trajectory, event: Sampled) -> str:
    prompt, _ = done.trace_events()[event.trace or 0]
    return prompt.model


def test_each_agent_is_compared_by_its_own_reward() -> None:
    won = played(game("red", "blue", "rollq"), Engines(), environment=Graded())

    class Lost(Graded):
        rewards = {"red": -1.0}  # noqa: RUF012

    lost = played(game("red", "blue", "rollq"), Engines(), environment=Lost())
    batch = batch_of([won, lost])
    rows = batch.arrays(advantages="dr_grpo")
    models = [row.model for each in (won, lost) for row in each.segments()]
    assert models == ["red", "blue", ""] * 2
    assert rows.rewards.tolist() == [1.0, -1.0, 0.5, -1.0, 0.5, 0.5]
    assert rows.advantages.tolist() == [1.0, -0.75, 0.0, -1.0, 0.75, 0.0]
    assert batch.rewards == [0.5, 0.5]  # the episodes' own
    assert unequal_rewards(batch.groups[0])  # those of one agent are enough
    assert not unequal_rewards(replace(batch.groups[0], trajectories=[won, won]))
    red = batch.arrays(traces=lambda own: [each for each in own if each.model == "red"])
    assert red.rewards.tolist() == [1.0, -1.0] and np.all(red.weights == 1.0)


def test_a_reward_function_has_the_last_word_on_each_reward() -> None:
    made = played(game("red", "blue"), Engines(), environment=Graded())
    ungraded = replace(made, events=made.events[:-1])
    assert made.closed is not None
    judged = with_end(ungraded, made.closed, lambda *_: Grade(0.25, rewards={"blue": 2.0}))
    assert (judged.reward, judged.rewards) == (0.25, {"blue": 2.0})
    given: list[Grade] = []
    with_end(ungraded, made.closed, lambda _, grade: given.append(grade) or 0.0)
    assert given[0].rewards == Graded.rewards
    with pytest.raises(RewardFailure, match="nan"):
        with_end(ungraded, made.closed, lambda *_: Grade(0.25, rewards={"blue": float("nan")}))


@pytest.mark.parametrize("rewards", [{"red": "x"}, {"red": None}, 5, "red"])
def test_rewards_in_the_info_are_checked_as_well(rewards: Any) -> None:
    class Sloppy(Graded):
        def grade(self) -> Grade:
            return Grade(0.5, {AGENT_REWARDS: rewards})

    with pytest.raises(EnvironmentFailure, match=r"environment\.grade: TypeError"):
        played(game("red", "blue"), Engines(), environment=Sloppy())


@pytest.mark.parametrize("name", ["rde", 1])
def test_a_reward_for_nobody_fails_the_environment(name: Any) -> None:
    class Typo(Graded):
        rewards = {name: 1.0}  # noqa: RUF012

    with pytest.raises(EnvironmentFailure, match=f"a reward for {name}, and the job's models are"):
        played(game("red", "blue"), Engines(), environment=Typo())


def test_rewards_among_an_environments_own_facts_are_no_agents() -> None:
    """Harbor's tests and verifiers' rubrics have some, by names of their own."""

    class Facts(FakeEnvironment):
        def grade(self) -> Grade:
            return Grade(0.5, {"rewards": {"reward": 0.5, "red": {"score": 1}}})

    done = played(game("red", "blue"), Engines(), environment=Facts())
    assert done.rewards == {} and batch_of([done, done]).arrays().rewards.tolist() == [0.5] * 4


@pytest.mark.parametrize(
    ("models", "says"),
    [
        ({"a b": {}}, "its name must match"),
        ({"red": "red"}, "has an adapter, a model or nothing"),
        ({"red": {"adapter": "a", "model": "b"}}, "has an adapter, a model or nothing"),
        ({"red": {"adapter": ""}}, "give the name of an adapter or of a model"),
        ({"red": {"engine": "x"}}, "'engine' cannot be 'x'"),
    ],
)
def test_models_of_a_job(models: Any, says: str) -> None:
    with pytest.raises(ContractError, match=says):
        job(models=models)
    assert not Job(env="fake", task=0).is_frozen("red")
