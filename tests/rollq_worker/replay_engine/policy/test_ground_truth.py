"""What the replay engine says to a prompt."""

import json
import random
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollq.env import Task
from rollq.errors import SettingsError
from rollq.events import Finish, Stop, VersionSpan
from rollq.trajectory import Trajectory
from rollq_worker.context.summary import MODEL_PROMPT, ModelSummary
from rollq_worker.protocols import Context, Generated, SampleRequest
from rollq_worker.replay_engine.chat_completions import next_line
from rollq_worker.replay_engine.policy.ground_truth import (
    POLITE,
    UNKNOWN_TASK,
    GroundTruth,
    turn_text,
)
from rollq_worker.replay_engine.policy.task_progress import TaskIndex
from rollq_worker.tokens.tokenizer import BUNDLED, Tokenizer
from tests.rollq_worker.replay_engine.shop_episodes import (
    END,
    SHOP,
    SPLIT,
    TASKS,
    TOKENIZER,
    first_prompt,
    play_task,
)

WHOLE = 1 << 20
"""Tokens: more than any turn has."""


class GroundTruthEngine:
    """An Engine without a server; each of its turns is cut off after `cut()` tokens."""

    def __init__(
        self,
        ground_truth: Callable[[], GroundTruth],
        cut: Callable[[], int] = lambda: WHOLE,
        seed: int = 0,
    ):
        self.ground_truth = ground_truth
        self.cut = cut
        self.rng = random.Random(seed)

    def room(self, prompt: int) -> int:
        return WHOLE

    def generate(self, request: SampleRequest) -> Generated:
        said = (
            self.ground_truth()
            .next_turn(request.ids, self.rng)
            .ids[: min(self.cut(), request.max_new_tokens)]
        )
        return Generated(
            ids=said,
            logprobs=array("f", [-1.0] * len(said)),
            versions=[VersionSpan("v", 0, len(said))],
            finish=Finish.STOP if said[-1] == END else Finish.ABORT,
        )


@pytest.fixture(autouse=True, scope="module")
def no_pause() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rollq_worker.episode.loop.ABORT_PAUSE_S", 0.0)
        yield


@pytest.fixture
def ground_truth(tasks: TaskIndex) -> GroundTruth:
    return GroundTruth(TOKENIZER, tasks)


def said_to(ground_truth: GroundTruth, prompt: str) -> "array[int]":
    return ground_truth.next_turn(TOKENIZER.encode(prompt), random.Random(0)).ids


@pytest.mark.parametrize("agent", ["tool-calling", "act", "react"])
def test_every_task_is_played_to_its_reward(ground_truth: GroundTruth, agent: str) -> None:
    for index in range(TASKS):
        trajectory = play_task(GroundTruthEngine(lambda: ground_truth), index, agent=agent)
        assert (trajectory.stop, trajectory.reward) == (Stop.DONE, 1.0)
        assert trajectory.turns == len(SHOP.task(SPLIT, index).moves)


@pytest.mark.parametrize("agent", ["tool-calling", "react"])
@pytest.mark.parametrize("kind", [{"kind": "window", "turns": 2}, {"kind": "summary"}, {}], ids=str)
def test_a_conversation_that_is_shortened_goes_on(
    ground_truth: GroundTruth, tasks: TaskIndex, agent: str, kind: dict[str, Any]
) -> None:
    engine, traces = GroundTruthEngine(lambda: ground_truth), 0
    model = Context(
        shorten=ModelSummary(2600, MODEL_PROMPT, lambda messages: next_line(messages, tasks))
    )
    given = {"context": {**kind, "over": 2600}} if kind else {"summaries": model}
    for index in range(TASKS):
        trajectory = play_task(engine, index, agent=agent, **given)
        assert (trajectory.stop, trajectory.reward) == (Stop.DONE, 1.0)
        traces += len(trajectory.traces)
    assert traces > 2 * TASKS  # so most are shortened twice or more


def test_nothing_depends_on_the_cache(ground_truth: GroundTruth, tasks: TaskIndex) -> None:
    """Behind a router every turn may come to another server."""
    for index in range(3):
        one_server = play_task(GroundTruthEngine(lambda: ground_truth), index)
        a_server_each = play_task(GroundTruthEngine(lambda: GroundTruth(TOKENIZER, tasks)), index)
        assert one_server.tokens == a_server_each.tokens


@settings(max_examples=25, deadline=None)
@given(
    cuts=st.lists(st.integers(1, 40), min_size=1),
    mistakes=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 99),
    agent=st.sampled_from(["tool-calling", "react"]),
)
def test_an_interrupted_turn_is_finished_as_it_was_begun(
    tasks: TaskIndex, cuts: list[int], mistakes: float, seed: int, agent: str
) -> None:
    lengths = iter(cuts * 10_000)
    ground_truth = GroundTruth(TOKENIZER, tasks, mistakes)
    trajectory = play_task(
        GroundTruthEngine(lambda: ground_truth, lambda: next(lengths), seed),
        seed % TASKS,
        agent=agent,
    )
    assert trajectory.graded
    said = [message["content"] for message in trajectory.messages if message["role"] == "assistant"]
    assert all(isinstance(text, str) for text in said)
    if not mistakes:
        assert trajectory.reward == 1.0


