"""Groups as slime's samples: one sample for each row to train on.

Read from slime 0.3.1 (slime/utils/types.py and slime/ray/rollout.py): `tokens` is prompt and
response, while the loss mask, the logprobs and the response's length begin after the prompt. slime
compares samples by their place in the list, so every group has exactly `n_samples_per_prompt`
members.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import fmean, stdev
from typing import Any

from rollq import Batch, Group, Segment, SettingsError, Trajectory
from rollq.events import Sampled, Stop
from rollq.images import refuse_images
from rollq.training.arrays import refuse_agent_rewards, segment_experts

Sample = Any
"""slime.utils.types.Sample, which only slime's processes can import."""

TRUNCATED = frozenset({Stop.TURNS, Stop.LENGTH})
"""Stops of episodes that a budget ended."""
BY_GROUP = frozenset({"grpo", "gspo", "cispo", "reinforce_plus_plus_baseline"})
"""slime's advantage estimators whose rewards it centres in each group."""
BY_STD = frozenset({"grpo", "gspo", "cispo"})
"""The estimators among them whose rewards it also divides by the standard deviation."""
EPSILON = 1e-6
"""slime adds it to the standard deviation."""


def batch_samples(batch: Batch, rollout_id: int, args: Any, traces: str = "all") -> list[Any]:
    """The samples of one rollout: a list of groups, each a list of `n_samples_per_prompt` samples.

    When a trajectory has several rows (`history=template`, `context`), every member of every group
    is a list of samples instead, which share a `rollout_id`. Raises SettingsError when slime would
    then compare the wrong samples. `index` and `group_index` count over all rollouts, and are the
    same after a restart.
    """
    first = rollout_id * args.rollout_batch_size
    groups = [
        group_samples(group, index, batch.version_steps, traces)
        for index, group in enumerate(batch.groups, first)
    ]
    if all(len(member) == 1 for members in groups for member in members):
        return [[sample for [sample] in members] for members in groups]
    if args.custom_reward_post_process_path is None and _centres(args):
        raise SettingsError(
            f"run {batch.trajectories[0].job.run}: an episode is several samples "
            "(history=template, context), and slime would take one mean over the whole batch. "
            "Start it with --custom-reward-post-process-path "
            "rollq_integrations.slime.reward_post_process."
        )
    return groups


def check_arguments(group: Group, args: Any) -> None:
    """Raises SettingsError when slime's arguments say other things of a group than its jobs.

    slime divides the logits by its own `rollout_temperature` when it computes logprobs
    (megatron_utils/loss.py), and does not know of tokens that other sampling parameters left out.
    """
    job = group.trajectories[0].job
    wanted = [
        ("--n-samples-per-prompt", args.n_samples_per_prompt, group.size),
        ("--rollout-temperature", args.rollout_temperature, job.sampling.get("temperature", 1.0)),
        ("--rollout-top-p", args.rollout_top_p, job.sampling.get("top_p", 1.0)),
        ("--rollout-top-k", args.rollout_top_k, job.sampling.get("top_k", -1)),
    ]
    if args.use_rollout_routing_replay:
        if not job.routed_experts:
            raise SettingsError(
                "slime's --use-rollout-routing-replay needs routed experts, and the run's jobs "
                "record none: submit them with routed_experts"
            )
        wanted += [("--num-layers", args.num_layers, job.routed_experts["layers"])]
        wanted += [("--moe-router-topk", args.moe_router_topk, job.routed_experts["top_k"])]
    for flag, slimes, ours in wanted:
        if ours != slimes:
            raise SettingsError(
                f"the run's jobs have {ours}, and slime's {flag} is {slimes}: make them equal"
            )


def group_samples(
    group: Group, index: int = 0, steps: Mapping[str, int] | None = None, traces: str = "all"
) -> list[list[Sample]]:
    """The rows of each member of a group. `index` is the group's, `steps` the step of each weight
    version, `traces` as in `Trajectory.segments`.
    """
    members = zip(group.trajectories, group.rewards, strict=True)
    return [
        _samples(trajectory, reward, index, index * group.size + place, steps or {}, traces)
        for place, (trajectory, reward) in enumerate(members)
        if trajectory.segments(traces)
    ]


