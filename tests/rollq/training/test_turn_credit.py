"""Credit by turn: against hand computation, and exactly unbiased by enumeration."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollq import Batch, ContractError, Trajectory, TurnCredit
from rollq.errors import FunctionError
from rollq.events import Acted, Event, Observed, Sampled
from rollq.training.advantages import ESTIMATORS, estimate
from tests.rollq.agent_episodes import branching
from tests.rollq.samples import closed, observed, prompt, sampled, trajectory
from tests.rollq.token_rows import batch_of, batches

estimators = st.sampled_from(sorted(ESTIMATORS))


def played(*rewards: float | None, grade: float = 0.0, arms: Sequence[int] = ()) -> Trajectory:
    """An episode whose turns get these rewards, each for one sampled token: the arm that was
    pulled.
    """
    events: list[Event] = [prompt()]
    for turn, reward in enumerate(rewards):
        action = {"name": "pull", "arguments": {}} | ({} if reward is None else {"reward": reward})
        events.append(sampled(turn, arms[turn] if arms else 7))
        events.append(replace(observed(turn), actions=[action]))
    return replace(trajectory(), events=[*events, closed(grade)])


@pytest.mark.parametrize(
    ("credit", "group", "expected"),
    [
        # a turn without a reward, and the episode's behind the last: returns [2, 1], [0, 0]
        (TurnCredit(), [([1, None], 1), ([None, None], 0)], [[2, 1], [-2, -1]]),
        # returns [1], [3, 3, 2]: the one that ended keeps its last return, and gives the others a
        # baseline
        (TurnCredit(), [([1], 0), ([0, 1, 2], 0)], [[-2], [2, 2, 1]]),
        (TurnCredit(estimator="dr_grpo"), [([1], 0), ([0, 1, 2], 0)], [[-1], [1, 1, 0.5]]),
        # one deviation for all turns, that of [1, 3]: 1
        (TurnCredit(estimator="grpo"), [([1], 0), ([0, 1, 2], 0)], [[-1], [1, 1, 0.5]]),
        # the first returns agree, so GRPO tells nothing apart
        (TurnCredit(estimator="grpo"), [([1, 2], 0), ([2, 1], 0)], [[0, 0], [0, 0]]),
        (TurnCredit(), [([1, 2], 0), ([2, 1], 0)], [[0, 1], [0, -1]]),
        # three members: the mean of the other two
        (TurnCredit(), [([3], 0), ([0], 0), ([1], 0)], [[2.5], [-2], [-0.5]]),
        # a member alone, and one that sampled nothing
        (TurnCredit(), [([1, 2], 3)], [[0, 0]]),
        (TurnCredit(), [([], 1), ([0, 0], 0)], [[], [-1, -1]]),
    ],
)
def test_by_hand(
    credit: TurnCredit, group: list[tuple[list[float], float]], expected: list[list[float]]
) -> None:
    batch = batch_of([played(*turns, grade=grade) for turns, grade in group])
    assert batch.groups[0].turn_advantages(credit) == [pytest.approx(turns) for turns in expected]
    arrays = batch.arrays(advantages=credit)
    assert arrays.advantages.shape == arrays.tokens.shape
    assert arrays.advantages[arrays.mask].tolist() == pytest.approx([*itertools.chain(*expected)])
    assert not arrays.advantages[~arrays.mask].any()


def test_a_reward_counts_for_the_turns_that_were_sampled_before_it_in_any_trace() -> None:
    """The helper of trace 1 is asked by turn 0 and answers with turns 1 and 3."""
    events = list(branching().events)
    found = Acted(action={"name": "look", "arguments": {}, "reward": 0.5}, text="")
    events.insert(
        events.index(next(e for e in events if getattr(e, "turn", None) == 2)), found
    )  # behind turn 1
    made = replace(branching(), events=events)
    assert TurnCredit().returns(made, 1.0) == [1.5, 1.5, 1.0, 1.0, 1.0]


def test_rewards_of_traces() -> None:
    def of_traces(trajectory: Trajectory) -> dict[int, float]:
        return {
            segment.turns[-1]: score
            for segment, score in zip(trajectory.segments(), [4.0, 2.0, 1.0], strict=True)
        }

    assert TurnCredit(rewards=of_traces).returns(branching(), 8.0) == [15.0, 15.0, 15.0, 11.0, 9.0]


def test_a_turn_that_a_kill_cut_off_is_not_counted() -> None:
    whole = played(1, 2)
    shifted = [
        replace(e, turn=2 * e.turn + 1) if isinstance(e, Sampled | Observed) else e
        for e in whole.events
    ]
    gaps = replace(whole, events=shifted)  # its turns are 1 and 3
    batch = batch_of([gaps, played(0, 1)])
    assert batch.groups[0].turn_advantages(TurnCredit()) == [[0, 2, 0, 1], [-2, -1]]
    arrays = batch.arrays(advantages=TurnCredit())
    assert arrays.advantages[arrays.mask].tolist() == [2, 1, -2, -1]
    assert TurnCredit(rewards=lambda _: {3: 4.0}).returns(gaps, 1.0) == [0, 5, 0, 5]
    with pytest.raises(ContractError, match="gave turn 2 the reward"):
        TurnCredit(rewards=lambda _: {2: 4.0}).returns(gaps, 1.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"estimator": "ppo"},
        {"estimator": []},
        {"discount": 1.1},
        {"discount": -0.1},
        {"discount": math.nan},
        {"discount": None},
    ],
)
def test_what_is_no_credit_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ContractError):
        TurnCredit(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{2: 1.0}, {0: math.nan}])
def test_a_reward_of_no_turn_and_no_number_are_refused_with_the_job(
    given: dict[int, float],
) -> None:
    batch = batch_of([played(0, 0), played(0, 0)])
    with pytest.raises(
        ContractError, match=r"job r/g/0: TurnCredit.rewards gave turn \d the reward"
    ):
        batch.arrays(advantages=TurnCredit(rewards=lambda _: given))


@pytest.mark.parametrize("given", [None, [1.0], {0: None}, {0: "1.0"}, {0: 10**400}])
def test_rewards_that_are_none_name_the_job(given: Any) -> None:
    batch = batch_of([played(0, 0), played(0, 0)])
    with pytest.raises(FunctionError, match=r"job r/g/0: TurnCredit.rewards: \w+Error: "):
        batch.arrays(advantages=TurnCredit(rewards=lambda _: given))


@given(batches, estimators)
def test_with_nothing_but_a_last_reward_each_token_has_the_advantage_of_its_episode(
    batch: Batch, name: str
) -> None:
    credit = TurnCredit(estimator=name)
    for read in (batch.arrays, batch.packed):
        of_rows, of_tokens = read(advantages=name), read(advantages=credit)
        if len(of_rows.rewards):
            rows = _rows_of_tokens(of_tokens)
            assert (of_tokens.advantages[of_tokens.mask] == of_rows.advantages[rows]).all()


def _rows_of_tokens(arrays: object) -> np.ndarray:
    """The row of each sampled token."""
    if hasattr(arrays, "offsets"):
        return np.repeat(np.arange(len(arrays.rewards)), np.diff(arrays.offsets))[arrays.mask]
    return np.nonzero(arrays.mask)[0]


groups = st.lists(
    st.tuples(
        st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=5),
        st.integers(0, 1).map(float),
    ),
    min_size=2,
    max_size=5,
)


@given(groups, estimators, st.sampled_from([0.0, 0.5, 1.0]))
def test_invariants(group: list[tuple[list[float], float]], name: str, discount: float) -> None:
    credit = TurnCredit(estimator=name, discount=discount)
    made = [played(*turns, grade=grade) for turns, grade in group]
    rewards = [grade for _, grade in group]
    found = credit.advantages(made, rewards)
    assert [len(turns) for turns in found] == [len(turns) for turns, _ in group]
    returns = [credit.returns(*member) for member in zip(made, rewards, strict=True)]
    for (turns, grade), its in zip(group, returns, strict=True):
        later = [*(discount * after for after in its[1:]), grade]
        assert its == pytest.approx(
            [reward + rest for reward, rest in zip(turns, later, strict=True)]
        )
    assert [turns[0] for turns in found] == pytest.approx(
        estimate([its[0] for its in returns], name), abs=1e-9
    )
    assert credit.advantages(made[::-1], rewards[::-1])[::-1] == [
        pytest.approx(turns, abs=1e-9) for turns in found
    ]


STOP, TURNS = 2, 3
"""The third arm ends the episode; so does the last turn."""
Path = tuple[int, ...]
Advantages = Callable[[Sequence[Trajectory]], list[list[float]]]


def paths(begin: Path = ()) -> Iterator[Path]:
    """Every way through an episode."""
    for arm in range(3):
        path = (*begin, arm)
        yield from [path] if arm == STOP or len(path) == TURNS else paths(path)


def way(path: Path) -> Trajectory:
    """Arm 1 pays at once, arm 0 pays when the policy stops behind it, which is what the
    grade says.
    """
    grade = 3.0 if path[-2:] == (0, STOP) else 0.0
    return played(*(float(arm == 1) for arm in path), grade=grade, arms=path)


def total(made: Trajectory) -> float:
    return sum(reward or 0.0 for reward in made.turn_rewards) + (made.reward or 0.0)


LOGITS = np.array([[0.2, -0.3, 0.5], [-0.4, 0.1, 0.0], [0.3, 0.6, -0.2]])


def policy(logits: np.ndarray) -> np.ndarray:
    exp = np.exp(logits - logits.max(-1, keepdims=True))
    return exp / exp.sum(-1, keepdims=True)


def scores(path: Sequence[int], logits: np.ndarray, weights: Sequence[float]) -> np.ndarray:
    """The gradient of the turns' weighted logprobs."""
    gradient, chance = np.zeros_like(logits), policy(logits)
    for turn, (arm, weight) in enumerate(zip(path, weights, strict=True)):
        gradient[turn] -= weight * chance[turn]
        gradient[turn, arm] += weight
    return gradient


