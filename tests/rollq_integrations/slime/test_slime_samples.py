"""Trajectories as slime's samples, by the recorded rules and by slime's own classes and
conversion.
"""

import dataclasses
import importlib
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rollq.batch import Batch, Group
from rollq.errors import ContractError, SettingsError
from rollq.events import Closed, Stop
from rollq.training.arrays import segment_experts
from rollq.trajectory import Trajectory
from rollq.trajectory_extras import ROUTED_EXPERTS
from rollq.wire.routed_experts import routed_experts
from rollq_integrations.slime import reward_post_process
from rollq_integrations.slime.samples import batch_samples, check_arguments, group_samples
from tests.rollq.agent_episodes import rewarded_apart
from tests.rollq.routed_experts import ASKED
from tests.rollq.routed_experts import routed as routed_events
from tests.rollq.token_rows import (
    Trace,
    batch_of,
    episode,
    logprob_of,
    sampled_id,
    scored,
    version_of,
)
from tests.rollq_integrations.slime.conftest import Make
from tests.rollq_integrations.slime.slime_packages import (
    arguments,
    own_conversion,
    recorded_conversion,
)

PLAIN: list[Trace] = [(3, [([2], 2), ([1, 3], 0)])]
LONG: list[Trace] = [(1, [([4], 1), ([0], 3), ([2], 0)])]
SEVERAL: list[Trace] = [(3, [([2], 1)]), (6, [([1, 2], 0)])]
"""Two traces, so two rows."""


def made(*shapes: Sequence[Trace], rewards: Sequence[float] = (1.0, 0.0, 0.25, 0.75)) -> Batch:
    """Groups of two, one episode for each shape."""
    numbers = itertools.count()
    played = enumerate(zip(shapes, rewards, strict=False))
    episodes = [episode(shape, numbers, index % 2, reward) for index, (shape, reward) in played]
    return sized(batch_of(episodes[:2], episodes[2:]))


def sized(batch: Batch) -> Batch:
    return replace(batch, groups=[replace(group, size=2) for group in batch.groups])


def converted(slime: str, args: Any, samples: list[Any]) -> dict[str, Any]:
    return (
        own_conversion(args, samples)[0] if slime == "own" else recorded_conversion(args, samples)
    )


def stopped(trajectory: Trajectory, stop: Stop) -> Trajectory:
    return replace(trajectory, events=[*trajectory.events[:-1], Closed(stop=stop, reward=1.0)])


def test_each_token_has_what_is_true_of_it(slime: str) -> None:
    batch = made(PLAIN, LONG, LONG, PLAIN)
    groups = batch_samples(batch, 0, arguments())
    assert [len(group) for group in groups] == [2, 2]
    for sample, trajectory in zip(itertools.chain(*groups), batch.trajectories, strict=True):
        response = sample.tokens[len(sample.tokens) - sample.response_length :]
        assert sample.tokens == trajectory.tokens.tolist()
        assert (
            sample.tokens[: -sample.response_length] == trajectory.segments()[0].prompt_ids.tolist()
        )
        assert sample.loss_mask == [int(sampled_id(token)) for token in response]
        assert sample.rollout_log_probs == [logprob_of(token) for token in response]
        assert sample.weight_versions == list(
            dict.fromkeys(v for v in map(version_of, response) if v)
        )
        assert (sample.reward, sample.metadata["job"]) == (trajectory.reward, trajectory.job.id)


def test_slime_converts_them_without_a_change(slime: str) -> None:
    batch = made(PLAIN, LONG, LONG, PLAIN)
    data = converted(slime, arguments(), batch_samples(batch, 0, arguments()))
    rows = sorted(
        range(4), key=list(data.get("partition", range(4))).__getitem__
    )  # slime spreads them over ranks
    for row, trajectory in zip(rows, batch.trajectories, strict=True):
        assert list(data["tokens"][row]) == list(trajectory.tokens)
        response = list(trajectory.tokens)[-len(data["loss_masks"][row]) :]
        assert [bool(trained) for trained in data["loss_masks"][row]] == [
            sampled_id(token) for token in response
        ]
        assert [float(value) for value in data["rollout_log_probs"][row]] == [
            logprob_of(token) for token in response
        ]


def test_chosen_traces_are_the_samples(slime: str) -> None:
    batch = made(PLAIN, SEVERAL)
    [[plain, longest], _] = batch_samples(batch, 0, arguments(), "longest")
    first, second = batch.trajectories
    assert plain.tokens == first.tokens.tolist()
    assert longest.tokens == second.tokens.tolist()[second.traces[0] :]