def _samples(
    trajectory: Trajectory,
    reward: float,
    group: int,
    index: int,
    steps: Mapping[str, int],
    traces: str,
) -> list[Sample]:
    """A sample for each segment. slime wants routed experts as SGLang reports them: int32, and none
    of the last token. Raises ContractError for an episode with images, or with agents that have
    rewards of their own.
    """
    refuse_images(trajectory, "slime")
    refuse_agent_rewards(trajectory, "slime")
    samples = [
        _sample(segment, trajectory, reward, group, index, steps)
        for segment in trajectory.segments(traces)
    ]
    for sample, experts in zip(samples, segment_experts(trajectory, traces), strict=False):
        sample.rollout_routed_experts = experts[:-1].astype("int32")
    return samples


def _sample(
    segment: Segment,
    trajectory: Trajectory,
    reward: float,
    group: int,
    index: int,
    steps: Mapping[str, int],
) -> Sample:
    from slime.utils.types import Sample as SlimeSample

    sample = SlimeSample(
        group_index=group,
        index=index,
        rollout_id=index,
        prompt=segment.prompt_messages,
        tokens=segment.prompt_ids.tolist(),
        reward=reward,
        metadata=_metadata(trajectory),
    )
    start = 0
    for trainable, run in groupby(segment.mask):
        end = start + len(list(run))
        sample.append_response_tokens(
            tokens=segment.response_ids[start:end].tolist(),
            log_probs=segment.logprobs[start:end].tolist() if trainable else None,
            trainable=bool(trainable),
        )
        start = end
    sample.response = "".join(event.text for event in segment.events if isinstance(event, Sampled))
    if len(segment.teacher_logprobs) == 1:  # slime has a place for one teacher
        [scores] = segment.teacher_logprobs.values()
        sample.teacher_log_probs = scores.tolist()
    sample.weight_versions = _numbers(segment.versions, steps)
    sample.status = (
        SlimeSample.Status.TRUNCATED
        if trajectory.stop in TRUNCATED
        else SlimeSample.Status.COMPLETED
    )
    return sample


def _metadata(trajectory: Trajectory) -> dict[str, Any]:
    job = trajectory.job
    return {
        "job": job.id,
        "task": job.task,
        "stop": str(trajectory.stop),
        "labels": dict(job.labels),
        "source_name": job.env,  # slime's own key: it keeps metrics by source
    }


def _numbers(versions: Sequence[str | None], steps: Mapping[str, int]) -> list[str]:
    """The weight versions of a row in the order in which they sampled. slime reads whole numbers:
    its own count of updates, which its engines report; the step of a version that has another name;
    else the name as it is.
    """
    names = dict.fromkeys(version for version in versions if version is not None)
    return [name if name.isdecimal() else str(steps.get(name, name)) for name in names]


def reward_post_process(args: Any, samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    """The rewards as they are, and normalised in each group, for slime's
    --custom-reward-post-process-path.

    slime's own way reshapes the rewards by place, which is wrong once an episode is several
    samples. Here an episode counts once in its group, and all its samples get its value: r - mean,
    divided by std + 1e-6 for grpo, gspo and cispo with std normalisation. The std is over n - 1, as
    torch computes it.
    """
    raw = [float(sample.get_reward_value(args)) for sample in samples]
    if not _centres(args):
        return raw, raw
    groups: dict[int, dict[int, float]] = defaultdict(dict)
    for sample, reward in zip(samples, raw, strict=True):
        groups[sample.group_index][sample.rollout_id] = reward
    by_std = args.advantage_estimator in BY_STD and args.grpo_std_normalization
    normal = {}
    for group, episodes in groups.items():
        rewards = list(episodes.values())
        scale = stdev(rewards) + EPSILON if by_std and len(rewards) > 1 else 1.0
        normal[group] = (fmean(rewards), scale)
    scaled = []
    for sample, reward in zip(samples, raw, strict=True):
        mean, scale = normal[sample.group_index]
        scaled.append((reward - mean) / scale)
    return raw, scaled


def _centres(args: Any) -> bool:
    return args.advantage_estimator in BY_GROUP and args.rewards_normalization