def test_mistakes_happen_in_about_as_many_episodes_as_asked_for(tasks: TaskIndex) -> None:
    ground_truth = GroundTruth(TOKENIZER, tasks, mistakes=0.5)
    engine = GroundTruthEngine(lambda: ground_truth, seed=7)
    played = [play_task(engine, index % TASKS) for index in range(60)]
    assert all(trajectory.graded for trajectory in played)
    clean = sum(made_all_moves(trajectory) for trajectory in played)
    assert 15 <= clean <= 45
    lost = sum(trajectory.reward == 0.0 for trajectory in played)
    assert 5 <= lost <= 60 - clean


def made_all_moves(trajectory: Trajectory) -> bool:
    actions = [action for event in trajectory.events for action in getattr(event, "actions", ())]
    moves = [
        (move.name, dict(move.arguments)) for move in SHOP.task(SPLIT, trajectory.job.task).moves
    ]
    return [(action["name"], action["arguments"]) for action in actions] == moves


@pytest.mark.parametrize(
    "prompt",
    [
        "Hello?",
        "<|im_start|>",
        "<|im_start|>assistant\n<|im_start|>assistant\n",
    ],
)
def test_what_is_no_conversation_gets_a_polite_answer(
    ground_truth: GroundTruth, prompt: str
) -> None:
    assert said_to(ground_truth, prompt) == TOKENIZER.encode(POLITE) + array("I", [END])


@pytest.mark.parametrize(
    "prompt",
    [
        "<|im_start|>user\nHello?<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n<|im_start|>user\nC<|im_end|>\n",
    ],
)
def test_a_conversation_about_no_task_is_told_which_engine_plays_it(
    ground_truth: GroundTruth, prompt: str
) -> None:
    assert said_to(ground_truth, prompt) == TOKENIZER.encode(UNKNOWN_TASK) + array("I", [END])
    assert "start `rollq engine --env` with its environment" in UNKNOWN_TASK


def test_a_model_that_is_not_chatml_is_refused(tasks: TaskIndex) -> None:
    with pytest.raises(
        SettingsError, match=r"no <\|im_start\|> and no <\|im_end\|>: start engine and workers"
    ):
        spec = json.loads((BUNDLED / "tokenizer.json").read_text()) | {"added_tokens": []}
        GroundTruth(Tokenizer("gemma", json.dumps(spec).encode(), {}, "x"), tasks)


def test_a_template_that_takes_no_calls_can_be_played(tasks: TaskIndex) -> None:
    """In environments without tools."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    plain = TOKENIZER.with_template(template)
    turn = GroundTruth(plain, tasks).next_turn(
        plain.encode("<|im_start|>user\nHello?"), random.Random(0)
    )
    assert plain.decode(turn.ids) == POLITE + "<|im_end|>"


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, TOKENIZER.vocab_size - 1), min_size=1, max_size=60))
def test_every_prompt_gets_an_answer(tasks: TaskIndex, ids: list[int]) -> None:
    turn = GroundTruth(TOKENIZER, tasks, 0.5).next_turn(array("I", ids), random.Random(0))
    assert turn.ids and turn.cached == 0


@pytest.mark.parametrize(
    ("thought", "closing"), [("<think>\n", "\n</think>\n\n"), ("<think>\n\n</think>\n\n", "")]
)
def test_an_opened_thought_is_closed(
    ground_truth: GroundTruth, task: Task, thought: str, closing: str
) -> None:
    said = said_to(ground_truth, TOKENIZER.decode(first_prompt(task)) + thought)
    assert TOKENIZER.decode(said[:-1]) == closing + turn_text(task.moves[0])


def test_a_turn_that_another_model_began_is_just_ended(
    ground_truth: GroundTruth, task: Task
) -> None:
    assert list(said_to(ground_truth, TOKENIZER.decode(first_prompt(task)) + "I, for one,")) == [
        END
    ]


def test_messages_that_were_read_before_are_cached_until_a_flush(
    ground_truth: GroundTruth, task: Task
) -> None:
    prompt, rng = first_prompt(task), random.Random(0)
    first = ground_truth.next_turn(prompt, rng)
    bridge = TOKENIZER.encode("\n<|im_start|>user\nYes.<|im_end|>\n<|im_start|>assistant\n")
    second = ground_truth.next_turn(prompt + first.ids + bridge, rng)
    assert first.cached == 0 < second.cached < len(prompt)
    ground_truth.flush_cache()
    assert ground_truth.next_turn(prompt, rng).cached == 0