def test_places_are_the_same_after_a_restart(slime: str) -> None:
    batch = made(PLAIN, LONG, LONG, PLAIN)
    groups = batch_samples(batch, 3, arguments())
    assert [[sample.index for sample in group] for group in groups] == [[12, 13], [14, 15]]
    assert [[sample.group_index for sample in group] for group in groups] == [[6, 6], [7, 7]]
    assert all(sample.rollout_id == sample.index for group in groups for sample in group)


def test_versions_are_whole_numbers(slime: str) -> None:
    batch = made(PLAIN, LONG, LONG, PLAIN)
    batch.version_steps = {f"step-{step}": 40 + step for step in range(5)}
    [[sample, _], _] = batch_samples(batch, 0, arguments())
    assert sample.weight_versions and all(name.startswith("4") for name in sample.weight_versions)


@pytest.mark.parametrize(
    ("stop", "status"),
    [
        (Stop.DONE, "completed"),
        (Stop.MALFORMED, "completed"),
        (Stop.TURNS, "truncated"),
        (Stop.LENGTH, "truncated"),
    ],
)
def test_a_spent_budget_is_truncated(slime: str, stop: Stop, status: str) -> None:
    batch = made(PLAIN, LONG, LONG, PLAIN)
    first = batch.groups[0]
    batch.groups = [
        replace(first, trajectories=[stopped(t, stop) for t in first.trajectories]),
        *batch.groups[1:],
    ]
    [[sample, _], _] = batch_samples(batch, 0, arguments())
    assert sample.status.value == status


def test_an_episode_with_several_traces_is_one_execution(slime: str) -> None:
    args = arguments(custom_reward_post_process_path="rollq_integrations.slime.reward_post_process")
    batch = made(PLAIN, SEVERAL, LONG, PLAIN)
    groups = batch_samples(batch, 0, args)
    assert [[len(member) for member in group] for group in groups] == [[1, 2], [1, 1]]
    assert {sample.rollout_id for sample in groups[0][1]} == {1}
    data = converted(slime, args, groups)
    assert sorted(map(int, data["rollout_ids"])) == [0, 1, 1, 2, 3]
    trained = [
        token
        for row in groups
        for member in row
        for s in member
        for token in s.tokens[-s.response_length :]
    ]
    sampled = [token for token in trained if sampled_id(token)]
    assert len(sampled) == len(set(sampled))  # each once


def test_a_filter_gets_the_samples_of_a_group_in_one_list(source: Make) -> None:
    path = "tests.rollq_integrations.slime.slime_filters.rewards_differ"
    keeps = source(dynamic_sampling_filter_path=path).dynamic_sampling_filter
    batch = made(PLAIN, SEVERAL, LONG, SEVERAL, rewards=(1.0, 0.0, 0.5, 0.5))
    assert [keeps(group) for group in batch.groups] == [True, False]


def test_several_traces_without_the_reward_function_are_refused(slime: str) -> None:
    with pytest.raises(SettingsError, match="--custom-reward-post-process-path"):
        batch_samples(made(PLAIN, SEVERAL, LONG, PLAIN), 0, arguments())


def test_an_episode_counts_once_in_its_group_however_many_rows_it_has(slime: str) -> None:
    args = arguments(custom_reward_post_process_path="rollq_integrations.slime.reward_post_process")
    groups = batch_samples(made(PLAIN, SEVERAL, LONG, PLAIN), 0, args)
    raw, rewards = reward_post_process(
        args, [s for group in groups for member in group for s in member]
    )
    assert raw == [1.0, 0.0, 0.0, 0.25, 0.75]
    half = 0.5**0.5  # of 1 and 0: mean 0.5, std over n - 1
    expected = [0.5 / half, -0.5 / half, -0.5 / half, -0.25 / (0.5 * half), 0.25 / (0.5 * half)]
    assert rewards == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("slime", ["own"], indirect=True)