def expected_gradients(advantages: Advantages) -> tuple[np.ndarray, np.ndarray]:
    """Of groups of two, over all pairs of ways: what the advantages lead to, and the gradient of
    the reward itself.
    """
    ways = {path: way(path) for path in paths()}
    chance = {
        path: math.prod(policy(LOGITS)[turn, arm] for turn, arm in enumerate(path)) for path in ways
    }
    assert math.isclose(sum(chance.values()), 1)
    estimated, true = np.zeros_like(LOGITS), np.zeros_like(LOGITS)
    for pair in itertools.product(ways, repeat=2):
        together = chance[pair[0]] * chance[pair[1]]
        for path, weights in zip(pair, advantages([ways[path] for path in pair]), strict=True):
            estimated += together * scores(path, LOGITS, weights) / 2
            true += together * scores(path, LOGITS, [total(ways[path])] * len(path)) / 2
    return estimated, true


@pytest.mark.parametrize(
    ("name", "factor"), [("rloo", 1.0), ("dr_grpo", 0.5)]
)  # (n - 1) / n, as for episodes
def test_the_expected_gradient_is_that_of_the_reward_although_the_policy_decides_when_to_stop(
    name: str, factor: float
) -> None:
    credit = TurnCredit(estimator=name)
    estimated, true = expected_gradients(
        lambda made: credit.advantages(made, [t.reward or 0.0 for t in made])
    )
    assert np.allclose(estimated, factor * true, atol=1e-12)