@pytest.mark.parametrize(
    "estimator", ["grpo", "gspo", "cispo", "reinforce_plus_plus_baseline", "ppo"]
)
@pytest.mark.parametrize("by_std", [True, False])
def test_of_plain_groups_it_makes_what_slime_makes(
    slime: str, estimator: str, by_std: bool
) -> None:
    args = arguments(advantage_estimator=estimator, grpo_std_normalization=by_std)
    groups = batch_samples(made(PLAIN, LONG, LONG, PLAIN), 0, args)
    _, ours = reward_post_process(args, [sample for group in groups for sample in group])
    [data] = own_conversion(args, groups)
    theirs = dict(zip(data["sample_indices"], data["rewards"], strict=True))
    assert [theirs[index] for index in range(4)] == pytest.approx(ours, rel=1e-5)


def test_the_recorded_fields_are_slimes(slime: str) -> None:
    sample = importlib.import_module("slime.utils.types").Sample
    names = {field.name for field in dataclasses.fields(sample)}
    recorded = (
        "group_index index rollout_id prompt tokens response response_length label reward loss_mask"
    )
    recorded += " weight_versions rollout_log_probs remove_sample status metadata"
    assert names >= {*recorded.split()}
    assert {status.value for status in sample.Status} == {
        "pending",
        "completed",
        "truncated",
        "aborted",
        "failed",
    }


def test_a_group_keeps_no_place_for_a_member_that_sampled_nothing(slime: str) -> None:
    from rollq_integrations.slime.samples import group_samples

    numbers = itertools.count()
    group = Group(
        id="g",
        seq=0,
        size=2,
        trajectories=[episode(PLAIN, numbers), episode([(3, [])], numbers, 1)],
    )
    assert len(group_samples(group)) == 1


def routed(batch: Batch) -> Batch:
    """The same, with routed experts."""
    groups = []
    for group in batch.groups:
        asked = [replace(t, job=replace(t.job, routed_experts=ASKED)) for t in group.trajectories]
        asked = [replace(t, events=routed_events(t.events)) for t in asked]
        joined = [replace(t, extras={ROUTED_EXPERTS: routed_experts(t)}) for t in asked]
        groups.append(replace(group, trajectories=joined))
    return replace(batch, groups=groups)


def test_routed_experts_are_those_of_the_tokens(slime: str) -> None:
    batch = routed(made(PLAIN, LONG, LONG, SEVERAL))
    args = arguments(custom_reward_post_process_path="rollq_integrations.slime.reward_post_process")
    groups = batch_samples(batch, 0, args)
    for member, trajectory in zip(itertools.chain(*groups), batch.trajectories, strict=True):
        for sample, experts in zip(member, segment_experts(trajectory), strict=True):
            found = sample.rollout_routed_experts
            assert found.shape == (len(sample.tokens) - 1, 2, 2) and str(found.dtype) == "int32"
            assert found.tolist() == experts[:-1].tolist()


def test_a_replay_needs_jobs_that_record_routed_experts_of_its_model(slime: str) -> None:
    replayed = arguments(use_rollout_routing_replay=True, num_layers=2, moe_router_topk=2)
    batch = made(PLAIN, LONG, LONG, PLAIN)
    with pytest.raises(SettingsError, match="jobs record none: submit them with routed_experts"):
        check_arguments(batch.groups[0], replayed)
    check_arguments(routed(batch).groups[0], replayed)
    replayed.num_layers = 48
    with pytest.raises(
        SettingsError, match="jobs have 2, and slime's --num-layers is 48: make them equal"
    ):
        check_arguments(routed(batch).groups[0], replayed)


def test_a_teachers_logprobs_are_where_slime_looks_for_them(slime: str) -> None:
    batch = made(SEVERAL, PLAIN)
    group = batch.groups[0]
    taught = [scored(trajectory, "math") for trajectory in group.trajectories]
    batch = replace(batch, groups=[replace(group, trajectories=taught)])
    args = arguments(custom_reward_post_process_path="rollq_integrations.slime.reward_post_process")
    [members] = batch_samples(replace(batch, groups=batch.groups[:1]), 0, args)
    rows = [row for rows in members for row in rows]
    assert len(rows) == 3
    for row in rows:
        response = row.tokens[-row.response_length :]
        assert row.teacher_log_probs == [logprob_of(token) / 2 for token in response]
    assert batch_samples(made(PLAIN, PLAIN), 0, arguments())[0][0].teacher_log_probs is None


def test_agents_with_rewards_of_their_own_are_refused(slime: str) -> None:
    group = Group(id="g", seq=1, size=1, trajectories=[rewarded_apart()])
    with pytest.raises(ContractError, match=r"its agents have rewards of their own.*slime"):
        group_samples(group)
